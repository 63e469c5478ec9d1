"""Memory made by others and used by the GPU without a copy: the program's own, and dma-bufs.

Sources: Qualcomm's KGSL, kgsl.c (kgsl_ioctl_gpuobj_import, kgsl_setup_useraddr): address and size
are whole pages; Linux drivers/gpu/drm/drm_prime.c for msm.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.arrays import as_array
from ugpu.hcq.work.buffer import Buffer
from ugpu.qcom.kernel_driver.interface import Caching, Memory

if TYPE_CHECKING:
    from ugpu.qcom.kernel_driver.holder import Holder


def import_memory(driver: Holder, data: Any, *, read_only: bool) -> Buffer:  # see as_array
    """Let the GPU use an array's memory: contiguous whole pages, as `mmap` returns them.

    The buffer keeps `data` alive and is closed like any other; the caller keeps owning the memory.
    read_only: for the GPU; required where `data` is read-only. Where hardware keeps the caches
    coherent, `buffer.placement` is HOST and no `sync` is needed. Elsewhere it is DEVICE, and `sync`
    must come between accesses of the host and work of the GPU. BadArgument for memory that does not
    consist of whole pages, NotSupported where the kernel driver (msm) has no such import.
    """
    array = as_array(data)
    if array.dtype.hasobject or not array.flags.c_contiguous:
        raise BadArgument("expected a contiguous array of numbers", strides=array.strides)
    if not array.flags.writeable and not read_only:
        raise BadArgument("the array is read-only: pass read_only=True, or a writable array")
    address, page = int(array.ctypes.data), mmap.PAGESIZE
    if address % page or array.nbytes % page or not array.nbytes:
        raise BadArgument(
            f"imported memory must be whole pages of {page} bytes, such as mmap.mmap(-1, "
            f"size); got {array.nbytes} bytes at {address:#x}"
        )
    data_bytes = array.reshape(-1).view(np.uint8).data

    def make() -> Buffer:
        memory = driver.interface.import_memory(data_bytes, read_only=read_only)
        return _buffer(driver, memory, len(data_bytes))

    return driver.core.own(make)


def import_dma_buf(driver: Holder, descriptor: int, *, read_only: bool) -> Buffer:
    """Let the GPU use another driver's buffer, such as a camera's, by its file descriptor.

    The caller keeps owning the descriptor and may close it: the kernel keeps the buffer until the
    returned one is closed. The host accesses it through a mapping of the descriptor, between calls
    of DMA_BUF_IOCTL_SYNC; `copy_to` and `copy_from` go through the GPU. read_only: KGSL maps it so;
    msm has no such mapping, and submissions only declare that they read it. BadArgument for a
    descriptor that is not an open one of a buffer.
    """
    if isinstance(descriptor, bool) or not isinstance(descriptor, int):
        raise BadArgument(f"expected a file descriptor, got {descriptor!r}")
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)  # dma-buf.rst: how its size is found
        os.lseek(descriptor, 0, os.SEEK_SET)
    except (OSError, OverflowError) as error:
        raise BadArgument(f"file descriptor {descriptor} is not a buffer: {error}") from error
    if size <= 0:
        raise BadArgument(f"file descriptor {descriptor} is not a buffer: its size is {size}")

    def make() -> Buffer:
        memory = driver.interface.import_dma_buf(descriptor, size, read_only=read_only)
        return _buffer(driver, memory, size)

    return driver.core.own(make)


def sync(driver: Holder, buffer: Buffer, *, to_gpu: bool) -> None:
    """Make the host's stores in imported memory visible to the GPU (to_gpu), before work is
    submitted, or the GPU's stores visible to the host, after waiting for the work. No-op where
    hardware does it."""
    if buffer.core is not driver.core:
        raise BadArgument(f"{buffer!r} belongs to another device", device=driver.name)
    with driver.core.lock:
        driver.core.check_usable()
        if buffer.closed or (buffer.owner is not None and buffer.owner.closed):
            raise BadArgument(f"expected an open buffer, got {buffer!r}")
        memory = memory_of(buffer)
        start = int(buffer.address) - memory.address
        driver.interface.sync(memory, start, buffer.size, to_gpu=to_gpu)


def memory_of(buffer: Buffer) -> Memory:
    """Return the memory that contains a buffer or a slice of one."""
    memory = (buffer.owner or buffer).handle
    assert isinstance(memory, Memory)
    return memory


def _buffer(driver: Holder, memory: Memory, size: int) -> Buffer:
    try:
        coherent = memory.caching is Caching.COHERENT
        placement = Placement.HOST if coherent else Placement.DEVICE
        view = memory.view[:size] if coherent else None
        return Buffer(driver.core, VirtAddr(memory.address), size, placement, view, handle=memory)
    except BaseException:
        memory.close()
        raise
