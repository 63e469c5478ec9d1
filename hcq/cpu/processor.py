"""The native command processor (hcq/cpu/native) of the cpu device: its structures and its threads.

All structures are arrays of 64-bit words shared between Python and native threads; the field
numbers below are those of native/types.ll.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from ugpu.hcq.cpu.memory import HostMemory
from ugpu.hcq.errors import HostError
from ugpu.hcq.objects import jit
from ugpu.hcq.objects.builtin import Builtin, publish_interface
from ugpu.hcq.state.config import config
from ugpu.hcq.state.life import ModuleLock
from ugpu.hcq.state.threads import start

RING_ENTRIES = 4096
# TIMEOUT: threads end within microseconds of the request. A thread inside a kernel, which may never
# return, gets only the first limit; the second is for a host that has no processor free.
JOIN_LIMIT_S, LATE_LIMIT_S = 0.2, 20.0

LAUNCH, COPY, FILL, WAIT, SIGNAL, TIMESTAMP = range(1, 7)  # operation words, see hcq.cpu.queue
# Queue, in 64-bit words.
HEAD, TAIL, STOP, FAULT, CURRENT, RING, MASK, BELL, POOL, DOOR, EXPECTED, LAST, BRIEF = range(13)
# Pool, in 64-bit words behind its mutex and two conditions of 64 bytes each.
POOL_WORKERS, POOL_SPIN = 24 + 3, 24 + 12
ALARMS = 16  # of a bell, in 64-bit words: count of words that are not commands
BELL_WORDS, QUEUE_WORDS, POOL_WORDS = 18, 13, 24 + 15 + 2 * 1024 + 4 + 16
# Work known to take less runs in the thread that submits it. Waking another takes 5 us of processor
# time and longer to come up. With one processor, longer work is faster in the same thread too.
BRIEF_NS, BRIEF_ALONE_NS = 20_000, 100_000
SPIN_NS = 50_000  # the time that waking a thread may take; polling for that long costs no more


class Native:
    """The compiled processor's entry points. Calling one releases the interpreter lock, except for
    those that take too little time: `submit`, `run`, `again`, `quiet` and `expect`. again, expect,
    settle, quiet: functions to be made for the record of a repetition (hcq.cpu.queue), a queue, a
    wait, or a device's state (hcq.cpu.direct). Native code that is loaded later may call
    `ugpu_now` by this name."""

    def __init__(self, code: jit.Loaded) -> None:
        self.code = code

        def entry(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
            prototype = ctypes.CFUNCTYPE(result, *arguments)
            return prototype(code.address(name))

        def quick(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
            prototype = ctypes.PYFUNCTYPE(result, *arguments)
            return prototype(code.address(name))

        pointer, word = ctypes.c_void_p, ctypes.c_uint64
        self.ring = entry("ugpu_ring", None, pointer)
        self.wait = entry("ugpu_await", None, pointer, pointer, word, word)
        self.settle = Builtin("settle", code.address("ugpu_settled"))
        self.push = entry("ugpu_push", ctypes.c_int, pointer, pointer, word, word)
        self.submit = quick("ugpu_submit", ctypes.c_int, pointer, pointer, pointer, word)
        self.run = quick("ugpu_run", ctypes.c_int, pointer, pointer, word, word)
        self.again = Builtin("again", code.address("ugpu_again"))
        self.quiet = Builtin("quiet", code.address("ugpu_quiet"))
        jit.publish("ugpu_now", code.address("ugpu_now"))
        self.expect = Builtin("expect", code.address("ugpu_expected"))
        self.serve = entry("ugpu_serve", None, pointer)
        self.halt = entry("ugpu_halt", None, pointer)
        self.work = entry("ugpu_work", None, pointer)


PARTS = (
    "types",
    "waiting",
    "submit",
    "queue",
    "pool",
    "python",
    "direct",
)  # files of hcq/cpu/native, one module
# By architecture: the processor's instruction for wait loops, and whether a thread rounds to the
# nearest, keeps subnormal numbers and traps nothing, as new threads do. Elsewhere the latter is not
# known.
_ANY = """
define internal void @relax() { ret void }
define internal i1 @computes_as_usual() { ret i1 0 }
"""
# MXCSR: all but the flags. Intel SDM volume 1, 10.2.3.
_X86 = """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
define internal void @relax() {
  call void @llvm.x86.sse2.pause()
  ret void
}
define internal i1 @computes_as_usual() {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %value = load i32, ptr %at
  %modes = and i32 %value, 65472
  %usual = icmp eq i32 %modes, 8064
  ret i1 %usual
}
"""
# FPCR: Arm Architecture Reference Manual (DDI 0487), C5.2.
_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
define internal void @relax() { ret void }
define internal i1 @computes_as_usual() {
  %value = call i64 @llvm.aarch64.get.fpcr()
  %usual = icmp eq i64 %value, 0
  ret i1 %usual
}
"""
_OF_ARCHITECTURE = {"x86_64": _X86, "aarch64": _AARCH64}

