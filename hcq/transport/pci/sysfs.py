"""A PCI function through Linux's sysfs files alone: no IOMMU protection, no interrupts.

For a machine without VFIO, and for operations that VFIO lacks: removing a function from the bus and
finding it again, resizing a BAR. Source: Linux Documentation/ABI/testing/sysfs-bus-pci,
Documentation/PCI/sysfs-pci. DMA works only where bus addresses are physical addresses
(hcq.transport.pci.physical).
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Mapping

from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceBusy,
    DeviceLost,
    HostError,
    NotSupported,
    TransportError,
)
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.dma import REACH_BITS, rounded
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci import preflight, suspend
from ugpu.hcq.transport.pci.checks import (
    BAR_REMEDY,
    check_bars,
    check_kind,
    check_link,
    check_power,
    read_identity,
)
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.link_power import keep_awake
from ugpu.hcq.transport.pci.physical import PhysicalMemory
from ugpu.hcq.transport.pci.rungs import reset_below
from ugpu.hcq.transport.system import System, check_files
from ugpu.hcq.transport.window import MappedWindow
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)

RESCAN = "sys/bus/pci/rescan"
_SUDO = "run as root: sysfs shows registers to root alone"


class SysfsTransport(TransportLife):
    """One function through its sysfs files. See hcq.transport.base.Transport.

    No kernel driver may hold the function. Opening enables it (BARs decode; bus mastering stays
    off) and closing ends bus mastering. Writes to configuration space reach the hardware
    unfiltered.
    """

    def __init__(
        self,
        address: str,
        *,
        system: System | None = None,
        reach_bits: int = REACH_BITS,
        least_bars: Mapping[int, int] | None = None,
        narrow_link: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Open the function at `address`. reach_bits: width of the bus addresses that it can emit;
        least_bars: bytes that each named BAR must have; narrow_link: see
        hcq.transport.pci.preflight; clock: default: real time."""
        self.system = system if system is not None else System()
        self.function = PciFunction.find(self.system, address)
        super().__init__(f"pci:{self.function.address}")
        self.clock = clock or Clock()
        self._reach_bits = reach_bits
        _check_free(self.function)
        check_bars(self.function, least_bars or {})
        preflight.before(self.function, narrow_link=narrow_link)
        self.suspends = suspend.Suspends(self.system)
        self._windows: dict[int, MappedWindow] = {}
        self._memory: set[PhysicalMemory] = set()
        descriptor = self._open_file("config")
        give_back = functools.partial(self.system.close, descriptor)
        self.at_end(give_back, drop=give_back)
        self.at_end(keep_awake(self.system, self.function))
        try:
            self._config = pci_config.ConfigFile(self.system, descriptor)
            self.identity: PciIdentity = read_identity(self.name, self._config.read)
            # ORDER: closing does this from the last one up: DMA ends before memory is freed.
            self.at_end(self._free_parts, drop=self._close_windows)
            self.at_end(self._silence)
            self._write_attribute("enable", "1")
            check_power(self.function, runtime_managed=False)
            preflight.after(self.function)
            self.opened()
        except BaseException:
            self.close()
            raise

    # ---- configuration space and windows -----------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read configuration space; all ones if the function is gone."""
        with self.lock:  # otherwise its descriptor might belong to another file by now
            self.check_open()
            return self._config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write configuration space, unfiltered: a wrong BAR removes the function from the bus."""
        with self.lock:
            self.check_open()
            self._config.write(offset, value, width)

    def present(self) -> bool:
        """Return whether the function responds in configuration space and has kept its power since
        it was opened."""
        with self.lock:
            if self.suspends.happened:
                self.absence = suspend.REASON
                return False
            return not self.closed and pci_config.answers(self._config.read)

    def window(self, index: int) -> MappedWindow:
        """Map BAR `index` (file resourceN)."""
        with self.lock:
            self.check_open()
            if index not in self._windows:
                self._windows[index] = self._open_window(index)
            return self._windows[index]

    def _open_window(self, index: int) -> MappedWindow:
        bar = next((bar for bar in self.function.bars() if bar.index == index), None)
        if bar is None or not bar.size:
            raise BadArgument(f"{self.name} has no BAR {index}", index=index)
        if not bar.memory:
            raise NotSupported(
                f"BAR {index} of {self.name} is an I/O port range and cannot be mapped"
            )
        descriptor = self._open_file(f"resource{index}")
        try:
            mapping = self.system.map(descriptor, bar.size, 0)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                raise AccessDenied(
                    f"no permission to map BAR {index} of {self.name}: the kernel is locked "
                    "down, or a driver claims the BAR",
                    remedy="use VFIO, or boot without lockdown (Secure Boot)",
                ) from error
            raise TransportError(
                f"cannot map BAR {index} of {self.name}",
                reason=error.strerror or error.errno,
            ) from error
        finally:
            self.system.close(descriptor)
        return MappedWindow(index, mapping, bar.size)

    # ---- memory and interrupts ---------------------------------------------------------------

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> PhysicalMemory:
        """Allocate locked memory at its physical addresses; AccessDenied if an IOMMU translates
        them, or the system hides them; OutOfMemory if the device cannot reach them."""
        size = rounded(size)
        with self.lock:
            self.check_open()
            if self.function.translated and self.function.group_type != "identity":
                raise AccessDenied(
                    f"the IOMMU translates accesses of {self.name}, so physical addresses "
                    "cannot be used",
                    group=self.function.group,
                    remedy=f"use VFIO: sudo ugpu bind {self.name}",
                )
            memory = PhysicalMemory(
                self.system,
                size,
                contiguous=contiguous,
                reach_bits=self._reach_bits,
                release=self._release,
            )
            self._memory.add(memory)
            return memory

    def _release(self, memory: PhysicalMemory) -> None:
        with self.lock:
            self._memory.discard(memory)

    @property
    def interrupts(self) -> None:
        """None: sysfs does not deliver interrupts; the driver polls."""
        self.check_open()

    # ---- reset and hot-plug ------------------------------------------------------------------

    def reset(self, kind: ResetKind) -> None:
        """Reset the function by the kernel's choice, or the bus through the bridge above it.

        Configuration space is saved and restored in both cases. A bus reset is refused with
        DeviceBusy if there are other functions on that bus.
        """
        self.check_open()
        if kind is ResetKind.FUNCTION:
            if not (self.function.folder / "reset").exists():
                raise NotSupported(f"the kernel does not support a reset of only {self.name}")
            self._write_attribute("reset", "1")
        elif kind is ResetKind.BUS:
            reset_below(self._bridge_alone(), [self.function], self.clock)
        else:
            raise NotSupported("sysfs cannot power off a function", remedy="power off the slot")
        if not pci_config.answers(self._config.read):
            raise DeviceLost(f"{self.name} does not respond after a {kind.value} reset")

    def _bridge_alone(self) -> PciFunction:
        """Return the bridge above, if its reset affects nothing else."""
        bridge = self.function.parent
        if bridge is None:
            raise NotSupported(f"{self.name} is on a root bus: there is no bridge to reset it")
        others = [
            f"{other.address} ({other.driver or 'no driver'})"
            for entry in sorted(bridge.folder.resolve().iterdir())
            if (entry / "vendor").is_file() and entry.name != self.function.address
            for other in (PciFunction(self.system, entry.name),)
        ]
        if others:
            raise DeviceBusy(
                f"a bus reset below {bridge.address} would also reset other functions",
                holder=", ".join(others),
                remedy="reset only the function",
            )
        return bridge

    def remove(self) -> None:
        """Remove the function from the bus, as an orderly unplug does, and close the transport.

        `rescan` finds it again.
        """
        self.check_open()
        self._silence()
        self._write_attribute("remove", "1")
        self.close()

    def resize(self, index: int, size: int) -> None:
        """Change the size of BAR `index` (Resizable BAR). Its window must not be open.

        BadArgument for a size that the function does not support; HostError if the bridges above
        have no room, in which case the former size is restored.
        """
        with self.lock:
            self.check_open()
            if index in self._windows:
                raise BadArgument("a BAR in use cannot be resized", index=index)
        offered = bar_sizes(self.function, index)
        if size not in offered:
            raise BadArgument(
                f"BAR {index} of {self.name} does not support this size",
                size=size,
                offered=[f"{choice >> 20} MiB" for choice in offered],
            )
        regs = constants("pci_regs")
        command = self._config.read(regs.PCI_COMMAND, 2)
        self._config.write(regs.PCI_COMMAND, command & ~regs.PCI_COMMAND_MEMORY, 2)
        try:
            power = (size >> 20).bit_length() - 1
            self._write_attribute(f"resource{index}_resize", str(power))
        except TransportError as error:
            raise HostError(
                f"BAR {index} of {self.name} could not be resized",
                size=size,
                reason=error.facts.get("reason"),
                remedy=BAR_REMEDY,
            ) from error
        finally:
            self._config.write(regs.PCI_COMMAND, command, 2)

    # ---- life --------------------------------------------------------------------------------

    def _open_file(self, name: str) -> int:
        return self._open_path(self.function.folder / name)

    def _open_path(self, path: os.PathLike[str]) -> int:
        try:
            return self.system.open(self.system.root / path, os.O_RDWR | os.O_SYNC)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise AccessDenied(f"no permission to open {path}", remedy=_SUDO) from error
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                raise DeviceLost(f"cannot open {path}: the function is gone") from error
            check_files(error, path)
            raise TransportError(
                f"cannot open {path}", reason=error.strerror or error.errno
            ) from error

    def _write_attribute(self, name: str, text: str) -> None:
        path = self.function.folder / name
        try:
            self.system.write_text(path, text)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise AccessDenied(f"no permission to write {path}", remedy=_SUDO) from error
            raise TransportError(
                f"the kernel rejected a write to {path}",
                wrote=text,
                reason=error.strerror or error.errno,
            ) from error

    def _silence(self) -> None:
        if not self._config.end_bus_mastering():
            log.info("%s is gone; bus mastering need not be disabled", self.name)

    def _free_parts(self) -> None:
        close_all((*self._memory, *self._windows.values()))

    def _close_windows(self) -> None:
        close_all(self._windows.values())


def rescan(system: System) -> None:
    """Rescan the bus."""
    path = system.path(RESCAN)
    try:
        system.write_text(path, "1")
    except OSError as error:
        raise AccessDenied(f"no permission to write {path}", remedy=_SUDO) from error


def bar_sizes(function: PciFunction, index: int) -> list[int]:
    """Supported sizes of a BAR, in bytes; empty for a BAR that is not resizable."""
    text = function.attribute(f"resource{index}_resize")
    if not text:
        return []
    try:
        offered = int(text, 16)
    except ValueError:
        raise TransportError(
            f"{function.address}: expected the sizes of BAR {index} in hexadecimal, "
            f"got {text[:80]!r}"
        ) from None
    return [1 << (20 + bit) for bit in range(offered.bit_length()) if offered >> bit & 1]


def _check_free(function: PciFunction) -> None:
    check_kind(function)
    check_link(function)
    if function.driver is not None:
        raise DeviceBusy(
            f"{function.address} is bound to a kernel driver",
            holder=function.driver,
            remedy=f"ugpu bind pci:{function.address}, or unbind it",
        )
