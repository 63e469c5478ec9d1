"""The render node of msm in one program.

A DRM file has its own handles, submit queues and address space; here all files of a program share
one set.
Source: Linux drivers/gpu/drm/drm_gem.c (drm_gem_mmap), drm_vma_manager.h (where offsets begin),
drivers/gpu/drm/msm: msm_drv.c, adreno/adreno_gpu.c (addresses).
"""

from __future__ import annotations

import errno

from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.memory.objects import PAGE, MemoryObject
from ugpu.virtual.adreno.memory.space import AddressSpace
from ugpu.virtual.adreno.msm.calls import MsmCalls
from ugpu.virtual.adreno.msm.memory import FIRST_OFFSET
from ugpu.virtual.adreno.msm.queue import MsmQueue
from ugpu.virtual.adreno.node import Ioctls, MemoryMapping, VirtualNode
from ugpu.virtual.node.refusal import refused

VA_START = 1 << 32  # ADRENO_VM_START
_NEWER_STEP = 3  # of generation 6: from the a650 family on the address space has 16 GiB


class _Space(AddressSpace):
    def __init__(self, node: MsmNode) -> None:
        super().__init__(node.machine.lock, (VA_START, node.va_size), (PAGE, PAGE))
        self._node = node

    def touched(self, found: MemoryObject) -> None:
        """Check the access: a submission keeps only the memory that it lists in place."""
        node = self._node
        if found.id and found.id not in node.named:
            node.machine.violate(
                f"a submission uses memory that it does not name (handle {found.id}): the kernel "
                "driver may take it away"
            )


class MsmNode(VirtualNode):
    """See VirtualNode. named: handles that the running submission lists. faults: of the address
    space. queues: by number."""

    driver = "msm"
    path = "/dev/dri/renderD128"

    def __init__(self, machine: VirtualMachine, *, owns_machine: bool = False) -> None:
        self.named: frozenset[int] = frozenset()
        self.faults = 0
        self.queues: dict[int, MsmQueue] = {}
        super().__init__(machine, owns_machine=owns_machine)

    @property
    def va_size(self) -> int:
        """Return the bytes of the address space (address_space_size in a6xx_catalog.c)."""
        facts = self.machine.facts
        wide = facts.generation == 7 or facts.step >= _NEWER_STEP
        return (16 if wide else 4) << 30

    def another(self) -> MsmNode:
        """See hcq.transport.node.Reopenable."""
        self._need_open()
        return MsmNode(self.machine)

    def _new_space(self) -> AddressSpace:
        return _Space(self)

    def _new_calls(self) -> Ioctls:
        return MsmCalls(self)

    def _mappable(self, offset: int, size: int) -> MemoryObject:
        place = offset - FIRST_OFFSET
        found = next((one for one in self.objects.values() if one.offset == place), None)
        if size <= 0 or offset % PAGE or found is None or not found.id_valid:
            raise refused(errno.EINVAL, f"mmap of {size} bytes at {offset:#x}: no such object")
        if size > found.mapped_size:
            raise refused(errno.EINVAL, f"mmap of {size} bytes, the object has {found.mapped_size}")
        return found

    def _mapped(self, found: MemoryObject, mapping: MemoryMapping) -> None:
        """No-op: GPU and CPU mappings are independent."""

    def _end_program(self) -> None:
        super()._end_program()
        self.queues = {}

    def _texts(self) -> dict[str, str]:
        return {}
