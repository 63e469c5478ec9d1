"""Entry points of the virtual NVIDIA GPUs, which `hcq.open("virtual:gh100")` and similar use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.planting import number
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.nv.chips import MODELLED
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.sm_contract import Multiprocessors

CHIPS = MODELLED


def facts_of(name: str) -> ChipFacts:
    """Return the facts of a chip in CHIPS. Raises BadArgument for another name."""
    if name not in CHIPS:
        raise BadArgument(f"virtual chip must be one of {', '.join(CHIPS)}, got {name!r}")
    facts: ChipFacts = importlib.import_module(f"ugpu.nv.chips.{name}.facts").FACTS
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
    """Return a new program's node on `chip` (a machine, still owned by the caller) or a new one.

    index: which GPU of the machine. driver: version of the kernel driver. gpus, memory (bytes):
    of a new machine. coherence: whether a new machine reports missing barriers and missing
    invalidations of global data. machine: all options of a new machine at once.
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


def faults() -> Mapping[str, str]:
    """Return the faults that can be planted by name, see hcq.find.planting, with their effects."""
    card = {fault.name.lower(): f"{fault.value} (+gsp)" for fault in CardFault}
    return {fault.name.lower(): fault.effect for fault in Fault} | card


def plant(chip: VirtualMachine, fault: str, value: str) -> None:
    """Plant a fault by name. value: how many operations it affects; 1 if it is empty.

    chip: a machine, or a card at register level, whose GPU is that of a machine.
    """
    own = CardFault.__members__.get(fault.upper())
    if own is not None:
        inject: Callable[[CardFault, int], None] | None = getattr(chip, "inject_card", None)
        if inject is None:
            raise BadArgument(
                f"{fault} is planted in cards at register level, as virtual:ad102+gsp"
            )
        inject(own, number(fault, value or "1", 1))
        return
    machine: VirtualMachine = getattr(chip, "machine", chip)
    machine.inject(Fault[fault.upper()], count=number(fault, value or "1", 1))
