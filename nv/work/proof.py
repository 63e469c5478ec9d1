"""Proof that channels work after a reset: copies and a kernel with known results.

They run in addition to the signal that each new channel executes. The kernel is PTX and requires an
installed assembler; without one the proof reports that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import MissingDependency, OutOfMemory
from ugpu.hcq.rings.proof import COPY_BYTES, SEED, THREADS, check_copy, check_kernel, pattern
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Command, Copy, Launch
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.session import Region

if TYPE_CHECKING:
    from ugpu.nv.work.holder import WorkHolder
    from ugpu.nv.work.queue import ChannelQueue

LIMIT_S = 5.0  # TIMEOUT: microseconds on a healthy GPU; a sleeping GPU wakes in milliseconds
_SIZE = 4096  # bytes of each memory
_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry proof(.param .u64 results, .param .u32 seed)
{
    .reg .u32 %r<4>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [results];
    ld.param.u32 %r1, [seed];
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r2, 3, %r1;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
"""


def work(driver: WorkHolder, queues: Sequence[ChannelQueue]) -> dict[str, object]:
    """Copy into device memory and back on each copy queue, and run a kernel on each compute queue.

    Returns a description of the work done. ChipError for a wrong result.
    """
    copying = [queue for queue in queues if queue.kind is QueueKind.COPY]
    computing = [queue for queue in queues if queue.kind is QueueKind.COMPUTE]
    found: dict[str, object] = {}
    if not queues:
        return found
    made: list[Memory] = []
    try:
        host = _allocate(driver, Placement.HOST, made)
        if copying:
            device = _allocate(driver, Placement.DEVICE, made)
            for queue in copying:
                _copy(driver, queue, host, device)
            found["copy"] = f"right on {', '.join(queue.name for queue in copying)}"
        if computing:
            found["kernel"] = _compute(driver, computing, host)
    except OutOfMemory as error:  # the program's buffers, which must survive, fill it
        found.setdefault("copy", f"not made: {error}")
        found.setdefault("kernel", f"not run: {error}")
    finally:
        for memory in made:
            memory.close()
    return found


def _allocate(driver: WorkHolder, place: Placement, made: list[Memory]) -> Memory:
    region = Region.HOST if place is Placement.HOST else Region.DEVICE
    made.append(allocate(driver.gpu, _SIZE, place, region))
    return made[-1]


def _copy(driver: WorkHolder, queue: ChannelQueue, host: Memory, device: Memory) -> None:
    data = pattern(0x5EED)
    host.view[: 2 * COPY_BYTES] = data + bytes(COPY_BYTES)
    near, base = Symbol.constant(device.address), host.address
    _run(driver, queue, [Copy(near, Symbol.constant(base), COPY_BYTES)])
    _run(driver, queue, [Copy(Symbol.constant(base + COPY_BYTES), near, COPY_BYTES)])
    check_copy(queue.name, host.view[COPY_BYTES : 2 * COPY_BYTES], data)


def _compute(driver: WorkHolder, queues: Sequence[ChannelQueue], host: Memory) -> str:
    try:
        program = driver.programs.load(
            _PTX, way=(queues[0], lambda queue, end: wait(driver, queue, end))
        )
    except MissingDependency as error:
        return f"not run: {error}"
    try:
        for queue in queues:
            host.view[: 4 * THREADS] = bytes(4 * THREADS)
            arguments = struct.pack("<QI", host.address, SEED)
            _run(driver, queue, [Launch(program["proof"], (1, 1, 1), (THREADS, 1, 1), arguments)])
            check_kernel(queue.name, host.view[: 4 * THREADS])
    finally:
        program.close()
    return f"right on {', '.join(queue.name for queue in queues)}"


def _run(driver: WorkHolder, queue: ChannelQueue, commands: Sequence[Command]) -> None:
    """Run commands followed by a signal, and wait for their end."""
    wait(driver, queue, queue.run(commands))


def wait(driver: WorkHolder, queue: ChannelQueue, end: int) -> None:
    """Wait for a value of a queue's timeline, with the lock held; raise the queue's error."""
    timeline = queue.timeline
    driver.clock.wait_until(
        lambda: timeline.value >= end or queue.error() is not None,
        unit=queue.name,
        waiting_for="end of its proof",
        limit_s=LIMIT_S,
        state=queue.progress,
    )
    failed = queue.error()
    if failed is not None:
        raise driver.faults.explain(queue, failed)
