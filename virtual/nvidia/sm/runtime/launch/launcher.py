"""The native loop over groups and warps, with the barriers of a group.

The warps of a group run one after another, each until it waits, yields or ends. Groups run one
after another too, unless all warps of one group wait in loops. In that case the launch returns
WAITING, and `residents` takes over until no group waits any more. A barrier opens when all threads
it expects have arrived. Threads that have ended count as arrived if the barrier expects all
threads.
Source: PTX ISA 8.x, "bar, barrier".
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.native import FOR_EVER, Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.native import Variable, Word, joined


def _flag(f: Native, at: Word) -> Word:
    """Load a flag that other threads set."""
    return f.value(f"load atomic i32, ptr {at.text} monotonic, align 4", "i32")


def _timer(f: Native, what: int) -> None:
    f.value(f"call i64 {f.field(layout.TIMER, 'ptr').text}(i32 {what})", "i64")


@dataclass(frozen=True)
class _Warps:
    """The warps of a group: how many (i64), where the state of the first lies, and how many bytes
    apart the others do (i64)."""

    count: Word
    states: Word
    stride: Word

    @classmethod
    def of(cls, f: Native) -> _Warps:
        return cls(
            f.wide(layout.WARPS), f.field(layout.STATES, "ptr"), f.field(layout.STATE_STRIDE, "i64")
        )

    def state(self, warp: Word) -> Word:
        """Return the address of the state of a warp (i64)."""
        return self.states.byte(warp * self.stride)


def _launch() -> Native:
    """launch(context, kernel): run groups until none is left or one fails."""
    f = Native(f"{PREFIX}launch", "i32", ("ptr", "context"), ("ptr", "kernel"))
    context, kernel = f.given
    abort, stop, counter = (f.field(at, "ptr") for at in (
        layout.ABORT, layout.STOP, layout.COUNTER))  # fmt: skip
    last = f.field(layout.TOTAL, "i64") - 1
    size = f.wide(layout.GRID_X), f.wide(layout.GRID_Y)
    warps, flights = _Warps.of(f), f.has_flights()
    with f.count(FOR_EVER):
        asked = _flag(f, abort) | _flag(f, stop)
        with f.when(asked.differs(0)):
            ending = f.call("i32", f"{PREFIX}attend", context)
            with f.when(ending.differs(0)):
                f.give(layout.ABORTED)
        group = f.value(f"atomicrmw add ptr {counter.text}, i64 1 monotonic", "i64")
        with f.when(group.above(last)):
            f.give(layout.FINISHED)
        _place(f, group, size)
        _begin(f, warps)
        with f.when(flights):
            f.hook(context, "flights_begin")
        code = f.call("i32", "lone_run", context, kernel)
        with f.when(code.differs(layout.FINISHED)):
            f.give(code)
    return f


def _place(f: Native, group: Word, size: tuple[Word, Word]) -> None:
    """Record the place of a group in a grid without clusters. size: its width and height."""
    context = f.given[0]
    f.store(group, context.byte(layout.GROUP))
    width, height = size
    rows = f.value(f"udiv i64 {group.text}, {width.text}", "i64")
    layers = f.value(f"udiv i64 {rows.text}, {height.text}", "i64")
    for axis, place in enumerate((group % width, rows % height, layers)):
        for offset in (layout.GROUP_X, layout.CLUSTER_ID_X):
            f.store(place.to("i32"), context.byte(offset + 4 * axis))
    f.store(f.constant("i32", 0), context.byte(layout.GROUPS_ENDED))  # of the group before


def _begin(f: Native, warps: _Warps) -> None:
    """Initialise barriers and warps of a group."""
    zero, never = f.constant("i8", 0), Word(f, "false", "i1")
    f.call("void", "llvm.memset.p0.i64", f.given[0].byte(layout.BARRIERS), zero,
           f.word(8 * layout.BARRIER_COUNT), never)  # fmt: skip
    masks = f.field(layout.MASKS, "ptr")
    with f.count(warps.count) as warp:
        state = warps.state(warp)
        f.call("void", "llvm.memset.p0.i64", state, zero, f.word(layout.STATE_PLACES), never)
        f.store(f.load("i32", masks.byte(warp << 2)), state.byte(layout.STATE_ACTIVE))
        f.store(warp.to("i32"), state.byte(layout.STATE_NUMBER))


def _run() -> Native:
    """lone_run(context, kernel): run the warps of a group in turn until all have ended."""
    f = Native("lone_run", "i32", ("ptr", "context"), ("ptr", "kernel"), part=True)
    context, kernel = f.given
    warps = _Warps.of(f)
    with f.count(FOR_EVER):
        ran, left, moved = (f.variable("i32", 0) for _ in range(3))
        with f.count(warps.count) as warp:
            state = warps.state(warp)
            done, waiting = (f.load("i32", state.byte(at)) for at in (
                layout.STATE_DONE, layout.STATE_WAITING))  # fmt: skip
            with f.when(done.same(0) & waiting.differs(0)):
                left.set(1)
            with f.when((done | waiting).same(0)):
                ran.set(1)
                f.store(warp.to("i32"), context.byte(layout.WARP))
                code = f.value(f"call i32 {kernel.text}(ptr {context.text}, ptr {state.text})",
                               "i32")  # fmt: skip
                _stopped(f, warp, state, code, left, moved)
        last = warps.count - 1
        with f.when(left.get().same(0)):
            _over(f, last)
        with f.when(ran.get().same(0)):
            _stuck(f, last)
        with f.when(moved.get().same(0)):
            # All that ran wait in loops, perhaps for other groups: these run beside this one.
            f.give(layout.WAITING)
    return f


def _fault(f: Native, warp: Word) -> None:
    """Return from the launch with a warp at fault."""
    f.store(warp.to("i32"), f.given[0].byte(layout.FAULT_WARP))
    f.give(layout.FAULTED)


def _stopped(
    f: Native, warp: Word, state: Word, code: Word, left: Variable, moved: Variable
) -> None:
    """Handle a warp that stopped running with `code`."""
    context = f.given[0]
    with f.when(code.same(layout.FINISHED)):
        f.store(f.constant("i32", 1), state.byte(layout.STATE_DONE))
        f.call("void", "barriers_opened", context)
    with f.when(code.differs(layout.FINISHED)):
        left.set(1)
        with f.when(code.same(layout.YIELDED)):
            stop = f.call("i32", f"{PREFIX}attend", context)
            with f.when(stop.differs(0)):
                f.give(layout.ABORTED)
        with f.when(code.same(layout.ABORTED)):
            f.give(layout.ABORTED)
        # A product that a barrier started may be at fault.
        bad = f.field(layout.FAULT_CODE, "i32").differs(0)
        with f.when(code.same(layout.AT_BARRIER) & bad):
            _fault(f, warp)
        with f.when(code.same(layout.FAULTED)):
            _fault(f, warp)
    with f.when(code.differs(layout.YIELDED)):
        moved.set(1)


def _over(f: Native, last: Word) -> None:
    """Return from a group whose warps have ended; its copies and products must have too."""
    context = f.given[0]
    with f.when(f.has_flights()):
        f.hook(context, "flights_end")
        f.hook(context, "products_missing", f.constant("i32", 1))
        with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
            _fault(f, last)
    f.give(layout.FINISHED)


def _stuck(f: Native, last: Word) -> None:
    """All that are left wait at barriers that never open: as on the chip, until the grid is
    ended."""
    context = f.given[0]
    with f.count(FOR_EVER):
        stop = f.call("i32", f"{PREFIX}attend", context)
        with f.when(f.has_flights()):
            f.hook(context, "products_missing", f.constant("i32", 0))
            with f.when(f.field(layout.FAULT_CODE, "i32").differs(0)):
                _fault(f, last)
        _timer(f, layout.TIMER_PAUSE)
        with f.when(stop.differs(0)):
            f.give(layout.ABORTED)


def _attend() -> Native:
    """attend(context): look at the flags. 1 to end, else 0, after yielding to another group's
    time slice."""
    f = Native(f"{PREFIX}attend", "i32", ("ptr", "context"))
    abort, stop = f.field(layout.ABORT, "ptr"), f.field(layout.STOP, "ptr")
    with f.count(FOR_EVER):
        asked = _flag(f, abort)
        ending = asked & layout.ABORT_END | _flag(f, stop)
        with f.when(ending.differs(0)):
            f.give(1)
        with f.when(asked.same(0)):
            f.give(0)
        _timer(f, layout.TIMER_ASIDE)
    return f


def _arrive() -> Native:
    """arrive(context, id, count): count the threads of a warp in at a barrier; open it when those
    it expects are there."""
    f = Native(f"{PREFIX}arrive", "void", ("ptr", "context"), ("i32", "id"), ("i32", "count"),
               ("i32", "expected"))  # fmt: skip
    context, identity, count, _ = f.given
    with f.when(identity.same(layout.OF_CLUSTER)):  # `clusters` looks after that one
        f.give()
    f.change(context.byte(layout.BARRIERS).byte(identity.to("i64") << 3), "i32", count)
    f.call("void", "barriers_opened", context)
    return f


def _opened() -> Native:
    """barriers_opened(context): open the group's barriers whose expected threads are there."""
    f = Native("barriers_opened", "void", ("ptr", "context"))
    warps = _Warps.of(f)
    zero, one = (f.constant("i32", value) for value in (0, 1))
    with f.count(layout.BARRIER_COUNT) as number:
        slot = f.given[0].byte(layout.BARRIERS).byte(number << 3)
        arrived = f.load("i32", slot)
        with f.when(arrived.differs(0)):
            # With all threads expected: warps that neither wait here nor ended keep it closed.
            missing, expected = (f.variable("i32", 0) for _ in range(2))
            with f.count(warps.count) as warp:
                state = warps.state(warp)
                done, waiting, barrier, asked = (f.load("i32", state.byte(at)) for at in (
                    layout.STATE_DONE, layout.STATE_WAITING, layout.STATE_BARRIER,
                    layout.STATE_EXPECTED,
                ))  # fmt: skip
                here = waiting.differs(0) & barrier.same(number.to("i32"))
                missing.set(missing.get() | f.choose(here | done.differs(0), zero, one))
                expected.set(expected.get() | f.choose(here, asked, zero))
            all_here, enough = missing.get().same(0), arrived.above(expected.get() - 1)
            with f.when(f.choose(expected.get().same(0), all_here, enough)):
                _release(f, warps, number, slot)
    return f


def _release(f: Native, warps: _Warps, number: Word, slot: Word) -> None:
    """Open a barrier: run the products that wait for it, wake its warps."""
    result = f.load("i32", slot.byte(4))
    f.store(f.word(0), slot)
    with f.when(number.above(layout.NAMED - 1)):
        f.hook(f.given[0], "products_run", number - layout.NAMED)
    with f.count(warps.count) as warp:
        state = warps.state(warp)
        waiting, barrier = (state.byte(at) for at in (layout.STATE_WAITING, layout.STATE_BARRIER))
        here = f.load("i32", barrier).same(number.to("i32"))
        with f.when(here & f.load("i32", waiting).differs(0)):
            f.store(result, state.byte(layout.STATE_REDUCED))
            f.store(f.constant("i32", 0), waiting)


def launcher_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([_launch(), _run(), _attend(), _arrive(), _opened()])


def names() -> list[str]:
    """Return the functions that Python and kernels may call."""
    return [f"{PREFIX}launch", f"{PREFIX}arrive", f"{PREFIX}attend"]
