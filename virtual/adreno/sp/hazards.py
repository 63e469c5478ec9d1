"""Checks of rules whose violation shows as stale values on a GPU: flags and delays.

Results of some instructions arrive late. An instruction that reads or overwrites them must carry,
or come after, a flag that waits: (ss) for category 4, local memory, shuffles and shared registers,
(sy) for other loads, samplers and atomics. Such instructions also read their sources late. Where
two paths join, everything that is late on either is late; the same holds for the two sides of
predicated code, which run for different threads. All reachable code is checked, whether or not it
has run. Results that arrive after a number of cycles are in `delays`. Reads of constants beyond
CONSTLEN are reported too.
Source: Mesa 25.0.7, src/freedreno/ir3/ir3_legalize.c (legalize_block), ir3.h (is_ss_producer,
is_sy_producer, is_war_hazard_producer), ir3.c (is_scalar_alu).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ugpu.virtual.adreno.sp.delays import Delays, Timing, limits_of, name_of
from ugpu.virtual.adreno.sp.operands import SEPARATE, Op
from ugpu.virtual.adreno.sp.program import Block, Program
from ugpu.virtual.adreno.sp.touched import Touched, is_shared, touched

_LOCAL_LOADS = ("ldl", "ldlv", "ldlw")
_LOADS = ("ldg", "ldg.a", "ldib.b", "ldp", "ldc", "ray_intersection")
_STORES = ("stg", "stg.a", "stl", "stlw", "stp", "stib.b")
_MOST = 32  # most violations listed
Readable = Callable[[int], bool]
_Late = dict[int, int]  # half of a register -> the instruction that reads or writes it late


@dataclass
class State:
    """Late results: those that arrive without a flag; those that need (ss), those that need (sy);
    sources that need (ss), sources that need either; results of the scalar unit, by width;
    constants (key 0)."""

    delays: Delays
    ss: _Late = field(default_factory=dict)
    sy: _Late = field(default_factory=dict)
    taken_ss: _Late = field(default_factory=dict)
    taken_either: _Late = field(default_factory=dict)
    scalar_full: _Late = field(default_factory=dict)
    scalar_half: _Late = field(default_factory=dict)
    constants_ss: _Late = field(default_factory=dict)
    constants_sy: _Late = field(default_factory=dict)

    def copy(self) -> State:
        return State(self.delays.copy(), *(dict(late) for late in self._late()))

    def _late(self) -> tuple[_Late, ...]:
        return (
            self.ss, self.sy, self.taken_ss, self.taken_either, self.scalar_full, self.scalar_half,
            self.constants_ss, self.constants_sy,
        )  # fmt: skip

    def join(self, other: State) -> bool:
        """Add what is late on another path; return whether any of it is new."""
        new = self.delays.join(other.delays)
        for mine, theirs in zip(self._late(), other._late(), strict=True):
            for half, index in theirs.items():
                if half not in mine:
                    mine[half] = index
                    new = True
        return new

    def become(self, other: State) -> None:
        """Replace this state by a copy of another."""
        self.delays.become(other.delays)
        for mine, theirs in zip(self._late(), other._late(), strict=True):
            mine.clear()
            mine.update(theirs)

    def wait(self, op: Op) -> None:
        """Apply an instruction's flags."""
        if op.ss:
            for late in (
                self.ss, self.taken_ss, self.taken_either, self.scalar_full, self.scalar_half,
                self.constants_ss,
            ):  # fmt: skip
                late.clear()
            self.delays.synchronise()
        if op.sy:
            for late in (self.sy, self.taken_either, self.constants_sy):
                late.clear()


@dataclass(frozen=True)
class Facts:
    """Effects of an instruction, computed once. scalar: the scalar unit executes it."""

    touched: Touched
    scalar: bool
    timing: Timing


