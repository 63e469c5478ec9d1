"""Rules that code must keep and that show as stale values on a GPU: the flags (ss) and (sy).

Results of some instructions arrive late. What reads or overwrites them must carry, or come after,
a flag that waits: (ss) for category 4, local memory, shuffles and shared registers, (sy) for other
loads, samplers and atomics. What such instructions read is taken late too. A join of two ways has
what is late on either; so have the sides of predicated code, which are for different threads. All
code that control can reach counts, whether or not it has run.
Source: Mesa 25.0.7, src/freedreno/ir3/ir3_legalize.c (legalize_block), ir3.h (is_ss_producer,
is_sy_producer, is_war_hazard_producer), ir3.c (is_scalar_alu).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from qcom.virtual.sp.operands import Op
from qcom.virtual.sp.program import Block, Program
from qcom.virtual.sp.touched import Touched, is_shared, touched

_LOCAL_LOADS = ("ldl", "ldlv", "ldlw")
_LOADS = ("ldg", "ldg.a", "ldib.b", "ldp", "ldc", "ray_intersection")
_STORES = ("stg", "stg.a", "stl", "stlw", "stp", "stib.b")
_MOST = 32  # violations that are listed
_Late = dict[int, int]  # half of a register -> the instruction that has it late


@dataclass
class State:
    """What is late: results to be waited for by (ss), (sy); sources to be waited for by (ss), by
    either; results of the scalar unit, by their width; constants (key 0)."""

    ss: _Late = field(default_factory=dict)
    sy: _Late = field(default_factory=dict)
    taken_ss: _Late = field(default_factory=dict)
    taken_either: _Late = field(default_factory=dict)
    scalar_full: _Late = field(default_factory=dict)
    scalar_half: _Late = field(default_factory=dict)
    constants_ss: _Late = field(default_factory=dict)
    constants_sy: _Late = field(default_factory=dict)

    def copy(self) -> State:
        return State(*(dict(getattr(self, one.name)) for one in fields(self)))

    def join(self, other: State) -> bool:
        """Add what is late on another way; whether that is new."""
        new = False
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            for half, index in theirs.items():
                if half not in mine:
                    mine[half] = index
                    new = True
        return new

    def become(self, other: State) -> None:
        """Take over what is late there."""
        for one in fields(self):
            setattr(self, one.name, dict(getattr(other, one.name)))

    def wait(self, op: Op) -> None:
        """Apply an instruction's flags."""
        if op.ss:
            for late in (
                self.ss, self.taken_ss, self.taken_either, self.scalar_full, self.scalar_half,
                self.constants_ss,
            ):  # fmt: skip
                late.clear()
        if op.sy:
            for late in (self.sy, self.taken_either, self.constants_sy):
                late.clear()


def violations(program: Program, scalar_unit: bool) -> tuple[str, ...]:
    """Return what a program breaks, in words, each instruction once."""
    entering = {start: State() for start in program.blocks}
    waiting = list(program.blocks)
    while waiting:
        block = program.blocks[waiting.pop(0)]
        leaving = entering[block.start].copy()
        _pass(block, leaving, scalar_unit, None)
        for target in block.successors:
            if entering[target].join(leaving) and target not in waiting:
                waiting.append(target)
    found: dict[int, str] = {}
    texts = {op.index: op for op in program.ops()}
    for block in program.blocks.values():
        broken: list[tuple[Op, str, int, int, str]] = []
        _pass(block, entering[block.start].copy(), scalar_unit, broken)
        for op, flag, half, maker, why in broken:
            text = (
                f"{op.text} at {op.index}: expected {flag}, {_name(half)} {why} "
                f"{texts[maker].text} at {maker}"
            )
            found.setdefault(op.index, text)
    return tuple(found[index] for index in sorted(found)[:_MOST])


def _name(half: int) -> str:
    if half < 0:
        return "the constant file"
    return f"r{half // 8}.{'xyzw'[half // 2 % 4]}"


