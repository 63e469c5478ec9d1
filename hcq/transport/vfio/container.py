"""VFIO's container and group: an IOMMU address space, and access to a device in it.

Source: Linux include/uapi/linux/vfio.h and Documentation/driver-api/vfio.rst. The kernel prescribes
the order: open group, check that it is viable, join the container, set the IOMMU, get the device.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.errors import (
    AccessDenied,
    DeviceBusy,
    HostError,
    IommuOff,
    ModuleMissing,
    NotSupported,
    OutOfMemory,
    TransportError,
)
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.pci.checks import IOMMU_REMEDY, not_viable
from ugpu.hcq.transport.pci.function import PciFunction, holders
from ugpu.hcq.transport.system import MEMLOCK_REMEDY, System, check_files
from ugpu.hcq.uapi import constants, structs

CONTROL = "dev/vfio/vfio"
UDEV_RULE = 'SUBSYSTEM=="vfio", OWNER="root", GROUP="vfio", MODE="0660"'
ACCESS_REMEDY = (
    f"echo '{UDEV_RULE}' | sudo tee /etc/udev/rules.d/70-vfio.rules && "
    "sudo groupadd -f vfio && sudo usermod -aG vfio $USER && "
    "sudo udevadm control --reload && sudo udevadm trigger   # then log in again"
)
_INFO_ROOM = 4096  # VFIO_IOMMU_GET_INFO: structure and capabilities; it reports if more is needed
_ALL_ADDRESSES = (0, (1 << 64) - 1)


def fill(buffer: bytearray, name: str, **values: int) -> Struct:
    """Place a structure of vfio.h at the start of `buffer`; `argsz` is the buffer's length."""
    laid: Struct = structs("vfio")[name].view(buffer)
    laid.argsz = len(buffer)
    for key, value in values.items():
        setattr(laid, key, value)
    return laid


def ask(system: System, descriptor: int, request: int, argument: bytearray | int, what: str) -> int:
    """Make a call that should not fail; TransportError names it."""
    try:
        return system.ioctl(descriptor, request, argument)
    except OSError as error:
        raise TransportError(what, reason=error.strerror or error.errno) from error


def capabilities(buffer: bytearray, first: int) -> dict[int, int]:
    """Return offsets by id of a chain of vfio_info_cap_header. The chain ends if it loops or leaves
    the buffer."""
    header = structs("vfio").vfio_info_cap_header
    places: dict[int, int] = {}
    place = first
    while 0 < place <= len(buffer) - header.size and place not in places.values():
        entry = header.view(buffer, place)
        places.setdefault(entry.id, place)
        place = entry.next
    return places