def violations(
    program: Program, generation: int, scalar_unit: bool, readable: Readable | None = None
) -> tuple[str, ...]:
    """Return the rules that a program breaks, as texts, each instruction once. readable: whether a
    dispatch has a word of the constant file (default: all)."""
    limits, known = limits_of(generation), dict[int, Facts]()
    found: dict[int, str] = {}
    for op in program.ops():
        one = touched(op)
        if readable is not None and one.words:
            text = _constant_beyond(op, one, readable)
            if text is not None:
                found[op.index] = text
        scalar = is_scalar(op, scalar_unit, one)
        known[op.index] = Facts(one, scalar, Timing.of(op, one, scalar, limits))
    entering = {start: State(Delays(limits)) for start in program.blocks}
    waiting = list(program.blocks)
    while waiting:
        block = program.blocks[waiting.pop(0)]
        leaving = entering[block.start].copy()
        _pass(block, leaving, known, None)
        for target in block.successors:
            if entering[target].join(leaving) and target not in waiting:
                waiting.append(target)
    texts = program.by_index
    for block in program.blocks.values():
        broken: _Broken = []
        _pass(block, entering[block.start].copy(), known, broken)
        for op, expected, name, maker, access in broken:
            text = (
                f"{op.text} at {op.index}: expected {expected}: {texts[maker].text} at {maker} "
                f"may still be {access} {name}"
            )
            found.setdefault(op.index, text)
    return tuple(found[index] for index in sorted(found)[:_MOST])


def _constant_beyond(op: Op, one: Touched, readable: Readable) -> str | None:
    """Describe the constants that an instruction reads beyond those of the dispatch."""
    lacking = [word for word in sorted(one.words) if not readable(word)]
    if not lacking:
        return None
    name = f"c{lacking[0] // 4}.{'xyzw'[lacking[0] % 4]}"
    return f"{op.text} at {op.index}: constant {name} lies beyond CONSTLEN"


def _name(half: int) -> str:
    if half >= SEPARATE:
        return f"hr{(half - SEPARATE) // 4}.{'xyzw'[half % 4]}"
    return f"r{half // 8}.{'xyzw'[half // 2 % 4]}"


def is_scalar(op: Op, scalar_unit: bool, one: Touched) -> bool:
    """Return whether the scalar unit executes an instruction."""
    if not scalar_unit or op.category not in (1, 2, 3) or op.name == "movmsk":
        return False
    if not one.writes or not all(is_shared(half) for half in one.writes):
        return False
    if op.category != 1:
        return True
    return op.name.startswith("mov-") and all(is_shared(half) for half in one.reads)


_Broken = list[tuple[Op, str, str, int, str]]


def _pass(block: Block, state: State, known: dict[int, Facts], broken: _Broken | None) -> None:
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
        facts = known[op.index]
        if broken is not None:
            _check(op, facts, state, broken)
        _note(op, facts.touched, facts.scalar, state)
        state.delays.note(op.index, facts.timing)


def _check(op: Op, facts: Facts, state: State, broken: _Broken) -> None:
    one, scalar = facts.touched, facts.scalar
    both = one.reads | one.writes
    results = [("(ss)", state.ss, both), ("(sy)", state.sy, both)]
    if scalar:
        for halves, wide in ((one.reads, _reads_full(op)), (one.writes, _writes_full(op))):
            results.append(("(ss)", state.scalar_full if wide else state.scalar_half, halves))
    else:
        results += [("(ss)", state.scalar_half, both), ("(ss)", state.scalar_full, both)]
    for flag, late, halves in results:
        for half in sorted(halves & late.keys()):
            broken.append((op, flag, _name(half), late[half], "writing"))
    if not scalar:
        for flag, late in (("(ss)", state.taken_ss), ("(ss) or (sy)", state.taken_either)):
            for half in sorted(one.writes & late.keys()):
                broken.append((op, flag, _name(half), late[half], "reading"))
    lack = state.delays.missing(facts.timing)
    if lack is not None:
        count, where, maker = lack
        nops = f"{count} more nop{'s' if count > 1 else ''}"
        broken.append((op, nops, name_of(where), maker, "writing"))
    if one.constants:
        for flag, late in (("(ss)", state.constants_ss), ("(sy)", state.constants_sy)):
            if late:
                broken.append((op, flag, "the constant file", late[0], "writing"))


def _reads_full(op: Op) -> bool:
    """Return whether a scalar instruction reads full registers."""
    return op.full if op.category in (2, 3) else not op.moved[1].half


def _writes_full(op: Op) -> bool:
    """Return whether a scalar instruction writes full registers."""
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
