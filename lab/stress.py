"""One thread's random work on a device, whose every result is checked.

A call that returns must have done its work: the content of each buffer is known, unless a call that
writes it has raised. Then it is unknown until it is written again.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from tests.support import faulty_work
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Parameter, Program
from ugpu.hcq.work.queue import QueueKind

SIZES = (4, 256, 4096, 70_000, 1 << 20)
MOST_BUFFERS = 16
LIMIT_S = 60.0  # TIMEOUT: of one wait; the work takes milliseconds
# Operations and how often each is drawn.
WEIGHTS = {
    "allocate": 10,
    "free": 8,
    "check": 10,
    "copy": 8,
    "fill": 5,
    "launch": 10,
    "chain": 5,
    "graph": 4,
    "load": 1,
    "sensors": 2,
    "fault": 0.1,
}


class Ledger:
    """What all threads of a round did. findings: what must not happen, one line each. memory_lost:
    resets that lost the content of memory, and say so in their report."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.findings: list[str] = []
        self.memory_lost = 0

    def find(self, text: str) -> None:
        """Note a finding."""
        with self.lock:
            self.findings.append(text)


class Held:
    """A buffer of one thread. value: the byte that fills it; None: unknown."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.value: int | None = None


class Worker(threading.Thread):
    """Draws operations until `stop` is set. doing: the current one; since: when it began."""

    def __init__(
        self, device: Device, image: bytes, seed: int, ledger: Ledger, stop: threading.Event
    ) -> None:
        super().__init__(name=f"worker {seed}", daemon=True)
        self.device, self.ledger, self.stopping = device, ledger, stop
        self.image = image
        self.random = random.Random(seed)
        self.held: list[Held] = []
        self.doing, self.since = "", time.monotonic()
        self.program: Program | None = None
        self.operations: dict[str, Callable[[], None]] = {
            name: getattr(self, name) for name in WEIGHTS
        }

    def run(self) -> None:
        names, weights = [*WEIGHTS], [*WEIGHTS.values()]
        while not self.stopping.is_set():
            name = self.random.choices(names, weights)[0]
            self.doing, self.since = name, time.monotonic()
            self._do(name)
        for held in self.held:
            with suppress(UgpuError):
                held.buffer.close()
        if self.program is not None:
            with suppress(UgpuError):
                self.program.close()
        self.doing = ""

    def _do(self, name: str) -> None:
        try:
            self.operations[name]()
        except UgpuError as error:
            with self.ledger.lock:
                self.ledger.errors[name, type(error).__name__] += 1
            self.since = time.monotonic()
            while self.device.failure is not None and not self.stopping.wait(1e-3):
                pass  # the thread that resets does so
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-3:])
            self.ledger.find(f"{name}: {type(error).__name__} is not an error of ours: {text}")
        with self.ledger.lock:
            self.ledger.done[name] += 1

    def expect(self, what: str, right: bool, lost: int) -> None:
        """Note a finding if a call has returned without its result. lost: `memory_lost` before."""
        if not right and self.ledger.memory_lost == lost:
            self.ledger.find(f"{what} returned, but its work was not done")

    def kernels(self) -> Program:
        """This thread's program, loaded on first use."""
        if self.program is None:
            self.program = self.device.load(self.image)
        return self.program

    # ---- memory ------------------------------------------------------------------------------

    def allocate(self) -> None:
        if len(self.held) >= MOST_BUFFERS:
            return
        size, value = self.random.choice(SIZES), self.random.randrange(256)
        placement = self.random.choice([*Placement])
        held = Held(self.device.alloc(size, placement=placement))
        self.held.append(held)
        held.buffer.copy_from(np.full(size, value, np.uint8))
        held.value = value

    def free(self) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held))).buffer.close()

    def check(self) -> None:
        if not self.held:
            return
        held, lost = self.random.choice(self.held), self.ledger.memory_lost
        data = held.buffer.numpy()
        if held.value is not None:
            self.expect(f"a write of {held.buffer}", bool((data == held.value).all()), lost)

    def copy(self) -> None:
        sizes: dict[int, list[Held]] = {}
        for held in self.held:
            sizes.setdefault(held.buffer.size, []).append(held)
        pairs = [each for each in sizes.values() if len(each) > 1]
        if not pairs:
            return
        to, source = self.random.sample(self.random.choice(pairs), 2)
        to.value = None
        queue = self.device.queue(self.random.choice([*QueueKind])).copy(to.buffer, source.buffer)
        queue.timeline.wait(queue.submit(), limit_s=LIMIT_S)
        to.value = source.value

    def fill(self) -> None:
        if self.held:
            held, value = self.random.choice(self.held), self.random.randrange(256)
            held.value = None
            held.buffer.fill(value * 0x0101_0101)
            held.value = value

    # ---- work --------------------------------------------------------------------------------

    def launch(self) -> None:
        count, lost = self.random.choice([1, 64, 1000]), self.ledger.memory_lost
        data = np.frombuffer(self.random.randbytes(4 * count), np.uint32)
        with self.device.alloc(4 * count) as out, self.device.alloc(4 * count) as source:
            source.copy_from(data)
            queue = self.device.queue()
            queue.launch(
                self.kernels()["scale"],
                grid=(-(-count // 64),),
                block=(64,),
                args=(out, source, np.uint32(count), np.uint32(3)),
            )
            queue.timeline.wait(queue.submit(), limit_s=LIMIT_S)
            self.expect("a launch", np.array_equal(out.numpy(np.uint32), 3 * data), lost)

    def chain(self) -> None:
        """Several submissions on both queues, then one wait for all."""
        lost, kinds = self.ledger.memory_lost, [*QueueKind]
        with self.device.alloc(4096) as out:
            out.fill(0)
            before = None
            for turn in range(3):
                queue = self.device.queue(kinds[turn % 2])
                if before is not None:
                    queue.wait(*before)
                part = out[1024 * turn : 1024 * (turn + 1)]
                before = queue.timeline, queue.fill(part, turn + 1).submit()
            self.device.synchronize(LIMIT_S)
            data = out.numpy(np.uint32).reshape(4, 256)
            right = all((data[turn] == turn + 1).all() for turn in range(3))
            self.expect("synchronize", right, lost)

    def graph(self) -> None:
        lost = self.ledger.memory_lost
        with self.device.alloc(64) as out:
            with CAPTURES, self.device.capture() as graph, self.device.queue() as queue:
                args = (out, Parameter(0, 8), np.uint8(1))
                queue.launch(self.kernels()["wide"], grid=(1,), block=(1,), args=args)
            try:
                for _ in range(3):
                    value = self.random.getrandbits(40)
                    graph.replay(parameters=[value])
                    graph.wait(LIMIT_S)
                    self.expect("a replay", int(out.numpy(np.uint64)[0]) == value + 1, lost)
            finally:
                graph.close()

    def load(self) -> None:
        with self.device.load(self.image) as program:
            assert "scale" in program

    def sensors(self) -> None:
        for sensor in self.device.sensors():
            sensor.read()
        self.device.info()

    def fault(self) -> None:
        """Work that faults; its wait must raise."""
        kind = self.random.choice([*QueueKind])
        timeline = self.device.queue(kind).timeline
        value = faulty_work.submit(self.device, self.kernels(), kind)
        timeline.wait(value, limit_s=LIMIT_S)
        self.ledger.find(f"a wait for a fault on a {kind.value} queue returned")


CAPTURES = threading.Lock()  # a device captures one graph at a time
