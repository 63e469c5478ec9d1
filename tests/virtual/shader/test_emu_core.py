"""The shared parts of shader cores, put together to a core of one kernel, with waves of 32 to 128
lanes: what the next core has to bring."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.objects import jit
from ugpu.virtual.shader import atomics, context
from ugpu.virtual.shader.lanes.every import LDS_SPACE, PREFIX
from ugpu.virtual.shader.lanes.functions import LANE_MEMORY
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import LANES, PROFILES, Text, constant, lanes
from ugpu.virtual.shader.threads import waves
from ugpu.virtual.shader.threads.waves import Waves, launcher_ir
from ugpu.virtual.shader.threads.worker import NativeWorker, aligned

IN, OUT, COUNTS = 0x10_0000, 0x30_0000, 0x50_0000
RESUME, DONE, GROUP, NUMBER, STRIDE = 0, 4, 8, 12, 64
GROUPS, WAVES = 5, 2
SIZES = (32, 64, 128)  # lanes of a wave
DISABLED = 5  # the lane of each wave that stores nothing


class ToyWorker(NativeWorker):
    """One thread's context, filled for a launch."""

    def __init__(self, memory: ArrayMemory) -> None:
        super().__init__()
        self.memory = memory
        self.tlb = self.tlb_for(memory)
        self.context = aligned(context.SIZE)
        self.kept = [aligned(size) for size in (64, LDS_SPACE + 64, STRIDE * WAVES)]
        flags, shared, states = (int(array.ctypes.data) for array in self.kept)
        for offset, value in (
            (context.TLB, int(self.tlb.ctypes.data)), (context.REFILL, self.refill),
            (context.ABORT, flags), (context.STOP, flags + 8), (context.COUNTER, flags + 16),
            (context.SHARED, shared), (context.SHARED_SIZE, LDS_SPACE), (context.TOTAL, GROUPS),
            (context.STATES, states), (context.STATE_STRIDE, STRIDE),
            (context.RESUME_GROUP, context.NO_GROUP),
        ):  # fmt: skip
            struct.pack_into("<Q", self.context.data, offset, value)
        for offset, value in (
            (context.GROUPS_X, GROUPS), (context.GROUPS_Y, 1), (context.WAVES, WAVES),
            (context.MXCSR, 0x1F80),
        ):  # fmt: skip
            struct.pack_into("<I", self.context.data, offset, value)

    def translate(self, address: int, access: Access) -> int:
        return self.memory.refill(self.tlb, address, access)

    def failed(self, address: int) -> None:
        self.kept[0][8] = 1


def _state(e: Text, offset: int) -> str:
    return e.value(f"getelementptr i8, ptr %wave, i64 {offset}")


def kernel_ir(count: int) -> tuple[str, set[str]]:
    """A wave loads its lanes' elements and leaves them in the group's memory; after a barrier it
    takes those of the group from the last on, stores three times as much, and counts in memory."""
    e, own = Text(count), ("ptr", "%context")
    resumed = e.value(f"load i32, ptr {_state(e, RESUME)}")
    number = e.value(f"load i32, ptr {_state(e, NUMBER)}")
    group = e.value(f"load i32, ptr {_state(e, GROUP)}")
    first = e.value(f"mul i32 {number}, {count}")
    mine = e.binary("add", "i32", e.broadcast("i32", first), lanes(list(range(count))))
    begin = e.value(f"mul i32 {group}, {count * WAVES}")
    place = e.binary("add", "i32", e.broadcast("i32", begin), mine)
    offsets = e.binary("shl", "i32", place, constant("i32", 2))
    here = e.binary("shl", "i32", mine, constant("i32", 2))
    every = (LANES, "-1")
    e.do(f"br i1 {e.value(f'icmp eq i32 {resumed}, 0')}, label %before, label %after")
    e.begin("before")
    loaded = e.by_passes(
        "i32", f"{PREFIX}near_load_4", own, ("i64", str(IN)), (e.vector, offsets), every
    )
    e.by_passes("", f"{PREFIX}lds_store_4", own, (e.vector, here), every, (e.vector, loaded))
    e.do(f"store i32 1, ptr {_state(e, RESUME)}")
    e.do(f"ret i32 {waves.AT_BARRIER}")
    e.begin("after")
    other = e.binary("sub", "i32", constant("i32", 4 * (count * WAVES - 1)), here)
    found = e.by_passes("i32", f"{PREFIX}lds_load_4", own, (e.vector, other), every)
    stored = e.binary("mul", "i32", found, constant("i32", 3))
    enabled = (LANES, str((1 << count) - 1 - (1 << DISABLED)))
    e.by_passes(
        "", f"{PREFIX}near_store_4", own, ("i64", str(OUT)), (e.vector, offsets), enabled,
        (e.vector, stored),
    )  # fmt: skip
    host = e.call("i64", f"{PREFIX}translate_write", own, ("i64", str(COUNTS)))
    wide = e.vector_of("i64")
    old = e.by_passes(
        "i32", f"{PREFIX}atomic_32", own, (wide, e.broadcast("i64", host)), enabled,
        ("i32", str(atomics.OPERATIONS[32].index("add"))), (e.vector, constant("i32", 2)),
        (e.vector, constant("i32", 0)),
    )  # fmt: skip
    e.do(f"store i32 {e.lane('i32', old, count - 1)}, ptr {_state(e, 16)}")
    e.do(f"ret i32 {waves.FINISHED}")
    text = f"define i32 @kernel{count}(ptr %context, ptr %wave) {{\n{e.text()}\n}}\n"
    return text, {line for line in e.declarations if PREFIX not in line}


