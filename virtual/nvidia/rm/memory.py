"""Memory objects: video memory, system memory, the program's own memory, address ranges.

Source: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/nvos.h (NVOS32_ATTR and
_ALLOC_FLAGS), src/nvidia/src/kernel/mem_mgr/video_mem.c, system_mem.c, os_desc_mem.c.
"""

from __future__ import annotations

from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.files import OpenFile
from ugpu.virtual.nvidia.memory.formats import KIND_GENERIC, SIZE_2M, SIZE_4K, SIZE_64K
from ugpu.virtual.nvidia.memory.physical import PAGE, Backing, SystemPages
from ugpu.virtual.nvidia.memory.space import AddressSpace
from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, VaSpace, need_gpu
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.userspace import copy_in, copy_out

_VIDEO, _PCI, _ANY = 0, 1, 3  # NVOS32_ATTR_LOCATION
_FIXED_ADDRESS, _VIRTUAL = 0x10, 0x80000
_NOTHING_PINNED = 1 << 47  # end of the addresses of programs


class Memory(RmObject):
    """A memory object and its physical memory."""

    backing: Backing

    def release(self) -> None:
        self.machine.free_backing(self.backing)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.backing.size


class VideoMemory(Memory):
    """NV01_MEMORY_LOCAL_USER."""

    internal = "VideoMemory"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        gpu = need_gpu(request.parent)
        size = _checked_size(params)
        location = params.attr >> 25 & 3
        require(location in (_VIDEO, _ANY), Status.INVALID_ARGUMENT, "video memory, located in PCI")
        require(not params.flags & _FIXED_ADDRESS, Status.NOT_SUPPORTED, "a fixed address")
        page = {1: SIZE_4K, 2: SIZE_64K, 3: SIZE_2M}.get(params.attr >> 23 & 3)
        if page is None:
            page = SIZE_2M if size >= SIZE_2M else SIZE_64K
        require(params.attr2 >> 20 & 3 <= 1, Status.NOT_SUPPORTED, "pages larger than 2 MiB")
        size = -(-size // page) * page
        align = params.alignment or page
        require(align & (align - 1) == 0, Status.INVALID_ARGUMENT, f"alignment {align:#x}")
        if request.machine.faults.take(Fault.NO_VIDEO_MEMORY, gpu.index):
            raise RmError(Status.NO_MEMORY, "planted")
        try:
            with gpu.lock:
                physical = gpu.memory.allocate(size, max(page, align))
        except OutOfMemory as error:
            raise RmError(Status.NO_MEMORY, str(error)) from error
        self.backing = Backing(
            size,
            page,
            physical,
            gpu.memory.base + physical,
            gpu.index,
            gpu.memory.view[physical : physical + size],
            kind=KIND_GENERIC,
        )
        _report(params, self.backing)


class SystemMemory(Memory):
    """NV01_MEMORY_SYSTEM: pages that belong to the driver."""

    internal = "SystemMemory"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        size = _checked_size(params)
        location = params.attr >> 25 & 3
        require(
            location in (_PCI, _ANY), Status.INVALID_ARGUMENT, "system memory, located in video"
        )
        self.backing = self._pin(size)
        _report(params, self.backing)

    @classmethod
    def of_size(cls, request: Allocation, size: int) -> SystemMemory:
        """Return memory allocated by RM_ALLOC_MEMORY."""
        made = cls.__new__(cls)
        RmObject.__init__(made, request)
        require(0 < size < _NOTHING_PINNED, Status.INVALID_ARGUMENT, f"{size} bytes")
        made.backing = made._pin(size)
        return made

    def prepare_mapping(self, file: OpenFile, offset: int, size: int) -> None:
        """Allow the file to map the memory."""
        prepare(file, self, offset, size)

    def _pin(self, size: int) -> Backing:
        machine = self.machine
        size = -(-size // PAGE) * PAGE
        if machine.faults.take(Fault.NO_SYSTEM_MEMORY):
            raise RmError(Status.NO_MEMORY, "planted")
        if machine.system_used + size > machine.options.system_memory:
            raise RmError(Status.NO_MEMORY, f"{size} bytes of system memory")
        try:
            pages = SystemPages(size)
        except OSError as error:
            raise RmError(Status.NO_MEMORY, str(error)) from error
        machine.system_used += pages.size
        return Backing(size, SIZE_4K, pages.address, pages.address, None, pages.view, pages)


class OsDescriptorMemory(Memory):
    """NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: the program's own pages, pinned."""

    internal = "OsDescMemory"

    def __init__(
        self, request: Allocation, address: int, size: int, *, read_only: bool = False
    ) -> None:
        super().__init__(request)
        require(address and address % PAGE == 0, Status.INVALID_ADDRESS, f"address {address:#x}")
        require(size > 0 and size % PAGE == 0, Status.INVALID_ARGUMENT, f"{size} bytes")
        require(address + size <= _NOTHING_PINNED, Status.INVALID_ADDRESS, "past user space")
        for page in (address, address + size - PAGE):
            first = copy_in(page, 8)  # raises INVALID_POINTER if there is no page to pin
            if not read_only:
                copy_out(page, first)
        self.backing = Backing(size, SIZE_4K, address, address, None, None, read_only=read_only)


class VirtualRange(RmObject):
    """NV01_MEMORY_VIRTUAL and NV50_MEMORY_VIRTUAL: addresses for mapping memory."""

    internal = "VirtualMemoryRange"
    _held: VaSpace | None = None  # the named space

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        params = request.block
        self.gpu = need_gpu(request.parent)
        self.mappings: dict[int, tuple[int, int, Memory]] = {}  # address: size, page size, memory
        self.space = self._space(params.hVASpace)

    def _space(self, handle: int) -> AddressSpace:
        """Return the named space, or the device's own."""
        if not handle:
            device = self.ancestor(Device)
            assert isinstance(device, Device)  # `need_gpu` used it to find the GPU
            return device.default_space()
        named = self.client.find(handle, Status.INVALID_OBJECT_HANDLE)
        if not isinstance(named, VaSpace):
            raise RmError(Status.INVALID_OBJECT, repr(named))
        require(not named.external, Status.NOT_SUPPORTED, "UVM maps in spaces that are its own")
        self._held = named
        named.hold()
        return named.space

    def unmap(self, address: int) -> None:
        """Remove a mapping of RM_MAP_MEMORY_DMA."""
        found = self.mappings.pop(address, None)
        if found is None:
            raise RmError(Status.INVALID_ADDRESS, f"nothing is mapped at {address:#x}")
        length, size, memory = found
        with self.space.lock:
            self.space.tables.unmap(address, length, size)
        self.space.invalidate()
        self.machine.free_backing(memory.backing)

    def release(self) -> None:
        for address in list(self.mappings):
            self.unmap(address)
        if self._held is not None:
            self._held.drop()


def prepare(file: OpenFile, memory: Memory, offset: int, size: int) -> None:
    """Set the memory that a file may map, once. A file maps one object until it is closed."""
    require(file.context is None, Status.STATE_IN_USE, f"{file.path} has a mapping already")
    file.set_memory_context(memory.backing, offset, size)


def _checked_size(params: Struct) -> int:
    size: int = params.size
    require(size > 0, Status.INVALID_ARGUMENT, "no size")
    require(size < _NOTHING_PINNED, Status.NO_MEMORY, f"{size} bytes")
    require(params.type <= 17, Status.INVALID_ARGUMENT, f"type {params.type}")
    require(not params.flags & _VIRTUAL, Status.INVALID_ARGUMENT, "VIRTUAL on physical memory")
    require(params.internalflags == 0, Status.INVALID_ARGUMENT, "internalflags is reserved")
    return size


def _report(params: Struct, backing: Backing) -> None:
    params.size = backing.size
    params.limit = backing.size - 1
    params.offset = backing.physical if backing.gpu is not None else 0
    params.attr = params.attr & ~(3 << 27) | 2 << 27  # contiguous