def open_node(system: System, name: str, what: str, nodes_of: PciFunction | None = None) -> int:
    """Open a /dev node of VFIO; a refusal becomes an error that names its remedy."""
    path = system.path(name)
    try:
        return system.open(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            raise ModuleMissing(
                f"{path} does not exist", module=what, remedy=f"sudo modprobe {what}"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise AccessDenied(f"no permission to open {path}", remedy=ACCESS_REMEDY) from error
        if error.errno == errno.EBUSY:
            who = holders(system, [path])
            raise DeviceBusy(
                f"{path} is already open",
                holder=", ".join(who) or "a process of another user",
                remedy="end that process, or close the device in it",
            ) from error
        check_files(error, path)
        raise HostError(f"cannot open {path}", reason=error.strerror or error.errno) from error


class Container:
    """An address space of the IOMMU (type 1). Owns its descriptor and its group's.

    `no_iommu` opens the container in the mode without translation: bus addresses are physical
    addresses, and `map` is not available.
    """

    def __init__(self, system: System, function: PciFunction, *, no_iommu: bool = False) -> None:
        self.system = system
        self.no_iommu = no_iommu
        self._constants = constants("vfio")
        self._group = -1
        self.descriptor = open_node(system, CONTROL, "vfio")
        try:
            self._check_api()
            self._join(function)
            self.ranges: Sequence[tuple[int, int]] = (_ALL_ADDRESSES,)
            self.maps_left: int | None = None
            if not no_iommu:
                self._read_info()
        except BaseException:
            self.close()
            raise

    # ---- access to the device ----------------------------------------------------------------

    @property
    def proofs(self) -> Sequence[int]:
        """Descriptors that prove ownership for a hot reset: the group's."""
        return (self._group,)

    def device(self, function: PciFunction) -> int:
        """Return the descriptor of a device of the group; the caller closes it."""
        name = bytearray(function.address.encode("ascii") + b"\0")
        try:
            return self.system.ioctl(self._group, self._constants.VFIO_GROUP_GET_DEVICE_FD, name)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.EINVAL):
                raise DeviceBusy(
                    f"{function.address} is not bound to vfio-pci",
                    holder=function.driver or "no driver",
                    remedy=f"sudo ugpu bind pci:{function.address}",
                ) from error
            raise TransportError(
                f"VFIO cannot open {function.address}", reason=error.strerror or error.errno
            ) from error

    # ---- memory ------------------------------------------------------------------------------

    def map(self, virtual: int, bus: int, size: int) -> None:
        """Let the device access [virtual, +size) of this process at [bus, +size)."""
        flags = self._constants.VFIO_DMA_MAP_FLAG_READ | self._constants.VFIO_DMA_MAP_FLAG_WRITE
        buffer = bytearray(structs("vfio").vfio_iommu_type1_dma_map.size)
        fill(buffer, "vfio_iommu_type1_dma_map", flags=flags, vaddr=virtual, iova=bus, size=size)
        try:
            self.system.ioctl(self.descriptor, self._constants.VFIO_IOMMU_MAP_DMA, buffer)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.EFAULT):
                raise OutOfMemory(
                    "memory for DMA could not be locked", size=size, remedy=MEMLOCK_REMEDY
                ) from error
            if error.errno == errno.ENOSPC:
                raise OutOfMemory(
                    "the IOMMU has reached its limit of mappings; map fewer, larger ranges",
                    size=size,
                ) from error
            raise TransportError(
                "the IOMMU rejected a mapping",
                bus=bus,
                size=size,
                reason=error.strerror or error.errno,
            ) from error

    def unmap(self, bus: int, size: int) -> None:
        """Unmap [bus, +size)."""
        buffer = bytearray(structs("vfio").vfio_iommu_type1_dma_unmap.size)
        fill(buffer, "vfio_iommu_type1_dma_unmap", iova=bus, size=size)
        try:
            self.system.ioctl(self.descriptor, self._constants.VFIO_IOMMU_UNMAP_DMA, buffer)
        except OSError as error:
            raise TransportError(
                "the IOMMU rejected an unmap",
                bus=bus,
                size=size,
                reason=error.strerror or error.errno,
            ) from error

    def close(self) -> None:
        """Leave the container and close the descriptors, which ends all mappings; idempotent."""
        for descriptor in (self._group, self.descriptor):
            if descriptor >= 0:
                self.system.close(descriptor)
        self._group = self.descriptor = -1

    # ---- opening -----------------------------------------------------------------------------

    def _check_api(self) -> None:
        version = self._ask(self._constants.VFIO_GET_API_VERSION, 0)
        if version != self._constants.VFIO_API_VERSION:
            raise NotSupported("VFIO's interface has an unsupported version", version=version)
        kind = self._kind()
        if not self._ask(self._constants.VFIO_CHECK_EXTENSION, kind):
            if self.no_iommu:
                raise NotSupported(
                    "this kernel was built without VFIO_NOIOMMU, or it is switched off",
                    remedy="echo 1 | sudo tee "
                    "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
                )
            raise ModuleMissing(
                "VFIO has no type 1 IOMMU driver",
                module="vfio_iommu_type1",
                remedy="sudo modprobe vfio_iommu_type1",
            )

    def _ask(self, request: int, argument: bytearray | int) -> int:
        return ask(self.system, self.descriptor, request, argument, "VFIO's container fails")

    def _kind(self) -> int:
        if self.no_iommu:
            return self._constants.VFIO_NOIOMMU_IOMMU
        return self._constants.VFIO_TYPE1v2_IOMMU

    def _join(self, function: PciFunction) -> None:
        number = function.group
        if number is None:
            raise IommuOff(
                f"{function.address} does not belong to an IOMMU group: the IOMMU is off or absent",
                remedy=IOMMU_REMEDY,
            )
        prefix = "noiommu-" if self.no_iommu else ""
        self._group = open_node(self.system, f"dev/vfio/{prefix}{number}", "vfio-pci", function)
        self._check_viable(function)
        container = bytearray(self.descriptor.to_bytes(4, "little"))
        try:
            self.system.ioctl(self._group, self._constants.VFIO_GROUP_SET_CONTAINER, container)
            self.system.ioctl(self.descriptor, self._constants.VFIO_SET_IOMMU, self._kind())
        except OSError as error:
            if error.errno == errno.EPERM and not self.no_iommu:
                # Linux vfio_iommu_type1.c: the platform does not remap interrupts.
                raise HostError(
                    "the IOMMU does not remap interrupts, so the kernel does not allow "
                    "access to the device",
                    remedy="enable interrupt remapping in the firmware setup, or accept the risk: "
                    "sudo modprobe vfio_iommu_type1 allow_unsafe_interrupts=1",
                ) from error
            raise TransportError(
                f"IOMMU group {number} cannot join a container",
                reason=error.strerror or error.errno,
            ) from error

    def _check_viable(self, function: PciFunction) -> None:
        buffer = bytearray(structs("vfio").vfio_group_status.size)
        status = fill(buffer, "vfio_group_status")
        ask(
            self.system,
            self._group,
            self._constants.VFIO_GROUP_GET_STATUS,
            buffer,
            f"IOMMU group {function.group} does not tell its state",
        )
        if status.flags & self._constants.VFIO_GROUP_FLAGS_CONTAINER_SET:
            raise DeviceBusy(
                f"IOMMU group {function.group} belongs to another container",
                holder=", ".join(holders(self.system, function.device_nodes())) or "unknown",
                remedy="end the process that uses it",
            )
        if not status.flags & self._constants.VFIO_GROUP_FLAGS_VIABLE:
            raise not_viable(function)

    def _read_info(self) -> None:
        """Read which bus addresses may be used (VFIO_IOMMU_GET_INFO and its capabilities)."""
        buffer = bytearray(_INFO_ROOM)
        while True:
            info = fill(buffer, "vfio_iommu_type1_info")
            self._ask(self._constants.VFIO_IOMMU_GET_INFO, buffer)
            if info.argsz <= len(buffer):
                break
            buffer = bytearray(info.argsz)
        if info.flags & self._constants.VFIO_IOMMU_INFO_PGSIZES and not info.iova_pgsizes & 4096:
            raise NotSupported("this IOMMU does not support 4 KiB pages", sizes=info.iova_pgsizes)
        if not info.flags & self._constants.VFIO_IOMMU_INFO_CAPS:
            return
        chain = capabilities(buffer, info.cap_offset)
        self._read_ranges(buffer, chain)
        place = chain.get(self._constants.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)
        if place is not None:
            self.maps_left = _over(buffer, place, "vfio_iommu_type1_info_dma_avail").avail

    def _read_ranges(self, buffer: bytearray, chain: dict[int, int]) -> None:
        place = chain.get(self._constants.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
        if place is None:
            return
        head = _over(buffer, place, "vfio_iommu_type1_info_cap_iova_range")
        entry = structs("vfio").vfio_iova_range.size
        first = place + head.layout.size
        room = (len(buffer) - first) // entry
        ranges = []
        for index in range(min(head.nr_iovas, room)):
            span = _over(buffer, first + index * entry, "vfio_iova_range")
            ranges.append((span.start, span.end))
        self.ranges = ranges


def _over(buffer: bytearray, place: int, name: str) -> Any:  # Any: members are of several types
    return structs("vfio")[name].view(buffer, place)
