"""A made-up card: VRAM, page tables, rings, firmware, a reset. No vendor's; strict, and by itself.

It decodes registers, tables and commands from the numbers below, and takes nothing from the driver
(tests.support.toy.toy_driver). What a driver must not do is in `violations`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.support.clocks import Manual
from ugpu.hcq.errors import BadArgument, DeviceLost, NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.base import DmaMemory, DmaSegment, PciIdentity, ResetKind, Traits
from ugpu.hcq.transport.view import HostView

VENDOR, DEVICE = 0x70F0, 0x0001
MIB, PAGE = 1 << 20, 4096
VRAM, VISIBLE = 16 * MIB, 8 * MIB
TABLES_AT = 1 << 32  # tables hold this plus an offset in VRAM
FIRMWARE_SPACE = 0x10000  # from the start of VRAM on; the firmware's, once it runs
# Registers, by dword. NOTE is beyond the BAR, behind the index/data pair.
ID, STATUS, SIZE, MESSAGE, ARGUMENT, ANSWER, RESET, FLUSH = range(8)
ROOT, FAULT, FAULT_AT, INDEX, DATA, ADDRESS, VRAM_DATA = 8, 16, 17, 20, 21, 22, 23
RING = 24  # 4 dwords each: address (units of 64 bytes), context, on, unused
NOTE = 100
REGISTER_BAR, VRAM_BAR, DOORBELL_BAR = 0, 1, 2
RUNS = 1  # in STATUS
LOAD, PAGE_OF_FIRMWARE, SLEEP, WAKE = 1, 2, 3, 4  # messages
OK, DAMAGED, UNKNOWN = 1, 2, 3  # answers
MAGIC = 0x70F1
VALID, TABLE, HOST, WRITABLE = 1, 2, 4, 8  # of entries
CONTEXTS, RINGS, SLOTS, SLOT = 3, 4, 32, 64
COPY, FILL, SIGNAL = 1, 2, 3
NO_REGISTER = 0xFFFF_FFFF
MASTER, MEMORY = 4, 2  # of the command register


def firmware(body: bytes = b"toy firmware") -> bytes:
    """Return an image that the card accepts."""
    return struct.pack("<III", MAGIC, len(body), sum(body)) + body


@dataclass
class Ring:
    """One hardware queue. done: commands executed. stuck: it does not go on until it is set up
    again. hung: it takes nothing until a reset."""

    address: int = 0
    context: int = 0
    on: bool = False
    done: int = 0
    stuck: bool = False
    hung: bool = False


@dataclass
class ToyCard:
    """The hardware, which outlives processes. dark: reads of registers that still give ones.
    deaf: the firmware does not answer. hang: the next command stops its ring."""

    vram: bytearray = field(default_factory=lambda: bytearray(VRAM))
    registers: dict[int, int] = field(default_factory=dict)
    config: bytearray = field(default_factory=lambda: bytearray(256))
    rings: list[Ring] = field(default_factory=lambda: [Ring() for _ in range(RINGS)])
    memory: dict[int, memoryview] = field(default_factory=dict)  # of processes, by bus page
    cached: dict[tuple[int, int], int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    dark: int = 0
    deaf: bool = False
    hang: bool = False
    removed: bool = False
    asleep: bool = False  # its cores have no power
    page: int = 0  # that the firmware writes
    slow: int = 0  # polls until the firmware has answered

    def __post_init__(self) -> None:
        self._power_on()

    def _power_on(self) -> None:
        self.registers.clear()
        self.asleep, self.page = False, 0
        self.cached.clear()
        self.rings[:] = [Ring() for _ in range(RINGS)]
        self.vram[:] = b"\xa5" * VRAM
        self.config[:] = bytes(256)
        struct.pack_into("<HH", self.config, 0, VENDOR, DEVICE)

    def reset(self, kind: str, dark: int = 5) -> None:
        """Lose everything; registers read as ones for a while."""
        self.resets.append(kind)
        self._power_on()
        self.dark = dark

    # ---- registers ---------------------------------------------------------------------------

    def _decodes(self) -> bool:
        return bool(self.config[4] & MEMORY) and not self.removed

    def read(self, index: int) -> int:
        if not self._decodes():
            return NO_REGISTER
        if self.dark:
            self.dark -= 1
            return NO_REGISTER
        self._beat()
        if index == ID:
            return DEVICE << 16 | VENDOR
        if index == SIZE:
            return VRAM
        if index == DATA:
            return self.registers.get(self.registers.get(INDEX, 0) // 4, 0)
        if index == VRAM_DATA:
            at = self.registers.get(ADDRESS, 0)
            return int.from_bytes(self.vram[at : at + 4], "little")
        if self.asleep and is_core(index):
            return NO_REGISTER
        if _is_switch(index):
            return int(self.rings[(index - RING) // 4].on)
        if index == ANSWER and self.slow:
            self.slow -= 1
            return 0
        return self.registers.get(index, 0)

    def write(self, index: int, value: int) -> None:
        if not self._decodes() or self.dark:
            self.violations.append(f"write of register {index} while nothing decodes it")
            return
        if index == DATA:
            index = self.registers.get(INDEX, 0) // 4
        if self.asleep and is_core(index):
            self.violations.append(f"write of register {index} of a core without power")
            return
        if index == VRAM_DATA:
            self.store(self.registers.get(ADDRESS, 0), value.to_bytes(4, "little"))
            return
        self.registers[index] = value
        if index == MESSAGE:
            self._message(value, self.registers.get(ARGUMENT, 0))
        elif index == RESET:
            self.rings[:] = [Ring() for _ in range(RINGS)]
            self.resets.append("rings")
        elif index == FLUSH:
            for key in [key for key in self.cached if key[0] == value]:
                del self.cached[key]
        elif _is_switch(index) and not self.rings[(index - RING) // 4].hung:
            address, context, on = (self.registers.get(index - 2 + n, 0) for n in range(3))
            self.rings[(index - RING) // 4] = Ring(address * 64, context, bool(on))

    def _message(self, message: int, argument: int) -> None:
        if self.deaf:
            self.registers[ANSWER] = 0
            return
        self.slow, answer = 3, UNKNOWN
        if message == LOAD:
            magic, size, total = struct.unpack_from("<III", self.vram, argument)
            body = self.vram[argument + 12 : argument + 12 + size]
            answer = OK if magic == MAGIC and sum(body) == total else DAMAGED
            self.registers[STATUS] = RUNS if answer == OK else 0
        elif message == PAGE_OF_FIRMWARE and self.registers.get(STATUS, 0) & RUNS:
            answer, self.page = OK, argument  # it writes this page again and again
        elif message in (SLEEP, WAKE):
            answer, self.asleep = OK, message == SLEEP
        self.registers[ANSWER] = answer

    def store(self, address: int, data: bytes | memoryview) -> None:
        """The host writes VRAM."""
        if address < FIRMWARE_SPACE and self.registers.get(STATUS, 0) & RUNS:
            self.violations.append(f"write to the firmware's memory at {address:#x}")
        self.vram[address : address + len(data)] = data

    # ---- engines -----------------------------------------------------------------------------

    def ring_doorbell(self, number: int, tail: int) -> None:
        """Execute commands up to `tail`."""
        ring = self.rings[number]
        self._beat()
        if self.asleep:
            self.violations.append(f"doorbell of ring {number} without power")
            return
        if not ring.on:
            self.violations.append(f"doorbell of ring {number}, which is off")
            return
        while ring.done < tail and not ring.stuck:
            self._execute(ring)

    def _beat(self) -> None:
        if self.page:
            self._host(self.page * PAGE, b"beat", None)

    def _execute(self, ring: Ring) -> None:
        slot = self._load(ring, ring.address + ring.done % SLOTS * SLOT, SLOT)
        if slot is None or self.hang:
            ring.stuck, ring.hung, self.hang = True, self.hang, False
            return
        operation, size, to, source, value = struct.unpack_from("<IIQQQ", slot)
        data: bytes | None = b""
        if operation == COPY:
            data = self._load(ring, source, size)
        elif operation == FILL:
            data = (value & 0xFFFF_FFFF).to_bytes(4, "little") * (size // 4)
        elif operation == SIGNAL:
            data = value.to_bytes(8, "little")
        else:
            self.violations.append(f"command {operation}")
        if data is None or not self._save(ring, to, data):
            ring.stuck = True
            return
        ring.done += 1

    def _load(self, ring: Ring, virtual: int, size: int) -> bytes | None:
        parts = []
        for at in _pages(virtual, size):
            entry = self._translate(ring, at[0], write=False)
            if entry is None:
                return None
            place = (entry & 0xFFFF_FFFF_F000) + at[0] % PAGE
            parts.append(
                self._host(place, None, at[1])
                if entry & HOST
                else bytes(self.vram[place - TABLES_AT : place - TABLES_AT + at[1]])
            )
        return b"".join(parts)

    def _save(self, ring: Ring, virtual: int, data: bytes) -> bool:
        for start, size in _pages(virtual, len(data)):
            entry = self._translate(ring, start, write=True)
            if entry is None:
                return False
            place, part = (entry & 0xFFFF_FFFF_F000) + start % PAGE, data[:size]
            if entry & HOST:
                self._host(place, part, None)
            else:
                self.vram[place - TABLES_AT : place - TABLES_AT + size] = part
            data = data[size:]
        return True

    def _host(self, bus: int, data: bytes | None, size: int | None) -> bytes:
        page = self.memory.get(bus // PAGE)
        if not self.config[4] & MASTER:
            return b"\xff" * (size or 0)  # the port completes it with an error
        if page is None:
            self.violations.append(f"access to bus address {bus:#x}, which no process has mapped")
            return b"\xff" * (size or 0)
        at = bus % PAGE
        if data is not None:
            page[at : at + len(data)] = data
        return bytes(page[at : at + (size or 0)])

    def _translate(self, ring: Ring, virtual: int, *, write: bool) -> int | None:
        """Return the leaf for an address, as one of 4 KiB; None and a latched fault if there is
        none."""
        key = ring.context, virtual // PAGE
        entry = self.cached.get(key)
        if entry is None:
            entry = self.cached[key] = self._walk(self.registers.get(ROOT + key[0], 0), virtual)
        if entry & VALID and (entry & WRITABLE or not write):
            return entry
        del self.cached[key]
        self.registers[FAULT] = 1 | write << 1 | ring.context << 4
        self.registers[FAULT_AT] = virtual // PAGE
        return None

    def _walk(self, root: int, virtual: int) -> int:
        """Two levels: 512 entries of two words for 2 MiB each, a pointer in the second word; 512
        entries of one word for 4 KiB each."""
        if not root or virtual >> 30:
            return 0
        leaf, pointer = self._words(root * PAGE + 16 * (virtual >> 21), 2)
        if leaf & VALID:
            return leaf + (virtual & 0x1F_F000)
        if not pointer & VALID or not pointer & TABLE:
            return 0
        (leaf,) = self._words((pointer & 0xFFFF_FFFF_F000) + 8 * (virtual >> 12 & 511), 1)
        return leaf

    def _words(self, physical: int, count: int) -> Sequence[int]:
        return struct.unpack_from(f"<{count}Q", self.vram, physical - TABLES_AT)


def is_core(index: int) -> bool:
    """Return whether a register is a core's: without power, it cannot be accessed."""
    return RESET <= index <= FAULT_AT or RING <= index < RING + 4 * RINGS


