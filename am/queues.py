"""The queues of a device: made when it comes up, described to the hardware again after a reset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from am.gmc import VMIDS
from am.lists import ListQueue
from am.mqd import QueueMemory
from am.queue import RING_SIZE, ComputeQueue, CopyQueue, RingQueue
from am.sdma import RingMemory
from hcq.memory import Placement
from hcq.queue import QueueKind

if TYPE_CHECKING:
    from am.driver import AmDriver

EOP_SIZE = 4096


class Queues:
    """All hardware queues of one device."""

    def __init__(self, driver: AmDriver) -> None:
        self._driver = driver
        self._made: dict[QueueKind, list[RingQueue]] = {kind: [] for kind in QueueKind}

    def make(self) -> None:
        """Make the queues that the chip has, and start them. All have their memory before the first
        one starts: one TLB flush serves them."""
        driver = self._driver
        doorbells, made = driver.facts.generation.doorbells, driver.generation
        with driver.stages.stage("compute queue"):
            with driver.memory.together():
                self._eop = driver.map(EOP_SIZE, Placement.DEVICE)
                compute = made.compute_queue(driver, 0, 0, doorbells.compute_ring0 * 2)
                self._made[QueueKind.COMPUTE].append(compute)
                first = doorbells.copy_engine0 * 2
                for engine in driver.units.engines:
                    doorbell = first + engine.index * doorbells.copy_stride * 2
                    self._made[QueueKind.COPY].append(made.copy_queue(driver, engine, doorbell))
            if not driver.starts_by_list:
                self.start(compute)
        with driver.stages.stage("copy queues"):
            self.route_copy_doorbells()
            if driver.units.lists is not None and driver.starts_by_list:
                self._start_by_list(driver.units.lists)
            else:
                for copy in self.copy:
                    self.start(copy)

    def _start_by_list(self, lists: ListQueue) -> None:
        """Have the hubs see the memory of all queues, zero it and start the copy queues by a list
        of registers; then the compute queue by itself, as its registers are banked."""
        driver = self._driver
        zero = (partial(lists.zero, *place) for queue in self.all for place in queue.cleared)
        lists.execute(
            partial(driver.units.gmc.invalidate, VMIDS),
            *zero,
            *(partial(self._start_copy, queue) for queue in self.copy),
        )
        driver.memory.stale = False
        for compute in self.compute:
            self._start_compute(compute, fresh=True)

    def route_copy_doorbells(self) -> None:
        """Have the doorbells of copy queues reach their engines."""
        facts = self._driver.facts
        doorbells = facts.generation.doorbells
        self._driver.units.nbio.route_sdma_doorbells(
            doorbells.copy_engine0 * 2, doorbells.copy_range * facts.copy_engines
        )

    def start(self, queue: RingQueue) -> None:
        """Describe an idle queue to the hardware."""
        if self._driver.memory.stale:
            self._driver.flush_tlb()
        if isinstance(queue, ComputeQueue):
            self._start_compute(queue)
        elif isinstance(queue, CopyQueue):
            self._start_copy(queue)

    def _start_compute(self, queue: ComputeQueue, *, fresh: bool = False) -> None:
        """Describe the queue in its MQD and load it."""
        driver = self._driver
        carveout = driver.units.carveout
        descriptor = driver.generation.describe_queue(
            QueueMemory(
                mqd=carveout.mc(carveout.mqd),
                ring=int(queue.ring.address),
                ring_size=RING_SIZE,
                read_pointer=queue.read_pointer,
                write_pointer=queue.write_pointer,
                eop=int(self._eop.address),
                eop_size=EOP_SIZE,
                doorbell=queue.doorbell,
                vmid=self._driver.vmid,
            ),
            driver.chip.gc.map,
        )
        driver.chip.vram.write(carveout.mqd, bytes(descriptor))
        driver.units.nbio.post_hdp()
        driver.units.gfx.load_queue(queue.pipe, queue.queue, descriptor, fresh=fresh)

    def _start_copy(self, queue: CopyQueue) -> None:
        queue.engine.start(
            RingMemory(
                ring=int(queue.ring.address),
                ring_size=RING_SIZE,
                read_pointer=queue.read_pointer,
                write_pointer=queue.write_pointer,
                doorbell=queue.doorbell,
                vmid=self._driver.vmid,
            )
        )

    @property
    def all(self) -> list[RingQueue]:
        """All queues, compute queues first."""
        return [queue for kind in QueueKind for queue in self._made[kind]]

    @property
    def compute(self) -> list[ComputeQueue]:
        """The compute queues."""
        return [queue for queue in self._made[QueueKind.COMPUTE] if isinstance(queue, ComputeQueue)]

    @property
    def copy(self) -> list[CopyQueue]:
        """The copy queues."""
        return [queue for queue in self._made[QueueKind.COPY] if isinstance(queue, CopyQueue)]

    def of(self, kind: QueueKind) -> list[RingQueue]:
        """Those of a kind, in the order of their numbers."""
        return self._made[kind]
