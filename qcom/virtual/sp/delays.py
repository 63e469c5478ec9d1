"""Cycles between an instruction and the next one that reads its result, which code must fill.

Categories 1 to 3 write their destination some cycles after they begin, and the GPU does not wait:
other instructions, (nopN) or `nop` must lie between. Another instruction of these categories that
reads the same register with the same width waits least; one that reads half of a whole register,
or a whole one of halves, and all other categories wait longest, as do readers of a0.x and of
predicates. A repetition of (rptN) reads and writes one cycle after the one before it; the third
source of mad, on generation 7 of all of category 3, is read late. Categories 4 to 7, jumps and the
scalar unit take no cycle here, but for (nopN). Registers that a0.x chooses are left out. What reads
a1.x may wait for it with (ss) too, as Mesa's early preambles do.

The limits are the lowest that Mesa keeps: what a later version allows is right code.
Source: Mesa 25.2.7, src/freedreno/ir3/ir3_delay.c (ir3_src_read_delay), ir3_legalize.c
(delay_calc, delay_update, count_instruction), ir3_compiler.c (delay_slots); for category 3 of
generation 7 the code that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qcom.virtual.sp.operands import A0, A1, NONE, P0, SHARED, Kind, Op, Operand
from qcom.virtual.sp.program import Program
from qcom.virtual.sp.touched import Touched, is_shared

_TESTS = {"br": 1, "bany": 1, "ball": 1, "brao": 2, "braa": 2, "kill": 1}  # predicates read
_UNCOUNTED = frozenset({"br", "brao", "braa", "jump"})
_BY_A1 = (1, 7)  # DESC_MODE: CAT5_BINDLESS_A1_UNIFORM, CAT5_BINDLESS_A1_IMM
_SEVERAL = {"swz": 2, "gat": 4, "sct": 4}  # moves that they are, one in each cycle
# Where a result is: a whole register's number, a half one's, a half's that is read by other
# categories, a predicate's or a0.x.
_BEHIND_END, _BEHIND_SECOND = 6, 4  # cycles behind prede, and the second of predt and predf
_MANY = 32  # entries, after which those of the past are dropped
_HALF, _OTHER, _SPECIAL = 1 << 10, 2 << 10, 3 << 10


@dataclass(frozen=True)
class Limits:
    """Cycles between: arithmetic alike; arithmetic and all else; the begin of an instruction and
    its third source, of which instructions."""

    alike: int
    other: int
    third: int
    late: tuple[str, ...]


_LIMITS = {6: Limits(3, 6, 2, ("mad",)), 7: Limits(2, 5, 1, ("",))}


@dataclass(frozen=True)
class Timing:
    """Properties of an instruction that matter for delays. reads: where, and how many cycles after
    its begin. writes: registers of arithmetic, whether half, and their cycle. waited: halves whose
    readers need not wait for earlier arithmetic. first, more: cycles until it has begun, and
    beyond."""

    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, bool, int], ...]
    waited: frozenset[int]
    first: int
    more: int

    @classmethod
    def of(cls, op: Op, one: Touched, scalar: bool, limits: Limits) -> Timing:
        """The timing of an instruction. scalar: the scalar unit executes it."""
        alu = op.category in (1, 2, 3)
        counted = (alu and not scalar) or (op.category == 0 and op.name not in _UNCOUNTED)
        return cls(
            () if op.name == "end" else tuple(_reads(op, one, limits)),
            tuple(_written(op)) if alu else (),
            frozenset() if alu else frozenset(one.writes),
            1 if counted else 0,
            _more_cycles(op) if counted else _nops(op),
        )


def limits_of(generation: int) -> Limits:
    """The limits of a generation of GPUs."""
    return _LIMITS[generation]


@dataclass
class Delays:
    """Results that are under way: where -> (the cycle that may read it, the instruction it is
    from). cycle: now, counted from the begin of a block."""

    limits: Limits
    ready: dict[int, tuple[int, int]] = field(default_factory=dict)
    cycle: int = 0

    def copy(self) -> Delays:
        return Delays(self.limits, dict(self.ready), self.cycle)

    def become(self, other: Delays) -> None:
        """Take over what is under way there."""
        self.ready, self.cycle = dict(other.ready), other.cycle

    def join(self, other: Delays) -> bool:
        """Add what is under way at the end of another way; whether that is new."""
        new = False
        for where, (cycle, maker) in other.ready.items():
            left = cycle - other.cycle
            if left > 0 and self.cycle + left > self.ready.get(where, (0, 0))[0]:
                self.ready[where] = self.cycle + left, maker
                new = True
        return new

    def synchronise(self) -> None:
        """(ss): a1.x is there."""
        self.ready.pop(_SPECIAL + A1, None)

    def missing(self, timing: Timing) -> tuple[int, int, int] | None:
        """Return the source that an instruction reads most cycles too early: (cycles, where,
        from)."""
        worst = 0, 0, 0
        for where, late in timing.reads:
            cycle, maker = self.ready.get(where, (0, 0))
            lack = cycle - self.cycle - late
            if lack > worst[0]:
                worst = lack, where, maker
        return worst if worst[0] else None

    def note(self, index: int, timing: Timing) -> None:
        """Let time pass by an instruction, and its results be under way."""
        self.cycle += timing.first
        for number, half, turn in timing.writes:
            self._write(number, half, self.cycle + turn, index)
        if self.ready:
            # What must be waited for with (ss) or (sy) comes after what was written before.
            for part in timing.waited:
                for where in (part // 2, _HALF + part, _OTHER + part):
                    self.ready.pop(where, None)
            if len(self.ready) > _MANY:
                self.ready = {k: v for k, v in self.ready.items() if v[0] > self.cycle}
        self.cycle += timing.more

    def _write(self, number: int, half: bool, begin: int, index: int) -> None:
        limits = self.limits
        last = begin + limits.other, index
        if number >= A0:
            if number < NONE:
                self._late(_SPECIAL + number, last)
            return
        if half:
            self._late(_HALF + number, (begin + limits.alike, index))
            self._late(number // 2, last)
            self._late(_OTHER + number, last)
            return
        self._late(number, (begin + limits.alike, index))
        for part in (2 * number, 2 * number + 1):
            self._late(_HALF + part, last)
            self._late(_OTHER + part, last)

    def _late(self, where: int, value: tuple[int, int]) -> None:
        if where not in self.ready or value[0] > self.ready[where][0]:
            self.ready[where] = value


def _reads(op: Op, one: Touched, limits: Limits) -> Iterator[tuple[int, int]]:
    category = op.category
    if category == 0:
        if op.name in ("predt", "predf"):
            yield _SPECIAL + P0, 0
        for k in range(_TESTS.get(op.name, 0)):
            yield _SPECIAL + P0 + op.raw(f"COMP{k + 1}"), 0
    elif category in (1, 2, 3, 4):
        for operand, late in _sources(op, limits):
            if operand.kind in (Kind.RELATIVE, Kind.RELATIVE_CONSTANT):
                yield _SPECIAL + A0, 0
            elif operand.kind is Kind.REGISTER:
                yield from _places(op, operand, late, category == 4)
        if op.name.startswith("mov-") and op.moved[0].kind is Kind.RELATIVE:
            yield _SPECIAL + A0, 0
    else:
        for half in one.reads:
            if not is_shared(half):
                yield _OTHER + half, 0
        if _reads_a1(op):
            yield _SPECIAL + A1, 0


def _reads_a1(op: Op) -> bool:
    """Return whether a1.x says where: of the constant file, or which descriptors."""
    if op.name in ("stc", "ldg.k"):
        return bool(op.raw("DST") >> 8)  # a1.x and an offset
    if op.category == 5 and op.flag("S2EN_BINDLESS"):
        return op.raw("DESC_MODE") in _BY_A1
    return op.name == "ldc.k"


def _places(op: Op, operand: Operand, late: int, other: bool) -> Iterator[tuple[int, int]]:
    count = op.repeat + 1 if operand.step else 1
    for turn in range(count):
        number = operand.number + turn
        if number >= NONE or SHARED <= number < A0:
            continue
        if number >= A0:
            yield _SPECIAL + number, late + turn
        elif not other:
            yield (_HALF if operand.half else 0) + number, late + turn
        elif operand.half:
            yield _OTHER + number, late + turn
        else:
            yield _OTHER + 2 * number, late + turn
            yield _OTHER + 2 * number + 1, late + turn


def _sources(op: Op, limits: Limits) -> Iterator[tuple[Operand, int]]:
    if op.category != 1:
        for place, operand in enumerate(op.sources):
            yield operand, limits.third if place == 2 and op.name.startswith(limits.late) else 0
    elif op.name in _SEVERAL:
        half = bool(op.raw("HALF"))
        for turn in range(_SEVERAL[op.name]):
            number = op.raw("SRC0") + turn if op.name == "sct" else op.raw(f"SRC{turn}")
            yield Operand(Kind.REGISTER, number, half), turn
    elif op.name != "movmsk":
        yield op.moved[1], 0
        if op.name == "movs-a0":
            yield Operand(Kind.REGISTER, A0, True), 0


def _written(op: Op) -> Iterator[tuple[int, bool, int]]:
    """The registers that arithmetic writes: number, half, cycle."""
    if op.name in _SEVERAL:
        half = bool(op.raw("DST_HALF"))
        for turn in range(_SEVERAL[op.name]):
            number = op.raw("DST0") + turn if op.name == "gat" else op.raw(f"DST{turn}")
            yield from _own(number, half, turn)
        return
    if op.name == "movmsk":
        for turn in range(op.raw("REPEAT") + 1):
            yield from _own(op.raw("DST") + turn, False, turn)
        return
    target = op.moved[0] if op.category == 1 else op.target
    if target.kind is Kind.REGISTER:
        for turn in range(op.repeat + 1):
            yield from _own(target.number + turn, target.half, turn)


def _own(number: int, half: bool, turn: int) -> Iterator[tuple[int, bool, int]]:
    if not SHARED <= number < A0:
        yield number, half, turn


def _more_cycles(op: Op) -> int:
    """Return the number of cycles of an instruction beyond its first."""
    if op.name in _SEVERAL:
        return _SEVERAL[op.name] - 1
    if op.category in (2, 3) and not op.repeat:
        return _nops(op)
    if op.category == 0 or op.name == "movmsk":
        return op.raw("REPEAT") if op.scope.has("REPEAT") else 0
    return op.repeat


def _nops(op: Op) -> int:
    """(nopN), which the (r) flags count where nothing repeats."""
    if op.category not in (2, 3) or op.repeat:
        return 0
    return op.raw("SRC1_R") + 2 * op.raw("SRC2_R")


def behind_predication(program: Program) -> Iterator[str]:
    """Say where nops lack that some GPUs need behind the second side's begin and the end of
    predicated code (ir3_legalize.c, add_predication_workaround)."""
    for block in program.blocks.values():
        sides = 0
        for op in block.ops:
            if op.name not in ("predt", "predf", "prede"):
                continue
            sides = 0 if op.name == "prede" else sides + 1
            need = _BEHIND_END if op.name == "prede" else _BEHIND_SECOND if sides == 2 else 0
            have, follower = 0, program.by_index.get(op.index + 1)
            while have < need and follower is not None and follower.name == "nop":
                have += 1 + _more_cycles(follower)
                follower = program.by_index.get(follower.index + 1)
            if have < need:
                yield f"{op.text} at {op.index}: expected {need} nops behind it, found {have}"


def name_of(where: int) -> str:
    """A register as Mesa's disassembler prints it."""
    kind, number = where & -_HALF, where % _HALF
    if kind == _OTHER:
        number //= 2
    if where == _SPECIAL + A1:
        return "a1.x"
    short = {A0 // 4: "a0", P0 // 4: "p0"}.get(number // 4) if kind == _SPECIAL else None
    text = short or f"{'hr' if kind == _HALF else 'r'}{number // 4}"
    return f"{text}.{'xyzw'[number % 4]}"
