"""The doors to the virtual NVIDIA GPUs: what `hcq.open("virtual:gh100")` and its kin find."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from hcq.errors import BadArgument
from hcq.transport.node import NodeAttachment
from nv.chips import MODELLED
from nv.chips.facts import ChipFacts
from nv.virtual.machine import VirtualMachine
from nv.virtual.node import VirtualNode
from nv.virtual.options import MachineOptions
from nv.virtual.sm_contract import Multiprocessors

CHIPS = MODELLED


def facts_of(name: str) -> ChipFacts:
    """The facts of one of CHIPS; BadArgument for another."""
    if name not in CHIPS:
        raise BadArgument(f"virtual chip must be one of {', '.join(CHIPS)}, got {name!r}")
    facts: ChipFacts = importlib.import_module(f"nv.chips.{name}.facts").FACTS
    return facts


def build_machine(name: str, options: MachineOptions | None = None) -> VirtualMachine:
    """Build a machine with GPUs of a chip and switch it on. The caller closes it."""
    return VirtualMachine(facts_of(name), options)


def attach(
    name: str = "gh100",
    *,
    chip: VirtualMachine | None = None,
    index: int = 0,
    driver: str = "580.142",
    gpus: int = 1,
    memory: int | None = None,
    coherence: bool = False,
    machine: MachineOptions | None = None,
    multiprocessors: Callable[[ChipFacts], Multiprocessors] | None = None,
) -> NodeAttachment:
    """A node of a new program, on `chip` (a machine, which stays the caller's) or a new machine.

    index: which GPU of the machine. driver: version of the kernel driver. gpus, memory (bytes):
    of a new machine. coherence: whether it watches for barriers and invalidations of global data
    that are missing. machine: all of its options at once.
    """
    if chip is not None:
        if not isinstance(chip, VirtualMachine) or chip.facts.name != name:
            raise BadArgument(f"chip must be a virtual machine with {name}", given=repr(chip))
        node = VirtualNode(chip)
    else:
        options = machine or MachineOptions(
            driver=driver,
            gpus=gpus,
            memory=memory,
            coherence=coherence,
            multiprocessors=multiprocessors,
        )
        chip = build_machine(name, options)
        node = VirtualNode(chip, owns_machine=True)
    if not 0 <= index < len(chip.gpus):
        raise BadArgument(
            f"index must be below {len(chip.gpus)} (GPUs of this machine)", index=index
        )
    return NodeAttachment(node, "nvrm", index, chip)
