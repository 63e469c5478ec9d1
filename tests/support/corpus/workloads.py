"""Small workloads whose command streams are kept as goldens, for every driver.

Each is a function of a device and its program; it names the memory it uses, and waits after each
step that has to come before the next, so that each queue is given the same stream in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Parameter, Program
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.hcq.work.timeline import SIZE, Timeline

COUNT = 256
BYTES = 4 * COUNT


@dataclass
class Places:
    """Names of ranges of device addresses."""

    ranges: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, name: str, address: int, size: int) -> None:
        self.ranges.insert(0, (int(address), size, name))

    def shown(self, address: int) -> str:
        """`name+offset`, or the number where no range holds it."""
        for start, size, name in self.ranges:
            if start <= address < start + size:
                return f"{name}+{address - start:#x}" if address != start else name
        return f"{address:#x}"


@dataclass
class Bench:
    """What a workload works on; `stack` frees what it allocates."""

    device: Device
    program: Program
    places: Places
    stack: ExitStack

    def buffer(self, name: str, size: int = BYTES) -> Buffer:
        made = self.stack.enter_context(self.device.alloc(size))
        self.places.add(name, made.address, size)
        return made

    def timeline(self, name: str) -> Timeline:
        memory = self.device.alloc(SIZE, placement=Placement.HOST)
        self.stack.enter_context(memory)
        self.places.add(name, memory.address, SIZE)
        return Timeline(self.device.driver.core, memory, name)

    def scale(self, queue: Queue, out: Buffer, source: Buffer, factor: object) -> None:
        args = (out, source, np.uint32(COUNT), factor)
        queue.launch(self.program["scale"], grid=(4,), block=(64,), args=args)


def launch_barrier_launch(bench: Bench) -> None:
    """The second launch reads what the first has written."""
    source, middle, out = (bench.buffer(name) for name in ("source", "middle", "out"))
    with bench.device.queue() as queue:
        bench.scale(queue, middle, source, np.uint32(3))
        queue.barrier()
        bench.scale(queue, out, middle, np.uint32(5))
    bench.device.synchronize()


def wait_launch(bench: Bench) -> None:
    """A launch waits for another queue, and signals a timeline of the caller's."""
    source, out = bench.buffer("source"), bench.buffer("out")
    done = bench.timeline("done")
    copying = bench.device.queue(QueueKind.COPY)
    value = copying.fill(source, 7).submit()
    bench.device.synchronize()
    queue = bench.device.queue().wait(copying.timeline, value)
    bench.scale(queue, out, source, np.uint32(2))
    queue.signal(done, 9).submit()
    bench.device.synchronize()


def graph_replay(bench: Bench) -> None:
    """Two queues in a graph, replayed as it is and with another buffer and factor."""
    source, out, other = (bench.buffer(name) for name in ("source", "out", "other"))
    with bench.device.capture() as graph:
        copying = bench.device.queue(QueueKind.COPY).fill(source, 4)
        value = copying.submit()
        queue = bench.device.queue().wait(copying.timeline, value)
        bench.scale(queue, out, source, Parameter(0, 4))
        queue.submit()
    graph.replay(parameters=[6])
    graph.wait()
    graph.replay(inputs={out: other}, parameters=[7])
    graph.wait()
    graph.close()


def copy_chain(bench: Bench) -> None:
    """Copies one after the other on one queue, then on the compute queue, fills between."""
    first, second, third = (bench.buffer(name) for name in ("first", "second", "third"))
    clock = bench.buffer("clock", 16)
    for kind in (QueueKind.COPY, QueueKind.COMPUTE):
        queue = bench.device.queue(kind)
        queue.fill(first, 0x1234_5678).barrier().copy(second, first).barrier().copy(third, second)
        queue.timestamp(clock, 8).submit()
        bench.device.synchronize()


def mixed(bench: Bench) -> None:
    """Fills and launches in turns on the compute queue: engines of one channel change over."""
    source, out = bench.buffer("source"), bench.buffer("out")
    with bench.device.queue() as queue:
        queue.fill(source, 2).fill(out, 0)
        bench.scale(queue, out, source, np.uint32(2))
        queue.copy(source, out).fill(out, 1).barrier()
        bench.scale(queue, out, source, np.uint32(3))
    bench.device.synchronize()


WORKLOADS: tuple[Callable[[Bench], None], ...] = (
    launch_barrier_launch, wait_launch, graph_replay, copy_chain, mixed,
)  # fmt: skip


def lines_of(
    device: Device, program: Program, places: Places, take: Callable[[], list[str]]
) -> list[str]:
    """Run all workloads. take: the text of what was fetched since its last call."""
    lines: list[str] = []
    for workload in WORKLOADS:
        known = list(places.ranges)
        with ExitStack() as stack:
            workload(Bench(device, program, places, stack))
        lines += [f"# {workload.__name__}", *take(), ""]
        places.ranges = known
    return lines
