"""Required delays, in cycles, between an instruction and the next reader of its result.

Instructions of categories 1 to 3 write their destination some cycles after they begin, and the GPU
does not wait for it: code must place other instructions, (nopN) or `nop` in between. The delay is
shortest for another instruction of these categories that reads the same register with the same
width. It is longest for one that reads half of a whole register or a whole register made of halves,
for all other categories, and for readers of a0.x and of predicates. Each repetition of (rptN) reads
and writes one cycle after the one before it. The third source of mad, and on generation 7 of all of
category 3, is read late. Categories 4 to 7, jumps and the scalar unit count as zero cycles here,
except for (nopN). Registers selected by a0.x are not checked. A reader of a1.x may also wait for it
with (ss), as Mesa's early preambles do.

The limits are the lowest that Mesa keeps: code that a later version allows is correct.
Source: Mesa 25.2.7, src/freedreno/ir3/ir3_delay.c (ir3_src_read_delay), ir3_legalize.c (delay_calc,
delay_update, count_instruction), ir3_compiler.c (delay_slots); for category 3 of generation 7 the
code that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ugpu.virtual.adreno.sp.operands import A0, A1, NONE, P0, SEPARATE, SHARED, Kind, Op, Operand
from ugpu.virtual.adreno.sp.program import Program
from ugpu.virtual.adreno.sp.touched import Touched, is_shared

_TESTS = {"br": 1, "bany": 1, "ball": 1, "brao": 2, "braa": 2, "kill": 1}  # predicates read
_UNCOUNTED = frozenset({"br", "brao", "braa", "jump"})
_BY_A1 = (1, 7)  # DESC_MODE: CAT5_BINDLESS_A1_UNIFORM, CAT5_BINDLESS_A1_IMM
_SEVERAL = {"swz": 2, "gat": 4, "sct": 4}  # number of moves that each consists of, one per cycle
# Location of a result: number of a full register, of a half register, of a half read by other
# categories, of a predicate or a0.x.
_BEHIND_END, _BEHIND_SECOND = 6, 4  # cycles after prede, and after the second of predt and predf
_MANY = 32  # entries, above which expired ones are dropped
_HALF, _OTHER, _SPECIAL = 1 << 10, 2 << 10, 3 << 10


@dataclass(frozen=True)
class Limits:
    """Minimum delays in cycles. alike: between arithmetic of the same width; other: between
    arithmetic and any other reader; third: between the begin of an instruction and the read of its
    third source, for the instructions in `late`."""

    alike: int
    other: int
    third: int
    late: tuple[str, ...]


_LIMITS = {6: Limits(3, 6, 2, ("mad",)), 7: Limits(2, 5, 1, ("",))}


@dataclass(frozen=True)
class Timing:
    """Properties of an instruction that matter for delays. reads: locations, and cycles after its
    begin. writes: registers that arithmetic writes, whether half, and the cycle. waited: halves
    whose readers need not wait for earlier arithmetic. first, more: cycles until the instruction
    begins, and the cycles after that."""

    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, bool, int], ...]
    waited: frozenset[int]
    first: int
    more: int

    @classmethod
    def of(cls, op: Op, one: Touched, scalar: bool, limits: Limits) -> Timing:
        """Return the timing of an instruction. scalar: the scalar unit executes it."""
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
    """Return the limits of a GPU generation."""
    return _LIMITS[generation]


@dataclass
class Delays:
    """Results in flight: location -> (the first cycle that may read it, the instruction that
    produced it). cycle: the current one, counted from the begin of a block."""

    limits: Limits
    ready: dict[int, tuple[int, int]] = field(default_factory=dict)
    cycle: int = 0

    def copy(self) -> Delays:
        return Delays(self.limits, dict(self.ready), self.cycle)

    def become(self, other: Delays) -> None:
        """Replace this state by a copy of another."""
        self.ready, self.cycle = dict(other.ready), other.cycle

    def join(self, other: Delays) -> bool:
        """Add the results in flight at the end of another path; return whether any is new."""
        new = False
        for where, (cycle, maker) in other.ready.items():
            left = cycle - other.cycle
            if left > 0 and self.cycle + left > self.ready.get(where, (0, 0))[0]:
                self.ready[where] = self.cycle + left, maker
                new = True
        return new

    def synchronise(self) -> None:
        """Apply (ss): a1.x is available."""
        self.ready.pop(_SPECIAL + A1, None)

    def missing(self, timing: Timing) -> tuple[int, int, int] | None:
        """Return the source that an instruction reads the most cycles too early: (cycles, location,
        producer)."""
        worst = 0, 0, 0
        for where, late in timing.reads:
            cycle, maker = self.ready.get(where, (0, 0))
            lack = cycle - self.cycle - late
            if lack > worst[0]:
                worst = lack, where, maker
        return worst if worst[0] else None

    def note(self, index: int, timing: Timing) -> None:
        """Advance time by an instruction and add its results."""
        self.cycle += timing.first
        for number, half, turn in timing.writes:
            self._write(number, half, self.cycle + turn, index)
        if self.ready:
            # A result that needs (ss) or (sy) arrives after anything written before.
            for part in timing.waited:
                for where in (part // 2, _HALF + part, _OTHER + part):
                    self.ready.pop(where, None)
            if len(self.ready) > _MANY:
                self.ready = {k: v for k, v in self.ready.items() if v[0] > self.cycle}
        self.cycle += timing.more

    def _write(self, number: int, half: bool, begin: int, index: int) -> None:
        limits = self.limits
        last = begin + limits.other, index
        if A0 <= number < SEPARATE:
            if number < NONE:
                self._late(_SPECIAL + number, last)
            return
        if half:
            self._late(_HALF + number, (begin + limits.alike, index))
            if number < SEPARATE:
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
    """Return whether a1.x selects the place in the constant file or the descriptors."""
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
            continue
        number = _placed(op, number, operand.half)
        if not other:
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
    """Yield the registers that arithmetic writes: number, half, cycle."""
    if op.name in _SEVERAL:
        half = bool(op.raw("DST_HALF"))
        for turn in range(_SEVERAL[op.name]):
            number = op.raw("DST0") + turn if op.name == "gat" else op.raw(f"DST{turn}")
            yield from _own(op, number, half, turn)
        return
    if op.name == "movmsk":
        for turn in range(op.raw("REPEAT") + 1):
            yield from _own(op, op.raw("DST") + turn, False, turn)
        return
    target = op.moved[0] if op.category == 1 else op.target
    if target.kind is Kind.REGISTER:
        for turn in range(op.repeat + 1):
            yield from _own(op, target.number + turn, target.half, turn)


def _own(op: Op, number: int, half: bool, turn: int) -> Iterator[tuple[int, bool, int]]:
    if not SHARED <= number < A0:
        yield _placed(op, number, half), half, turn


def _placed(op: Op, number: int, half: bool) -> int:
    """Return a register's number, beyond SEPARATE for a half register outside the full ones."""
    return number if op.merged or not half or number >= A0 else SEPARATE + number


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
    """Return N of (nopN), which the (r) flags encode in instructions without repetition."""
    if op.category not in (2, 3) or op.repeat:
        return 0
    return op.raw("SRC1_R") + 2 * op.raw("SRC2_R")


def behind_predication(program: Program) -> Iterator[str]:
    """Report missing nops after the begin of the second side and after the end of predicated code,
    which some GPUs need (ir3_legalize.c, add_predication_workaround)."""
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
    """Return a register's name as Mesa's disassembler prints it."""
    kind, number = where & -_HALF, where % _HALF
    if kind in (_HALF, _OTHER) and number >= SEPARATE:
        kind, number = _HALF, number - SEPARATE
    if kind == _OTHER:
        number //= 2
    if where == _SPECIAL + A1:
        return "a1.x"
    short = {A0 // 4: "a0", P0 // 4: "p0"}.get(number // 4) if kind == _SPECIAL else None
    text = short or f"{'hr' if kind == _HALF else 'r'}{number // 4}"
    return f"{text}.{'xyzw'[number % 4]}"