def _is_switch(index: int) -> bool:
    """Return whether a register switches a ring on and off."""
    return RING <= index < RING + 4 * RINGS and (index - RING) % 4 == 2


def _pages(virtual: int, size: int) -> list[tuple[int, int]]:
    """Cut a range at the ends of pages."""
    parts, end = [], virtual + size
    while virtual < end:
        stop = min(end, virtual // PAGE * PAGE + PAGE)
        parts.append((virtual, stop - virtual))
        virtual = stop
    return parts


# ---- the way of one process to the card ---------------------------------------------------------


class ToyMemory:
    """DMA memory of one process. See DmaMemory."""

    def __init__(self, card: ToyCard, first: int, size: int) -> None:
        self.card, self.size = card, -(-size // PAGE) * PAGE
        self._whole = bytearray(self.size)
        self.view: HostView = memoryview(self._whole)
        self._pages = range(first, first + self.size // PAGE)
        self.segments: Sequence[DmaSegment] = (DmaSegment(BusAddr(first * PAGE), self.size),)
        for number, page in enumerate(self._pages):
            part = memoryview(self._whole)[number * PAGE : (number + 1) * PAGE]
            card.memory[page] = part

    def close(self) -> None:
        """See DmaMemory."""
        for page in self._pages:
            self.card.memory.pop(page, None)


class ToyWindow:
    """A BAR. See Window."""

    def __init__(self, card: ToyCard, index: int, size: int) -> None:
        self.card, self.index, self.size = card, index, size

    def _check(self, offset: int, size: int, align: int) -> None:
        if offset % align or offset < 0 or offset + size > self.size:
            raise BadArgument("outside the BAR", offset=offset, size=size, limit=self.size)

    def read32(self, offset: int) -> int:
        self._check(offset, 4, 4)
        if self.index == VRAM_BAR:
            return int.from_bytes(self.card.vram[offset : offset + 4], "little")
        return self.card.read(offset // 4)

    def write32(self, offset: int, value: int) -> None:
        self._check(offset, 4, 4)
        if self.index == DOORBELL_BAR:
            self.card.ring_doorbell(offset // 8, value)
        elif self.index == VRAM_BAR:
            self.card.store(offset, value.to_bytes(4, "little"))
        else:
            self.card.write(offset // 4, value)

    def read64(self, offset: int) -> int:
        return self.read32(offset) | self.read32(offset + 4) << 32

    def write64(self, offset: int, value: int) -> None:
        self._check(offset, 8, 8)
        self.write32(offset, value & 0xFFFF_FFFF)

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size, 4)
        return bytes(self.card.vram[offset : offset + size])

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check(offset, len(data), 4)
        self.card.store(offset, memoryview(data))


class ToyTransport:
    """The transport of one process; `die` ends it as SIGKILL does. See Transport."""

    interrupts = None

    def __init__(self, card: ToyCard, next_page: int = 0x1000) -> None:
        self.name, self.card = "toy", card
        self.identity = PciIdentity(VENDOR, DEVICE)
        self.traits = Traits(resets=frozenset({ResetKind.BUS}))
        self.clock: Clock = Manual()
        self.on_reset: Callable[[], object] = lambda: None
        self.closed = False
        self._next_page = next_page
        sizes = (16 * 16, VISIBLE, PAGE)
        self._windows = [ToyWindow(card, index, size) for index, size in enumerate(sizes)]
        self._memory: list[ToyMemory] = []

    def config_read(self, offset: int, width: int = 4) -> int:
        if self.card.removed:
            return (1 << 8 * width) - 1
        return int.from_bytes(self.card.config[offset : offset + width], "little")

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.card.config[offset : offset + width] = value.to_bytes(width, "little")

    def window(self, index: int) -> ToyWindow:
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        memory = ToyMemory(self.card, self._next_page, size)
        self._next_page += memory.size // PAGE + 1
        self._memory.append(memory)
        return memory

    def batch(self) -> nullcontext[None]:
        return nullcontext()

    def reset(self, kind: ResetKind) -> None:
        if kind is not ResetKind.BUS:
            raise NotSupported(f"{self.name} offers no {kind.value} reset")
        if self.card.removed:
            raise DeviceLost("the slot is empty")
        self.on_reset()
        self.card.reset(kind.value)

    def facts(self) -> dict[str, object]:
        return {}

    def sensors(self) -> Sequence[Sensor]:
        return ()

    def present(self) -> bool:
        return self.config_read(0) != NO_REGISTER

    def die(self) -> ToyTransport:
        """End the process: its memory is unmapped, and nothing tells the card. Returns the next
        process's transport."""
        for memory in self._memory:
            memory.close()
        return ToyTransport(self.card, self._next_page)

    def close(self) -> None:
        self.closed = True
        for memory in self._memory:
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
