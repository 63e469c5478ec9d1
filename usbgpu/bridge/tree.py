"""The PCI Express tree below a bridge: find the card, number the buses, assign addresses.

The host's firmware does not see this tree, so the driver must configure it. A function is named by
bus, device and function number. Source: PCI Express Base Specification 5.0 (7.5.1.3: type 1 header;
7.8.6: Resizable BAR; 2.3.1: requests that no function takes, and configuration retries).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ugpu.hcq.errors import BarUnassigned, DeviceLost, DeviceNotFound, LinkDegraded
from ugpu.hcq.transport.base import PciIdentity
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.checks import read_identity
from ugpu.hcq.uapi import constants
from ugpu.usbgpu.bridge.interface import Bridge, Status, Tlp

log = logging.getLogger(__name__)

MEMORY_BASE, MEMORY_END = 0x1000_0000, 0xF000_0000  # for 32-bit BARs; above the bridge's own SRAM
PREFETCH_BASE, PREFETCH_END = 32 << 30, 1 << 46
_MIB = 1 << 20  # granule of a bridge's windows
_DEEPEST = 16  # most buses between the root and a card
_USUAL_BUS = 4  # of a card that has its own switch, below the two ports of an ASM2464PD
_DEVICES = 32
_BRIDGE_CLASS, _DISPLAY_CLASS, _ACCELERATOR_CLASS = 0x06, 0x03, 0x12
_UPSTREAM_PORT = 5
# TIMEOUT: a function may answer "try again" for a second after a reset (PCI Express, 6.6.1).
_RETRY_LIMIT_S, _RETRY_PAUSE_S = 1.0, 0.01
_HEADER = 0x100  # bytes of the part with the header and the older capabilities
# Extended capabilities follow the header; reading this many bytes takes the time of two requests.
_EXTENDED, _EXTENDED_BYTES = 0x100, 0x200
_BARS = 6
_ONES = 0xFFFF_FFFF
_LOW_HALF = 1 << 31  # bytes of the largest BAR that has an address bit in its low half
_REBAR_INDEX_MASK = 7
_REBAR_SIZE_SHIFT, _REBAR_SIZE_MASK, _REBAR_SIZES = 8, 0x1F00, 4


class Function:
    """Configuration space of one function below the bridge."""

    def __init__(
        self, bridge: Bridge, bus: int, device: int = 0, number: int = 0, *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.bus, self.device, self.number = bus, device, number
        self.sleep = sleep
        self._bridge = bridge
        self._place = bus << 24 | device << 19 | number << 16
        self._read_kind = Tlp.CONFIG_READ_1 if bus else Tlp.CONFIG_READ_0
        self._write_kind = Tlp.CONFIG_WRITE_1 if bus else Tlp.CONFIG_WRITE_0

    def read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes; all ones where no function answers."""
        pci_config.check_access(offset, width)
        answer = self._request(self._read_kind, offset, 0, width)
        ones = (1 << 8 * width) - 1
        return ones if answer is None else answer >> 8 * (offset & 3) & ones

    def write(self, offset: int, value: int, width: int = 4) -> None:
        """Write 1, 2 or 4 bytes; DeviceLost where no function answers."""
        pci_config.check_access(offset, width)
        if self._request(self._write_kind, offset, value << 8 * (offset & 3), width) is None:
            raise DeviceLost(f"{self} does not respond in configuration space", offset=offset)

    def post(self, offset: int, value: int, width: int = 4) -> None:
        """Write without checking the result; the next `write` or read checks it."""
        pci_config.check_access(offset, width)
        enable = (1 << width) - 1 << (offset & 3)
        value <<= 8 * (offset & 3)
        self._bridge.post(self._write_kind, self._place | offset & ~3, value, enable)

    def block(self, start: int, size: int) -> Block:
        """Read whole dwords at once, for later reads from the returned block.

        The function must have answered since its last reset: a "try again" answer to one dword of
        several is not visible.
        """
        return Block(self, start, self.read_block(start, size))

    def read_block(self, start: int, size: int) -> bytes | None:
        """Read whole dwords; return None where the function does not answer. See `block`."""
        return self._bridge.read_block(self._read_kind, self._place | start, size)

    def _request(self, kind: Tlp, offset: int, value: int, width: int) -> int | None:
        enable = (1 << width) - 1 << (offset & 3)
        waited = 0.0
        while True:
            done = self._bridge.request(kind, self._place | offset & ~3, value, enable)
            if done.status is Status.OK:
                return done.value
            if done.status is not Status.RETRY or waited >= _RETRY_LIMIT_S:
                return None
            self.sleep(_RETRY_PAUSE_S)
            waited += _RETRY_PAUSE_S

    def __str__(self) -> str:
        return f"{self.bus:02x}:{self.device:02x}.{self.number}"


