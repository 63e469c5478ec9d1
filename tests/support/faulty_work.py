"""Work that every kind of device reports as a fault: an access to memory that is not mapped, or, on
`cpu`, whose kernels share the process's memory, a command that does not exist."""

from __future__ import annotations

import numpy as np

from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer, MemoryState
from ugpu.hcq.work.command import Barrier
from ugpu.hcq.work.graph import Capture
from ugpu.hcq.work.prepared import prepare
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import Queue, QueueKind

UNMAPPED = VirtAddr(0x1234_5678_9000)
NO_COMMAND = 0xDEAD


def shares_memory(device: Device) -> bool:
    """Whether a kernel that faults ends the process that runs it."""
    return device.target.abi == "host"


def unmapped(core: MemoryState) -> Buffer:
    """A buffer that no memory is behind."""
    return Buffer(core, UNMAPPED, 64, Placement.DEVICE)


def record(queue: Queue, program: Program) -> Queue:
    """Record the fault on a GPU: a launch, or on a copy queue a fill."""
    nowhere = unmapped(queue.hardware.core)
    if queue.hardware.kind is QueueKind.COPY:
        return queue.fill(nowhere, 1)
    args = (nowhere, np.uint64(1), np.uint8(1))
    return queue.launch(program["wide"], grid=(1,), block=(1,), args=args)


def submit(device: Device, program: Program, kind: QueueKind = QueueKind.COMPUTE) -> int:
    """Submit work that faults to the first queue of a kind; the value that marks its end."""
    queue, core = device.queue(kind), device.driver.core
    if not shares_memory(device):
        return record(queue, program).submit()
    prepared = prepare(queue.hardware, [Barrier()])
    prepared.words[0] = NO_COMMAND
    return core.submit_prepared(queue.hardware, prepared, [])


def capture(device: Device, program: Program) -> Capture:
    """A graph whose replay faults."""
    with device.capture() as graph, device.queue() as queue:
        if shares_memory(device):
            queue.barrier()
        else:
            record(queue, program)
    if shares_memory(device):
        graph.images()[0].words[0] = NO_COMMAND
    return graph
