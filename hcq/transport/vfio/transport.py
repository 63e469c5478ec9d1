"""VFIO: a PCI function that the kernel assigns to this process, its DMA confined by the IOMMU.

Source: Linux include/uapi/linux/vfio.h, Documentation/driver-api/vfio.rst,
drivers/vfio/pci/vfio_pci_core.c. The function must be bound to vfio-pci
(hcq.transport.pci.binding).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from ugpu.hcq.errors import BadArgument, DeviceAsleep, DeviceLost, NotSupported, TransportError
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.dma import (
    REACH_BITS,
    BusAddresses,
    HostMemory,
    MappedMemory,
    alignment,
    rounded,
)
from ugpu.hcq.transport.interrupts import EventInterrupts, EventWatch
from ugpu.hcq.transport.late import await_closed, close_late
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci import preflight, suspend
from ugpu.hcq.transport.pci.checks import check_bars, check_openable, read_identity
from ugpu.hcq.transport.pci.config import ConfigFile
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.link_power import keep_awake
from ugpu.hcq.transport.pci.physical import PhysicalMemory
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.container import Container
from ugpu.hcq.transport.vfio.device import VfioDevice
from ugpu.hcq.transport.vfio.iommufd import IommufdSpace, available
from ugpu.hcq.transport.window import FileWindow, MappedWindow
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)

NO_IOMMU_WARNING = (
    "%s is opened without an IOMMU: the device can read and write all memory of this machine, and "
    "a wrong address in a driver corrupts whatever lies there, the kernel included. The kernel is "
    "tainted from here on."
)


def _nothing() -> None:
    """Do nothing: the real call is among those in the kernel's stack (_kernel_ends)."""


