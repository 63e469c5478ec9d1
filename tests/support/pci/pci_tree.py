"""A PCI Express tree behind a bridge, as far as its enumeration needs one: type 1 headers that
route, BARs that are sized, windows, and memory in the card's BAR 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.usb.usb_script import ScriptedUsb
from ugpu.hcq.errors import DeviceLost
from ugpu.hcq.transport.bulk import Data
from ugpu.usbgpu.bridge.interface import (
    LINK_UP,
    LTSSM,
    SECTOR,
    SRAM_SIZE,
    Ability,
    Completion,
    Status,
    Tlp,
)

OK, UNSUPPORTED = Status.OK, Status.UNSUPPORTED
EXPRESS, REBAR = 0x40, 0x200


@dataclass
class Bar:
    size: int
    flags: int = 0  # low bits of the register
    address: int = 0


@dataclass
class Node:
    """One function. below: what is on its secondary bus, by device number."""

    identity: int
    kind: int  # class code, 8 bits
    bars: dict[int, Bar] = field(default_factory=dict)
    below: dict[int, Node] = field(default_factory=dict)
    port: int = 0  # PCI Express port type
    width: int = 4
    sizes: int = 0  # that BAR 0 may be given: bit n is 1 MiB << n
    stays: bool = False  # what it is given has no effect
    retries: int = 0  # configuration requests that it puts off
    config: bytearray = field(default_factory=lambda: bytearray(4096))

    def __post_init__(self) -> None:
        put = self._put
        self.config[:] = bytes(4096)
        self._resting = {index: bar.size for index, bar in self.bars.items()}
        put(0x00, self.identity)
        put(0x08, self.kind << 24)
        put(0x06, 0x10, 2)
        put(0x34, EXPRESS, 1)
        put(EXPRESS, 0x10 | self.port << 20)
        put(EXPRESS + 18, self.width << 4 | 4, 2)
        for index, bar in self.bars.items():
            put(0x10 + 4 * index, bar.flags)
        if self.sizes:
            put(0x100, 1 | 1 << 16 | REBAR << 20)
            put(REBAR, 0x15 | 1 << 16)
            put(REBAR + 4, self.sizes << 4)
            put(REBAR + 8, 1 << 5)

    def reset(self) -> None:
        """Back to the state after power-on, with all below."""
        for index, size in self._resting.items():
            self.bars[index].size = size
        self.__post_init__()
        for node in self.below.values():
            node.reset()

    def _put(self, offset: int, value: int, width: int = 4) -> None:
        self.config[offset : offset + width] = value.to_bytes(width, "little")

    def get(self, offset: int, width: int = 4) -> int:
        return int.from_bytes(self.config[offset : offset + width], "little")

    def write(self, offset: int, value: int, enable: int) -> None:
        for lane in range(4):
            if enable >> lane & 1 and offset >= 4:
                self.config[offset + lane] = value >> 8 * lane & 0xFF
        if offset == REBAR + 8 and self.sizes:
            power = self.get(offset) >> 8 & 0x1F
            assert self.sizes >> power & 1, "a size that is not offered"
            assert not self.get(4, 2) & 2, "resized while it decodes"
            if not self.stays:
                self.bars[0].size = 1 << 20 + power
        for index, bar in self.bars.items():
            self._mask(index, bar)
        if self.kind == 0x06 and offset == 0x3C and value >> 16 & 0x40 and enable & 4:
            for node in self.below.values():
                node.reset()

    def _mask(self, index: int, bar: Bar) -> None:
        at, wide = 0x10 + 4 * index, bar.flags & 4
        value = self.get(at, 8 if wide else 4) & -bar.size
        bar.address = value
        self._put(at, (value | bar.flags) & ((1 << (64 if wide else 32)) - 1), 8 if wide else 4)

    def decodes(self, address: int) -> tuple[int, int] | None:
        """(BAR, offset) of an address."""
        if not self.get(4, 2) & 2:
            return None
        for index, bar in self.bars.items():
            if bar.address <= address < bar.address + bar.size:
                return index, address - bar.address
        return None

    def passes(self, address: int) -> bool:
        """Whether a bridge sends a memory request down."""
        if not self.get(4, 2) & 2:
            return False
        low = (self.get(0x20, 2) & 0xFFF0) << 16, (self.get(0x22, 2) & 0xFFF0) << 16 | 0xFFFFF
        base = (self.get(0x24, 2) & 0xFFF0) << 16 | self.get(0x28) << 32
        limit = (self.get(0x26, 2) & 0xFFF0) << 16 | 0xFFFFF | self.get(0x2C) << 32
        return low[0] <= address <= low[1] or base <= address <= limit


def gpu(**options: int) -> Node:
    """A card with VRAM, doorbells and registers in BARs 0, 2 and 5, and an I/O BAR in 4."""
    bars = {0: Bar(256 << 20, 0xC), 2: Bar(2 << 20, 0xC), 4: Bar(256, 1), 5: Bar(1 << 20, 0)}
    return Node(0x744C1002, 0x03, bars, sizes=0b111 << 8, **options)


def chain(card: Node | None, **options: int) -> Node:
    """The root, a switch and its port, as an enclosure and a card's own switch have them."""
    port = Node(0x14791002, 0x06, below={} if card is None else {0: card}, port=6)
    switch = Node(0x14781002, 0x06, below={0: port}, port=5, **options)
    return Node(0x24631B21, 0x06, below={0: switch}, port=4)


