"""Configuration space: capabilities, power state, and the state to save across a bus reset.

Source: PCI Express Base Specification 5.0 (type 0 header, Power Management, PCI Express, MSI and
Resizable BAR capabilities); names as in Linux include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from ugpu.hcq.errors import BadArgument, DeviceLost
from ugpu.hcq.transport.system import System
from ugpu.hcq.uapi import constants

CONFIG_SIZE = 4096
_ALL_ONES, _ALL_ONES_32 = 0xFFFF, 0xFFFF_FFFF
_CAPABILITY_LIMIT = 48  # 192 bytes hold no more; a longer chain is a loop
_EXTENDED = 0x100
_EXTENDED_LIMIT = (CONFIG_SIZE - _EXTENDED) // 8  # the same: the smallest has two words
# The header's words that software sets: BARs, expansion ROM, cache line size, interrupt line.
_SAVED_WORDS = (0x0C, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24, 0x30, 0x3C)
# Those of a bridge: also bus numbers and windows; its bridge control is the upper half of 0x3C.
_SAVED_BRIDGE_WORDS = (*range(0x0C, 0x34, 4), 0x38, 0x3C)

Read = Callable[[int, int], int]
Write = Callable[[int, int, int], None]


class ConfigFile:
    """Configuration space through a file: VFIO's region, or sysfs' `config`."""

    def __init__(self, system: System, descriptor: int, base: int = 0) -> None:
        self._system = system
        self._descriptor = descriptor
        self._base = base

    def read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes; all ones if the function does not respond."""
        check_access(offset, width)
        try:
            data = self._system.pread(self._descriptor, width, self._base + offset)
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENODEV, errno.ENXIO):
                return (1 << 8 * width) - 1
            raise
        if len(data) < width:  # sysfs shows an unprivileged reader 64 bytes only
            return (1 << 8 * width) - 1
        return int.from_bytes(data, "little")

    def write(self, offset: int, value: int, width: int = 4) -> None:
        """Write 1, 2 or 4 bytes; DeviceLost if the function does not respond."""
        check_access(offset, width)
        if not 0 <= value < 1 << 8 * width:
            raise BadArgument("the value does not fit the width", value=value, width=width)
        try:
            self._system.pwrite(
                self._descriptor, value.to_bytes(width, "little"), self._base + offset
            )
        except OSError as error:
            raise DeviceLost("configuration space does not respond", offset=offset) from error

    def end_bus_mastering(self) -> bool:
        """Stop the function's DMA, so that none is in flight while memory is freed.

        Returns False if the function no longer responds: then there is nothing to stop.
        """
        regs = constants("pci_regs")
        try:
            command = self.read(regs.PCI_COMMAND, 2)
            if command == _ALL_ONES:
                return False
            self.write(regs.PCI_COMMAND, command & ~regs.PCI_COMMAND_MASTER, 2)
        except (DeviceLost, OSError):
            return False
        return True


def check_access(offset: int, width: int) -> None:
    """Raise BadArgument unless a configuration access is 1, 2 or 4 bytes, aligned and inside."""
    if width not in (1, 2, 4) or offset & (width - 1) or not 0 <= offset <= CONFIG_SIZE - width:
        raise BadArgument(
            "a configuration access must be 1, 2 or 4 bytes, aligned, below 4096",
            offset=offset,
            width=width,
        )


def capability(read: Read, number: int) -> int | None:
    """Return the offset of a capability by id; None if the function lacks it."""
    return next((place for listed, place in _capabilities(read) if listed == number), None)


def capabilities(read: Read) -> dict[int, int]:
    """Return the offsets of all capabilities by id, the first of each."""
    places: dict[int, int] = {}
    for number, place in _capabilities(read):
        places.setdefault(number, place)
    return places


def _capabilities(read: Read) -> Iterator[tuple[int, int]]:
    regs = constants("pci_regs")
    if not read(regs.PCI_STATUS, 2) & regs.PCI_STATUS_CAP_LIST:
        return
    place = read(regs.PCI_CAPABILITY_LIST, 1) & ~3
    for _ in range(_CAPABILITY_LIMIT):
        if place < 0x40:
            return
        yield read(place, 1), place
        place = read(place + 1, 1) & ~3


def extended_capability(read: Read, number: int) -> int | None:
    """Return the offset of an extended capability by id; None if the function lacks it, or if the
    reader may not see extended space."""
    place = _EXTENDED
    for _ in range(_EXTENDED_LIMIT):
        header = read(place, 4)
        if header in (0, _ALL_ONES_32):
            return None
        if header & 0xFFFF == number:
            return place
        place = header >> 20 & 0xFFC
        if place < _EXTENDED:
            return None
    return None


def power_state(read: Read) -> int:
    """Return the function's D state, 0 to 3 (3 is D3hot); 0 for one without power management."""
    regs = constants("pci_regs")
    place = capability(read, regs.PCI_CAP_ID_PM)
    if place is None:
        return 0
    return read(place + regs.PCI_PM_CTRL, 2) & regs.PCI_PM_CTRL_STATE_MASK


def answers(read: Read) -> bool:
    """Return whether the function responds: class code and revision are not all ones.

    The vendor id is not used: VFIO keeps a copy of it and shows that even for a function that is
    gone (Linux drivers/vfio/pci/vfio_pci_config.c, init_pci_cap_basic_perm).
    """
    return read(constants("pci_regs").PCI_CLASS_REVISION, 4) != _ALL_ONES_32


class SavedConfig:
    """Configuration that a reset clears and the operating system must restore."""

    def __init__(self, read: Read, *, bridge: bool = False) -> None:
        regs = constants("pci_regs")
        if not answers(read):
            raise DeviceLost("configuration space reads all ones and cannot be saved")
        words = _SAVED_BRIDGE_WORDS if bridge else _SAVED_WORDS
        self._words = {offset: read(offset, 4) for offset in words}
        self._command = read(regs.PCI_COMMAND, 2)
        self._express: tuple[int, int] | None = None
        place = capability(read, regs.PCI_CAP_ID_EXP)
        if place is not None:
            self._express = (place, read(place + regs.PCI_EXP_DEVCTL, 2))
        self._sizes: dict[int, int] = {}  # Resizable BAR Control registers
        place = extended_capability(read, regs.PCI_EXT_CAP_ID_REBAR)
        if place is not None:
            first = place + regs.PCI_REBAR_CTRL
            many = read(first, 4) & regs.PCI_REBAR_CTRL_NBAR_MASK
            count = max(1, many >> regs.PCI_REBAR_CTRL_NBAR_SHIFT)
            self._sizes = {first + 8 * number: read(first + 8 * number, 4)
                           for number in range(count)}  # fmt: skip

    def restore(self, write: Write) -> None:
        """Restore the state. ORDER: sizes while nothing is decoded, then addresses, which a larger
        size would truncate; decoding is enabled last."""
        regs = constants("pci_regs")
        decoding = regs.PCI_COMMAND_IO | regs.PCI_COMMAND_MEMORY | regs.PCI_COMMAND_MASTER
        write(regs.PCI_COMMAND, self._command & ~decoding, 2)
        for offset, value in (self._sizes | self._words).items():
            write(offset, value, 4)
        if self._express is not None:
            place, control = self._express
            write(place + regs.PCI_EXP_DEVCTL, control, 2)
        write(regs.PCI_COMMAND, self._command, 2)
