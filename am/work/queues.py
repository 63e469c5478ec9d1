"""The queues of a device: made when it comes up, described to the hardware again after a reset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ugpu.am.boot.units import UnitClasses
from ugpu.am.packets.mqd import QueueMemory
from ugpu.am.packets.sdma import Engine, RingMemory
from ugpu.am.units.gmc import VMIDS
from ugpu.am.units.lists import ListQueue
from ugpu.am.work.queue import RING_SIZE, ComputeQueue, CopyQueue, QueueHolder, RingQueue
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Fill
from ugpu.hcq.work.command_buffer import Symbol

EOP_SIZE = 4096


class QueuesGeneration(Protocol):
    """What queues use of am.generations.record.Generation, whose fields these are."""

    @property
    def units(self) -> UnitClasses: ...
    @property
    def compute_queue(self) -> type[ComputeQueue]: ...
    @property
    def copy_queue(self) -> type[CopyQueue]: ...
    @property
    def describe_queue(self) -> Callable[[QueueMemory, RegisterMap], Struct]: ...


class QueuesHolder(QueueHolder):
    """A holder of a chip of some generation."""

    generation: QueuesGeneration


class Queues:
    """All hardware queues of one device.

    Attributes:
        compute: the compute queues.
        copy: the copy queues, in the order of their engines.
    """

    def __init__(self, driver: QueuesHolder) -> None:
        self._driver = driver
        self.compute: list[ComputeQueue] = []
        self.copy: list[CopyQueue] = []

    def make(self) -> None:
        """Make the queues that the chip has, and start them. All have their memory before the first
        one starts: one TLB flush is enough for all."""
        driver, seat = self._driver, self._driver.seat
        facts, made = driver.facts, driver.generation
        with driver.stages.stage("compute queue"):
            with driver.memory.together():
                self._eop = driver.map(EOP_SIZE, Placement.DEVICE)
                if not driver.starts_by_list:
                    self._clear_by_host(self._eop)
                pipe, queue = seat.compute_slot(facts)
                doorbell = seat.compute_doorbell(facts)
                compute = made.compute_queue(driver, pipe, queue, doorbell)
                self.compute.append(compute)
                for engine in self._engines():
                    doorbell = seat.copy_doorbell(facts, engine.index)
                    self.copy.append(made.copy_queue(driver, engine, doorbell))
            if not driver.starts_by_list:
                self.start(compute)
        with driver.stages.stage("copy queues"):
            if not driver.is_tenant:
                self.route_copy_doorbells()
            if driver.units.lists is not None and driver.starts_by_list:
                self._start_by_list(driver.units.lists)
            else:
                for copy in self.copy:
                    self.start(copy)

    def _start_by_list(self, lists: ListQueue) -> None:
        """Use a list of registers to let the hubs see the memory of all queues, zero it and start
        the copy queues. Then start the compute queue without a list, because its registers are
        banked."""
        driver = self._driver
        places = [place for queue in self.all for place in queue.cleared]
        places.append((int(self._eop.address), EOP_SIZE))
        zero = (partial(lists.zero, *place) for place in places)
        described = [(queue, *self._describe(queue)) for queue in self.compute]
        lists.execute(
            partial(driver.units.gmc.invalidate, VMIDS),
            *zero,
            *(partial(self._start_copy, queue) for queue in self.copy),
            *(partial(lists.put, place, bytes(made)) for _, place, made in described),
            *driver.units.later,
        )
        driver.units.later.clear()
        driver.memory.stale = False
        for compute, _, descriptor in described:
            driver.units.gfx.load_queue(compute.pipe, compute.queue, descriptor, fresh=True)

    def _engines(self) -> list[Engine]:
        """Return the copy engines, each with the holder's queue of it."""
        driver = self._driver
        if not driver.is_tenant:
            return [*driver.units.engines]
        make = driver.generation.units.copy_engine
        return [make(driver.chip, one.index, driver.seat.index) for one in driver.units.engines]

    def route_copy_doorbells(self) -> None:
        """Route the doorbells of copy queues to their engines."""
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

    def _start_compute(self, queue: ComputeQueue) -> None:
        """Describe the queue in its MQD and load it."""
        driver = self._driver
        place, descriptor = self._describe(queue)
        driver.chip.vram.write(place, bytes(descriptor))
        driver.units.nbio.post_hdp()
        driver.units.gfx.load_queue(queue.pipe, queue.queue, descriptor)

    def _describe(self, queue: ComputeQueue) -> tuple[int, Struct]:
        """Make a queue's MQD; return its place in VRAM, and the MQD."""
        driver = self._driver
        carveout = driver.units.carveout
        place = carveout.mqd(driver.seat.index)
        descriptor = driver.generation.describe_queue(
            QueueMemory(
                mqd=carveout.mc(place),
                ring=int(queue.ring.address),
                ring_size=RING_SIZE,
                read_pointer=queue.read_pointer,
                write_pointer=queue.write_pointer,
                eop=int(self._eop.address),
                eop_size=EOP_SIZE,
                doorbell=queue.doorbell,
                vmid=driver.seat.vmid,
            ),
            driver.chip.gc.map,
        )
        return place, descriptor

    def _start_copy(self, queue: CopyQueue) -> None:
        queue.engine.start(
            RingMemory(
                ring=int(queue.ring.address),
                ring_size=RING_SIZE,
                read_pointer=queue.read_pointer,
                write_pointer=queue.write_pointer,
                doorbell=queue.doorbell,
                vmid=self._driver.seat.vmid,
            ),
            engine=not self._driver.is_tenant or self._driver.alone,
        )

    # ---- clearing ----------------------------------------------------------------------------

    def _clear_by_host(self, mapping: Mapping) -> None:
        """Clear VRAM through the host's window: for small sizes, at any time."""
        for start, length in mapping.pieces:
            self._driver.chip.vram.write(start, bytes(length))
        self._driver.units.nbio.post_hdp()

    def clear(self, mapping: Mapping) -> None:
        """Clear memory before all kernels that are submitted from now on; does not wait. It is the
        driver's own, which kernels can read and which was another holder's; the caller of the
        device clears buffers.

        OutOfMemory if the compute queue of a tenant has no room: waiting for it would make the
        other holders of the card wait too.
        """
        self._driver.core.complete()
        queue = self.compute[0]
        fill = Fill(Symbol.constant(int(mapping.address)), 0, mapping.size)
        queue.run([fill], "the command that clears new memory" if self._driver.is_tenant else "")

    # ---- off the hardware --------------------------------------------------------------------

    def drain(self, queue: RingQueue) -> bool:
        """Take a queue off the hardware when its work has ended; False if it stays active."""
        if isinstance(queue, ComputeQueue):
            return self._driver.units.gfx.stop_queue(queue.pipe, queue.queue)
        assert isinstance(queue, CopyQueue)
        return queue.engine.stop(alone=self._driver.alone)

    def kill(self, queue: RingQueue) -> bool:
        """Take a queue off the hardware with its running work; False if it stays active. The copy
        engine of a holder that has the card alone is reset as a whole."""
        if isinstance(queue, ComputeQueue):
            return self._driver.units.gfx.stop_queue(queue.pipe, queue.queue, reset_waves=True)
        assert isinstance(queue, CopyQueue)
        if not self._driver.alone:
            return queue.engine.reset_queue()
        queue.engine.reset()
        return True

    @property
    def all(self) -> list[RingQueue]:
        """All queues, compute queues first."""
        return [*self.compute, *self.copy]
