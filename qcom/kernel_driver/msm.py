"""msm, the upstream kernel driver: /dev/dri/renderD128 and up.

Sources: msm_drm.h (hcq.uapi); Mesa 25.0.7 src/freedreno/vulkan/tu_knl_drm_msm.cc; Linux 7.3
drivers/gpu/drm/msm/msm_gem_submit.c, drivers/gpu/drm/drm_prime.c.
"""

from __future__ import annotations

import contextlib
import copy
import struct
from collections.abc import Sequence

from ugpu.hcq.errors import DeviceNotFound, DriverRefused, NotSupported, OutOfMemory, UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.node import Node, Reopenable
from ugpu.hcq.uapi import constants, structs
from ugpu.qcom.kernel_driver.interface import (
    Caching,
    Identity,
    KernelInterface,
    Memory,
    ResetState,
    Submission,
    address_of,
    whole_pages,
)

FIRST_MINOR = 128  # of render nodes: msm:0 is renderD128
DRIVER_NAME = "msm"
_FLAGS = {
    Caching.COMBINED: "MSM_BO_WC",
    Caching.COHERENT: "MSM_BO_CACHED_COHERENT",
    Caching.CACHED: "MSM_BO_CACHED_COHERENT",  # no call cleans the host's caches
}


class Msm(KernelInterface):
    """One open render node. See KernelInterface. Every submission lists all memory: the kernel
    driver keeps resident only the memory that a submission lists."""

    missing = "the kernel driver msm is not loaded (Qualcomm's own, KGSL, has /dev/kgsl-3d0)"

    def __init__(self, node: Node, index: int) -> None:
        self.names = constants("msm_drm")
        self.layouts = structs("msm_drm")
        self._queue: Struct | None = None  # the call that created it, with its result
        self._coherent: bool | None = None
        self._entries: dict[int, bytes] = {}  # each handle's entry in a submission
        self._faults = (0, 0)  # of the queue and of others, at the last check
        self._index = index
        super().__init__(node, f"/dev/dri/renderD{FIRST_MINOR + index}")

    @property
    def queue(self) -> int:
        """Return the submit queue's number; 0 where there is none, as the file's own is not
        used."""
        return 0 if self._queue is None else int(self._queue.id)

    # ---- facts -----------------------------------------------------------------------------------

    def parameter(self, name: str) -> int:
        """Return one parameter of the GPU from the kernel driver."""
        argument = self.layouts.drm_msm_param.new(
            pipe=self.names.MSM_PIPE_3D0, param=self.names[name]
        )
        self.call(name, self.names.DRM_IOCTL_MSM_GET_PARAM, argument.raw)
        value: int = argument.value
        return value

    def identify(self) -> Identity:
        try:
            chip_id = self.parameter("MSM_PARAM_CHIP_ID")
        except (DriverRefused, NotSupported):
            raise DeviceNotFound(
                f"{self.path} is not the device file of an Adreno GPU (driver msm)"
            ) from None
        facts: dict[str, object] = {"kernel_driver": "msm"}
        for key, name in (("gpu_id", "MSM_PARAM_GPU_ID"), ("clock_limit", "MSM_PARAM_MAX_FREQ")):
            with contextlib.suppress(DriverRefused):
                facts[key] = self.parameter(name)
        # Linux 7.3 adreno_gpu.c: the upper half is the value of the speed bin's fuse.
        return Identity(chip_id & 0xFFFF_FFFF, self.parameter("MSM_PARAM_GMEM_SIZE"), facts)

    def memory_size(self) -> int | None:
        """See KernelInterface. Older kernels do not report the size of the address space."""
        limit = super().memory_size()
        try:
            space = self.parameter("MSM_PARAM_VA_SIZE")
        except UgpuError:
            return limit
        return space if limit is None else min(limit, space)

    @property
    def caching(self) -> Caching:
        if self._coherent is None:
            try:
                self.allocate(1, Caching.COHERENT).close()
                self._coherent = True
            except (DriverRefused, NotSupported, OutOfMemory):
                self._coherent = False
        return Caching.COHERENT if self._coherent else Caching.COMBINED

    # ---- several holders -------------------------------------------------------------------------

    def sole_holder(self) -> str:
        """See KernelInterface. Each open file has its own address space where the GPU's IOMMU
        supports page tables for each. Otherwise all share one, and its size is not reported (Linux
        7.3 adreno_gpu.c, MSM_PARAM_VA_SIZE; msm_gpu.c, msm_gpu_create_private_vm)."""
        if not isinstance(self.node, Reopenable):
            return f"{self.node.name} cannot be opened a second time"
        try:
            self.parameter("MSM_PARAM_VA_SIZE")
        except UgpuError:
            return "all programs use one address space of the GPU (MSM_PARAM_VA_SIZE is refused)"
        return ""

    def another(self) -> Msm:
        """See KernelInterface."""
        reason = self.sole_holder()
        if reason or not isinstance(self.node, Reopenable):
            raise NotSupported(f"{self.path} cannot be opened for another holder: {reason}")
        node = self.node.another()
        try:
            return Msm(node, self._index)
        except BaseException:
            node.close()
            raise

    # ---- memory ----------------------------------------------------------------------------------

    def _info(self, handle: int, name: str) -> int:
        argument = self.layouts.drm_msm_gem_info.new(handle=handle, info=self.names[name])
        self.call(name, self.names.DRM_IOCTL_MSM_GEM_INFO, argument.raw)
        value: int = argument.value
        return value

    def allocate(self, size: int, caching: Caching, *, read_only: bool = False) -> Memory:
        names = self.names
        flags = names[_FLAGS[caching]] | (names.MSM_BO_GPU_READONLY if read_only else 0)
        memory = Memory(self, whole_pages(size), caching)
        argument = self.layouts.drm_msm_gem_new.new(size=memory.size, flags=flags)
        try:
            self.memories[memory] = None
            self.call("GEM_NEW", names.DRM_IOCTL_MSM_GEM_NEW, argument.raw)
            memory.handle = argument.handle
            memory.address = self._info(memory.handle, "MSM_INFO_GET_IOVA")
            offset = self._info(memory.handle, "MSM_INFO_GET_OFFSET")
            memory.mapping = self.node.map(self.handle, memory.size, offset)
            self._name(memory, read_only=False)
            return memory
        except BaseException as error:
            memory.handle = argument.handle
            memory.close()
            if isinstance(error, OSError) and not isinstance(error, UgpuError):
                raise OutOfMemory("GPU memory cannot be mapped", size=size) from error
            if isinstance(error, OutOfMemory):
                error.add_facts(size=size)
            raise

    def _name(self, memory: Memory, *, read_only: bool) -> None:
        """List the memory in submissions; as read-only where nothing else writes it."""
        flags = self.names.MSM_SUBMIT_BO_READ
        listed = self._entries.get(memory.handle)
        layout = self.layouts.drm_msm_gem_submit_bo
        if not read_only or (listed is not None and layout.view(listed).flags != flags):
            flags |= self.names.MSM_SUBMIT_BO_WRITE
        entry = layout.new(flags=flags, handle=memory.handle, presumed=memory.address)
        self._entries[memory.handle] = bytes(entry)

    def import_dma_buf(self, descriptor: int, size: int, *, read_only: bool) -> Memory:
        """See KernelInterface. The kernel driver maps imports for writing as well. A buffer that is
        imported twice has one handle, which the last of its memories releases."""
        memory = Memory(self, whole_pages(size), Caching.COMBINED)
        argument = bytearray(_PRIME.pack(0, 0, descriptor))
        try:
            self.memories[memory] = None
            self.call("PRIME_FD_TO_HANDLE", _PRIME_FD_TO_HANDLE, argument)
            memory.handle = _PRIME.unpack(argument)[0]
            memory.address = self._info(memory.handle, "MSM_INFO_GET_IOVA")
            self._name(memory, read_only=read_only)
            return memory
        except BaseException:
            memory.handle = _PRIME.unpack(argument)[0]
            memory.close()
            raise

    def free(self, memory: Memory) -> None:
        # First: a freed handle must not be listed. Another import of the buffer still needs it.
        others = [other for other in self.memories if other is not memory]
        if all(other.handle != memory.handle for other in others):
            self._entries.pop(memory.handle, None)
        super().free(memory)

    def release(self, memory: Memory) -> None:
        argument = bytearray(memory.handle.to_bytes(4, "little") + bytes(4))
        self.call("GEM_CLOSE", _GEM_CLOSE, argument)

    # ---- work ------------------------------------------------------------------------------------

    def create_context(self) -> None:
        self._queue = self.layouts.drm_msm_submitqueue.new()
        request = self.names.DRM_IOCTL_MSM_SUBMITQUEUE_NEW
        self.call("SUBMITQUEUE_NEW", request, self._queue.raw)
        self._faults = self._count_faults()

    def destroy_context(self) -> None:
        if self.queue and not self.closed:
            argument = bytearray(self.queue.to_bytes(4, "little"))
            request = self.names.DRM_IOCTL_MSM_SUBMITQUEUE_CLOSE
            with contextlib.suppress(UgpuError):
                self.call("SUBMITQUEUE_CLOSE", request, argument)
        self._queue = None

    def prepare(self, ranges: Sequence[tuple[Memory, int, int]]) -> Submission:
        return _Submit(self, ranges)

    def _count_faults(self) -> tuple[int, int]:
        # ORDER: our own fault raises the queue's count first. A fault between these two calls
        # must not look like another's.
        of_all = self.parameter("MSM_PARAM_FAULTS")
        value = bytearray(8)
        query = self.layouts.drm_msm_submitqueue_query.new(
            data=address_of(value), id=self.queue, len=4,
            param=self.names.MSM_SUBMITQUEUE_PARAM_FAULTS,
        )  # fmt: skip
        self.call("SUBMITQUEUE_QUERY", self.names.DRM_IOCTL_MSM_SUBMITQUEUE_QUERY, query.raw)
        own = int.from_bytes(value[:4], "little")
        return own, of_all - own

    def reset_state(self) -> ResetState:
        """Read the fault counts of the kernel driver: guilty ones of the queue; innocent ones, too,
        of the whole GPU and this address space (tu_knl_drm_msm.cc, msm_device_check_status)."""
        if not self.queue:
            return ResetState.NONE
        before, now = self._faults, self._count_faults()
        self._faults = now[0], max(before[1], now[1])
        if now[0] != before[0]:
            return ResetState.GUILTY
        return ResetState.INNOCENT if now[1] > before[1] else ResetState.NONE

    def progress(self) -> dict[str, object]:
        return {"queue": self.queue, "faults": self._faults[0], "of_others": self._faults[1]}

    def close(self) -> None:
        self.destroy_context()
        super().close()


