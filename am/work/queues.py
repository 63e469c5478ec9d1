"""The queues of a device: made when it comes up, described to the hardware again after a reset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ugpu.am.boot.units import UnitClasses
from ugpu.am.packets.mqd import QueueMemory
from ugpu.am.packets.sdma import Engine, RingMemory
from ugpu.am.units.gmc import VMIDS
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

    def make(self) -> bool:
        """Make the queues that the chip has, and start them; return whether the card was seen to
        take part. All have their memory before the first one starts: one TLB flush is enough."""
        driver, seat, programs = self._driver, self._driver.seat, self._driver.units.programs
        facts, made = driver.facts, driver.generation
        with driver.stages.stage("compute queue"):
            with driver.memory.together():
                self._eop = driver.map(EOP_SIZE, Placement.DEVICE)
                pipe, queue = seat.compute_slot(facts)
                doorbell = seat.compute_doorbell(facts)
                compute = made.compute_queue(driver, pipe, queue, doorbell)
                self.compute.append(compute)
                for engine in self._engines():
                    doorbell = seat.copy_doorbell(facts, engine.index)
                    self.copy.append(made.copy_queue(driver, engine, doorbell))
            programs.leave(
                partial(driver.units.gmc.invalidate, VMIDS),
                by_host=driver.flush_tlb,
                then=self._memory_seen,
            )
            programs.wipe(self._eop)
            for ring in self.all:
                programs.wipe(ring.memory)
                programs.clear(ring.pointers)
            self._load(compute, fresh=not driver.is_tenant)
        with driver.stages.stage("copy queues"):
            if not driver.is_tenant:
                self.route_copy_doorbells()
            for copy in self.copy:
                programs.leave(partial(self._start_copy, copy))
            programs.run()
            return programs.end()

    def _memory_seen(self, _: object) -> None:
        self._driver.memory.stale = False

    def _load(self, queue: ComputeQueue, *, fresh: bool = False) -> None:
        """Describe the queue in its MQD and load it. fresh: see Gfx.load_queue."""
        programs, gfx = self._driver.units.programs, self._driver.units.gfx
        place, descriptor = self._describe(queue)
        load = partial(gfx.load_queue, queue.pipe, queue.queue, descriptor, fresh=fresh)
        programs.put(place, bytes(descriptor))
        programs.leave(then=lambda _: load())  # by the host: the registers are banked

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
            self._load(queue)
        elif isinstance(queue, CopyQueue):
            self._start_copy(queue)

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
