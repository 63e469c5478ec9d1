"""Memory of the stock driver: allocated by the resource manager, mapped for GPUs by UVM, and for
the host by mmap.

Sources: open-gpu-kernel-modules 580.142 nvos.h (NVOS32_*, NV_MEMORY_ALLOCATION_PARAMS),
src/nvidia/src/kernel/mem_mgr/video_mem.c and system_mem.c, kernel-open/nvidia-uvm/
uvm_map_external.c (an external range is a multiple of the allocation's pages).
"""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol

from ugpu.hcq.errors import AccessDenied, DriverRefused, OutOfMemory, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.nv.rm.client import CONTROL_NODE
from ugpu.nv.rm.memory import (
    GENERIC_KIND,
    HOST_PAGE,
    HUGE_PAGE,
    SMALL_PAGE,
    Memory,
    MemoryOwner,
)
from ugpu.nv.rm.session import NodeObjects, NodeSession, Region

log = logging.getLogger(__name__)

_GUARD = 4096  # bytes of unmapped addresses after each range: overruns fault


class NodeMemoryOwner(MemoryOwner, NodeObjects, Protocol):
    """A GPU of the stock driver that memory is allocated for."""

    @property
    def session(self) -> NodeSession: ...


class NodeMemory(Memory):
    """See Memory."""

    gpu: NodeMemoryOwner

    def protect(self, size: int) -> None:
        huge = self.placement is Placement.DEVICE and self.size >= HUGE_PAGE
        page = HUGE_PAGE if huge else SMALL_PAGE
        length = min(size, self.size) // page * page
        if not length:
            return
        space, gpus = self.gpu.session.space, [self.gpu.uuid]
        try:
            space.map_for(self.address, length, self.handle, gpus, read_only=True)
        except (DriverRefused, AccessDenied) as error:
            log.warning("%s: code remains writable by kernels: %s", self.gpu.path, error)
            space.map_for(self.address, length, self.handle, gpus)

    def close(self) -> None:
        if self.closed:
            return
        # Each step can be repeated after an exception: this memory owns the addresses until the
        # last step, and the resource manager never reuses a handle (clientGenResourceHandle).
        session = self.gpu.session
        if self.mapping is not None:
            self.mapping.close()
        if self.address and session.owns(self.region, self.address, self):
            with contextlib.suppress(UgpuError):
                session.space.unmap(self.address, self.size)
        if self.handle:
            with contextlib.suppress(UgpuError):
                session.client.free(self.gpu.device, self.handle)
        session.give_back(self.region, self.address, self)
        self.gpu.memories.pop(self, None)
        self.closed = True


def allocate_in_node(
    gpu: NodeMemoryOwner,
    size: int,
    placement: Placement,
    region: Region,
    *,
    reachable: bool | None = None,
    notifier: bool = False,
) -> NodeMemory:
    """See nv.rm.memory.allocate."""
    session = gpu.session
    huge = placement is Placement.DEVICE and size >= HUGE_PAGE
    small = HOST_PAGE if placement is Placement.HOST else SMALL_PAGE
    page = HUGE_PAGE if huge else small
    whole = max(page, -(-size // page) * page)
    memory = NodeMemory(gpu, 0, 0, whole, region, placement)
    try:
        memory.address = session.reserve(region, whole + _GUARD, page, memory)
        memory.handle = _allocate_object(gpu, whole, page, placement, notifier=notifier)
        if reachable or (reachable is None and placement is Placement.HOST):
            path = CONTROL_NODE if placement is Placement.HOST else gpu.path
            memory.mapping = session.client.map(gpu.device, memory.handle, whole, path)
        session.space.map_external(memory.address, whole, memory.handle, [gpu.uuid])
        gpu.memories[memory] = None
        return memory
    except BaseException as error:
        memory.close()
        if isinstance(error, OutOfMemory):
            facts = {**error.facts, "size": size}
            raise OutOfMemory(
                f"not enough {placement.value} memory for {size} bytes", **facts
            ) from error
        raise


def _allocate_object(
    gpu: NodeMemoryOwner, size: int, page: int, placement: Placement, *, notifier: bool
) -> int:
    """Allocate the object without mapping it; return its handle."""
    client = gpu.session.client
    number = client.constants

    def field(name: str, value: str) -> int:
        return number.field(f"NVOS32_{name}").insert(0, number[f"NVOS32_{name}_{value}"])

    flags = number.NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED
    flags |= number.NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT
    flags |= number.NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE
    if placement is Placement.HOST:
        kind = "NV01_MEMORY_SYSTEM"
        attributes = field("ATTR_LOCATION", "PCI") | field("ATTR_PHYSICALITY", "NONCONTIGUOUS")
        attributes |= field("ATTR_COHERENCY", "WRITE_BACK") | field("ATTR_PAGE_SIZE", "4KB")
        more = field("ATTR2_GPU_CACHEABLE", "NO")
    else:
        kind = "NV01_MEMORY_LOCAL_USER"
        flags |= number.NVOS32_ALLOC_FLAGS_PERSISTENT_VIDMEM
        physical = "ALLOW_NONCONTIGUOUS" if page == HUGE_PAGE else "CONTIGUOUS"
        attributes = field("ATTR_LOCATION", "VIDMEM") | field("ATTR_PHYSICALITY", physical)
        attributes |= field("ATTR_PAGE_SIZE", "HUGE" if page == HUGE_PAGE else "BIG")
        more = field("ATTR2_GPU_CACHEABLE", "YES")
        if page == HUGE_PAGE:
            more |= field("ATTR2_PAGE_SIZE_HUGE", "2MB")
    parameters = client.structs.NV_MEMORY_ALLOCATION_PARAMS.new(
        owner=client.root,
        # A notifier gets a mapping in the kernel (system_mem.c), which writes through it.
        type=number.NVOS32_TYPE_NOTIFIER if notifier else number.NVOS32_TYPE_IMAGE,
        flags=flags,
        attr=attributes,
        attr2=more,
        format=GENERIC_KIND,
        size=size,
        alignment=page,
    )
    return client.allocate(gpu.device, kind, parameters)
