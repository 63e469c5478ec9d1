"""VFIO: a PCI function handed to this process by the kernel, its DMA confined by the IOMMU.

Source: Linux include/uapi/linux/vfio.h, Documentation/driver-api/vfio.rst,
drivers/vfio/pci/vfio_pci_core.c. The function must be in vfio-pci's hands (hcq.transport.binding).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from hcq.errors import (
    BadArgument,
    Closed,
    DeviceAsleep,
    DeviceBusy,
    DeviceLost,
    NotSupported,
    TransportError,
)
from hcq.transport import pci_config
from hcq.transport.base import PciIdentity, ResetKind
from hcq.transport.checks import check_bars, check_openable, read_identity
from hcq.transport.dma import BusAddresses, HostMemory, MappedMemory, alignment, rounded
from hcq.transport.interrupts import EventInterrupts, EventWatch
from hcq.transport.pci_function import PciFunction
from hcq.transport.physical import PhysicalMemory
from hcq.transport.system import System
from hcq.transport.vfio_container import Container, ask, capabilities, fill
from hcq.transport.window import FileWindow, MappedWindow
from hcq.uapi import constants, structs

log = logging.getLogger(__name__)

REACH_BITS = 47  # positive on every host; a driver whose chip reaches less says so
_REGION_ROOM = 1024  # vfio_region_info and its capabilities
NO_IOMMU_WARNING = (
    "%s is opened without an IOMMU: the device can read and write all memory of this machine, and "
    "a wrong address in a driver corrupts whatever lies there, the kernel included. The kernel is "
    "tainted from here on."
)


class VfioTransport:
    """One function through VFIO's container and group. See hcq.transport.base.Transport.

    Opening enables memory decoding but no bus mastering, which is the driver's to ask for in the
    command register; closing ends it, so that the device stops before its memory is freed.
    `on_removal` is called once, in a thread of its own, when the system asks for the device back
    (orderly unplug, or unbinding); from then on `present` is False, interrupt waits end at once,
    and the kernel waits until the transport is closed.
    """

    def __init__(
        self,
        address: str,
        *,
        system: System | None = None,
        reach_bits: int = REACH_BITS,
        no_iommu: bool = False,
        least_bars: Mapping[int, int] | None = None,
        on_removal: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Open pci:`address`, whose driver must be vfio-pci.

        reach_bits: width of the bus addresses that the device can emit. least_bars: bytes that each
        named BAR must have at least. no_iommu: accept a device that no IOMMU confines; a warning
        says what that means. on_close: run after closing (to bind the former driver again).
        Everything is checked before anything is opened; the errors name their remedies.
        """
        self.system = system if system is not None else System()
        self.function = PciFunction.find(self.system, address)
        self.name = f"pci:{self.function.address}"
        self._constants = constants("vfio")
        check_openable(self.function, no_iommu=no_iommu)
        check_bars(self.function, least_bars or {})
        self._lock = threading.Lock()
        self._closed = False
        self._on_close = on_close
        self._on_removal = on_removal
        self.removal_requested = False
        self.error_reported = False
        self._windows: dict[int, MappedWindow | FileWindow] = {}
        self._memory: set[MappedMemory | PhysicalMemory] = set()
        self._interrupts: EventInterrupts | None = None
        self._watch: EventWatch | None = None
        self._descriptor = -1
        if no_iommu:
            log.warning(NO_IOMMU_WARNING, self.name)
        self.container = Container(self.system, self.function, no_iommu=no_iommu)
        try:
            self._descriptor = self.container.device(self.function)
            self._learn()
            self._addresses = BusAddresses(self.container.ranges, reach_bits)
            self._enable()
            self._watch = self._watch_events()
        except BaseException:
            self.close()
            raise

    # ---- configuration space -----------------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read configuration space as VFIO shows it; all ones when the function is gone."""
        self._check()
        return self._config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write configuration space; VFIO keeps back what is the kernel's (BARs, interrupts)."""
        self._check()
        self._config.write(offset, value, width)

    def present(self) -> bool:
        """Whether the function answers and has not been asked back by the system."""
        if self._closed or self.removal_requested:
            return False
        return pci_config.answers(self._config.read)

    # ---- windows -----------------------------------------------------------------------------

    def window(self, index: int) -> MappedWindow | FileWindow:
        """Open BAR `index`; mapped where the kernel allows it."""
        with self._lock:
            self._check()
            if index not in self._windows:
                self._windows[index] = self._open_window(index)
            return self._windows[index]

    def _open_window(self, index: int) -> MappedWindow | FileWindow:
        if not 0 <= index <= 5:
            raise BadArgument("a BAR's index is 0 to 5", index=index)
        buffer, region = self._region(index)
        if not region.size:
            raise BadArgument(f"{self.name} has no BAR {index}", index=index)
        mappable = region.flags & self._constants.VFIO_REGION_INFO_FLAG_MMAP
        # A region with holes may be mapped in parts only; it is then reached by file throughout.
        chain = capabilities(buffer, region.cap_offset)
        if mappable and self._constants.VFIO_REGION_INFO_CAP_SPARSE_MMAP not in chain:
            try:
                mapping = self.system.map(self._descriptor, region.size, region.offset)
            except OSError as error:
                raise TransportError(
                    f"BAR {index} of {self.name} does not map",
                    size=region.size,
                    reason=error.strerror or error.errno,
                ) from error
            return MappedWindow(index, mapping, region.size)
        log.info("%s: BAR %d may not be mapped; each access is a system call", self.name, index)
        return FileWindow(self.system, index, self._descriptor, region.offset, region.size)

    # ---- memory ------------------------------------------------------------------------------

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> MappedMemory | PhysicalMemory:
        """Allocate locked host memory; behind an IOMMU it is always one run on the bus."""
        size = rounded(size)
        with self._lock:
            self._check()
            memory: MappedMemory | PhysicalMemory
            if self.container.no_iommu:
                memory = PhysicalMemory(
                    self.system, size, contiguous=contiguous, release=self._release_physical
                )
            else:
                memory = self._map(size)
            self._memory.add(memory)
            return memory

    def _map(self, size: int) -> MappedMemory:
        host = HostMemory(self.system, size)
        try:
            bus = self._addresses.allocate(size, alignment(size))
            try:
                self.container.map(host.address, bus, size)
            except BaseException:
                self._addresses.free(bus)
                raise
        except BaseException:
            host.close()
            raise
        return MappedMemory(host, bus, self._release)

    def _release(self, memory: MappedMemory) -> None:
        # ORDER: the device loses the pages before they go back to the system.
        with self._lock:
            if memory in self._memory:
                self._memory.remove(memory)
                bus = memory.segments[0].address
                self.container.unmap(bus, memory.size)
                self._addresses.free(bus)
        memory.memory.close()

    def _release_physical(self, memory: PhysicalMemory) -> None:
        with self._lock:
            self._memory.discard(memory)

    # ---- interrupts and events ---------------------------------------------------------------

    @property
    def interrupts(self) -> EventInterrupts | None:
        """MSI-X or MSI vector 0 on an eventfd; None for a function that has neither."""
        with self._lock:
            self._check()
            if self._interrupts is None:
                for index in (
                    self._constants.VFIO_PCI_MSIX_IRQ_INDEX,
                    self._constants.VFIO_PCI_MSI_IRQ_INDEX,
                ):
                    if self._irq_count(index):
                        made = EventInterrupts(self.system)
                        try:
                            self._deliver(index, made.descriptor)
                        except BaseException:
                            made.close()
                            raise
                        self._interrupts = made
                        break
            return self._interrupts

    def _irq_count(self, index: int) -> int:
        buffer = bytearray(structs("vfio").vfio_irq_info.size)
        info = fill(buffer, "vfio_irq_info", index=index)
        try:
            self.system.ioctl(self._descriptor, self._constants.VFIO_DEVICE_GET_IRQ_INFO, buffer)
        except OSError:
            return 0  # Linux gives EINVAL for events that the function cannot have
        deliverable = info.flags & self._constants.VFIO_IRQ_INFO_EVENTFD
        return info.count if deliverable else 0

    def _deliver(self, index: int, descriptor: int) -> None:
        """Have vector 0 of an interrupt index signal an eventfd (VFIO_DEVICE_SET_IRQS)."""
        names = self._constants
        head = structs("vfio").vfio_irq_set.size
        buffer = bytearray(head) + descriptor.to_bytes(4, "little", signed=True)
        flags = names.VFIO_IRQ_SET_DATA_EVENTFD | names.VFIO_IRQ_SET_ACTION_TRIGGER
        fill(buffer, "vfio_irq_set", flags=flags, index=index, start=0, count=1)
        what = f"{self.name}: interrupt {index} cannot be delivered"
        ask(self.system, self._descriptor, names.VFIO_DEVICE_SET_IRQS, buffer, what)

    def _watch_events(self) -> EventWatch | None:
        wanted: dict[str, tuple[int, Callable[[], bool]]] = {
            "removal": (self._constants.VFIO_PCI_REQ_IRQ_INDEX, self._removal),
            "error": (self._constants.VFIO_PCI_ERR_IRQ_INDEX, self._error),
        }
        there = {name: item for name, item in wanted.items() if self._irq_count(item[0])}
        if not there:
            return None
        watch = EventWatch(self.system, {name: item[1] for name, item in there.items()})
        try:
            for name, (index, _) in there.items():
                self._deliver(index, watch.descriptors[name])
        except BaseException:
            watch.close()
            raise
        return watch

    def _removal(self) -> bool:
        self.removal_requested = True
        log.warning("%s: the system asks for the device back", self.name)
        if self._interrupts is not None:
            self._interrupts.stop()
        if self._on_removal is not None:
            self._on_removal()
        return False  # the kernel repeats it until the device is given back

    def _error(self) -> bool:
        self.error_reported = True
        log.error("%s: the kernel reports an unrecoverable bus error (AER)", self.name)
        return True

    # ---- reset -------------------------------------------------------------------------------

    def reset(self, kind: ResetKind) -> None:
        """Reset the function, or its bus; configuration space is restored by the kernel.

        FUNCTION is whatever the kernel finds best for this function alone. BUS resets everything
        below the bridge: DeviceBusy when that would hit a function which is not in our hands.
        """
        self._check()
        if kind is ResetKind.FUNCTION:
            self._reset_function()
        elif kind is ResetKind.BUS:
            self._reset_bus()
        else:
            raise NotSupported(
                "VFIO cannot cut a function's power; take its slot's power away, or reboot"
            )
        if not pci_config.answers(self._config.read):
            raise DeviceLost(f"{self.name} does not answer after a {kind.value} reset")

    def _reset_function(self) -> None:
        if not self._flags & self._constants.VFIO_DEVICE_FLAGS_RESET:
            raise NotSupported(f"{self.name} has no function reset", remedy="reset its bus instead")
        try:
            self.system.ioctl(self._descriptor, self._constants.VFIO_DEVICE_RESET, 0)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTTY):
                raise NotSupported(f"{self.name} has no function reset") from error
            raise DeviceLost(
                f"{self.name} could not be reset", reason=error.strerror or error.errno
            ) from error

    def _reset_bus(self) -> None:
        names = self._constants
        foreign = [
            f"{address} ({driver or 'no driver'})"
            for address, group, driver in self._reset_companions()
            if group != int(self.function.group or -1)
        ]
        if foreign:
            raise DeviceBusy(
                "a bus reset would also reset functions of other IOMMU groups",
                holder=", ".join(foreign),
                remedy="bind and open those as well, or reset the function alone",
            )
        head = structs("vfio").vfio_pci_hot_reset.size
        buffer = bytearray(head) + self.container.group.to_bytes(4, "little", signed=True)
        fill(buffer, "vfio_pci_hot_reset", flags=0, count=1)
        what = f"{self.name}: the bus could not be reset"
        ask(self.system, self._descriptor, names.VFIO_DEVICE_PCI_HOT_RESET, buffer, what)

    def _reset_companions(self) -> list[tuple[str, int, str | None]]:
        """Functions that a bus reset hits, as (address, group, driver)."""
        entry, head = (
            structs("vfio").vfio_pci_dependent_device,
            structs("vfio").vfio_pci_hot_reset_info,
        )
        buffer = bytearray(head.size + 256 * entry.size)  # a bus has no more functions
        info = fill(buffer, "vfio_pci_hot_reset_info")
        try:
            self.system.ioctl(
                self._descriptor, self._constants.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, buffer
            )
        except OSError as error:
            raise NotSupported(
                f"{self.name}: no bridge above it can reset its bus",
                reason=error.strerror or error.errno,
            ) from error
        found = []
        for index in range(min(info.count, 256)):
            one = entry.view(buffer, head.size + index * entry.size)
            address = f"{one.segment:04x}:{one.bus:02x}:{one.devfn >> 3:02x}.{one.devfn & 7}"
            found.append((address, one.group_id, PciFunction(self.system, address).driver))
        return found

    # ---- life --------------------------------------------------------------------------------

    def _learn(self) -> None:
        buffer = bytearray(structs("vfio").vfio_device_info.size)
        info = fill(buffer, "vfio_device_info")
        request = self._constants.VFIO_DEVICE_GET_INFO
        ask(self.system, self._descriptor, request, buffer, f"VFIO does not describe {self.name}")
        if not info.flags & self._constants.VFIO_DEVICE_FLAGS_PCI:
            raise NotSupported(f"{self.name} is no PCI device to VFIO", flags=info.flags)
        self._flags = info.flags
        _, region = self._region(self._constants.VFIO_PCI_CONFIG_REGION_INDEX)
        self._config = pci_config.ConfigFile(self.system, self._descriptor, region.offset)
        self.identity: PciIdentity = read_identity(self.name, self._config.read)

    def _region(self, index: int) -> tuple[bytearray, Any]:  # Any: members are of several types
        buffer = bytearray(_REGION_ROOM)
        while True:
            info = fill(buffer, "vfio_region_info", index=index)
            what = f"{self.name}: VFIO does not describe region {index}"
            request = self._constants.VFIO_DEVICE_GET_REGION_INFO
            ask(self.system, self._descriptor, request, buffer, what)
            if info.argsz <= len(buffer):
                return buffer, info
            buffer = bytearray(info.argsz)

    def _enable(self) -> None:
        """Have the function decode its BARs. A mapped BAR that is off ends the process (SIGBUS)."""
        regs = constants("pci_regs")
        state = pci_config.power_state(self._config.read)
        if state:
            raise DeviceAsleep(
                f"{self.name} does not leave its power state",
                state=f"D{state}",
                remedy=f"echo on | sudo tee {self.function.folder}/power/control",
            )
        command = self._config.read(regs.PCI_COMMAND, 2)
        enabled = (command | regs.PCI_COMMAND_MEMORY) & ~regs.PCI_COMMAND_MASTER
        self._config.write(regs.PCI_COMMAND, enabled, 2)

    def _silence(self) -> None:
        """End bus mastering, so that no DMA is under way while memory goes."""
        regs = constants("pci_regs")
        try:
            command = self._config.read(regs.PCI_COMMAND, 2)
            if command != 0xFFFF:
                self._config.write(regs.PCI_COMMAND, command & ~regs.PCI_COMMAND_MASTER, 2)
        except (DeviceLost, OSError):
            log.info("%s is gone; there is nothing to silence", self.name)

    def _check(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} was closed")

    def close(self) -> None:
        """Stop the device's DMA, free all windows, memory and descriptors; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.ExitStack() as last_first:
            # ORDER, from the bottom: the device falls silent before its memory goes, the former
            # driver comes back when nothing of ours is open. One failure does not stop the rest.
            if self._on_close is not None:
                last_first.callback(self._on_close)
            if hasattr(self, "container"):
                last_first.callback(self.container.close)
            if self._descriptor >= 0:
                last_first.callback(self.system.close, self._descriptor)
            for part in (*self._memory, *self._windows.values(), self._interrupts, self._watch):
                if part is not None:
                    last_first.callback(part.close)
            if hasattr(self, "_config"):
                last_first.callback(self._silence)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<VfioTransport {self.name} {self.identity}>"
