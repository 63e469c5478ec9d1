"""Control flow of a wave whose lanes diverge, translated to LLVM IR.

The lanes at the lowest address run. Lanes that branch elsewhere wait at their target, and rejoin
when the others arrive. For code whose branches nest, ir3's branch stack and its reconvergence
points have the same effect, since "the later of the two block destinations becomes a reconvergence
point". Each block is emitted twice: for a wave whose lanes are all active (label f...), and for one
with a mask (m...). A block where lanes may wait has a gate (g...), where they join those that
arrive.
Source: Mesa 25.0.7, src/freedreno/ir3/ir3_reconvergence.c, isa/ir3-cat0.xml.
"""

from __future__ import annotations

from ugpu.virtual.adreno.sp.operands import Op
from ugpu.virtual.adreno.sp.program import Block, Program
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.translator.registers import Registers, Unsupported


def gates(program: Program) -> list[int]:
    """Return the blocks where lanes may wait for others, in address order."""
    found: set[int] = set()
    for block in program.blocks.values():
        target, last = block.target, block.last
        if target is None or last is None:
            continue
        if target > last.index:
            found.add(target)
        elif block.falls:
            found.add(block.end)
    return sorted(found)


class Flow:
    """The block order of one program."""

    def __init__(self, program: Program) -> None:
        self.gates = gates(program)
        self._gated = set(self.gates)

    def _next_gate(self, place: int) -> str:
        """Return the label where control continues when no lane is left before `place`."""
        for gate in self.gates:
            if gate >= place:
                return f"g{gate}"
        return "finished"

    def emit_gate(self, e: Registers, block: Block) -> None:
        """Emit a gate: arriving lanes join the waiting ones; without any lane, go to the next
        gate."""
        start = block.start
        if start not in self._gated:
            return
        e.begin(f"g{start}")
        arrived = e.value(f"load {e.bits}, ptr %arriving")
        waiting = e.value(f"load {e.bits}, ptr %waiting{start}")
        e.do(f"store {e.bits} 0, ptr %waiting{start}")
        e.do(f"store {e.bits} 0, ptr %arriving")
        both = e.value(f"or {e.bits} {arrived}, {waiting}")
        e.do(f"store {e.bits} {both}, ptr %exec")
        some, whole = e.new_label("some"), e.value(f"icmp eq {e.bits} {both}, -1")
        e.do(f"br i1 {whole}, label %{'f' if e.both else 'm'}{start}, label %{some}")
        e.begin(some)
        none = e.value(f"icmp eq {e.bits} {both}, 0")
        e.do(f"br i1 {none}, label %{self._next_gate(start + 1)}, label %m{start}")

    def enter(self, e: Registers, place: int, active: str) -> None:
        """Continue at a block with some lanes, at least one. No lane may be waiting before the
        block."""
        if e.full:
            e.do(f"br label %f{place}")
        elif place in self._gated:
            e.do(f"store {e.bits} {active}, ptr %arriving")
            e.do(f"br label %g{place}")
        else:
            e.do(f"store {e.bits} {active}, ptr %exec")
            e.do(f"br label %m{place}")

    def _enter_or_skip(self, e: Registers, place: int, active: str) -> None:
        """Continue at a block with some lanes, or, where there are none, with the waiting lanes."""
        if place in self._gated:
            self.enter(e, place, active)
            return
        on = e.new_label("on")
        some = e.value(f"icmp ne {e.bits} {active}, 0")
        e.do(f"br i1 {some}, label %{on}, label %{self._next_gate(place)}")
        e.begin(on)
        self.enter(e, place, active)

    def branch(self, e: Registers, op: Op, target: int, taken: str, own: str) -> None:
        """Send some lanes to a block, the others to the code after the branch. own: all current
        lanes."""
        after = op.index + 1
        if target <= op.index:
            poll_abort(e)
        if e.full:
            self._branch_full(e, target, after, taken)
            return
        taken = e.value(f"and {e.bits} {taken}, {own}")
        fall = e.value(f"xor {e.bits} {taken}, {own}")
        if target > op.index:
            self._wait(e, target, taken)
            self._enter_or_skip(e, after, fall)
            return
        back, on = e.new_label("back"), e.new_label("on")
        some = e.value(f"icmp ne {e.bits} {taken}, 0")
        e.do(f"br i1 {some}, label %{back}, label %{on}")
        e.begin(back)
        self._wait(e, after, fall)
        self.enter(e, target, taken)
        e.begin(on)
        self.enter(e, after, fall)

    def _branch_full(self, e: Registers, target: int, after: int, taken: str) -> None:
        """Emit a branch for a wave whose lanes are all active, so that none is waiting."""
        mixed, other, split = (e.new_label(name) for name in ("mixed", "other", "split"))
        every = e.value(f"icmp eq {e.bits} {taken}, -1")
        e.do(f"br i1 {every}, label %f{target}, label %{other}")
        e.begin(other)
        none = e.value(f"icmp eq {e.bits} {taken}, 0")
        e.do(f"br i1 {none}, label %f{after}, label %{split}")
        e.begin(split)
        e.do(f"br label %{mixed}")
        e.begin(mixed)
        fall = e.value(f"xor {e.bits} {taken}, -1")
        first, later = (target, after) if target < after else (after, target)
        early, late = (taken, fall) if target < after else (fall, taken)
        self._wait(e, later, late)
        e.full = False
        self.enter(e, first, early)
        e.full = True

    def _wait(self, e: Registers, place: int, more: str) -> None:
        old = e.value(f"load {e.bits}, ptr %waiting{place}")
        e.do(f"store {e.bits} {e.value(f'or {e.bits} {old}, {more}')}, ptr %waiting{place}")

    def leave(self, e: Registers, place: int) -> None:
        """End the current lanes and continue with waiting ones."""
        e.do(f"br label %{'finished' if e.full else self._next_gate(place)}")

    def waiting(self, e: Registers) -> str:
        """Return all waiting lanes."""
        total = "0"
        for gate in self.gates:
            one = e.value(f"load {e.bits}, ptr %waiting{gate}")
            total = one if total == "0" else e.value(f"or {e.bits} {total}, {one}")
        return total