class TreeBridge:
    """See usbgpu.bridge.interface.Bridge. gone: it was unplugged. supply: the card's link can
    come up."""

    abilities = frozenset({Ability.POWER, Ability.SLOTS, Ability.FLASH, Ability.PINS})

    def __init__(self, root: Node | None, *, up: bool = False, supply: bool = True) -> None:
        self.usb = ScriptedUsb([])
        self.firmware = "tree"
        self.transfers = 0
        self.root = root
        self.up, self.supply, self.gone = up, supply, False
        self.memory = bytearray(1 << 16)  # of the card, behind BARs 0 and 5
        self.registers = bytearray(1 << 16)
        self.sram = bytearray(SRAM_SIZE)
        self.fence = bytearray(32)
        self.pins = bytearray(b"\xff" * 256)  # of an I2C bus with nothing on it
        self.log: list[tuple[str, int, int]] = []

    def _check(self) -> None:
        if self.gone:
            raise DeviceLost("unplugged")
        assert not self.usb.closed
        self.transfers += 1

    def read_xdata(self, address: int, size: int, bank: int = 0) -> bytes:
        self._check()
        if address == LTSSM:
            return bytes([LINK_UP if self.up else 0x10])
        memory, start = self._xdata(address, size)
        return bytes(memory[start : start + size])

    def write_xdata(self, address: int, data: bytes, bank: int = 0) -> None:
        self._check()
        memory, start = self._xdata(address, len(data))
        memory[start : start + len(data)] = data

    def _xdata(self, address: int, size: int) -> tuple[bytearray, int]:
        if address >= 0xF000:
            return self.sram, address - 0xF000
        if 0xC600 <= address < 0xC700:
            return self.pins, address - 0xC600
        assert address >= 0xA800 and address + size <= 0xA820
        return self.fence, address - 0xA800

    def power(self, on: bool) -> None:
        self._check()
        self.up = on and self.supply
        if not on and self.root is not None:
            self.root.reset()
        self.log.append(("power", int(on), 0))

    def request(self, kind: Tlp, address: int, value: int = 0, enable: int = 0xF) -> Completion:
        self._check()
        if kind in (Tlp.MEMORY_READ, Tlp.MEMORY_WRITE):
            found = self._place(address, 4)
            if found is None:
                return Completion(OK if kind.posted else UNSUPPORTED)
            if kind is Tlp.MEMORY_WRITE:
                self.write_memory(address, value.to_bytes(4, "little"))
                return Completion(OK)
            memory, start = found
            return Completion(OK, int.from_bytes(memory[start : start + 4], "little"))
        bus, device, number = address >> 24, address >> 19 & 31, address >> 16 & 7
        assert (kind & 1) == bool(bus), "configuration requests of type 0 stay on bus 0"
        node = self._find(bus, device) if number == 0 else None
        if node is None:
            return Completion(UNSUPPORTED)
        if node.retries:
            node.retries -= 1
            return Completion(Status.RETRY)
        if kind & 0x40:
            node.write(address & 0xFFC, value, enable)
            return Completion(OK)
        return Completion(OK, node.get(address & 0xFFC))

    def _find(self, bus: int, device: int) -> Node | None:
        if self.root is None or not self.up:
            return None
        if bus == 0:
            return self.root if device == 0 else None
        node = self.root
        while True:
            _, secondary, subordinate = node.config[0x18:0x1B]
            if not secondary <= bus <= subordinate:
                return None
            if bus == secondary:
                return node.below.get(device)
            routes = [
                one for one in node.below.values() if one.config[0x19] <= bus <= one.config[0x1A]
            ]
            if len(routes) != 1 or not routes[0].config[0x19]:
                return None
            node = routes[0]

    def _place(self, address: int, size: int) -> tuple[bytearray, int] | None:
        node = self.root
        while node is not None and node.below:
            if not node.passes(address) or not node.passes(address + size - 1):
                return None
            node = next(iter(node.below.values()))
        found = None if node is None else node.decodes(address)
        if found is None:
            return None
        return (self.memory if found[0] == 0 else self.registers), found[1]

    def post(self, kind: Tlp, address: int, value: int, enable: int = 0xF) -> None:
        self.request(kind, address, value, enable)

    def read_block(self, kind: Tlp, address: int, size: int) -> bytes | None:
        """What fails gives the dword before, as the bridge's data register does."""
        data, status = b"", OK
        for at in range(address, address + size, 4):
            done = self.request(kind, at)
            status = done.status
            data += done.value.to_bytes(4, "little") if status is OK else data[-4:] or b"old!"
        return data if status is OK else None

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self._check()
        self.log.append(("write", address, len(data)))
        found = self._place(address, len(data))
        if found is not None:
            found[0][found[1] : found[1] + len(data)] = data

    def read_sram(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        self._check()
        begun()
        assert offset % (16 << 10) == 0
        for position, size in enumerate(sizes):
            arrived(position, bytes(self.sram[offset : offset + size]))
            offset += size

    def write_sram(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        self._check()
        data = b"".join(bytes(piece) for piece in pieces)
        assert offset % (16 << 10) == 0 and len(data) == size
        whole = -(-size // SECTOR) * SECTOR
        self.sram[offset : offset + whole] = data.ljust(whole, b"\0")

    def close(self) -> None:
        self.usb.close()

    @property
    def powered(self) -> Sequence[int]:
        """What `power` was told."""
        return [value for what, value, _ in self.log if what == "power"]