def _launcher() -> tuple[str, set[str]]:
    begin = f"""
  %group.to = getelementptr i8, ptr %state, i64 {GROUP}
  store i32 %x, ptr %group.to
  %number.to = getelementptr i8, ptr %state, i64 {NUMBER}
  store i32 %w, ptr %number.to
  br label %init.end
"""
    return launcher_ir(Waves(
        name="launch", resume=RESUME, done=DONE, entry="", begin=begin, before="",
        needs=frozenset(), x86_mode=jit.on_x86(),
    ))  # fmt: skip


@cache
def _compiled() -> jit.Loaded:
    """Compile all of it, not published: a core in this process has functions of the same names."""
    parts = [make() for make, _ in (*LANE_MEMORY, atomics.part(PREFIX, context.IO, (32,)))]
    parts += [_launcher(), *(kernel_ir(count) for count in SIZES)]
    declarations: set[str] = set().union(*(needed for _, needed in parts))
    text = "\n".join([*(text for text, _ in parts), *sorted(declarations), PROFILES])
    return jit.Loaded(jit.compile_object(text, jit.FULL, 1))


def _mapped(memory: ArrayMemory, address: int, array: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return memory.map(address, array)


@pytest.mark.parametrize("count", SIZES)
def test_a_core_of_one_kernel(count: int) -> None:
    memory, total = ArrayMemory(), GROUPS * WAVES * count
    given = np.random.default_rng(count).integers(0, 1 << 30, total, np.uint32)
    _mapped(memory, IN, given)
    out = _mapped(memory, OUT, np.full(total, 7, np.uint32))
    counts = _mapped(memory, COUNTS, np.zeros(1, np.uint32))
    worker, code = ToyWorker(memory), _compiled()
    launch = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)(
        code.address("launch")
    )
    ended = launch(int(worker.context.ctypes.data), code.address(f"kernel{count}"))
    assert (ended, worker.error, memory.faults) == (waves.FINISHED, None, [])
    wanted = 3 * given.reshape(GROUPS, -1)[:, ::-1].reshape(GROUPS, WAVES, count)
    wanted[:, :, DISABLED] = 7
    assert np.array_equal(out.reshape(GROUPS, WAVES, count), wanted)
    assert counts[0] == 2 * GROUPS * WAVES * (count - 1)


def test_what_a_callback_raises_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ArrayMemory()
    worker, code = ToyWorker(memory), _compiled()
    trouble = OSError("no memory behind these pages")

    def fails(*_: object) -> int:
        raise trouble

    monkeypatch.setattr(memory, "refill", fails)
    launch = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)(
        code.address("launch")
    )
    ended = launch(int(worker.context.ctypes.data), code.address("kernel64"))
    assert ended == waves.ABORTED
    assert worker.error is trouble
