"""Texts for grids that cannot continue, and for violations that boards tolerate.

A fault ends a kernel on boards too, or makes it wait forever. A violation is behaviour that the ISA
forbids and boards do not trap: the kernel continues.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.launch.worker import Run, Worker
from ugpu.virtual.nvidia.sm_contract import INSTRUCTION_BYTES, SmEnding, SmOutcome

_ENDINGS = {
    layout.BAD_ADDRESS: (SmEnding.ILLEGAL_ADDRESS, "out of range"),
    layout.MISALIGNED: (SmEnding.MISALIGNED_ADDRESS, "misaligned"),
    layout.TRAPPED: (SmEnding.ILLEGAL_INSTRUCTION, "trap"),
    layout.MMU: (SmEnding.MMU_FAULT, "not mapped so"),
    layout.BREAKPOINT: (SmEnding.ASSERT, "breakpoint"),
    layout.NO_MBARRIER: (SmEnding.ILLEGAL_INSTRUCTION, "holds no mbarrier object"),
    layout.BAD_COUNT: (SmEnding.ILLEGAL_INSTRUCTION, "more than the mbarrier object can count"),
    layout.IN_FLIGHT: (
        SmEnding.ILLEGAL_INSTRUCTION, "a register of a wgmma.mma_async that is still in flight",
    ),
    layout.WARP_GROUP: (
        SmEnding.ILLEGAL_INSTRUCTION,
        "the four warps of a warp group do not execute the same wgmma instructions",
    ),
    layout.BAD_DESCRIPTOR: (SmEnding.ILLEGAL_INSTRUCTION, "is not a matrix descriptor for this"),
    layout.STACK_FULL: (SmEnding.ILLEGAL_ADDRESS, "the stack of a thread is full"),
    layout.BAD_RANK: (SmEnding.ILLEGAL_ADDRESS, "in no group of the cluster"),
    layout.GROUP_ENDED: (SmEnding.ILLEGAL_ADDRESS, "in a group that has ended"),
    layout.GROUP_NOT_BEGUN: (SmEnding.ILLEGAL_ADDRESS, "in a group that has not begun"),
    layout.ARRIVED_TWICE: (
        SmEnding.ILLEGAL_INSTRUCTION, "arrived, and not waited since",
    ),
    layout.NOT_ARRIVED: (SmEnding.ILLEGAL_INSTRUCTION, "waits without having arrived"),
    layout.NOT_ONE_GROUP: (
        SmEnding.ILLEGAL_INSTRUCTION, "data and mbarrier object are not where they must be",
    ),
    layout.NOT_TOGETHER: (
        SmEnding.ILLEGAL_INSTRUCTION, "lanes that the mask names never execute it together",
    ),
}  # fmt: skip
_VIOLATIONS = {
    layout.NO_PROXY_FENCE: "shared memory at {:#x}: written there without fence.proxy.async",
    layout.NO_REGISTER_FENCE: "its registers were touched without wgmma.fence",
}


def faulted(worker: Worker, code: list[Instruction], run: Run) -> SmOutcome:
    """Describe a warp that could not continue."""
    fault = worker.word(layout.FAULT_CODE)
    index = worker.word(layout.FAULT_INDEX)
    instruction = code[index] if index < len(code) else None
    ending, why = _ENDINGS.get(fault, (SmEnding.ILLEGAL_INSTRUCTION, "failed"))
    opcode = instruction.opcode if instruction is not None else "?"
    detail = f"{opcode}: {why}"
    address = worker.quad(layout.FAULT_ADDRESS)
    if fault == layout.NO_MBARRIER:
        detail = f"{opcode}: shared memory at {address:#x}: {why}"
    elif fault == layout.BAD_DESCRIPTOR:
        detail = f"{opcode}: {address:#018x} {why}"
    elif fault == layout.BAD_COUNT:
        detail = f"{opcode}: a count of {address} is {why}"
    elif fault in (layout.BAD_ADDRESS, layout.MISALIGNED, layout.BAD_RANK, layout.GROUP_ENDED,
                   layout.GROUP_NOT_BEGUN):  # fmt: skip
        detail = f"{opcode}: address {address:#x} is {why}"
    elif fault == layout.MMU:
        detail = f"{opcode}: {worker.access.name.lower()} of {address:#x} is {why}"
    group = worker.quad(layout.GROUP)
    x, y, _ = run.grid.launch.grid
    return SmOutcome(
        ending, detail, index * INSTRUCTION_BYTES, (group % x, group // x % y, group // (x * y)),
        worker.word(layout.FAULT_WARP), worker.word(layout.FAULT_LANES),
        instruction.line if instruction is not None else 0, address,
    )  # fmt: skip


def violations(code: list[Instruction], run: Run) -> tuple[str, ...]:
    """Describe the kernel's errors that boards tolerate, once for each instruction."""
    found = []
    for (violation, index), (count, address) in sorted(run.violations.items()):
        instruction = code[index]
        text = _VIOLATIONS[violation].format(address)
        if violation == layout.NO_REGISTER_FENCE and 2 <= address < 2 + len(code):
            touch = code[address - 2]
            text += f": {touch.opcode} in line {touch.line}"
        times = f" ({count} times)" if count > 1 else ""
        found.append(f"PTX line {instruction.line}: {instruction.opcode}: {text}{times}")
    return tuple(found)
