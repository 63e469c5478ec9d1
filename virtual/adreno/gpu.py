"""Open virtual Adreno GPUs: the targets of `hcq.open("virtual:a630")` and similar names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.planting import number
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.qcom.chips import facts as chip_facts
from ugpu.qcom.chips import names
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.msm.node import MsmNode
from ugpu.virtual.adreno.node import VirtualNode
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.shader import ShaderProcessors

_NODES: dict[str, type[VirtualNode]] = {"kgsl": VirtualNode, "msm": MsmNode}


def build_machine(name: str, options: MachineOptions | None = None) -> VirtualMachine:
    """Build a machine with a chip and switch it on. The caller closes it."""
    if name not in names():
        raise BadArgument(f"virtual chip must be one of {', '.join(names())}, got {name!r}")
    return VirtualMachine(chip_facts(name), options)


def attach(
    name: str = "a630",
    *,
    chip: VirtualMachine | None = None,
    caches: Literal["strict", "coherent"] = "strict",
    hang_limit_s: float = 20.0,
    kernel_driver: Literal["kgsl", "msm"] = "kgsl",
    machine: MachineOptions | None = None,
    processors: Callable[[ChipFacts], ShaderProcessors] | None = None,
) -> NodeAttachment:
    """Return a node of a new program, on `chip` or on a new machine.

    chip: a machine that the caller keeps owning. caches, hang_limit_s, processors: of a new
    machine, see MachineOptions. machine: all of its options together. kernel_driver: the kernel
    driver of the node.
    """
    if kernel_driver not in _NODES:
        have = ", ".join(_NODES)
        raise BadArgument(f"kernel_driver must be one of {have}, got {kernel_driver!r}")
    make = _NODES[kernel_driver]
    if chip is not None:
        if not isinstance(chip, VirtualMachine) or chip.facts.name != name:
            raise BadArgument(f"chip must be a virtual machine with {name}", given=repr(chip))
        return NodeAttachment(make(chip), kernel_driver, 0, chip)
    options = machine or MachineOptions(
        caches=caches, hang_limit_s=hang_limit_s, processors=processors
    )
    chip = build_machine(name, options)
    return NodeAttachment(make(chip, owns_machine=True), kernel_driver, 0, chip)


def faults() -> Mapping[str, str]:
    """Return the faults that can be planted by name, see hcq.find.planting, with their effects."""
    return {fault.name.lower(): fault.effect for fault in Planted}


def plant(chip: VirtualMachine, fault: str, value: str) -> None:
    """Plant a fault by name. value: how many operations it affects; 1 if it is empty."""
    chip.inject(Planted[fault.upper()], count=number(fault, value or "1", 1))
