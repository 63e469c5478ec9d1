"""RM_MAP_MEMORY and RM_MAP_MEMORY_DMA: map memory for the CPU, and in driver-managed spaces.

Source: open-gpu-kernel-modules 580.142 src/nvidia/arch/nvalloc/unix/src/osapi.c
(RmCreateMmapContextLocked), kernel-open/nvidia/nv-usermap.c; src/nvidia/src/kernel/rmapi/mapping.c.
"""

from __future__ import annotations

from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.memory.formats import ATOMIC, READ, SYSTEM, VIDEO, WRITE, Pte
from ugpu.virtual.nvidia.memory.physical import PAGE
from ugpu.virtual.nvidia.memory.tables import page_size_for
from ugpu.virtual.nvidia.rm.memory import Memory, VirtualRange, prepare
from ugpu.virtual.nvidia.rm.objects import Client
from ugpu.virtual.nvidia.rm.resources import USERMODE_SIZE, UserMode, gpu_of
from ugpu.virtual.nvidia.status import RmError, Status, require

_FIXED = 1 << 15  # NVOS46_FLAGS_DMA_OFFSET_FIXED
_READ_ONLY = 1  # NVOS46_FLAGS_ACCESS


def map_memory(client: Client, params: Struct, handle: int) -> None:
    """Allow a file to map memory: nvidiaN maps video memory and the doorbell page, nvidiactl the
    rest."""
    client.find(params.hDevice)
    found = client.find(params.hMemory)
    gpu = gpu_of(found)
    file = client.owner.files.get(handle)
    require(file is not None and file.calls is None, Status.INVALID_ARGUMENT, f"file {handle}")
    assert file is not None
    if gpu is not None:
        require(not gpu.lost, Status.GPU_IS_LOST)
    if isinstance(found, UserMode):
        _check_range(params, USERMODE_SIZE)
        require(file.gpu is gpu, Status.INVALID_ARGUMENT, f"{file.path} is not the GPU's file")
        require(file.context is None, Status.STATE_IN_USE, f"{file.path} has a mapping already")
        assert gpu is not None
        require(params.offset == 0, Status.NOT_SUPPORTED, "the usermode page starts at 0")
        file.set_doorbell_context(gpu, params.length, in_bar1=found.in_bar1)
        params.pLinearAddress = 0xF000_0000 + (gpu.index << 25)
        return
    if not isinstance(found, Memory):
        raise RmError(Status.INVALID_OBJECT, f"{found!r} cannot be mapped")
    _check_range(params, found.size)
    require(found.backing.view is not None, Status.NOT_SUPPORTED, "memory that is the caller's own")
    if found.backing.gpu is not None:
        require(file.gpu is gpu, Status.INVALID_ARGUMENT, f"{file.path} is not the GPU's file")
    else:
        require(file.is_control, Status.INVALID_ARGUMENT, f"{file.path} is not nvidiactl")
    prepare(file, found, params.offset, params.length)
    params.pLinearAddress = found.backing.host + params.offset


def unmap_memory(client: Client, params: Struct) -> None:
    """Check a mapping's handles. The pages are unmapped when the program unmaps them."""
    client.find(params.hDevice)
    client.find(params.hMemory)


def map_memory_dma(client: Client, params: Struct) -> None:
    """Map memory into a space that the driver manages."""
    range_object, memory = client.find(params.hDma), client.find(params.hMemory)
    if not isinstance(range_object, VirtualRange) or not isinstance(memory, Memory):
        raise RmError(Status.INVALID_OBJECT, f"{range_object!r}, {memory!r}")
    space = range_object.space
    require(params.flags & _FIXED, Status.NOT_SUPPORTED, "an address that the driver chooses")
    _check_range(params, memory.size)
    at = params.dmaOffset
    backing = memory.backing
    size = page_size_for(at | params.length | params.offset | backing.page_size | backing.physical)
    if size is None:
        raise RmError(
            Status.INVALID_ADDRESS, f"the address must be a multiple of 4 KiB, got {at:#x}"
        )
    if any(at < start + length and start < at + params.length
           for start, (length, _, _) in range_object.mappings.items()):  # fmt: skip
        raise RmError(Status.STATE_IN_USE, f"{at:#x} is already mapped")
    read_only = params.flags & 3 == _READ_ONLY or backing.read_only
    pte = Pte(
        SYSTEM if backing.gpu is None else VIDEO,
        backing.physical + params.offset,
        READ if read_only else READ | WRITE | ATOMIC,
        True,
        False,
        backing.kind,
        0,
    )
    try:
        with space.lock:
            space.tables.map(at, params.length, size, pte)
    except OutOfMemory as error:
        raise RmError(Status.NO_MEMORY, str(error)) from error
    space.invalidate()
    backing.users += 1
    range_object.mappings[at] = (params.length, size, memory)


def unmap_memory_dma(client: Client, params: Struct) -> None:
    """Remove a mapping of `map_memory_dma`."""
    range_object = client.find(params.hDma)
    if not isinstance(range_object, VirtualRange):
        raise RmError(Status.INVALID_OBJECT, repr(range_object))
    range_object.unmap(params.dmaOffset)


def _check_range(params: Struct, size: int) -> None:
    require(params.length > 0, Status.INVALID_ARGUMENT, "no length")
    require(params.offset % PAGE == 0, Status.INVALID_ARGUMENT, f"offset {params.offset:#x}")
    require(
        params.offset + params.length <= -(-size // PAGE) * PAGE,
        Status.INVALID_LIMIT,
        f"{params.length} bytes from {params.offset:#x} of {size}",
    )