# Functions of Python that the native code calls.
USED = (
    "PyLong_AsUnsignedLongLong", "PyLong_FromUnsignedLongLong", "PyErr_Occurred", "PyErr_Fetch",
    "PyErr_Restore", "PyErr_BadArgument", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyObject_Vectorcall", "PyObject_GetAttr", "PyObject_Size", "PyNumber_Add", "Py_IncRef",
    "Py_DecRef",
)  # fmt: skip

_build_lock = ModuleLock()
_native: Native | None = None


def source(triple: str) -> str:
    """Return the processor as one module of LLVM IR text, for a host of this target triple."""
    folder = Path(__file__).with_name("native")
    parts = [(folder / f"{part}.ll").read_text(encoding="utf-8") for part in PARTS]
    return "\n".join([*parts, _OF_ARCHITECTURE.get(triple.partition("-")[0], _ANY)])


def native() -> Native:
    """Return the processor, loaded on first use, once per process: from the cache, or compiled."""
    global _native
    loaded = _native
    if loaded is None:  # later calls take no lock: an interrupted thread may hold it
        with _build_lock.lock:
            loaded = _native = _native or _build()
    return loaded


def _build() -> Native:
    library = ctypes.CDLL(None)
    for name in (
        "pthread_mutex_lock",
        "pthread_cond_timedwait",
        "clock_gettime",
        "sched_getcpu",
        "sched_yield",
        "sched_setaffinity",
        "pthread_setaffinity_np",
        "memcpy",
    ):
        if not hasattr(library, name):  # LLVM would end the process
            raise HostError(f"the C library of this process has no {name}")
    publish_interface(USED)
    objects = jit.ObjectCache(config().cache_folder / "cpu")
    text = source(llvm.get_process_triple())
    key = jit.key_of((Path(__file__).with_name("native"),), text)
    content = objects.made(key, partial(jit.compile_object, text, jit.FULL, jit.FULL))
    return Native(jit.Loaded(content))


class Words:
    """A structure of 64-bit words at a fixed address, zero at first."""

    def __init__(self, count: int) -> None:
        self.memory = HostMemory(8 * count)
        self.words = np.frombuffer(self.memory.view, np.uint64)
        self.words[:] = 0
        self.address = self.memory.address
        self.cells = self.memory.view.cast("Q")

    def __getitem__(self, field: int) -> int:
        return self.cells[field]

    def __setitem__(self, field: int, value: int) -> None:
        self.cells[field] = value


class Bell:
    """A word on which threads sleep until it is rung."""

    def __init__(self) -> None:
        self.native = native()
        self.state = Words(BELL_WORDS)

    def ring(self) -> None:
        self.native.ring(self.state.address)

    def wait(self, word: int, value: int, limit_s: float) -> None:
        """Return when the 64-bit word at an address has reached a value, when a queue reads a word
        that is not a command, or after `limit_s`."""
        self.native.wait(self.state.address, word, value, max(0, int(limit_s * 1e9)))


