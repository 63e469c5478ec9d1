"""The native functions of mbarrier objects in shared memory.

The word of an object is opaque to programs. Here it contains: bits 0..19 the arrivals still
pending, 20..39 the arrivals expected in a phase, 40..61 the bytes still to come, biased, 62 whether
a thread has tested this phase and it was not complete, 63 the phase. Only one worker accesses a
cluster's shared memory, so nothing needs to be atomic. The data that a phase waits for arrives when
a thread tests again.
Source: PTX ISA 8.x, "mbarrier", "Contents of the mbarrier object", "Phase of the mbarrier object".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.distributed import address_of, owner
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.shader.native import Word, joined

OPERATIONS = (
    "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "arrive.expect_tx",
    "arrive_drop.expect_tx", "test", "test.parity", "join",
)  # fmt: skip
_BITS = 20
_COUNT = (1 << _BITS) - 1
_BIAS = 1 << 21
_TX_AT = 2 * _BITS
_TX = (1 << 22) - 1
_ASKED = 1 << 62


def _settled(f: Native, host: Word, new: Word) -> None:
    """Store a word; the next phase begins if nothing is pending any more."""
    over = (new & _COUNT).same(0) & ((new >> _TX_AT) & _TX).same(_BIAS)
    again = ((new | ((new >> _BITS) & _COUNT)) ^ (1 << 63)) & ~_ASKED
    f.store(f.choose(over, again, new), host.to("ptr"))


def _arrived(f: Native, host: Word, count: Word, dropped: bool, more_bytes: Word | None) -> Word:
    """Emit the arrival of `count` threads; return the previous word."""
    word = f.variable("i64", f.load("i64", host.to("ptr")))
    with f.when((word.get() & _COUNT).below(count)):
        # A phase that only waits for data may be complete by now.
        f.call("void", f"{PREFIX}flights_drain", owner(f, host), host)
        word.set(f.load("i64", host.to("ptr")))
    old = word.get()
    with f.when((old & _COUNT).below(count) | count.same(0)):
        f.note(layout.BAD_COUNT, f.constant("i32", 0), count)
    new = old - count
    if dropped:
        new = new - (count << _BITS)
    if more_bytes is not None:
        new = new + (more_bytes << _TX_AT)
    _settled(f, host, new)
    return old


def _known() -> Native:
    """mbarrier_known(context, host): note a fault if there is no object."""
    f = Native(f"{PREFIX}mbarrier_known", "void", ("ptr", "context"), ("i64", "host"))
    with f.when(f.load("i64", f.given[1].to("ptr")).same(0)):
        f.note(layout.NO_MBARRIER, f.constant("i32", 0), address_of(f, f.given[1]))
    return f


def _arrive() -> Native:
    """mbarrier_arrive(context, host): one thread arrives."""
    f = Native(f"{PREFIX}mbarrier_arrive", "void", ("ptr", "context"), ("i64", "host"))
    _settled(f, f.given[1], f.load("i64", f.given[1].to("ptr")) - 1)
    return f


def _complete() -> Native:
    """mbarrier_complete(context, host, bytes): count bytes that have arrived."""
    f = Native(f"{PREFIX}mbarrier_complete", "void", ("ptr", "context"), ("i64", "host"),
               ("i64", "bytes"))  # fmt: skip
    _, host, size = f.given
    _settled(f, host, f.load("i64", host.to("ptr")) - (size << _TX_AT))
    return f


def _test(f: Native, host: Word, passed: Word, result: Word) -> None:
    """Store whether the current phase differs from the one in the lowest bit of `passed`."""
    word = f.load("i64", host.to("ptr"))
    phase = f.variable("i64", word >> 63)
    again = (word & _ASKED).differs(0)
    with f.when(phase.get().same(passed) & again):
        f.call("void", f"{PREFIX}flights_drain", owner(f, host), host)
        phase.set(f.load("i64", host.to("ptr")) >> 63)
    f.store(phase.get() ^ passed, result)


def _operate() -> Native:
    """mbarrier(context, hosts, lanes, operation, values): return old words, or for tests whether
    the phase is over. values: counts or words; bytes for arrive.expect_tx."""
    f = Native(f"{PREFIX}mbarrier", WIDE, ("ptr", "context"), (WIDE, "hosts"), ("i32", "lanes"),
               ("i32", "operation"), (WIDE, "values"))  # fmt: skip
    context, hosts, lanes, operation, values = f.given
    results = context.byte(layout.IO)
    f.store(values, results, 64)

    def chosen(name: str) -> Word:
        return operation.same(OPERATIONS.index(name))

    with f.each_lane(lanes) as lane:
        host, value = hosts.lane(lane), values.lane(lane)
        result = results.byte(lane.to("i64") << 3)
        with f.when(chosen("init").same(0)):
            f.call("void", f"{PREFIX}mbarrier_known", context, host)
        with f.when(chosen("init")):
            with f.when((value - 1).above(_COUNT - 1)):
                f.note(layout.BAD_COUNT, f.constant("i32", 0), value)
            f.store(value | (value << _BITS) | (_BIAS << _TX_AT), host.to("ptr"))
        with f.when(chosen("inval")):
            f.store(f.word(0), host.to("ptr"))
        with f.when(chosen("join")):  # this phase waits for one more thread
            f.change(host.to("ptr"), "i64", 1)
        for name in ("expect_tx", "complete_tx"):
            with f.when(chosen(name)):
                old = f.load("i64", host.to("ptr"))
                moved = value << _TX_AT
                _settled(f, host, old + moved if name == "expect_tx" else old - moved)
        one = f.word(1)
        for name, dropped in (("arrive", False), ("arrive_drop", True)):
            with f.when(chosen(name)):
                f.store(_arrived(f, host, value, dropped, None), result)
            with f.when(chosen(name + ".expect_tx")):
                f.store(_arrived(f, host, one, dropped, value), result)
        with f.when(chosen("test")):
            _test(f, host, value >> 63, result)
        with f.when(chosen("test.parity")):
            _test(f, host, value & 1, result)
    with (
        f.when(chosen("test") | chosen("test.parity")),
        f.each_lane(lanes) as lane,
        f.when(f.load("i64", results.byte(lane.to("i64") << 3)).same(0)),
    ):
        at = hosts.lane(lane).to("ptr")
        f.store(f.load("i64", at) | _ASKED, at)
    f.give(f.load(WIDE, results, 64))
    return f


def mbarriers_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([_known(), _arrive(), _complete(), _operate()])


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}mbarrier"]
