"""Memory that a GPU reaches, and maybe the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv.rm.session import GpuObjects, Region

HOST_PAGE, SMALL_PAGE, HUGE_PAGE = 4 << 10, 64 << 10, 2 << 20
GENERIC_KIND = 6  # NV_MMU_PTE_KIND_GENERIC_MEMORY: Turing on, hwref/turing/tu102/dev_mmu.h


class MemoryOwner(GpuObjects, Protocol):
    """A GPU that memory is allocated for."""

    memories: dict[Memory, None]  # in the order of creation, and of closing

    def new_memory(
        self,
        size: int,
        placement: Placement,
        region: Region,
        *,
        reachable: bool | None = None,
        notifier: bool = False,
    ) -> Memory:
        """See `allocate`."""
        ...


@dataclass(eq=False)
class Memory(ABC):
    """One allocation. size: bytes mapped, whole pages. mapping: None if the host cannot reach it.
    gpu: the GPU that it was allocated for. handle: of its object, 0 without one."""

    gpu: MemoryOwner
    handle: int
    address: int
    size: int
    region: Region
    placement: Placement
    mapping: NodeMapping | None = None
    closed: bool = False

    @property
    def view(self) -> memoryview:
        assert self.mapping is not None and self.mapping.view is not None
        return self.mapping.view

    @abstractmethod
    def protect(self, size: int) -> None:
        """Make the first `size` bytes, rounded down to whole pages, read-only for the GPU.

        If that is refused, they stay writable and a warning is logged.
        """

    @abstractmethod
    def close(self) -> None:
        """Unmap and free; idempotent. Errors of the driver are not raised: the GPU may be lost."""


def allocate(
    gpu: MemoryOwner,
    size: int,
    placement: Placement,
    region: Region,
    *,
    reachable: bool | None = None,
    notifier: bool = False,
) -> Memory:
    """Allocate at least `size` bytes and map them for the GPU.

    reachable: whether the host maps them too; default: HOST memory only. notifier: HOST memory that
    the resource manager writes errors to. OutOfMemory when the GPU, the host or the address space
    is used up; then nothing is left behind.
    """
    return gpu.new_memory(size, placement, region, reachable=reachable, notifier=notifier)


def allocate_reachable(gpu: MemoryOwner, size: int) -> Memory:
    """Allocate video memory that the host maps, or host memory if there is none.

    Kernels update counters faster in video memory. Raises as `allocate` does.
    """
    try:
        return allocate(gpu, size, Placement.DEVICE, Region.DEVICE, reachable=True)
    except DeviceLost:
        raise
    except UgpuError:
        return allocate(gpu, size, Placement.HOST, Region.HOST)