# DRM_IOCTL_GEM_CLOSE of drm.h: _IOW('d', 0x09, struct drm_gem_close {u32 handle, u32 pad}).
_GEM_CLOSE = 0x4008_6409
# DRM_IOCTL_PRIME_FD_TO_HANDLE of drm.h: _IOWR('d', 0x2e, struct drm_prime_handle {u32 handle,
# u32 flags, s32 fd}).
_PRIME_FD_TO_HANDLE = 0xC00C_642E
_PRIME = struct.Struct("<IIi")


class _Submit(Submission):
    def __init__(self, msm: Msm, ranges: Sequence[tuple[Memory, int, int]]) -> None:
        self.msm = msm
        names, layouts = msm.names, msm.layouts
        entries = dict(msm._entries)
        self._objects, self._commands = bytearray(b"".join(entries.values())), bytearray()
        places = {handle: position for position, handle in enumerate(entries)}
        for memory, start, size in ranges:
            command = layouts.drm_msm_gem_submit_cmd.new(
                type=names.MSM_SUBMIT_CMD_BUF, submit_idx=places[memory.handle],
                submit_offset=start, size=size,
            )  # fmt: skip
            self._commands += command.raw
        self._argument = layouts.drm_msm_gem_submit.new(
            flags=names.MSM_PIPE_3D0 | names.MSM_SUBMIT_NO_IMPLICIT, queueid=msm.queue,
            nr_bos=len(entries), nr_cmds=len(ranges), bos=address_of(self._objects),
            cmds=address_of(self._commands),
        )  # fmt: skip

    @property
    def number(self) -> int:
        fence: int = self._argument.fence
        return fence

    def submit(self) -> None:
        if not self.number:
            request = self.msm.names.DRM_IOCTL_MSM_GEM_SUBMIT
            self.msm.call("GEM_SUBMIT", request, self._argument.raw)

    def again(self) -> Submission | None:
        msm = self.msm
        if self._argument.queueid != msm.queue or b"".join(msm._entries.values()) != self._objects:
            return None
        copied = copy.copy(self)  # the lists are shared and never modified
        copied._argument = msm.layouts.drm_msm_gem_submit.view(bytearray(self._argument.raw))
        copied._argument.fence = 0
        return copied