class Block:
    """A copy of a part of a function's configuration space. Reads outside that part go to the
    function; all reads do where the function had stopped answering."""

    def __init__(self, function: Function, start: int, data: bytes | None) -> None:
        self._function = function
        self._start = start
        self._data = data or b""

    def read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes; all ones where no function answers."""
        at = offset - self._start
        if 0 <= at <= len(self._data) - width:
            return int.from_bytes(self._data[at : at + width], "little")
        return self._function.read(offset, width)


class Header:
    """The header and the older capabilities of a function whose class has been read. Most functions
    need no more than the class, so the block is read on first use."""

    def __init__(self, function: Function, kind: int) -> None:
        self.kind = kind
        self._function = function
        self._block: Block | None = None

    def read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes, as they were at the first read."""
        if self._block is None:
            self._block = self._function.block(0, _HEADER)
        return self._block.read(offset, width)


@dataclass
class Card:
    """The card's function, the bridges between the root and it, and its BARs: index to (address,
    size). header: as it was when the card was found. link: lanes and generation, see `_link_state`.
    capabilities: offsets by id."""

    function: Function
    header: Header
    identity: PciIdentity
    above: list[Function]
    link: tuple[int, int] = (0, 0)
    capabilities: dict[int, int] = field(default_factory=dict)
    bars: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def port(self) -> Function:
        """Return the downstream port that the card is attached to."""
        return self.above[-1]


def find_card(bridge: Bridge, *, sleep: Callable[[float], None] = time.sleep) -> Card:
    """Number the buses below `bridge` up to the first display adapter or accelerator.

    Raises DeviceNotFound, with the functions found instead, where there is none.
    """
    seen: list[str] = []
    card = _guess(bridge, sleep) or _search(bridge, Function(bridge, 0, sleep=sleep), [], [], seen)
    if card is None:
        raise DeviceNotFound(
            "no GPU behind the bridge" + (f"; there are: {', '.join(seen)}" if seen else ""),
            remedy="seat the card, connect its power cables and switch the supply on",
        )
    return card


def _guess(bridge: Bridge, sleep: Callable[[float], None]) -> Card | None:
    """Look for the card on its usual bus without probing the bridges above it.

    Only a chain of bridges carries a request to that bus. Where there is no such chain, the writes
    do no harm: the search that follows renumbers the buses, and the card's BARs get addresses
    later.

    Source: tinygrad 0.14 runtime/support/system.py, which drives the card on bus 4 alone
    (pci_setup_usb_bars).
    """
    above = [Function(bridge, bus, sleep=sleep) for bus in range(_USUAL_BUS)]
    for function in above:
        function.post(constants("pci_regs").PCI_PRIMARY_BUS, _buses(function.bus))
    headers = [Header(function, _BRIDGE_CLASS) for function in above]
    return _search(bridge, Function(bridge, _USUAL_BUS, sleep=sleep), above, headers, [])


def _search(
    bridge: Bridge,
    function: Function,
    above: Sequence[Function],
    headers: Sequence[Header],
    seen: list[str],
) -> Card | None:
    regs = constants("pci_regs")
    # ORDER: this read comes first: Function.block needs a function that has answered.
    # A class of all ones means that no function is present.
    revision = function.read(regs.PCI_CLASS_REVISION)
    if revision == 0xFFFF_FFFF:
        return None
    header = Header(function, revision >> 24)
    if header.kind in (_DISPLAY_CLASS, _ACCELERATOR_CLASS):
        identity = read_identity(str(function), header.read)
        card = Card(function, header, identity, [*above], _link_state([*headers[1:], header]))
        card.capabilities.update(pci_config.capabilities(header.read))
        return card
    if header.kind != _BRIDGE_CLASS or len(above) >= _DEEPEST:
        first = header.read(regs.PCI_VENDOR_ID)
        if first & 0xFFFF not in (0, 0xFFFF):
            seen.append(f"{first & 0xFFFF:04x}:{first >> 16:04x} of class {header.kind:#04x}")
        return None
    secondary = function.bus + 1
    function.post(regs.PCI_PRIMARY_BUS, _buses(function.bus))
    for device in _places_below(header):
        below = Function(bridge, secondary, device, sleep=function.sleep)
        deeper = _search(bridge, below, [*above, function], [*headers, header], seen)
        if deeper is not None:
            return deeper
    function.write(regs.PCI_PRIMARY_BUS, 0)  # else it would claim requests for the next branch
    return None