class VfioTransport(TransportLife):
    """One function through VFIO's container and group. See hcq.transport.base.Transport.

    Opening enables memory decoding but not bus mastering, which the driver enables in the command
    register; closing ends it, so that the device stops before its memory is freed. For a function
    that no longer responds, `close` returns before the kernel has released it. `on_removal` is
    called once, in a separate thread, when the system requests the device back (orderly unplug, or
    unbinding). From then on `present` is False, interrupt waits end immediately, and the kernel
    waits until the transport is closed.
    """

    def __init__(
        self,
        address: str,
        *,
        system: System | None = None,
        reach_bits: int = REACH_BITS,
        no_iommu: bool = False,
        iommufd: bool | None = None,
        least_bars: Mapping[int, int] | None = None,
        narrow_link: bool = False,
        on_removal: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Open pci:`address`, whose driver must be vfio-pci.

        reach_bits: width of the bus addresses that the device can emit. least_bars: bytes that each
        named BAR must have at least. iommufd: open the device's own node in an address space of
        iommufd, not its group; None: use the group if the kernel has groups. no_iommu: accept a
        device that no IOMMU confines; a warning describes the risk. narrow_link: see
        hcq.transport.pci.preflight. on_close: called after closing (to bind the former driver
        again). Everything that can be checked is checked before anything is opened; the errors name
        their remedies.
        """
        self.system = system if system is not None else System()
        self.function = PciFunction.find(self.system, address)
        super().__init__(f"pci:{self.function.address}")
        await_closed(self.name)
        self._constants = constants("vfio")
        check_openable(self.function, no_iommu=no_iommu)
        check_bars(self.function, least_bars or {})
        preflight.before(self.function, narrow_link=narrow_link)
        self._on_removal = on_removal
        self._reach_bits = reach_bits
        self.suspends = suspend.Suspends(self.system)
        self.removal_requested = False
        self.error_reported = False
        self._windows: dict[int, MappedWindow | FileWindow] = {}
        self._memory: set[MappedMemory | PhysicalMemory] = set()
        self._interrupts: EventInterrupts | None = None
        if no_iommu:
            log.warning(NO_IOMMU_WARNING, self.name)
        self.space = self._open_space(iommufd, no_iommu)
        # ORDER: closing does this from the last one up: the device stops before its memory is
        # freed, and the former driver is bound when this process has nothing open.
        self._kernel_ends = contextlib.ExitStack()  # calls from closing the descriptor on
        self._lost = False
        self.at_end(self._end_in_kernel)
        if on_close is not None:
            self._kernel_ends.callback(on_close)
        self._kernel_ends.callback(keep_awake(self.system, self.function))
        self._kernel_ends.callback(self.space.close)
        self.at_end(_nothing, drop=self.space.close)
        try:
            self._device = VfioDevice(self.system, self.space.device(self.function), self.function)
            self._kernel_ends.callback(self._device.close)
            self.at_end(_nothing, drop=self._device.close)
            region = self._device.region(self._constants.VFIO_PCI_CONFIG_REGION_INDEX)
            self._config = ConfigFile(self.system, self._device.descriptor, region.offset)
            self.at_end(self._free_parts, drop=self._close_windows)
            self.identity: PciIdentity = read_identity(self.name, self._config.read)
            self._addresses = BusAddresses(self.space.ranges, reach_bits)
            self.at_end(self._silence)
            self._enable()
            preflight.after(self.function)
            self._watch_events()
            self.opened()
        except BaseException:
            self.close()
            raise

    # ---- configuration space -----------------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read configuration space as VFIO shows it; all ones if the function is gone."""
        with self.lock:  # otherwise its descriptor might belong to another file by now
            self.check_open()
            return self._config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write configuration space; VFIO blocks writes to fields that the kernel owns (BARs,
        interrupts)."""
        with self.lock:
            self.check_open()
            self._config.write(offset, value, width)

    def present(self) -> bool:
        """Return whether the function responds, has not been requested back by the system, and has
        kept its power since it was opened."""
        with self.lock:
            if self.closed or self.removal_requested:
                return False
            if self.suspends.happened:
                self.absence = suspend.REASON
                return False
            return pci_config.answers(self._config.read)

    # ---- windows -----------------------------------------------------------------------------

    def window(self, index: int) -> MappedWindow | FileWindow:
        """Open BAR `index`; mapped if the kernel allows it."""
        with self.lock:
            self.check_open()
            if index not in self._windows:
                self._windows[index] = self._open_window(index)
            return self._windows[index]

    def _open_window(self, index: int) -> MappedWindow | FileWindow:
        if not 0 <= index <= 5:
            raise BadArgument("the index of a BAR must be 0 to 5", index=index)
        region = self._device.region(index)
        if not region.size:
            raise BadArgument(f"{self.name} has no BAR {index}", index=index)
        descriptor = self._device.descriptor
        if region.whole:
            try:
                mapping = self.system.map(descriptor, region.size, region.offset)
            except OSError as error:
                raise TransportError(
                    f"cannot map BAR {index} of {self.name}",
                    size=region.size,
                    reason=error.strerror or error.errno,
                ) from error
            return MappedWindow(index, mapping, region.size)
        log.info("%s: BAR %d may not be mapped; each access is a system call", self.name, index)
        return FileWindow(self.system, index, descriptor, region.offset, region.size)

    # ---- memory ------------------------------------------------------------------------------

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> MappedMemory | PhysicalMemory:
        """Allocate locked host memory; behind an IOMMU it is always one run on the bus."""
        size = rounded(size)
        with self.lock:
            self.check_open()
            memory: MappedMemory | PhysicalMemory
            if self.space.no_iommu:
                memory = PhysicalMemory(
                    self.system,
                    size,
                    contiguous=contiguous,
                    reach_bits=self._reach_bits,
                    release=self._release_physical,
                )
            else:
                memory = self._map(size)
            self._memory.add(memory)
            return memory

    def place_dma(self, size: int, address: BusAddr) -> MappedMemory:
        """See hcq.transport.base.Placing. NotSupported without an IOMMU."""
        with self.lock:
            self.check_open()
            if self.space.no_iommu:
                raise NotSupported("without an IOMMU, bus addresses cannot be chosen")
            memory = self._map(rounded(size), address)
            self._memory.add(memory)
            return memory

    def _map(self, size: int, address: BusAddr | None = None) -> MappedMemory:
        host = HostMemory(self.system, size)
        try:
            if address is None:
                bus = self._addresses.allocate(size, alignment(size))
            else:
                bus = int(address)
                self._addresses.take(bus, size)
            try:
                self.space.map(host.address, bus, size)
            except BaseException:
                self._addresses.free(bus)
                raise
        except BaseException:
            host.close()
            raise
        return MappedMemory(host, bus, self._release)

    def _release(self, memory: MappedMemory) -> None:
        # ORDER: the device loses access to the pages before they are freed.
        with self.lock:
            if memory in self._memory:
                self._memory.remove(memory)
                bus = memory.segments[0].address
                self.space.unmap(bus, memory.size)
                self._addresses.free(bus)
        memory.memory.close()

    def _release_physical(self, memory: PhysicalMemory) -> None:
        with self.lock:
            self._memory.discard(memory)

    # ---- interrupts and events ---------------------------------------------------------------

    @property
    def interrupts(self) -> EventInterrupts | None:
        """MSI-X or MSI, an eventfd for each vector; None for a function that has neither."""
        with self.lock:
            self.check_open()
            if self._interrupts is None:
                for index in (
                    self._constants.VFIO_PCI_MSIX_IRQ_INDEX,
                    self._constants.VFIO_PCI_MSI_IRQ_INDEX,
                ):
                    vectors = self._device.interrupt_count(index)
                    if vectors:
                        deliver = functools.partial(self._deliver, index)
                        self._interrupts = EventInterrupts(self.system, vectors, deliver)
                        break
            return self._interrupts

    def _deliver(self, index: int, eventfds: Sequence[int]) -> None:
        if len(eventfds) > 1:
            # vfio_pci_intrs.c: a block of vectors is set up as a whole, and not enlarged (MSI
            # cannot, MSI-X could since Linux 6.5). After "none", the new block takes effect.
            self._device.deliver(index, ())
        self._device.deliver(index, eventfds)

    def _watch_events(self) -> None:
        events: dict[str, tuple[int, Callable[[], bool]]] = {
            "removal": (self._constants.VFIO_PCI_REQ_IRQ_INDEX, self._removal),
            "error": (self._constants.VFIO_PCI_ERR_IRQ_INDEX, self._error),
        }
        there = {
            name: item for name, item in events.items() if self._device.interrupt_count(item[0])
        }
        if not there:
            return
        watch = EventWatch(self.system, {name: item[1] for name, item in there.items()})
        self.at_end(watch.close)
        for name, (index, _) in there.items():
            self._device.deliver(index, (watch.descriptors[name],))

    def _removal(self) -> bool:
        self.absence = "the system asks for it back: it is being unplugged or unbound"
        self.removal_requested = True
        log.warning("%s: the system requests the device back", self.name)
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

        FUNCTION is the method that the kernel chooses for this function alone. BUS resets
        everything below the bridge: DeviceBusy if that would affect a function that we do not hold.
        """
        self.check_open()
        if kind is ResetKind.FUNCTION:
            self._device.reset_function()
        elif kind is ResetKind.BUS:
            self._device.reset_bus(self.space.proofs)
        else:
            raise NotSupported("VFIO cannot power off a function; power off its slot, or reboot")
        if not pci_config.answers(self._config.read):
            raise DeviceLost(f"{self.name} does not respond after a {kind.value} reset")

    # ---- life --------------------------------------------------------------------------------

    def _open_space(self, iommufd: bool | None, no_iommu: bool) -> Container | IommufdSpace:
        if iommufd and no_iommu:
            raise NotSupported("no-IOMMU mode is opened through a group, not through iommufd")
        if iommufd is None:
            grouped = self.system.path(f"dev/vfio/{self.function.group}").exists()
            iommufd = not grouped and not no_iommu and available(self.function)
        if iommufd:
            return IommufdSpace(self.system, self.function)
        return Container(self.system, self.function, no_iommu=no_iommu)

    def _enable(self) -> None:
        """Have the function decode its BARs. Accessing a mapped BAR that is off ends the process
        (SIGBUS)."""
        regs = constants("pci_regs")
        state = pci_config.power_state(self._config.read)
        if state:
            raise DeviceAsleep(
                f"{self.name} does not leave its power-saving state",
                state=f"D{state}",
                remedy=f"echo on | sudo tee {self.function.folder}/power/control",
            )
        command = self._config.read(regs.PCI_COMMAND, 2)
        enabled = (command | regs.PCI_COMMAND_MEMORY) & ~regs.PCI_COMMAND_MASTER
        self._config.write(regs.PCI_COMMAND, enabled, 2)

    def _silence(self) -> None:
        if not self._config.end_bus_mastering():
            self._lost = True
            log.info("%s is gone; bus mastering need not be disabled", self.name)

    def _end_in_kernel(self) -> None:
        """Give the function back. The kernel resets it first, which takes seconds if it does not
        respond: `close` does not wait for that."""
        if self._lost:
            close_late(self.name, self._kernel_ends.close)
        else:
            self._kernel_ends.close()

    def _free_parts(self) -> None:
        close_all((*self._memory, *self._windows.values(), self._interrupts))

    def _close_windows(self) -> None:
        close_all(self._windows.values())