def poll_abort(e: Registers) -> None:
    """Leave the function when the dispatch is being aborted."""
    asked = e.value("load atomic i32, ptr %abort monotonic, align 4")
    halted = e.value("load atomic i32, ptr %stop monotonic, align 4")
    stop = e.value(f"icmp ne i32 {e.value(f'or i32 {asked}, {halted}')}, 0")
    on = e.new_label("on")
    e.do(f"br i1 {stop}, label %stopped, label %{on}, !prof !1")
    e.begin(on)


def halt(e: Registers, index: int, code: int) -> None:
    """End the wave at an instruction that cannot be executed."""
    at = e.value(f"getelementptr i8, ptr %context, i64 {layout.HALT_AT}")
    e.do(f"store i64 {index}, ptr {at}")
    lanes = e.value(f"getelementptr i8, ptr %context, i64 {layout.HALT_LANES}")
    own = "-1" if e.full else e.value(f"load {e.bits}, ptr %exec")
    e.do(f"store {e.bits} {own}, ptr {lanes}")
    e.do(f"ret i32 {code}")


def _condition(e: Registers, op: Op, place: int) -> str:
    bits = e.predicate(op.raw(f"COMP{place}"))
    return e.value(f"xor {e.bits} {bits}, -1") if op.flag(f"INV{place}") else bits


def _lowest(e: Registers, bits: str) -> str:
    """Return the lowest lane of a mask, as a mask."""
    return e.value(f"and {e.bits} {bits}, {e.value(f'sub {e.bits} 0, {bits}')}")