def _buses(primary: int) -> int:
    """Return a bridge's bus numbers as one dword: all further buses are below it."""
    return primary | primary + 1 << 8 | 0xFF << 16


def _places_below(header: Header) -> Iterator[int]:
    """Yield the device numbers to probe below a bridge: device 0 on a link, and all downstream
    ports on the bus inside a switch (7.3.1)."""
    yield 0
    regs = constants("pci_regs")
    place = pci_config.capability(header.read, regs.PCI_CAP_ID_EXP)
    if place is not None and header.read(place + regs.PCI_EXP_FLAGS, 2) >> 4 & 15 == (
        _UPSTREAM_PORT
    ):
        yield from range(1, _DEVICES)


def _link_state(headers: list[Header]) -> tuple[int, int]:
    """Return lanes and generation of the link between bridge and card. The first function below the
    bridge that has a link reports them; (0, 0) where no function has one."""
    regs = constants("pci_regs")
    for header in headers:
        place = pci_config.capability(header.read, regs.PCI_CAP_ID_EXP)
        if place is not None:
            status = header.read(place + regs.PCI_EXP_LNKSTA, 2)
            return (status & regs.PCI_EXP_LNKSTA_NLW) >> 4, status & regs.PCI_EXP_LNKSTA_CLS
    return 0, 0


def check_link(card: Card) -> tuple[int, int]:
    """Return the state of the link (see Card). Raises LinkDegraded for one lane: the bridge has
    two, and a link that has lost one lane drops."""
    width, generation = card.link
    if width == 1:
        raise LinkDegraded(
            "the link between bridge and card uses 1 lane, expected 2 or more",
            width=width, speed=generation, remedy="seat the card and its riser again",
        )  # fmt: skip
    return width, generation


# ---- addresses ---------------------------------------------------------------------------------


def configure(card: Card) -> None:
    """Give the card's BARs their largest sizes and addresses, and open the bridges' windows.

    The result is the same each time for the same card. Decoding of the card stays off. Raises
    BarUnassigned where the BARs do not fit.
    """
    regs = constants("pci_regs")
    function = card.function
    if card.header.read(regs.PCI_COMMAND, 2):
        function.post(regs.PCI_COMMAND, 0, 2)
    large = {index for index, size in resize(function).items() if size > _LOW_HALF}
    low, high = MEMORY_BASE, PREFETCH_BASE
    bars = sorted(_bars(function, card.header, large), key=lambda bar: bar.size, reverse=True)
    for bar in bars:
        if bar.prefetchable and bar.wide:
            address = high = _aligned(high, bar.size)
            high += bar.size
        else:
            address = low = _aligned(low, bar.size)
            low += bar.size
        if low > MEMORY_END or high > PREFETCH_END:
            raise BarUnassigned(
                f"BAR {bar.index} of the card behind the bridge does not fit",
                bar=bar.index, size=bar.size, remedy="none: the bridge's address space is full",
            )  # fmt: skip
        if bar.size <= _LOW_HALF:  # else the low half has no address bits
            function.post(bar.register, address & 0xFFFF_FFFF)
        if bar.wide:
            function.post(bar.register + 4, address >> 32)
        card.bars[bar.index] = (address, bar.size)
    for above in card.above:
        open_windows(above, _aligned(low, _MIB), _aligned(high, _MIB))


def settled(card: Card) -> dict[int, int]:
    """Return the known contents, by offset, of two-byte registers of a card that was just found and
    configured: the command register and link control."""
    regs = constants("pci_regs")
    contents = {int(regs.PCI_COMMAND): 0}
    place = card.capabilities.get(regs.PCI_CAP_ID_EXP)
    if place is not None:
        control = place + regs.PCI_EXP_LNKCTL
        contents[control] = card.header.read(control, 2)
    return contents


def open_windows(bridge: Function, memory_end: int, prefetch_end: int) -> None:
    """Open a bridge's windows between the bases and these ends (whole MiB), and enable DMA
    upstream. The search has already assigned its bus numbers. The buses behind the card's stay
    assigned to the bridge; no function answers there."""
    regs = constants("pci_regs")
    bridge.post(regs.PCI_MEMORY_BASE, _limits(MEMORY_BASE, memory_end))
    bridge.post(regs.PCI_PREF_MEMORY_BASE, _limits(PREFETCH_BASE, prefetch_end))
    bridge.post(regs.PCI_PREF_BASE_UPPER32, PREFETCH_BASE >> 32)
    bridge.post(regs.PCI_PREF_LIMIT_UPPER32, (prefetch_end - 1) >> 32)
    bridge.post(regs.PCI_COMMAND, regs.PCI_COMMAND_MEMORY | regs.PCI_COMMAND_MASTER, 2)