def is_scalar(op: Op, scalar_unit: bool, one: Touched) -> bool:
    """Whether the scalar unit executes an instruction."""
    if not scalar_unit or op.category not in (1, 2, 3) or op.name == "movmsk":
        return False
    if not one.writes or not all(is_shared(half) for half in one.writes):
        return False
    if op.category != 1:
        return True
    return op.name.startswith("mov-") and all(is_shared(half) for half in one.reads)


_Broken = list[tuple[Op, str, int, int, str]]


def _pass(block: Block, state: State, scalar_unit: bool, broken: _Broken | None) -> None:
    before: State | None = None  # the first side of predicated code
    first: State | None = None  # the end of that side, once the other has begun
    for op in block.ops:
        if op.name in ("predt", "predf"):
            if before is None:
                before = state.copy()
            else:
                first = state.copy()
                state.become(before)
        elif op.name == "prede":
            if first is not None:
                state.join(first)
            before = first = None
        state.wait(op)
        one = touched(op)
        scalar = is_scalar(op, scalar_unit, one)
        if broken is not None:
            _check(op, one, scalar, state, broken)
        _note(op, one, scalar, state)


def _check(op: Op, one: Touched, scalar: bool, state: State, broken: _Broken) -> None:
    both = one.reads | one.writes
    results = [("(ss)", state.ss, both), ("(sy)", state.sy, both)]
    if scalar:
        for halves, wide in ((one.reads, _reads_full(op)), (one.writes, _writes_full(op))):
            results.append(("(ss)", state.scalar_full if wide else state.scalar_half, halves))
    else:
        results += [("(ss)", state.scalar_half, both), ("(ss)", state.scalar_full, both)]
    for flag, late, halves in results:
        for half in sorted(halves & late.keys()):
            broken.append((op, flag, half, late[half], "is not yet the result of"))
    if not scalar:
        for flag, late in (("(ss)", state.taken_ss), ("(ss) or (sy)", state.taken_either)):
            for half in sorted(one.writes & late.keys()):
                broken.append((op, flag, half, late[half], "is not yet taken by"))
    if one.constants:
        for flag, late in (("(ss)", state.constants_ss), ("(sy)", state.constants_sy)):
            if late:
                broken.append((op, flag, -1, late[0], "is not yet written by"))


def _reads_full(op: Op) -> bool:
    """Whether a scalar instruction reads full registers."""
    return op.full if op.category in (2, 3) else not op.moved[1].half


def _writes_full(op: Op) -> bool:
    """Whether a scalar instruction writes full registers."""
    return not (op.target if op.category in (2, 3) else op.moved[0]).half


def _note(op: Op, one: Touched, scalar: bool, state: State) -> None:
    name = op.name
    late_ss = op.category == 4 or name in ("shfl", "getfiberid", *_LOCAL_LOADS)
    shared = {half for half in one.writes if is_shared(half)}
    results: list[_Late] = []
    if late_ss or name == "resinfo.b" or (shared and not scalar):
        results.append(state.ss)
    if scalar:
        results.append(state.scalar_half if _writes_full(op) else state.scalar_full)
    atomic = name.startswith("atomic.")
    if op.category == 5 or name in _LOADS or name.startswith(("atomic.b.", "atomic.g.")):
        results.append(state.sy)
    elif atomic:
        results.append(state.ss)
    for late in results:
        late.update(dict.fromkeys(one.writes, op.index))
    if name in ("stc", "stsc"):
        state.constants_ss[0] = op.index
    elif name in ("ldc.k", "ldg.k"):
        state.constants_sy[0] = op.index
    if scalar or not (op.category in (5, 6) or late_ss or shared):
        return
    waits_ss = late_ss or bool(shared) or name in (*_STORES, "stc")
    reads = one.reads - (one.writes if name.startswith("atomic.b.") else set())
    (state.taken_ss if waits_ss else state.taken_either).update(dict.fromkeys(reads, op.index))
