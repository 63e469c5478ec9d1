"""A driver of the toy card (tests.support.toy.toy_card) on the kit for bare cards, hcq.bare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tests.support.toy import toy_card as toy
from tests.support.toy.toy_chip import (
    HEAP,
    HEAP_END,
    IN_USE,
    LEFT_CLEAN,
    PACKAGE,
    ToyChip,
    ToyFormat,
    ToyRest,
)
from ugpu.hcq.bare import rungs
from ugpu.hcq.bare.card import BareCard
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.function import (
    enable_function,
    enable_master,
    reset_function,
    restore_function,
)
from ugpu.hcq.bare.holder import BareHolder
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.bare.vram import PAGE, MemoryMap
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    BadArgument,
    ChipError,
    DeviceHang,
    DeviceLost,
    NotSupported,
    PageFault,
    UgpuError,
)
from ugpu.hcq.state.ladder import Diagnosis, Level, PlainRung, Planned
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.pci.config import SavedConfig
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Signal
from ugpu.hcq.work.command_buffer import CommandBuffer, Relocation, Symbol, values_of
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import SIZE, Timeline


class ToyCard(BareCard["ToyHolder"]):
    """One card, two holders at most."""

    seats = 2
    connected = False  # the card knows the tables of its holders

    def __init__(self, transport: Transport, images: FirmwareSource, stages: Stages) -> None:
        super().__init__("toy", transport, stages)
        self._source, self._image = images, b""
        with stages.stage("config space"):
            command = enable_function(transport)
            self._chip = ToyChip(transport)
            self._chip.command, self._chip.kept = command, SavedConfig(transport.config_read)
        with stages.stage("registers"):
            self._chip.wait_ready()
        places = MemoryMap(HEAP, HEAP_END, toy.TABLES_AT, 40, 0x10_0000, 1 << 30)
        self._memory = AddressSpace(self._chip, places, ToyFormat())
        self._page = self._memory.allocate(PAGE, Placement.HOST)
        self.rest = ToyRest(self._chip, self.lock, self.holders)

    @property
    def chip(self) -> ToyChip:
        return self._chip

    @property
    def memory(self) -> AddressSpace:
        return self._memory

    @property
    def firmware_mapping(self) -> Mapping:
        return self._page

    @property
    def beats(self) -> bytes:
        """Return what the firmware has written to its page."""
        return bytes(self._page.view[:4])

    def take_over(self) -> bool:
        if not self.chip.runs or not self.rest.take_over():
            return False
        self.chip.bus.write32(toy.RESET, 1)  # no ring of a dead process may run
        return True

    def is_warm(self) -> bool:
        return self.chip.bus.read32(toy.NOTE) == LEFT_CLEAN

    def warm_attach(self, stages: Stages) -> None:
        with stages.stage("attach"):
            self._connect()

    def _connect(self) -> None:
        assert self._page.dma is not None
        self.chip.bus.write32(toy.ROOT, self.memory.root_entry)
        self.chip.tell(toy.PAGE_OF_FIRMWARE, self._page.dma.segments[0].address // PAGE)
        self.connected = True
        for holder in self.holders:
            if holder.has_own_memory:
                self.open_context(holder)
        enable_master(self.chip)

    def find_firmware(self) -> None:
        self._image = self._image or self._source.read("toy.bin")

    def make_fresh(self, stages: Stages) -> None:
        if self.chip.runs:
            with stages.stage("bus reset"):
                self.bus_reset(ResetKind.BUS)

    def bus_reset(self, kind: ResetKind) -> None:
        """Reset the card, and wait until it can be booted."""
        reset_function(self.chip, partial(self.transport.reset, kind), 0.1)
        self.chip.wait_ready()
        self.chip.dark = False

    def cold_boot(self, stages: Stages) -> None:
        with stages.stage("firmware"):
            self.chip.vram.write(0, self._image + bytes(-len(self._image) % 4))
            self.chip.tell(toy.LOAD, 0)
        with stages.stage("memory"):
            self._connect()

    def after_power_loss(self) -> None:
        restore_function(self.chip)
        self.chip.wait_ready()

    def after_reset(self) -> None:
        self.chip.bus.forget()
        self.rest.forget()

    def note_in_use(self) -> None:
        self.chip.bus.write32(toy.NOTE, IN_USE)

    def note_left(self) -> None:
        self.chip.bus.write32(toy.NOTE, LEFT_CLEAN)

    def quiet(self) -> None:
        if self.chip.runs:
            self.chip.bus.write32(toy.RESET, 1)

    def reset_at_end(self) -> None:
        if self.chip.runs:
            self.bus_reset(ResetKind.BUS)

    def open_context(self, holder: ToyHolder) -> None:
        if not self.connected:
            return  # the start does it
        self.chip.bus.write32(toy.ROOT + holder.context, holder.memory.root_entry)
        holder.flush_tlb()

    def close_context(self, holder: ToyHolder) -> None:
        if not self.chip.lost():
            self.chip.bus.write32(toy.ROOT + holder.context, 0)
            holder.flush_tlb()

    def close_units(self) -> None:
        self.memory.release(self._page)


class ToyQueue(HardwareQueue):
    """One ring in host memory: a slot for each command."""

    def __init__(self, driver: ToyHolder, kind: QueueKind, number: int) -> None:
        self.driver, self.core, self.kind = driver, driver.core, kind
        self.name, self.number = f"ring {number}", number
        self.memory = driver.map(2 * PAGE, Placement.HOST)
        control = driver.wrap(self.memory)[PAGE : PAGE + SIZE]
        self.timeline = Timeline(driver.core, control, self.name)
        self.restart()

    def restart(self) -> None:
        """Begin with an empty ring."""
        self.count = 0
        chip, place = self.driver.chip, toy.RING + 4 * self.number
        chip.bus.write32(place, int(self.memory.address) // 64)
        chip.bus.write32(place + 1, self.driver.context)
        chip.bus.write32(place + 2, 1)

    def stop(self) -> bool:
        """Take the ring off the hardware; False if it stays."""
        bus, switch = self.driver.chip.bus, toy.RING + 4 * self.number + 2
        bus.write32(switch, 0)
        return not bus.read32(switch)

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        words: list[int] = []
        places: list[Relocation] = []
        for command in commands:
            start = len(words)
            operation, size, symbols = self._operands(command)
            words += [operation, size, *[0] * (toy.SLOT // 4 - 2)]
            for number, symbol in enumerate(symbols):
                word = start + 2 + 2 * number
                places += [Relocation(word, symbol), Relocation(word + 1, symbol, shift=32)]
        return CommandBuffer(np.array(words, np.uint32), len(words), places)

    def _operands(self, command: Command) -> tuple[int, int, tuple[Symbol, ...]]:
        none = Symbol.constant(0)
        if isinstance(command, Copy):
            return toy.COPY, command.size, (command.destination, command.source, none)
        if isinstance(command, Fill):
            value = Symbol.constant(command.value)
            return toy.FILL, command.size, (command.destination, none, value)
        if isinstance(command, Signal):
            return toy.SIGNAL, 8, (Symbol.of(command.timeline.memory), none, command.value)
        if isinstance(command, Barrier):
            return toy.FILL, 0, (none, none, none)
        raise BadArgument(f"{self.name} does not execute {type(command).__name__}")

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        words = np.empty(len(buffer.words), np.uint32)
        buffer.patch(words, values)
        data = words.tobytes()
        assert len(data) <= toy.SLOTS * toy.SLOT
        for start in range(0, len(data), toy.SLOT):
            at = self.count % toy.SLOTS * toy.SLOT
            self.memory.view[at : at + toy.SLOT] = data[start : start + toy.SLOT]
            self.count += 1
        self.timeline.last += 1
        self.driver.chip.doorbells.write64(8 * self.number, self.count)

    def overwrite(self) -> None:
        self.memory.view[:PAGE] = bytes(PAGE)

    def place(self, buffer: CommandBuffer) -> Resident:
        raise NotSupported("the toy card has no graphs")

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        raise NotSupported("the toy card has no graphs")


class ToyHolder(BareHolder):
    """A driver: two rings, of a context of its own."""

    card: ToyCard
    most_tenants = 1

    def __init__(self, card: ToyCard, index: int, *, force_cold: bool = False) -> None:
        super().__init__(f"toy{index}", card)
        self._index, self.queues = index, list[ToyQueue]()
        self.clock_hertz = 1e9
        self.open(force_cold=force_cold)

    @property
    def index(self) -> int:
        return self._index

    @property
    def context(self) -> int:
        """The number of its page tables; 0 is the firmware's."""
        return 1 + self._index

    @property
    def chip(self) -> ToyChip:
        return self.card.chip

    @property
    def divides_memory(self) -> bool:
        return True

    def bring_up(self) -> None:
        self.target = TargetSpec(
            name="toy", abi="toy", triple="toy", cpu="toy", wave_size=1, max_threads_per_group=1,
            local_memory=0, dynamic_local_memory=0, compute_units=1, vector_bytes=4,
        )  # fmt: skip
        for number, kind in enumerate(QueueKind):
            self.queues.append(ToyQueue(self, kind, 2 * self.index + number))

    def stop_queues(self, clean: bool) -> tuple[bool, bool]:
        off = {queue.stop() for queue in self.queues} == {True}
        return off, clean and off

    def close_queues(self) -> None:
        for queue in self.queues:
            queue.memory.view.release()

    def make_tenant(self, name: str) -> ToyHolder:
        return ToyHolder(self.card, self.card.free_index())

    def sole_holder(self) -> str:
        return ""

    @property
    def rests(self) -> bool:
        return self.card.rest.able

    @property
    def at_rest(self) -> bool:
        return self.card.rest.resting

    def begin_rest(self) -> bool:
        return self.card.rest.begin()

    def end_rest(self) -> None:
        self.card.rest.end()

    def flush_tlb(self) -> None:
        self.chip.bus.write32(toy.FLUSH, self.context)
        self.memory.stale = False

    def rewrite(self) -> None:
        """See BareHolder: rings lie in host memory."""

    def load_program(self, image: bytes) -> Program:
        raise NotSupported("the toy card executes no programs")

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return [queue for queue in self.queues if queue.kind is kind]

    def poll(self) -> UgpuError | None:
        if self.chip.lost():
            return DeviceLost("the card does not respond")
        fault = self.chip.bus.read32(toy.FAULT)
        if not fault or fault >> 4 != self.context:
            return None
        address = self.chip.bus.read32(toy.FAULT_AT) * PAGE
        self.chip.bus.write32(toy.FAULT, 0)
        access = "write" if fault & 2 else "read"
        return PageFault(f"a {access} at {address:#x} faulted", address=address, access=access)

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return {"status": self.chip.bus.read32(toy.STATUS)}

    def recover(self, only: Level | None = None) -> Recovery:
        return rungs.recover(ToyRungs(self), only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return rungs.plan(ToyRungs(self), only)

    def info(self) -> dict[str, object]:
        return {"start": "warm" if self.warm else "cold"}


class ToyRungs(rungs.Rungs[ToyHolder, ToyQueue]):
    """Its rings alone, all rings, or the slot."""

    def __init__(self, holder: ToyHolder) -> None:
        super().__init__(holder, holder.queues, holder.queues)

    def all(self) -> list[PlainRung]:
        return [
            self.rung("restart rings", Level.QUEUE, "work of its rings", self.restart_all),
            self.rung("reset rings", Level.BLOCK, "work of all rings", self._reset_rings),
            *self.slot_rungs(self.holder.card.bus_reset),
        ]

    def diagnose(self) -> Diagnosis:
        failure = self.holder.core.failure
        first = Level.BLOCK if isinstance(failure, DeviceHang) else Level.QUEUE
        return Diagnosis(max(first, self.holder.card.unfinished), str(failure))

    def quiet(self) -> None:
        for queue in self.holder.queues:
            queue.stop()

    def _reset_rings(self) -> None:
        self.holder.chip.bus.write32(toy.RESET, 1)
        self.restart_all()

    def restart_all(self) -> None:
        self.restarted = [*self.holder.queues]
        self.holder.flush_tlb()
        for queue in self.restarted:
            queue.restart()
            queue.timeline.restart()

    def prove(self, level: Level) -> dict[str, object]:
        for queue in self.restarted:
            value = queue.timeline.last + 1
            buffer = queue.encode([Signal(queue.timeline, Symbol.constant(value))])
            queue.submit(buffer, values_of(buffer, value))
            if not queue.timeline.reached(value):
                raise ChipError(f"{queue.name} does not run")
        return {"ran": ", ".join(queue.name for queue in self.restarted)}


def open_toy(
    transport: Transport, image: bytes | None = None, *, force_cold: bool = False
) -> tuple[Device, ToyHolder]:
    """Open the card behind a transport; the device owns the transport."""
    images = {"toy.bin": toy.firmware() if image is None else image}
    try:
        card = ToyCard(transport, FirmwareSource(PACKAGE, images), Stages())
    except BaseException:
        transport.close()
        raise
    holder = ToyHolder(card, 0, force_cold=force_cold)
    return Device(holder), holder
