"""GEM objects of msm: handles, addresses, lifetime of memory.

Sources: Linux drivers/gpu/drm/msm: msm_gem.c (msm_gem_new_impl, msm_gem_import, msm_gem_cpu_prep,
msm_gem_madvise, msm_gem_close), msm_drv.c (msm_ioctl_gem_info); drivers/gpu/drm/drm_prime.c
(drm_gem_prime_fd_to_handle).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import struct
from typing import Any

from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.uapi import constants
from ugpu.virtual.adreno.kgsl.refusal import strike
from ugpu.virtual.adreno.memory.imported import mapped
from ugpu.virtual.adreno.memory.objects import PAGE, MemoryObject
from ugpu.virtual.adreno.memory.space import GPU_READ_ONLY
from ugpu.virtual.adreno.msm.program import MsmProgram
from ugpu.virtual.adreno.msm.queue import MsmQueue
from ugpu.virtual.node.refusal import refused

FIRST_OFFSET = 1 << 32  # of mmap: DRM_FILE_PAGE_OFFSET_START
_LONGEST_NAME = 32
_PRIME = struct.Struct("<IIi")  # struct drm_prime_handle: handle, flags, fd


class GemObject(MemoryObject):
    """A GEM object. uses: submissions that list it, as (queue, fence, whether it writes).
    is_mapped: some submission has listed it; before that its address is only reserved. needed: it
    was not released by MADV_DONTNEED. file: device and inode of an imported file."""

    def __init__(self, number: int, size: int, flags: int, offset: int, address: int) -> None:
        read_only = flags & constants("msm_drm").MSM_BO_GPU_READONLY
        super().__init__(
            number, size, GPU_READ_ONLY if read_only else 0, offset, address, cached=False
        )
        self.msm_flags = flags
        self.name = b""
        self.uses: list[tuple[MsmQueue, int, bool]] = []
        self.is_mapped = False
        self.needed = True
        self.file: tuple[int, int] | None = None


def find(node: MsmProgram, handle: int, code: int = errno.ENOENT) -> GemObject:
    """Return the object of a handle; OSError without one. Under the machine's lock."""
    found = node.objects.get(handle)
    if found is None or not found.id_valid:
        raise refused(code, f"this file has no handle {handle}")
    assert isinstance(found, GemObject)
    return found


def is_busy(node: MsmProgram, found: GemObject, *, for_writing: bool) -> bool:
    """Return whether submissions that write it are unfinished; for a writer, whether any that use
    it are."""
    found.uses = [use for use in found.uses if use[0].is_pending(use[1])]
    return any(writes or for_writing for _, _, writes in found.uses)


def address_of(node: MsmProgram, found: GemObject) -> int:
    """Return the address, which is assigned at the first call; OSError where no address is left."""
    if not found.gpuaddr:
        try:
            node.space.reserve(found)
        except OutOfMemory as error:
            raise refused(errno.ENOSPC, f"{found.size} bytes of GPU addresses") from error
    return found.gpuaddr