def taken_lanes(e: Registers, op: Op, own: str) -> str:
    """Return which of the current lanes take a branch."""
    name = op.name
    if name == "jump":
        return own
    if name == "br":
        return _condition(e, op, 1)
    if name in ("brao", "braa"):
        operation = "or" if name == "brao" else "and"
        first, second = _condition(e, op, 1), _condition(e, op, 2)
        return e.value(f"{operation} {e.bits} {first}, {second}")
    if name in ("bany", "ball"):
        holds = e.value(f"and {e.bits} {_condition(e, op, 1)}, {own}")
        wanted, test = ("0", "ne") if name == "bany" else (own, "eq")
        truth = e.value(f"icmp {test} {e.bits} {holds}, {wanted}")
        return e.value(f"select i1 {truth}, {e.bits} {own}, {e.bits} 0")
    if name == "getone":
        one = _lowest(e, own) if own != "-1" else "1"
        return e.value(f"xor {e.bits} {own}, {one}")
    if name == "getlast":  # in the first group of eight with active lanes: all of them but the last
        if own == "-1":
            return e.value(f"add {e.bits} 0, 127")
        return _all_but_last(e, own)
    if name == "shps":
        return _after_preamble(e, own)
    raise Unsupported(name)


def _all_but_last(e: Registers, own: str) -> str:
    first = e.call(e.bits, f"llvm.cttz.{e.bits}", (e.bits, own), ("i1", "false"))
    start = e.value(f"and {e.bits} {first}, -8")
    cluster = e.value(f"shl {e.bits} 255, {start}")
    inside = e.value(f"and {e.bits} {own}, {cluster}")
    from_top = e.call(e.bits, f"llvm.ctlz.{e.bits}", (e.bits, inside), ("i1", "false"))
    place = e.value(f"sub {e.bits} {e.lanes - 1}, {from_top}")
    last = e.value(f"shl {e.bits} 1, {place}")
    return e.value(f"xor {e.bits} {inside}, {last}")


def _after_preamble(e: Registers, own: str) -> str:
    """Return `own` if the preamble is done. It runs once per launch on each worker; only its
    constants remain."""
    at = e.value(f"getelementptr i8, ptr %context, i64 {layout.PREAMBLE}")
    done = e.value(f"icmp ne i32 {e.value(f'load i32, ptr {at}')}, 0")
    return e.value(f"select i1 {done}, {e.bits} {own}, {e.bits} 0")


def end_preamble(e: Registers) -> None:
    """Emit shpe: mark the preamble as done; its constants are valid for all waves."""
    at = e.value(f"getelementptr i8, ptr %context, i64 {layout.PREAMBLE}")
    e.do(f"store i32 1, ptr {at}")


def predicate_lanes(e: Registers, op: Op) -> None:
    """Emit predt, predf, prede: set in which lanes the following code takes effect."""
    bits = "-1"
    if op.name != "prede":
        bits = e.predicate(0)
        if op.name == "predf":
            bits = e.value(f"xor {e.bits} {bits}, -1")
    e.do(f"store {e.bits} {bits}, ptr %predicated")
    e.forget_masks()


def barrier(e: Registers, op: Op, flow: Flow) -> None:
    """Emit a wait for the group's other waves: save the wave and leave the function."""
    stuck, on, wait = (e.new_label(name) for name in ("stuck", "on", "wait"))
    if not e.full:
        waiting = flow.waiting(e)
        missing = e.value(f"icmp ne {e.bits} {waiting}, 0")
        e.do(f"br i1 {missing}, label %{stuck}, label %{on}, !prof !1")
        e.begin(stuck)
        halt(e, op.index, layout.MISSED_BARRIER)
        e.begin(on)
    alone = e.value("icmp eq i32 %group.waves, 1")
    go_on = e.new_label("alone")
    e.do(f"br i1 {alone}, label %{go_on}, label %{wait}")
    e.begin(wait)
    e.do(f"store i32 {op.index + 2}, ptr %resume.slot")
    if e.full:
        e.do(f"store {e.bits} -1, ptr %exec")
    e.do("br label %save")
    e.begin(go_on)
    e.do(f"br label %{'f' if e.full else 'm'}{op.index + 1}")
