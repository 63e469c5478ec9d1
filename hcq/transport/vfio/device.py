"""The calls on a VFIO device's descriptor: regions, interrupts, resets. Owns the descriptor.

Source: Linux include/uapi/linux/vfio.h and drivers/vfio/pci/vfio_pci_core.c.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ugpu.hcq.errors import DeviceBusy, DeviceLost, NotSupported
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.container import ask, capabilities, fill, open_node
from ugpu.hcq.uapi import constants, structs

_REGION_ROOM = 1024  # vfio_region_info and its capabilities; the kernel reports if it needs more
_BUS_LIMIT = 256  # functions on one bus


@dataclass(frozen=True)
class Region:
    """A BAR or configuration space.

    Attributes:
        size: in bytes.
        offset: its place in the descriptor.
        whole: may be mapped in one piece.
    """

    size: int
    offset: int
    whole: bool


class VfioDevice:
    """One open device; owns the descriptor from the start. `name` identifies it in errors."""

    def __init__(self, system: System, descriptor: int, function: PciFunction) -> None:
        self.system = system
        self.descriptor = descriptor
        self.function = function
        self.name = f"pci:{function.address}"
        self._constants = constants("vfio")
        try:
            self._flags = self._read_flags()
        except BaseException:
            self.close()
            raise

    def _read_flags(self) -> int:
        buffer = bytearray(structs("vfio").vfio_device_info.size)
        info = fill(buffer, "vfio_device_info")
        request = self._constants.VFIO_DEVICE_GET_INFO
        what = f"VFIO does not describe {self.name}"
        ask(self.system, self.descriptor, request, buffer, what)
        if not info.flags & self._constants.VFIO_DEVICE_FLAGS_PCI:
            raise NotSupported(
                f"VFIO does not report {self.name} as a PCI device", flags=info.flags
            )
        return int(info.flags)

    def region(self, index: int) -> Region:
        """Return region `index` of vfio.h; size 0 if there is none."""
        buffer = bytearray(_REGION_ROOM)
        request = self._constants.VFIO_DEVICE_GET_REGION_INFO
        what = f"{self.name}: VFIO does not describe region {index}"
        while True:
            info = fill(buffer, "vfio_region_info", index=index)
            ask(self.system, self.descriptor, request, buffer, what)
            if info.argsz <= len(buffer):
                break
            buffer = bytearray(info.argsz)
        # A region with holes may be mapped in parts only.
        holes = self._constants.VFIO_REGION_INFO_CAP_SPARSE_MMAP in capabilities(
            buffer, info.cap_offset
        )
        mappable = bool(info.flags & self._constants.VFIO_REGION_INFO_FLAG_MMAP)
        return Region(info.size, info.offset, mappable and not holes)

    def interrupt_count(self, index: int) -> int:
        """Return the number of vectors of an interrupt index that are delivered by eventfds; 0 if
        there is none."""
        buffer = bytearray(structs("vfio").vfio_irq_info.size)
        info = fill(buffer, "vfio_irq_info", index=index)
        try:
            self.system.ioctl(self.descriptor, self._constants.VFIO_DEVICE_GET_IRQ_INFO, buffer)
        except OSError:
            return 0  # Linux returns EINVAL for events that the function cannot have
        deliverable = info.flags & self._constants.VFIO_IRQ_INFO_EVENTFD
        return int(info.count) if deliverable else 0

    def deliver(self, index: int, eventfds: Sequence[int]) -> None:
        """Have each vector of an interrupt index, from 0 on, signal one of the eventfds; without
        eventfds, delivery ends."""
        names = self._constants
        buffer = bytearray(structs("vfio").vfio_irq_set.size)
        for eventfd in eventfds:
            buffer += eventfd.to_bytes(4, "little", signed=True)
        kind = names.VFIO_IRQ_SET_DATA_EVENTFD if eventfds else names.VFIO_IRQ_SET_DATA_NONE
        flags = kind | names.VFIO_IRQ_SET_ACTION_TRIGGER
        fill(buffer, "vfio_irq_set", flags=flags, index=index, start=0, count=len(eventfds))
        what = f"{self.name}: interrupt {index} cannot be delivered on {len(eventfds)} vectors"
        ask(self.system, self.descriptor, names.VFIO_DEVICE_SET_IRQS, buffer, what)

    def reset_function(self) -> None:
        """Reset this function alone, by the method that the kernel chooses."""
        if not self._flags & self._constants.VFIO_DEVICE_FLAGS_RESET:
            raise NotSupported(f"{self.name} has no function reset", remedy="reset its bus instead")
        try:
            self.system.ioctl(self.descriptor, self._constants.VFIO_DEVICE_RESET, 0)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTTY):
                raise NotSupported(f"{self.name} has no function reset") from error
            raise DeviceLost(
                f"{self.name} could not be reset", reason=error.strerror or error.errno
            ) from error

    def reset_bus(self, proofs: Sequence[int]) -> None:
        """Reset everything below the bridge. proofs: descriptors of the groups owned by this
        process; none for a device that was opened by its own node.

        Functions of other groups (a card's audio, if the slot separates them) count as ours if
        vfio-pci holds them and no process has their group open; DeviceBusy names those that do not.
        """
        with contextlib.ExitStack() as opened:
            groups: dict[str, int] = {}
            for companion, ours in self._companions():
                group = companion.group
                if companion.driver != "vfio-pci" or not (ours or (proofs and group)):
                    raise DeviceBusy(
                        "a bus reset would also reset a function that is not bound to vfio-pci",
                        holder=f"{companion.address} ({companion.driver or 'no driver'})",
                        remedy="bind it to vfio-pci as well, or reset only the function",
                    )
                if not ours and group is not None and group not in groups:
                    groups[group] = open_node(self.system, f"dev/vfio/{group}", "vfio-pci")
                    opened.callback(self.system.close, groups[group])
            self._hot_reset((*proofs, *groups.values()))

    def _hot_reset(self, proofs: Sequence[int]) -> None:
        head = structs("vfio").vfio_pci_hot_reset.size
        buffer = bytearray(head)
        for proof in proofs:
            buffer += proof.to_bytes(4, "little", signed=True)
        fill(buffer, "vfio_pci_hot_reset", flags=0, count=len(proofs))
        request = self._constants.VFIO_DEVICE_PCI_HOT_RESET
        what = f"{self.name}: the bus could not be reset"
        ask(self.system, self.descriptor, request, buffer, what)

    def _companions(self) -> list[tuple[PciFunction, bool]]:
        """Return the functions that a bus reset affects, and whether each is in our group or
        space."""
        names = self._constants
        head = structs("vfio").vfio_pci_hot_reset_info
        entry = structs("vfio").vfio_pci_dependent_device
        buffer = bytearray(head.size + _BUS_LIMIT * entry.size)
        info = fill(buffer, "vfio_pci_hot_reset_info")
        try:
            self.system.ioctl(self.descriptor, names.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, buffer)
        except OSError as error:
            raise NotSupported(
                f"{self.name}: there is no bridge above it that can reset its bus",
                reason=error.strerror or error.errno,
            ) from error
        by_device = bool(info.flags & names.VFIO_PCI_HOT_RESET_FLAG_DEV_ID)
        if by_device and info.flags & names.VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED:
            return []
        functions = []
        for index in range(min(info.count, _BUS_LIMIT)):
            row = entry.view(buffer, head.size + index * entry.size)
            address = f"{row.segment:04x}:{row.bus:02x}:{row.devfn >> 3:02x}.{row.devfn & 7}"
            ours = self._is_ours(row, by_device=by_device)
            functions.append((PciFunction(self.system, address), ours))
        return functions

    def _is_ours(self, row: Any, *, by_device: bool) -> bool:  # Any: members are of several types
        if not by_device:
            return str(row.group_id) == self.function.group
        # As 32 bits: VFIO_PCI_DEVID_NOT_OWNED is -1.
        return bool(row.devid != self._constants.VFIO_PCI_DEVID_NOT_OWNED & 0xFFFF_FFFF)

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        if self.descriptor >= 0:
            self.system.close(self.descriptor)
            self.descriptor = -1