def _limits(base: int, end: int) -> int:
    """Return the base and limit registers as one dword; an empty window ends below its base."""
    last = end - 1
    return (base >> 16 & 0xFFF0) | (last >> 16 & 0xFFF0) << 16


def _aligned(address: int, size: int) -> int:
    return -(-address // size) * size


@dataclass(frozen=True)
class _Bar:
    index: int
    register: int
    size: int
    wide: bool
    prefetchable: bool


def _bars(function: Function, header: Header, large: Collection[int]) -> Iterator[_Bar]:
    """Yield the memory BARs; I/O BARs are left alone. Registers that were probed for their size
    hold all ones afterwards. The type of a BAR is in the low bits of its register, which are
    read-only. large: indices of BARs expected to exceed 2 GiB, which have no address bits in their
    low half, so that the high half is probed; for the others the low half is probed first."""
    regs = constants("pci_regs")
    first = regs.PCI_BASE_ADDRESS_0
    kinds: dict[int, bool] = {}  # whether the BAR is wide, by index
    index = 0
    while index < _BARS:
        value = header.read(first + 4 * index)
        wide = _is_wide(value) and index < _BARS - 1
        if not value & regs.PCI_BASE_ADDRESS_SPACE_IO:
            kinds[index] = wide
            function.post(first + 4 * (index + (wide and index in large)), _ONES)
        index += 2 if wide else 1
    block = function.block(first, 4 * _BARS)
    for index, wide in kinds.items():
        register = first + 4 * index
        value, upper = block.read(register), _ONES
        mask = value & 0xFFFF_FFF0
        if wide and index in large:
            mask, upper = 0, block.read(register + 4)
            if upper == _ONES:  # the BAR is not that large after all
                mask = _ask(function, register) & 0xFFFF_FFF0
        elif wide and not mask:
            upper = _ask(function, register + 4)
        if mask or (wide and upper):
            size = (1 << 64) - (upper << 32 | mask)
            prefetchable = bool(value & regs.PCI_BASE_ADDRESS_MEM_PREFETCH)
            yield _Bar(index, register, size, wide, prefetchable)


def _ask(function: Function, register: int) -> int:
    """Return which bits of a BAR's register can be set."""
    function.post(register, _ONES)
    return function.read(register)


def _is_wide(value: int) -> bool:
    """Return whether a BAR has 64 bits, from the value of its register; an I/O BAR does not."""
    regs = constants("pci_regs")
    if value & regs.PCI_BASE_ADDRESS_SPACE_IO:
        return False
    return value & 6 == int(regs.PCI_BASE_ADDRESS_MEM_TYPE_64)


def resize(function: Function) -> dict[int, int]:
    """Give each resizable BAR its largest supported size and return these sizes by index. Decoding
    must be off."""
    regs = constants("pci_regs")
    sizes: dict[int, int] = {}
    space = function.block(_EXTENDED, _EXTENDED_BYTES)
    place = extended_capability(space, regs.PCI_EXT_CAP_ID_REBAR)
    if place is None:
        return sizes
    control = space.read(place + regs.PCI_REBAR_CTRL)
    count = control >> 5 & 7
    for number in range(max(1, count)):
        at = place + 8 * number
        offered = space.read(at + regs.PCI_REBAR_CAP) >> _REBAR_SIZES
        control = space.read(at + regs.PCI_REBAR_CTRL)
        if not offered:
            continue
        size = offered.bit_length() - 1
        sizes[control & _REBAR_INDEX_MASK] = _MIB << size
        setting = control & ~_REBAR_SIZE_MASK | size << _REBAR_SIZE_SHIFT
        if setting != control:
            function.post(at + regs.PCI_REBAR_CTRL, setting)
    return sizes


def extended_capability(space: Block, number: int) -> int | None:
    """Return the offset of an extended capability by id; None where the function does not have
    it."""
    place, steps = _EXTENDED, 0
    while place >= _EXTENDED and steps < 64:
        header = space.read(place)
        if header in (0, 0xFFFF_FFFF):
            return None
        if header & 0xFFFF == number:
            return place
        place, steps = header >> 20 & 0xFFC, steps + 1
    return None
