"""Calls about memory objects: allocation, import, release, information, cache operations.

Source: Android msm kernel (msm-4.19), drivers/gpu/msm/kgsl.c: kgsl_ioctl_gpuobj_*,
kgsl_ioctl_gpumem_*, gpumem_alloc_entry, _kgsl_gpumem_sync_cache, gpuobj_free_on_timestamp.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
from collections.abc import Callable
from typing import Any

from ugpu.hcq.errors import OutOfMemory
from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.memory.imported import mapped
from ugpu.virtual.adreno.memory.objects import PAGE, MemoryObject
from ugpu.virtual.adreno.program import Program
from ugpu.virtual.node.process import need_mapped
from ugpu.virtual.node.refusal import refused

_MOST_OBJECTS = 1 << 10  # of one GPUOBJ_SYNC
_IMPORTED_IDS = 1 << 20  # above any page number of the memory file


def _flag(name: str) -> int:
    return constants("msm_kgsl")[f"KGSL_MEMFLAGS_{name}"]


def _allocate(node: Program, size: int, flags: int) -> MemoryObject:
    codes, machine = constants("msm_kgsl"), node.machine
    if flags & _flag("SECURE"):
        raise refused(errno.EOPNOTSUPP, "secure memory")
    if size == 0:
        raise refused(errno.EINVAL, "size is 0")
    if flags & _flag("USE_CPU_MAP") and not node.is_here:
        raise refused(errno.EINVAL, "the model does not see where another process maps memory")
    mode = (flags & codes.KGSL_CACHEMODE_MASK) >> codes.KGSL_CACHEMODE_SHIFT
    cached = mode in (codes.KGSL_CACHEMODE_WRITETHROUGH, codes.KGSL_CACHEMODE_WRITEBACK)
    if cached:  # arm64 has no write-through
        flags |= codes.KGSL_CACHEMODE_MASK
    elif flags & _flag("IOCOHERENT"):
        flags &= ~_flag("IOCOHERENT")
    strict = cached and not flags & _flag("IOCOHERENT") and machine.options.caches == "strict"
    try:
        offset = machine.memory.allocate(size)
    except OutOfMemory as error:
        raise refused(errno.ENOMEM, f"{size} bytes") from error
    found = MemoryObject(
        offset // PAGE, size, flags, offset, machine.memory.address + offset, cached=strict
    )
    try:
        if not flags & _flag("USE_CPU_MAP"):
            align = (flags & codes.KGSL_MEMALIGN_MASK) >> codes.KGSL_MEMALIGN_SHIFT
            node.space.place(found, 1 << align, low=bool(flags & _flag("FORCE_32BIT")))
    except OutOfMemory as error:
        machine.memory.free(offset)
        raise refused(errno.ENOMEM, f"{size} bytes of GPU addresses") from error
    node.objects[found.id] = found
    return found


def _find(node: Program, number: int) -> MemoryObject:
    found = node.objects.get(number)
    if found is None or not found.id_valid:
        raise refused(errno.EINVAL, f"this process has no object {number}")
    return found


def _free(node: Program, found: MemoryObject) -> None:
    """Free at once, whatever is running: a submission that uses the object later faults (kgsl.c,
    gpumem_free_entry)."""
    found.id_valid = False
    node.drop(found)


def gpumem_alloc_id(node: Program, call: Any) -> None:
    """GPUMEM_ALLOC_ID: the older call; it also returns the address."""
    with node.machine.lock:
        found = _allocate(node, call.size, call.flags)
        call.id, call.flags = found.id, found.flags & 0xFFFF_FFFF
        call.size, call.mmapsize = found.mapped_size, found.mapped_size
        call.gpuaddr = found.gpuaddr


def gpumem_free_id(node: Program, call: Any) -> None:
    """GPUMEM_FREE_ID: frees at once; CPU mappings keep the memory."""
    with node.machine.lock:
        _free(node, _find(node, call.id))


def gpumem_get_info(node: Program, call: Any) -> None:
    """GPUMEM_GET_INFO: by id, or by an address inside the object."""
    with node.machine.lock:
        found = _find(node, call.id) if call.id else node.space.find(call.gpuaddr)
        if found is None:
            raise refused(errno.EINVAL, f"nothing is mapped at {call.gpuaddr:#x}")
        call.id, call.flags, call.gpuaddr = found.id, found.flags & 0xFFFF_FFFF, found.gpuaddr
        call.size, call.mmapsize, call.useraddr = found.size, found.mapped_size, 0


def gpuobj_alloc(node: Program, call: Any) -> None:
    """GPUOBJ_ALLOC."""
    most = constants("msm_kgsl").KGSL_GPUOBJ_ALLOC_METADATA_MAX
    with node.machine.lock:
        if call.metadata_len > most:
            raise refused(errno.EINVAL, f"{call.metadata_len} bytes of metadata, at most {most}")
        metadata = node.memory.read(call.metadata, call.metadata_len)
        found = _allocate(node, call.size, call.flags)
        found.metadata = metadata
        call.size, call.flags = found.mapped_size, found.flags
        call.mmapsize, call.id = found.mapped_size, found.id


def gpuobj_free(node: Program, call: Any) -> None:
    """GPUOBJ_FREE: frees at once, or when a timestamp retires."""
    codes, layouts = constants("msm_kgsl"), structs("msm_kgsl")
    with node.machine.lock:
        found = _find(node, call.id)
        if not call.flags & codes.KGSL_GPUOBJ_FREE_ON_EVENT:
            _free(node, found)
            return
        event = layouts.kgsl_gpu_event_timestamp
        if call.type != codes.KGSL_GPU_EVENT_TIMESTAMP or call.len < event.size:
            raise refused(errno.EINVAL, f"event of type {call.type} with {call.len} bytes")
        at = event.view(node.memory.read(call.priv, event.size))
        context = node.machine.contexts.get(at.context_id)
        if context is None or context.node is not node:
            raise refused(errno.EINVAL, f"this process has no context {at.context_id}")
        found.id_valid = False
        if context.is_retired(at.timestamp):
            node.drop(found)
        else:
            context.events.append((at.timestamp, lambda: node.drop(found)))


def gpuobj_info(node: Program, call: Any) -> None:
    """GPUOBJ_INFO."""
    with node.machine.lock:
        if not call.id:
            raise refused(errno.EINVAL, "id is 0")
        found = _find(node, call.id)
        call.gpuaddr, call.flags = found.gpuaddr, found.flags
        call.size, call.va_len = found.size, found.mapped_size
        call.va_addr = 0


def gpuobj_import(node: Program, call: Any) -> None:
    """GPUOBJ_IMPORT: memory of the program, or a file that can be mapped in place of a dma-buf."""
    codes, layouts = constants("msm_kgsl"), structs("msm_kgsl")
    with node.machine.lock:
        if not node.is_here:
            node.machine.asked["GPUOBJ_IMPORT of another process"] += 1
            raise refused(errno.EINVAL, "the model imports memory of this process only")
        keep = _flag("GPUREADONLY") | _flag("IOCOHERENT") | _flag("FORCE_32BIT")
        flags = call.flags & (keep | codes.KGSL_CACHEMODE_MASK | codes.KGSL_MEMTYPE_MASK)
        pages: mmap.mmap | None = None
        if call.type == codes.KGSL_USER_MEM_TYPE_ADDR:
            useraddr = layouts.kgsl_gpuobj_import_useraddr
            address = useraddr.view(node.memory.read(call.priv, useraddr.size)).virtaddr
            size = call.priv_len
            if not size or not address or address % PAGE or size % PAGE:
                raise refused(errno.EINVAL, f"{size} bytes at {address:#x} are not whole pages")
            need_mapped(address, size, writable=not flags & _flag("GPUREADONLY"))
        elif call.type == codes.KGSL_USER_MEM_TYPE_DMABUF:
            file = layouts.kgsl_gpuobj_import_dma_buf
            fd = file.view(node.memory.read(call.priv, file.size)).fd
            pages, state = mapped(fd)
            size = state.st_size
            address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        else:
            raise refused(errno.EOPNOTSUPP, f"memory of type {call.type}")
        number = max([_IMPORTED_IDS, *node.objects]) + 1
        strict = pages is None and not flags & _flag("IOCOHERENT")
        strict = strict and node.machine.options.caches == "strict"
        found = MemoryObject(number, size, flags, -1, address, cached=strict)
        found.pages = pages
        node.space.place(found, PAGE, low=bool(flags & _flag("FORCE_32BIT")))
        node.objects[number] = found
        call.id, call.flags = number, flags


def gpuobj_set_info(node: Program, call: Any) -> None:
    """GPUOBJ_SET_INFO: a name for debuggers."""
    with node.machine.lock:
        found = _find(node, call.id)
        found.metadata = node.memory.read(call.metadata, min(call.metadata_len, 64))


def _sync(node: Program, found: MemoryObject, op: int, offset: int, length: int) -> None:
    codes = constants("msm_kgsl")
    if op & codes.KGSL_GPUMEM_CACHE_RANGE & 0xFFFF_FFFF:
        if offset + length > found.mapped_size:
            raise refused(
                errno.EINVAL, f"{length} bytes at {offset}, object {found.id} has {found.size}"
            )
    else:
        offset, length = 0, found.mapped_size
    op &= codes.KGSL_GPUMEM_CACHE_FLUSH
    if not op:
        raise refused(errno.EINVAL, "expected a cache operation")
    if op & codes.KGSL_GPUMEM_CACHE_CLEAN:
        found.clean(offset, offset + length)
    if op & codes.KGSL_GPUMEM_CACHE_INV:
        found.invalidate(offset, offset + length)


def gpuobj_sync(node: Program, call: Any) -> None:
    """GPUOBJ_SYNC: cache operations on ranges of objects."""
    layout = structs("msm_kgsl").kgsl_gpuobj_sync_obj
    if not 0 < call.count <= _MOST_OBJECTS or call.obj_len < layout.size:
        raise refused(errno.EINVAL, f"{call.count} entries of {call.obj_len} bytes")
    with node.machine.lock:
        for number in range(call.count):
            raw = node.memory.read(call.objs + number * call.obj_len, layout.size)
            entry = layout.view(raw)
            _sync(node, _find(node, entry.id), entry.op, entry.offset, entry.length)


def gpumem_sync_cache(node: Program, call: Any) -> None:
    """GPUMEM_SYNC_CACHE: one object, by id or address."""
    with node.machine.lock:
        found = _find(node, call.id) if call.id else node.space.find(call.gpuaddr)
        if found is None:
            raise refused(errno.EINVAL, f"nothing is mapped at {call.gpuaddr:#x}")
        _sync(node, found, call.op, call.offset, call.length)


def gpumem_sync_cache_bulk(node: Program, call: Any) -> None:
    """GPUMEM_SYNC_CACHE_BULK: whole objects."""
    if not 0 < call.count <= _MOST_OBJECTS:
        raise refused(errno.EINVAL, f"{call.count} objects")
    with node.machine.lock:
        raw = node.memory.read(call.id_list, 4 * call.count)
        for number in struct.unpack(f"<{call.count}I", raw):
            _sync(node, _find(node, number), call.op & 3, 0, 0)


HANDLERS: dict[str, Callable[[Program, Any], None]] = {
    "GPUMEM_ALLOC_ID": gpumem_alloc_id,
    "GPUMEM_FREE_ID": gpumem_free_id,
    "GPUMEM_GET_INFO": gpumem_get_info,
    "GPUMEM_SYNC_CACHE": gpumem_sync_cache,
    "GPUMEM_SYNC_CACHE_BULK": gpumem_sync_cache_bulk,
    "GPUOBJ_ALLOC": gpuobj_alloc,
    "GPUOBJ_FREE": gpuobj_free,
    "GPUOBJ_IMPORT": gpuobj_import,
    "GPUOBJ_INFO": gpuobj_info,
    "GPUOBJ_SET_INFO": gpuobj_set_info,
    "GPUOBJ_SYNC": gpuobj_sync,
}
