"""Translate a PTX kernel into one LLVM function that runs a warp.

`i32 kernel(context, warp)` starts at the kernel's entry or, after waiting, at the block stored in
the warp's state. It returns a code of `runtime.layout`. Registers are stack slots, which SROA turns
into values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Module, Special
from ugpu.virtual.nvidia.sm.translator import moves, special, warp
from ugpu.virtual.nvidia.sm.translator.access import atomic, cluster, copies, mbarrier, memory, wide
from ugpu.virtual.nvidia.sm.translator.access.variables import Places, place
from ugpu.virtual.nvidia.sm.translator.arithmetic import (
    bits,
    convert,
    floats,
    integer,
    transcendental,
    video,
    video_scalar,
)
from ugpu.virtual.nvidia.sm.translator.control import calls, stepping
from ugpu.virtual.nvidia.sm.translator.control.analysis import analyse
from ugpu.virtual.nvidia.sm.translator.control.flatten import Flat, flatten
from ugpu.virtual.nvidia.sm.translator.control.flow import Flow
from ugpu.virtual.nvidia.sm.translator.control.frame import module_of
from ugpu.virtual.nvidia.sm.translator.control.graph import build, loops
from ugpu.virtual.nvidia.sm.translator.control.waiting import waits
from ugpu.virtual.nvidia.sm.translator.handler import FLOAT_TYPES, Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.matrix import matrix, wgmma, wmma
from ugpu.virtual.nvidia.sm.translator.matrix.held import held_by
from ugpu.virtual.nvidia.sm.translator.targets import check
from ugpu.virtual.nvidia.sm.translator.value import Value

NAME = "nvsm_kernel"
_MANY = 24  # memory accesses; if there are more, those outside of loops become calls
_VERY_MANY = 150  # if there are more, all become calls
_MEMORY = frozenset(("ld", "st", "ldu"))
_MODULES = (bits, moves, convert, transcendental, memory, atomic, warp, copies, matrix, mbarrier,
            wgmma, wide, wmma, cluster, video, video_scalar, calls)  # fmt: skip


@dataclass(frozen=True)
class Translation:
    """A kernel as LLVM IR. state_size: bytes of a warp's state. code: for naming faults. stepped:
    where a debugger finds registers, for code that it can halt."""

    ir: str
    state_size: int
    places: Places
    code: list[Instruction]
    stepped: stepping.StepPlaces | None = None


@cache
def _handlers() -> tuple[dict[str, Handler], dict[str, Handler], dict[str, Handler]]:
    """Return the emitters by name: of floats, of integers, and of other instructions."""
    common: dict[str, Handler] = {}
    for module in _MODULES:
        common.update(module.handlers())
    return floats.handlers(), integer.handlers(), common


@cache
def _calm() -> frozenset[Handler]:
    """Return the emitters that touch neither memory nor other lanes, or settle faults before."""
    of_floats, of_integers, common = _handlers()
    modules = (bits, convert, memory, moves, transcendental, video, video_scalar)
    found = {common[name] for module in modules for name in module.handlers()}
    return frozenset((*found, *of_floats.values(), *of_integers.values()))


def handler_of(i: Instruction) -> Handler | None:
    """Return the emitter of an instruction.

    st.async and red.async with .release access global memory; executed at once, they are in order.
    """
    of_floats, of_integers, common = _handlers()
    if i.modifiers and i.modifiers[-1] in FLOAT_TYPES and i.name in of_floats:
        return of_floats[i.name]
    if "async" in i.modifiers and f"{i.name}.async" in common and "release" not in i.modifiers:
        return common[f"{i.name}.async"]
    if "b128" in i.modifiers and f"{i.name}.wide" in common:
        return common[f"{i.name}.wide"]
    return of_integers.get(i.name) or common.get(i.name) or of_floats.get(i.name)


class _Kernel(Kernel):
    def special(self, operand: Special, element: str) -> Value:
        return special.read(self, operand.name, element)


def flies(code: list[Instruction]) -> bool:
    """Return whether a kernel has asynchronous copies or products, or waits for them."""
    return any(i.name in ("cp", "mbarrier", "wgmma") or "async" in i.modifiers for i in code)


def meets_clusters(code: list[Instruction]) -> bool:
    """Return whether a kernel has cluster barriers."""
    return any(i.name == "barrier" and "cluster" in i.modifiers for i in code)


def _through_proxy(code: list[Instruction]) -> bool:
    """Return whether a kernel accesses shared memory through the asynchronous proxy."""
    return any(i.name == "wgmma" or (i.name == "cp" and "bulk" in i.modifiers) for i in code)


def prepare(module: Module, name: str) -> tuple[Flat, Places]:
    """Flatten a kernel and lay out its variables. Raises NotSupported and BadCodeObject."""
    entry = module.functions[name]
    flat = flatten(module, entry)
    check(module.target, flat.code)
    return flat, place(module, entry, flat)


def translate(
    flat: Flat, places: Places, full: bool, rows: bool, *, quick: bool = False,
    stepped: bool = False,
) -> Translation:  # fmt: skip
    """Translate a kernel.

    full: all warps have 32 lanes. rows: the block's x is a multiple of 32, so that a warp is
    within one row. quick: memory accesses are calls, and registers are in memory between blocks, so
    that the code compiles fast without any pass. stepped: the code halts on request
    (`translator.stepping`). Raises NotSupported, which names instruction and line.
    """
    graph = build(flat)
    held = held_by(graph)
    facts = analyse(graph, rows, held.places.keys())
    k = _Kernel(facts, places, full, rows)
    k.held = held
    k.stepped = stepped
    k.proxies = _through_proxy(flat.code)
    flow = Flow(k, graph, waits(graph))
    count = sum(i.name in _MEMORY for block in graph.blocks for i in block.code)
    looped = loops(graph)
    for number, block in enumerate(graph.blocks):
        k.outlines = quick or count > _VERY_MANY or (count > _MANY and number not in looped)
        k.begin(f"b{number}")
        k.block, k.divergent = number, facts.divergent[number]
        k.running, k.running_lanes = "", None
        flow.gather(number)
        k.enter()
        for instruction in block.code:
            emit(k, instruction)
        k.settle()
        flow.finish(number)
    ir, size = module_of(k, graph, flow, NAME, quick=quick)
    seen = stepping.placed(k) if stepped else None
    return Translation(ir, size, places, flat.code, seen)


def emit(k: Kernel, i: Instruction) -> None:
    """Emit one instruction that is not control flow."""
    k.now = i
    if k.stepped:
        stepping.look(k, i)
    handler = handler_of(i)
    if handler is None:
        raise k.unsupported()
    if handler not in _calm():
        k.settle()
    k.guard = None
    if i.guard is not None:
        value = k.register(i.guard)
        k.guard = k.negate(value) if i.negated else value
    try:
        handler(k, i)
    except (KeyError, IndexError) as error:
        raise NotSupported(
            f"PTX line {i.line}: {i.opcode} with unsupported operands ({error})",
            line=i.line, instruction=i.opcode,
        ) from error  # fmt: skip
    finally:
        k.guard = None
