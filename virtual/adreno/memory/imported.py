"""Files in place of dma-bufs: mapped as a whole, with a fixed size.

A dma-buf keeps its size and pages while it is referenced. A memfd does so if it is sealed against
shrinking, which Linux's udmabuf also requires (drivers/dma-buf/udmabuf.c, check_memfd_seals). The
end of any other file may disappear while the GPU uses it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

from ugpu.virtual.node.refusal import refused

_DMA_BUF = "/dmabuf:"  # drivers/dma-buf/dma-buf.c, dmabuffs_dname


def mapped(descriptor: int) -> tuple[mmap.mmap, os.stat_result]:
    """Map a file; return also its state. OSError as the kernel driver returns it: EBADF, or EINVAL
    for a file that is not a buffer."""
    try:
        state = os.fstat(descriptor)
    except OSError as error:
        raise refused(errno.EBADF, f"descriptor {descriptor}") from error
    if not _keeps_its_size(descriptor):
        raise refused(errno.EINVAL, f"descriptor {descriptor} can shrink: it is not a dma-buf")
    try:
        return mmap.mmap(descriptor, state.st_size), state
    except (OSError, ValueError) as error:
        raise refused(errno.EINVAL, f"descriptor {descriptor} is not a buffer") from error


def _keeps_its_size(descriptor: int) -> bool:
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(_DMA_BUF):
        return True
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
    return True
