"""iommufd and VFIO's device nodes: access to a device without groups and containers.

Source: Linux include/uapi/linux/iommufd.h (numbers and layouts below), include/uapi/linux/vfio.h
(VFIO_DEVICE_BIND_IOMMUFD, VFIO_DEVICE_ATTACH_IOMMUFD_PT), Documentation/userspace-api/iommufd.rst.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence

from ugpu.hcq.errors import DeviceBusy, ModuleMissing, NotSupported, OutOfMemory, TransportError
from ugpu.hcq.transport.pci.function import PciFunction, holders
from ugpu.hcq.transport.system import MEMLOCK_REMEDY, System
from ugpu.hcq.transport.vfio.container import ask, fill, open_node
from ugpu.hcq.uapi import constants, structs

CONTROL = "dev/iommu"
_IOAS_ALLOC, _IOAS_IOVA_RANGES, _IOAS_MAP, _IOAS_UNMAP = 0x3B81, 0x3B84, 0x3B85, 0x3B86
_FIXED, _WRITEABLE, _READABLE = 1, 2, 4
_RANGE_ROOM = 256


def node_of(function: PciFunction) -> str | None:
    """Return the path of a function's own VFIO node; None if the kernel creates none."""
    folder = function.folder / "vfio-dev"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return f"dev/vfio/devices/{names[0]}" if names else None


def available(function: PciFunction) -> bool:
    """Return whether this kernel supports iommufd for the function."""
    return function.system.path(CONTROL).exists() and node_of(function) is not None


class IommufdSpace:
    """An address space of iommufd. Same methods as vfio_container.Container; owns its
    descriptor."""

    no_iommu = False

    def __init__(self, system: System, function: PciFunction) -> None:
        self.system = system
        self._constants = constants("vfio")
        self.ranges: Sequence[tuple[int, int]] = ()
        self._space = 0
        if node_of(function) is None:
            raise NotSupported(
                f"no VFIO device node for {function.address}: it was built without "
                "VFIO_DEVICE_CDEV",
                remedy="open it through its group: via='vfio'",
            )
        if not system.path(CONTROL).exists():
            raise ModuleMissing(
                "/dev/iommu does not exist", module="iommufd", remedy="sudo modprobe iommufd"
            )
        self.descriptor = open_node(system, CONTROL, "iommufd")

    @property
    def proofs(self) -> Sequence[int]:
        """Descriptors that prove ownership for a hot reset: iommufd needs none."""
        return ()

    def device(self, function: PciFunction) -> int:
        """Open the function's node and attach it to this space; the caller closes it."""
        node = node_of(function)
        if node is None:
            raise NotSupported(f"no VFIO device node for {function.address}")
        descriptor = open_node(self.system, node, "vfio-pci")
        try:
            self._bind(descriptor, function)
            out = bytearray(struct.pack("<III", 12, 0, 0))
            ask(self.system, self.descriptor, _IOAS_ALLOC, out, "iommufd makes no address space")
            self._space = struct.unpack("<III", out)[2]
            buffer = bytearray(structs("vfio").vfio_device_attach_iommufd_pt.size)
            fill(buffer, "vfio_device_attach_iommufd_pt", pt_id=self._space)
            request = self._constants.VFIO_DEVICE_ATTACH_IOMMUFD_PT
            what = f"{function.address} does not attach to an address space"
            ask(self.system, descriptor, request, buffer, what)
            self.ranges = self._read_ranges()  # only now: they depend on the attached devices
        except BaseException:
            self.system.close(descriptor)
            raise
        return descriptor

    def map(self, virtual: int, bus: int, size: int) -> None:
        """Let the device access [virtual, +size) of this process at [bus, +size)."""
        flags = _FIXED | _WRITEABLE | _READABLE
        buffer = bytearray(struct.pack("<IIIIQQQ", 40, flags, self._space, 0, virtual, size, bus))
        try:
            self.system.ioctl(self.descriptor, _IOAS_MAP, buffer)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.EFAULT):
                raise OutOfMemory(
                    "memory for DMA could not be locked", size=size, remedy=MEMLOCK_REMEDY
                ) from error
            raise TransportError(
                "iommufd rejected a mapping",
                bus=bus,
                size=size,
                reason=error.strerror or error.errno,
            ) from error

    def unmap(self, bus: int, size: int) -> None:
        """Unmap [bus, +size)."""
        buffer = bytearray(struct.pack("<IIQQ", 24, self._space, bus, size))
        ask(self.system, self.descriptor, _IOAS_UNMAP, buffer, "iommufd refused to unmap")

    def close(self) -> None:
        """Close the descriptor, which frees the address space; idempotent."""
        if self.descriptor >= 0:
            self.system.close(self.descriptor)
            self.descriptor = -1

    def _bind(self, descriptor: int, function: PciFunction) -> None:
        buffer = bytearray(structs("vfio").vfio_device_bind_iommufd.size)
        fill(buffer, "vfio_device_bind_iommufd", iommufd=self.descriptor)
        try:
            self.system.ioctl(descriptor, self._constants.VFIO_DEVICE_BIND_IOMMUFD, buffer)
        except OSError as error:
            # Linux (drivers/vfio/device_cdev.c) returns EINVAL for one that is bound already.
            if error.errno in (errno.EBUSY, errno.EPERM, errno.EINVAL):
                raise DeviceBusy(
                    f"{function.address}, or a function that shares its IOMMU group, is in use",
                    holder=", ".join(holders(self.system, function.device_nodes())) or "unknown",
                    remedy=f"sudo ugpu bind pci:{function.address}",
                ) from error
            raise TransportError(
                f"binding {function.address} to iommufd failed",
                reason=error.strerror or error.errno,
            ) from error

    def _read_ranges(self) -> list[tuple[int, int]]:
        room = _RANGE_ROOM
        while True:
            ranges = bytearray(16 * room)
            place = ctypes.addressof(ctypes.c_char.from_buffer(ranges))
            buffer = bytearray(struct.pack("<IIIIQQ", 32, self._space, room, 0, place, 0))
            try:
                self.system.ioctl(self.descriptor, _IOAS_IOVA_RANGES, buffer)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise TransportError(
                        "iommufd reports no usable address range",
                        reason=error.strerror or error.errno,
                    ) from error
            count = struct.unpack_from("<IIII", buffer)[2]
            if count <= room:
                return [struct.unpack_from("<QQ", ranges, 16 * index) for index in range(count)]
            room = count