class Pool:
    """Threads that help with launches of many groups. Serves one queue.

    If there is a processor for each, the pool's threads and the queue's own poll for more work for
    SPIN_NS before they sleep.
    """

    def __init__(self, workers: int, name: str) -> None:
        self.native = native()
        self.state = Words(POOL_WORDS)
        self.workers = workers
        self.state[POOL_WORKERS] = workers
        alone = workers == 0 or workers >= len(os.sched_getaffinity(0))
        self.state[POOL_SPIN] = 0 if alone else SPIN_NS
        self.threads: list[threading.Thread] = []
        try:
            for number in range(workers):
                self.threads.append(_start(self, self.native.work, f"{name} worker {number}"))
        except BaseException:
            self.stop(None)
            raise

    def stop(self, server: Server | None) -> bool:
        """End the threads, after those of the queue they help (None: that queue had none); return
        False if one is still inside a kernel."""
        self.native.halt(self.state.address)
        in_kernel = bool if server is None else server.in_kernel
        return all(_ended(thread, in_kernel) for thread in self.threads)


class Server:
    """A queue's native thread with its ring.

    Attributes:
        bell: the device's, rung when the queue signals.
    """

    def __init__(self, bell: Bell, pool: Pool, name: str) -> None:
        self.native = native()
        self.bell = bell
        self.pool = pool
        self.door = Bell()
        self.ring = Words(2 * RING_ENTRIES)
        self.state = Words(QUEUE_WORDS)
        self.state[RING] = self.ring.address
        self.state[MASK] = RING_ENTRIES - 1
        self.state[BELL] = bell.state.address
        self.state[POOL] = pool.state.address
        self.state[DOOR] = self.door.state.address
        # wakes the thread: a push is about to follow, for which it polls for a while
        self.expect = self.native.expect.of(self.state.address)
        alone = pool.workers == 0 and len(os.sched_getaffinity(0)) == 1
        self.state[BRIEF] = BRIEF_ALONE_NS if alone else BRIEF_NS
        try:
            self.thread = _start(self, self.native.serve, name)
        except BaseException:  # a Ctrl-C: the thread may have been started
            self._end()
            raise

    def note_last(self, address: int) -> None:
        """Have each push write its timeline value to `address`; call before the first push."""
        self.state[LAST] = address

    @property
    def room(self) -> bool:
        """Return whether the ring has room for another entry."""
        return self.state[TAIL] - self.state[HEAD] < RING_ENTRIES

    def push(self, address: int, count: int, value: int) -> bool:
        """Queue `count` command words at `address`, whose end is marked by the timeline's `value`;
        return False if the ring is full."""
        return bool(self.native.push(self.state.address, address, count, value))

    def submit(self, slots: int, prepared: int, signal: int) -> bool:
        """Submit a prepared image (hcq.cpu.queue), by `push` or, if it is bounded, by `run`; return
        False if no slot is free or the ring is full."""
        return bool(self.native.submit(slots, self.state.address, prepared, signal))

    def run(self, address: int, count: int, value: int) -> bool:
        """Queue command words as `push` does, or execute them before returning, if nothing is
        queued and they are known to take little time. Their kernels end, whatever they are
        given."""
        return bool(self.native.run(self.state.address, address, count, value))

    def stop(self) -> bool:
        """End the thread; return False if it is still inside a kernel (it ends when the kernel
        ends)."""
        self._end()
        return _ended(self.thread, self.in_kernel)

    def _end(self) -> None:
        self.state[STOP] = 1
        self.bell.ring()
        self.door.ring()

    def in_kernel(self) -> bool:
        """Return whether the thread appears to be inside a kernel."""
        current = self.state[CURRENT]
        return current != 0 and ctypes.c_uint32.from_address(current).value == LAUNCH


def _start(owner: Pool | Server, function: Callable[..., int], name: str) -> threading.Thread:
    # The thread's frame keeps its owner alive, and so every structure and all code that it uses.
    def run() -> None:
        function(owner.state.address)

    thread = threading.Thread(target=run, name=name, daemon=True)
    start(thread)
    return thread


def _ended(thread: threading.Thread, in_kernel: Callable[[], bool]) -> bool:
    thread.join(JOIN_LIMIT_S)
    if thread.is_alive() and not in_kernel():
        thread.join(LATE_LIMIT_S)
    return not thread.is_alive()
