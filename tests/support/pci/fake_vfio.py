"""A made-up kernel's VFIO: containers, groups, devices and their IOMMU, by the rules of vfio.h.

Numbers and structure layouts are written here by hand from Linux include/uapi/linux/vfio.h, apart
from the generated tables that the code under test uses.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.pci.pci_machine import Function, PciMachine

BIND, ATTACH = 0x3B76, 0x3B77
IOAS_ALLOC, IOVA_RANGES, IOAS_MAP, IOAS_UNMAP = 0x3B81, 0x3B84, 0x3B85, 0x3B86
(API, CHECK, SET_IOMMU, GROUP_STATUS, SET_CONTAINER, UNSET, GET_FD, DEVICE_INFO, REGION_INFO,
 IRQ_INFO, SET_IRQS, RESET, HOT_INFO, HOT_RESET) = range(0x3B64, 0x3B72)  # fmt: skip
IOMMU_INFO, MAP, UNMAP = 0x3B70, 0x3B71, 0x3B72
TYPE1V2, NOIOMMU = 3, 8
CONFIG_REGION, BAR_STRIDE = 7, 1 << 40
MSI, MSIX, ERROR, REQUEST = 1, 2, 3, 4


@dataclass
class Container:
    """What one /dev/vfio/vfio descriptor holds."""

    groups: list[str] = field(default_factory=list)
    iommu: int = 0
    maps: dict[int, tuple[int, int]] = field(default_factory=dict)  # bus -> (virtual, size)


@dataclass
class Iommufd:
    """What one /dev/iommu descriptor holds."""

    spaces: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    attached: dict[str, int] = field(default_factory=dict)


class VfioMachine(PciMachine):
    """A PciMachine with VFIO. Knobs: what the IOMMU and the devices can."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "dev/vfio/vfio").touch()
        self.extensions = {TYPE1V2}
        self.api = 0
        self.ranges = [(0, 0xFEDFFFFF), (0xFEF00000, (1 << 39) - 1)]
        self.extra_room = 0  # bytes by which the kernel's answer is larger than asked
        self.mappable = True
        self.sparse = False
        self.has_reset = True
        self.irqs = {MSI: 1, ERROR: 1, REQUEST: 1}
        self.companions: list[tuple[int, str]] = []  # (group, address) that share the bus
        self.open_files: dict[int, tuple[str, object]] = {}
        self.eventfds: dict[int, int] = {}  # interrupt index -> descriptor of vector 0
        self.vectors: dict[int, list[int]] = {}  # interrupt index -> descriptors of all
        self.hot_resets = 0
        self.huge_pages = False

    # ---- descriptors -------------------------------------------------------------------------

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        name = str(path.relative_to(self.root))
        descriptor = super().open(path, flags)
        if name == "dev/vfio/vfio":
            self.open_files[descriptor] = ("container", Container())
        elif name == "dev/iommu":
            self.open_files[descriptor] = ("iommufd", Iommufd())
        elif name.startswith("dev/vfio/devices/"):
            address = path.read_text()
            self.open_files[descriptor] = ("device", self.functions[address])
        elif name.startswith("dev/vfio/"):
            group = name.removeprefix("dev/vfio/").removeprefix("noiommu-")
            if any(kept == ("group", group) for kept in self.open_files.values()):
                super().close(descriptor)
                raise OSError(errno.EBUSY, "open already")
            self.open_files[descriptor] = ("group", group)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.open_files.pop(descriptor, None)
        super().close(descriptor)

    def _device(self, descriptor: int) -> Function:
        kind, what = self.open_files[descriptor]
        assert kind == "device" and isinstance(what, Function)
        return what

    def containers(self) -> list[Container]:
        return [what for _, what in self.open_files.values() if isinstance(what, Container)]

    def offer_iommufd(self, address: str) -> None:
        """Have the kernel make /dev/iommu and the function's own node."""
        (self.root / "dev/iommu").touch()
        (self.root / "dev/vfio/devices").mkdir()
        (self.root / "dev/vfio/devices/vfio0").write_text(address)
        (self.folder(address) / "vfio-dev/vfio0").mkdir(parents=True)

    def iommufds(self) -> list[Iommufd]:
        return [what for _, what in self.open_files.values() if isinstance(what, Iommufd)]

    # ---- calls -------------------------------------------------------------------------------

    def ioctl(self, descriptor: int, request: int, argument: bytearray | memoryview | int) -> int:
        kind, what = self.open_files.get(descriptor, ("none", None))
        self.raise_if_told(f"{kind}:{request:#x}")
        if kind == "container" and isinstance(what, Container):
            return self._container_call(what, request, argument)
        assert not isinstance(argument, int) or request == RESET, hex(request)
        if kind == "group" and isinstance(argument, bytearray):
            return self._group_call(str(what), request, argument)
        if kind == "iommufd" and isinstance(what, Iommufd) and isinstance(argument, bytearray):
            return self._iommufd_call(what, request, argument)
        if kind == "device":
            return self._device_call(descriptor, request, argument)
        raise OSError(errno.ENOTTY, "no such call")

    def _container_call(
        self, container: Container, request: int, argument: bytearray | memoryview | int
    ) -> int:
        if request == API:
            return self.api
        if request == CHECK:
            return int(argument in self.extensions)
        if request == SET_IOMMU and isinstance(argument, int):
            if not container.groups or argument not in self.extensions:
                raise OSError(errno.EINVAL, "no group, or no such IOMMU")
            container.iommu = argument
            return 0
        assert isinstance(argument, bytearray)
        if not container.iommu:
            raise OSError(errno.EINVAL, "no IOMMU set")
        if request == IOMMU_INFO:
            self._iommu_info(argument)
        elif request == MAP:
            self._map_dma(container, argument)
        elif request == UNMAP:
            _, _, bus, size = struct.unpack_from("<IIQQ", argument)
            if container.maps.get(bus, (0, 0))[1] != size:
                raise OSError(errno.EINVAL, "not what was mapped")
            del container.maps[bus]
        else:
            raise OSError(errno.ENOTTY, "no such call")
        return 0

    def _iommu_info(self, argument: bytearray) -> None:
        capability = struct.pack("<HHIII", 1, 1, 0, len(self.ranges), 0)
        capability += b"".join(struct.pack("<QQ", *one) for one in self.ranges)
        available = struct.pack("<HHII", 3, 1, 24 + 12 + 0, 65535)
        # DMA_AVAIL comes first and points to the ranges.
        whole = 24 + len(available) + len(capability) + self.extra_room
        room = struct.unpack_from("<I", argument)[0]
        assert room == len(argument) >= 24
        offset = 24 if room >= whole else 0
        struct.pack_into("<IIQII", argument, 0, whole, 3, 0x40201000, offset, 0)
        if offset:
            argument[24:36] = available
            argument[36 : 36 + len(capability)] = capability

    def _map_dma(self, container: Container, argument: bytearray) -> None:
        size, flags, virtual, bus, length = struct.unpack_from("<IIQQQ", argument)
        if size != 32 or flags != 3 or (virtual | bus | length) & 4095 or not length:
            raise OSError(errno.EINVAL, "bad mapping")
        if not any(low <= bus and bus + length - 1 <= high for low, high in self.ranges):
            raise OSError(errno.EINVAL, "reserved")
        if any(bus < at + s and at < bus + length for at, (_, s) in container.maps.items()):
            raise OSError(errno.EEXIST, "overlap")
        container.maps[bus] = (virtual, length)

    def _iommufd_call(self, iommufd: Iommufd, request: int, argument: bytearray) -> int:
        if struct.unpack_from("<I", argument)[0] != len(argument):
            raise OSError(errno.EOPNOTSUPP, "not the structure's size")
        if request == IOAS_ALLOC:
            iommufd.spaces[7] = {}
            struct.pack_into("<I", argument, 8, 7)
        elif request == IOVA_RANGES:
            _, space, room, _, place, _ = struct.unpack("<IIIIQQ", argument)
            if space not in iommufd.attached.values():
                raise OSError(errno.EINVAL, "nothing attached")
            struct.pack_into("<I", argument, 8, len(self.ranges))
            if room < len(self.ranges):
                raise OSError(errno.EMSGSIZE, "no room")
            data = b"".join(struct.pack("<QQ", *one) for one in self.ranges)
            ctypes.memmove(place, data, len(data))
        elif request == IOAS_MAP:
            _, flags, space, _, virtual, size, bus = struct.unpack("<IIIIQQQ", argument)
            if flags != 7 or (virtual | size | bus) & 4095:
                raise OSError(errno.EINVAL, "bad mapping")
            iommufd.spaces[space][bus] = (virtual, size)
        elif request == IOAS_UNMAP:
            _, space, bus, size = struct.unpack("<IIQQ", argument)
            if iommufd.spaces[space].get(bus, (0, 0))[1] != size:
                raise OSError(errno.ENOENT, "not what was mapped")
            del iommufd.spaces[space][bus]
        else:
            raise OSError(errno.ENOTTY, "no such call")
        return 0

    def _bind_call(self, function: Function, request: int, argument: bytearray) -> int:
        if request == BIND:
            kind, what = self.open_files[struct.unpack("<IIiI", argument)[2]]
            assert kind == "iommufd" and isinstance(what, Iommufd)
            if any(function.address in one.bound for one in self.iommufds()):
                raise OSError(errno.EINVAL, "bound already")
            what.bound.add(function.address)
            return 0
        (owner,) = (one for one in self.iommufds() if function.address in one.bound)
        space = struct.unpack("<III", argument)[2]
        if space not in owner.spaces:
            raise OSError(errno.ENOENT, "no such space")
        owner.attached[function.address] = space
        return 0

    def _group_call(self, group: str, request: int, argument: bytearray) -> int:
        attached = [one for one in self.containers() if group in one.groups]
        if request == GROUP_STATUS:
            drivers = {
                self.driver(one.address) for one in self.functions.values() if one.group == group
            }
            viable = drivers <= {"vfio-pci", None, "pcieport", "pci-stub"}
            struct.pack_into("<II", argument, 0, 8, int(viable) | 2 * bool(attached))
        elif request == SET_CONTAINER:
            kind, what = self.open_files[struct.unpack("<i", argument)[0]]
            assert kind == "container" and isinstance(what, Container)
            what.groups.append(group)
        elif request == GET_FD:
            if not attached or not attached[0].iommu:
                raise OSError(errno.EINVAL, "the group has no IOMMU")
            address = bytes(argument).rstrip(b"\0").decode()
            if self.driver(address) != "vfio-pci":
                raise OSError(errno.ENODEV, "not ours")
            descriptor = os.memfd_create("vfio-device")
            self.open_files[descriptor] = ("device", self.functions[address])
            return descriptor
        else:
            raise OSError(errno.ENOTTY, "no such call")
        return 0

    def _device_call(
        self, descriptor: int, request: int, argument: bytearray | memoryview | int
    ) -> int:
        function = self._device(descriptor)
        if request == RESET:
            if not self.has_reset:
                raise OSError(errno.EINVAL, "no reset")
            function.resets += 1
            return 0
        assert isinstance(argument, bytearray)
        if request in (BIND, ATTACH):
            return self._bind_call(function, request, argument)
        if request == DEVICE_INFO:
            struct.pack_into("<IIIII", argument, 0, 24, 2 | int(self.has_reset), 9, 5, 0)
        elif request == REGION_INFO:
            self._region_info(function, argument)
        elif request == IRQ_INFO:
            index = struct.unpack_from("<IIII", argument)[2]
            if index not in self.irqs:
                raise OSError(errno.EINVAL, "no such interrupt")
            struct.pack_into("<IIII", argument, 0, 16, 1, index, self.irqs[index])
        elif request == SET_IRQS:
            self._set_irqs(argument)
        elif request == HOT_INFO:
            self._hot_info(argument)
        elif request == HOT_RESET:
            if self.iommufds():  # owned by the descriptor: no groups are named
                if struct.unpack("<III", argument) != (12, 0, 0):
                    raise OSError(errno.EINVAL, "not proven")
                self.hot_resets += 1
                return 0
            size, _, count = struct.unpack_from("<III", argument)
            proofs = struct.unpack_from(f"<{count}i", argument, 12)
            shown = {self.open_files.get(proof, ("", ""))[1] for proof in proofs}
            wanted = {str(group) for group, _ in self.companions}
            if size != 12 + 4 * count or not wanted <= shown:
                raise OSError(errno.EINVAL, "not proven")
            self.hot_resets += 1
        else:
            raise OSError(errno.ENOTTY, "no such call")
        return 0

    def _set_irqs(self, argument: bytearray) -> None:
        """As vfio_pci_intrs.c does: a block of vectors is set up once, and made no larger."""
        size, flags, index, start, count = struct.unpack_from("<IIIII", argument)
        kind = 0x24 if count else 0x21
        if (flags, start) != (kind, 0) or size != len(argument) or size != 20 + 4 * count:
            raise OSError(errno.EINVAL, "bad interrupt set")
        if count > self.irqs.get(index, 0) or (count and len(self.vectors.get(index, ())) not in
                                               (0, count)):  # fmt: skip
            raise OSError(errno.EINVAL, "no such vectors")
        events = list(struct.unpack_from(f"<{count}i", argument, 20))
        self.vectors[index] = events
        self.eventfds.pop(index, None)
        if events:
            self.eventfds[index] = events[0]

    def _region_info(self, function: Function, argument: bytearray) -> None:
        index = struct.unpack_from("<IIII", argument)[2]
        if index > 8:
            raise OSError(errno.EINVAL, "no such region")
        size = 4096 if index == CONFIG_REGION else function.bars.get(index, 0)
        bar = index < 6 and bool(size)
        flags = 3 | 4 * (bar and self.mappable) | 8 * (bar and self.sparse)
        whole = 32 + (32 if bar and self.sparse else 0) + self.extra_room
        place = 0
        if bar and self.sparse and len(argument) >= whole:
            place = 32
            struct.pack_into("<HHIIIQQ", argument, 32, 1, 1, 0, 1, 0, 4096, size - 4096)
        struct.pack_into("<IIIIQQ", argument, 0, whole, flags, index, place, size,
                         BAR_STRIDE * index)  # fmt: skip

    def _hot_info(self, argument: bytearray) -> None:
        struct.pack_into("<III", argument, 0, 12 + 8 * len(self.companions), 0,
                         len(self.companions))  # fmt: skip
        for index, (group, address) in enumerate(self.companions):
            _, bus, rest = address.split(":")
            device, function = rest.split(".")
            struct.pack_into("<IHBB", argument, 12 + 8 * index, group, 0, int(bus, 16),
                             int(device, 16) << 3 | int(function))  # fmt: skip

    # ---- regions -----------------------------------------------------------------------------

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        if self.open_files.get(descriptor, ("",))[0] != "device":
            return super().pread(descriptor, size, offset)
        self.raise_if_told("device:pread")
        function = self._device(descriptor)
        region, place = divmod(offset, BAR_STRIDE)
        if region == CONFIG_REGION:
            return bytes(function.config[place : place + size])
        return self.bar_memory(function, region, function.bars[region])[place : place + size]

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        if self.open_files.get(descriptor, ("",))[0] != "device":
            return super().pwrite(descriptor, data, offset)
        self.raise_if_told("device:pwrite")
        function = self._device(descriptor)
        region, place = divmod(offset, BAR_STRIDE)
        if region == CONFIG_REGION:
            function.config[place : place + len(data)] = data
        else:
            bar = self.bar_memory(function, region, function.bars[region])
            bar[place : place + len(data)] = bytes(data)
        return len(data)

    def map(self, descriptor: int, size: int, offset: int) -> mmap.mmap:
        if self.open_files.get(descriptor, ("",))[0] != "device":
            return super().map(descriptor, size, offset)
        self.raise_if_told("device:map")
        if not self.mappable:
            raise OSError(errno.EINVAL, "may not be mapped")
        return self.bar_memory(self._device(descriptor), offset // BAR_STRIDE, size)

    def anonymous(self, size: int, *, huge: bool = False) -> mmap.mmap:
        if huge and not self.huge_pages:
            raise OSError(errno.ENOMEM, "no huge pages")
        return super().anonymous(size)