def gem_new(node: MsmProgram, call: Any) -> None:
    """GEM_NEW."""
    codes, machine = constants("msm_drm"), node.machine
    if call.flags & ~codes.MSM_BO_FLAGS:
        raise refused(errno.EINVAL, f"flags {call.flags:#x} of memory")
    flags = call.flags
    if flags & codes.MSM_BO_CACHE_MASK == codes.MSM_BO_UNCACHED:
        flags = flags & ~codes.MSM_BO_CACHE_MASK | codes.MSM_BO_WC
    caching = flags & codes.MSM_BO_CACHE_MASK
    if caching not in (codes.MSM_BO_WC, codes.MSM_BO_CACHED, codes.MSM_BO_CACHED_COHERENT):
        raise refused(errno.EINVAL, f"cache flags {caching:#x}")
    if not call.size:
        raise refused(errno.EINVAL, "size is 0")
    if caching == codes.MSM_BO_CACHED:
        machine.violate("MSM_BO_CACHED is deprecated: nothing cleans the cache")
    size = -(-call.size // PAGE) * PAGE
    with machine.lock:
        try:
            offset = machine.memory.allocate(size)
        except OutOfMemory as error:
            raise refused(errno.ENOMEM, f"{size} bytes") from error
        handle = next(number for number in itertools.count(1) if number not in node.objects)
        made = GemObject(handle, size, flags, offset, machine.memory.address + offset)
        node.objects[handle] = made
        call.handle = handle


def prime_fd_to_handle(node: MsmProgram, argument: memoryview) -> None:
    """PRIME_FD_TO_HANDLE: a file that can be mapped, in place of a dma-buf. A file that this node
    has already imported gets its existing handle; handles have no reference count."""
    descriptor = _PRIME.unpack_from(argument)[2]
    with node.machine.lock:
        if not node.is_here:
            node.machine.asked["PRIME_FD_TO_HANDLE of another process"] += 1
            raise refused(errno.EINVAL, "the model imports memory of this process only")
        pages, state = mapped(descriptor)
        file = state.st_dev, state.st_ino
        for one in node.objects.values():
            if isinstance(one, GemObject) and one.file == file:
                _PRIME.pack_into(argument, 0, one.id, 0, descriptor)
                return
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        handle = next(number for number in itertools.count(1) if number not in node.objects)
        made = GemObject(handle, state.st_size, constants("msm_drm").MSM_BO_WC, -1, address)
        made.pages, made.file = pages, file
        node.objects[handle] = made
        _PRIME.pack_into(argument, 0, handle, 0, descriptor)


def gem_info(node: MsmProgram, call: Any) -> None:
    """GEM_INFO."""
    codes = constants("msm_drm")
    if call.pad:
        raise refused(errno.EINVAL, "pad is not 0")
    numbers = (codes.MSM_INFO_GET_OFFSET, codes.MSM_INFO_GET_IOVA, codes.MSM_INFO_SET_IOVA,
               codes.MSM_INFO_GET_FLAGS)  # fmt: skip
    names = (codes.MSM_INFO_SET_NAME, codes.MSM_INFO_GET_NAME)
    if call.info not in (*numbers, *names) or (call.info in numbers and call.len):
        node.machine.asked[f"GEM_INFO {call.info}"] += call.info not in numbers
        raise refused(errno.EINVAL, f"info {call.info} with {call.len} bytes")
    with node.machine.lock:
        found = find(node, call.handle)
        for name in codes.names(call.info, prefix="MSM_INFO_"):
            strike(node.machine, name)
        if call.info == codes.MSM_INFO_GET_OFFSET:
            if found.offset < 0:
                node.machine.asked["a mapping of an imported dma-buf"] += 1
                raise refused(errno.EINVAL, f"handle {found.id} was imported")
            call.value = FIRST_OFFSET + found.offset
        elif call.info == codes.MSM_INFO_GET_IOVA:
            call.value = address_of(node, found)
        elif call.info == codes.MSM_INFO_GET_FLAGS:
            call.value = found.msm_flags
        elif call.info == codes.MSM_INFO_SET_IOVA:
            _set_address(node, found, call.value)
        elif call.info == codes.MSM_INFO_SET_NAME:
            if call.len >= _LONGEST_NAME:
                raise refused(errno.EINVAL, f"a name of {call.len} bytes")
            found.name = node.memory.read(call.value, call.len)
        else:
            if call.value and call.len < len(found.name):
                raise refused(errno.EINVAL, f"room for {call.len} bytes of a name")
            if call.value:
                node.memory.write(call.value, found.name)
            call.len = len(found.name)


def _set_address(node: MsmProgram, found: GemObject, address: int) -> None:
    """Set an address that the program chose, or 0 for none."""
    if found.gpuaddr:
        if address:
            raise refused(errno.EBUSY, f"handle {found.id} is mapped at {found.gpuaddr:#x}")
        if is_busy(node, found, for_writing=True):
            raise refused(errno.EBUSY, f"handle {found.id} is in use")
        node.space.remove(found)
        found.is_mapped = False
    elif address:
        start, end = 1 << 32, (1 << 32) + node.va_size
        if address % PAGE or not start <= address <= end - found.mapped_size:
            raise refused(errno.EINVAL, f"address {address:#x}")
        if node.space.overlaps(address, found.mapped_size):
            raise refused(errno.EBUSY, f"another object is mapped at {address:#x}")
        found.gpuaddr = address


def gem_cpu_fini(node: MsmProgram, call: Any) -> None:
    """GEM_CPU_FINI: nothing is done to caches."""
    with node.machine.lock:
        find(node, call.handle)


def gem_madvise(node: MsmProgram, call: Any) -> None:
    """GEM_MADVISE. Memory that is not needed may be freed at once; the model does so."""
    codes = constants("msm_drm")
    if call.madv not in (codes.MSM_MADV_WILLNEED, codes.MSM_MADV_DONTNEED):
        raise refused(errno.EINVAL, f"advice {call.madv}")
    with node.machine.lock:
        found = find(node, call.handle)
        found.needed = call.madv == codes.MSM_MADV_WILLNEED
        call.retained = 1


def gem_close(node: MsmProgram, argument: memoryview) -> None:
    """GEM_CLOSE: memory and addresses stay while submissions use them; CPU mappings keep only the
    memory."""
    handle = struct.unpack_from("<I", argument)[0]
    with node.machine.lock:
        found = find(node, handle, errno.EINVAL)
        found.id_valid = False
        del node.objects[handle]
        is_busy(node, found, for_writing=True)  # drops finished uses
        if not found.uses:
            _let_go(node, found)
            return
        queue, fence, _ = found.uses[-1]
        pending = {id(use[0]): use for use in found.uses}  # the last one of each queue
        waiting = [len(pending)]

        def one_ended() -> None:
            waiting[0] -= 1
            if not waiting[0]:
                _let_go(node, found)

        for queue, fence, _ in pending.values():
            queue.events.append((queue.fences[fence], one_ended))


def _let_go(node: MsmProgram, found: GemObject) -> None:
    node.space.remove(found)
    node.machine.release(found)
