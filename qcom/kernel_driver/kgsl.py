"""KGSL, Qualcomm's own kernel driver: /dev/kgsl-3d0.

Source: msm_kgsl.h (in Mesa 25.0.7 src/freedreno/vulkan), and its use in tu_knl_kgsl.cc there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import numpy as np

from ugpu.hcq.errors import DriverRefused, NotSupported, OutOfMemory, UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.node import Node
from ugpu.qcom.kernel_driver.interface import (
    Caching,
    Fault,
    Identity,
    KernelInterface,
    Memory,
    ResetState,
    Submission,
    address_of,
    whole_pages,
)
from ugpu.qcom.regs import constants, structs

log = logging.getLogger(__name__)

MAPPING_SHIFT = 12  # an object's number, shifted left by this, is the offset that maps it
_RESETS = {0: ResetState.NONE, 1: ResetState.GUILTY, 2: ResetState.INNOCENT}
_MODES = {
    Caching.COMBINED: "KGSL_CACHEMODE_WRITECOMBINE",
    Caching.COHERENT: "KGSL_CACHEMODE_WRITEBACK",
    Caching.CACHED: "KGSL_CACHEMODE_WRITEBACK",
}
_ACCESSES = {"KGSL_PAGEFAULT_TYPE_READ": "read", "KGSL_PAGEFAULT_TYPE_WRITE": "write"}
_KINDS = {
    "KGSL_PAGEFAULT_TYPE_TRANSLATION": "translation",
    "KGSL_PAGEFAULT_TYPE_PERMISSION": "permission",
    "KGSL_PAGEFAULT_TYPE_EXTERNAL": "external",
}
_MOST_FAULTS = 8


class Kgsl(KernelInterface):
    """One open /dev/kgsl-3d<index>. See KernelInterface."""

    missing = "this kernel has no KGSL (the upstream driver, msm, has /dev/dri/renderD*)"

    def __init__(self, node: Node, index: int) -> None:
        self.names = constants("msm_kgsl")
        self.layouts = structs("msm_kgsl")
        self._context: Struct | None = None  # the call that created it, with its result
        self._coherent: bool | None = None
        self.power = ""
        super().__init__(node, f"/dev/kgsl-3d{index}")

    @property
    def context(self) -> int:
        """Return the context's number; 0 where there is none."""
        return 0 if self._context is None else int(self._context.drawctxt_id)

    # ---- facts -----------------------------------------------------------------------------------

    def ask(self, name: str, value: bytearray | memoryview) -> None:
        """Read a property. `value` holds the call's input and receives its result."""
        argument = self.layouts.kgsl_device_getproperty.new(
            type=self.names[name], value=address_of(value), sizebytes=len(value)
        )
        self.call(name, self.names.IOCTL_KGSL_DEVICE_GETPROPERTY, argument.raw)

    def identify(self) -> Identity:
        info = self.layouts.kgsl_devinfo.new()
        self.ask("KGSL_PROP_DEVICE_INFO", info.raw)
        return Identity(
            info.chip_id,
            info.gmem_sizebytes,
            {"kernel_driver": "kgsl", "gpu_id": info.gpu_id, "iommu": bool(info.mmu_enabled)},
        )

    @property
    def caching(self) -> Caching:
        if self._coherent is None:
            try:
                self.allocate(1, Caching.COHERENT).close()
                self._coherent = True
            except (DriverRefused, NotSupported, OutOfMemory):
                self._coherent = False
        return Caching.COHERENT if self._coherent else Caching.COMBINED

    @property
    def device_caching(self) -> Caching:
        return Caching.CACHED

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(self, size: int, caching: Caching, *, read_only: bool = False) -> Memory:
        names = self.names
        flags = names[_MODES[caching]] << names.KGSL_CACHEMODE_SHIFT
        if caching is Caching.COHERENT:
            flags |= names.KGSL_MEMFLAGS_IOCOHERENT & 0xFFFF_FFFF
        if read_only:
            flags |= names.KGSL_MEMFLAGS_GPUREADONLY
        memory = Memory(self, whole_pages(size), caching)
        argument = self.layouts.kgsl_gpumem_alloc_id.new(flags=flags, size=memory.size)
        try:
            self.memories[memory] = None
            self.call("GPUMEM_ALLOC_ID", names.IOCTL_KGSL_GPUMEM_ALLOC_ID, argument.raw)
            memory.handle, memory.address = argument.id, argument.gpuaddr
            memory.mapping = self.node.map(self.handle, memory.size, argument.id << MAPPING_SHIFT)
            return memory
        except BaseException as error:
            memory.handle = argument.id
            memory.close()
            if isinstance(error, OSError) and not isinstance(error, UgpuError):
                raise OutOfMemory("GPU memory cannot be mapped", size=size) from error
            if isinstance(error, OutOfMemory):
                error.add_facts(size=size)
            raise

    def _import(self, kind: str, memory: Memory, source: Struct, size: int, flags: int) -> Memory:
        """Make the call GPUOBJ_IMPORT. size: the value for `priv_len`."""
        names = self.names
        argument = self.layouts.kgsl_gpuobj_import.new(
            priv=address_of(source.raw), priv_len=size, flags=flags,
            type=names[f"KGSL_USER_MEM_TYPE_{kind}"],
        )  # fmt: skip
        try:
            self.memories[memory] = None
            self.call("GPUOBJ_IMPORT", names.IOCTL_KGSL_GPUOBJ_IMPORT, argument.raw)
            memory.handle = argument.id
            info = self.layouts.kgsl_gpuobj_info.new(id=memory.handle)
            self.call("GPUOBJ_INFO", names.IOCTL_KGSL_GPUOBJ_INFO, info.raw)
            memory.address = info.gpuaddr
            # The caching that the kernel driver granted: older ones accept no IOCOHERENT here.
            granted = argument.flags & names.KGSL_MEMFLAGS_IOCOHERENT & 0xFFFF_FFFF
            if memory.caching is Caching.COHERENT and not granted:
                memory.caching = Caching.CACHED
            return memory
        except BaseException:
            memory.handle = argument.id
            memory.close()
            raise

    def import_memory(self, data: memoryview, *, read_only: bool) -> Memory:
        names = self.names
        memory = Memory(self, len(data), self.caching)
        if memory.caching is not Caching.COHERENT:
            memory.caching = Caching.CACHED  # like the program's pages, whatever we request
        memory.imported = data
        flags = names[_MODES[memory.caching]] << names.KGSL_CACHEMODE_SHIFT
        if memory.caching is Caching.COHERENT:
            flags |= names.KGSL_MEMFLAGS_IOCOHERENT & 0xFFFF_FFFF
        flags |= names.KGSL_MEMFLAGS_GPUREADONLY if read_only else 0
        # NumPy returns the address of read-only bytes, too.
        where = int(np.frombuffer(data, np.uint8).ctypes.data)
        source = self.layouts.kgsl_gpuobj_import_useraddr.new(virtaddr=where)
        return self._import("ADDR", memory, source, len(data), flags)

    def import_dma_buf(self, descriptor: int, size: int, *, read_only: bool) -> Memory:
        flags = self.names.KGSL_MEMFLAGS_GPUREADONLY if read_only else 0
        source = self.layouts.kgsl_gpuobj_import_dma_buf.new(fd=descriptor)
        memory = Memory(self, whole_pages(size), Caching.COMBINED)
        return self._import("DMABUF", memory, source, source.layout.size, flags)

    def release(self, memory: Memory) -> None:
        argument = self.layouts.kgsl_gpumem_free_id.new(id=memory.handle)
        self.call("GPUMEM_FREE_ID", self.names.IOCTL_KGSL_GPUMEM_FREE_ID, argument.raw)

    def sync(self, memory: Memory, start: int, size: int, *, to_gpu: bool) -> None:
        if memory.caching is not Caching.CACHED or not size:
            return
        names = self.names
        direction = names.KGSL_GPUMEM_CACHE_TO_GPU
        if not to_gpu:  # written back, then dropped: another thread may be storing into the line
            direction |= names.KGSL_GPUMEM_CACHE_FROM_GPU
        entry = self.layouts.kgsl_gpuobj_sync_obj.new(
            offset=start, length=size, id=memory.handle,
            op=(direction | names.KGSL_GPUMEM_CACHE_RANGE) & 0xFFFF_FFFF,
        )  # fmt: skip
        argument = self.layouts.kgsl_gpuobj_sync.new(
            objs=address_of(entry.raw), obj_len=len(entry.raw), count=1
        )
        self.call("GPUOBJ_SYNC", names.IOCTL_KGSL_GPUOBJ_SYNC, argument.raw)

    # ---- work ------------------------------------------------------------------------------------

    def create_context(self) -> None:
        names = self.names
        flags = names.KGSL_CONTEXT_SAVE_GMEM | names.KGSL_CONTEXT_NO_GMEM_ALLOC
        # FAULT_INFO: faults can be queried afterwards; a kernel that lacks it masks the flag.
        flags |= names.KGSL_CONTEXT_PREAMBLE | names.KGSL_CONTEXT_FAULT_INFO
        # Without the next flag the kernel driver replays a hung submission, which may have run in
        # part; and reports of faults are for contexts that a fault has ended (adreno_dispatch.c,
        # _set_ft_policy and process_cmdobj_fault; kgsl.c, kgsl_ioctl_get_fault_report).
        flags |= names.KGSL_CONTEXT_NO_FAULT_TOLERANCE
        self._context = self.layouts.kgsl_drawctxt_create.new(flags=flags)
        self.call("DRAWCTXT_CREATE", names.IOCTL_KGSL_DRAWCTXT_CREATE, self._context.raw)
        if self.power:
            try:
                self.constrain_power(self.power)
            except UgpuError as error:
                log.warning("%s: the new context has no power constraint: %s", self.path, error)

    def constrain_power(self, level: str) -> None:
        """Hold the GPU's clocks at "max" or "min" while the context's work runs; "" for no
        constraint. It also applies to later contexts."""
        names, layouts = self.names, self.layouts
        value = layouts.kgsl_device_constraint_pwrlevel.new()
        constraint = layouts.kgsl_device_constraint.new(
            type=names.KGSL_CONSTRAINT_NONE, context_id=self.context
        )
        if level:
            value.level = names[f"KGSL_CONSTRAINT_PWR_{level.upper()}"]
            constraint.type = names.KGSL_CONSTRAINT_PWRLEVEL
            constraint.data, constraint.size = address_of(value.raw), len(value.raw)
        argument = layouts.kgsl_device_getproperty.new(
            type=names.KGSL_PROP_PWR_CONSTRAINT, value=address_of(constraint.raw),
            sizebytes=len(constraint.raw),
        )  # fmt: skip
        self.call("KGSL_PROP_PWR_CONSTRAINT", names.IOCTL_KGSL_SETPROPERTY, argument.raw)
        self.power = level

    def destroy_context(self) -> None:
        if self.context and not self.closed:
            argument = self.layouts.kgsl_drawctxt_destroy.new(drawctxt_id=self.context)
            with contextlib.suppress(UgpuError):
                self.call("DRAWCTXT_DESTROY", self.names.IOCTL_KGSL_DRAWCTXT_DESTROY, argument.raw)
        self._context = None

    def prepare(self, ranges: Sequence[tuple[Memory, int, int]]) -> Submission:
        return _Command(self, ranges)

    def reset_state(self) -> ResetState:
        if not self.context:
            return ResetState.NONE
        value = bytearray(self.context.to_bytes(4, "little"))
        self.ask("KGSL_PROP_GPU_RESET_STAT", value)
        return _RESETS.get(int.from_bytes(value, "little"), ResetState.UNKNOWN)

    def fault(self) -> Fault | None:
        """Return the last page fault. Newer kernels report those of contexts created with
        FAULT_INFO; older ones refuse."""
        names, layouts = self.names, self.layouts
        report_size = layouts.kgsl_pagefault_report.size
        reports = bytearray(_MOST_FAULTS * report_size)
        entry = layouts.kgsl_fault.new(
            fault=address_of(reports), type=names.KGSL_FAULT_TYPE_PAGEFAULT,
            count=_MOST_FAULTS, size=report_size,
        )  # fmt: skip
        argument = layouts.kgsl_fault_report.new(
            faultlist=address_of(entry.raw), faultnents=1, faultsize=layouts.kgsl_fault.size,
            context_id=self.context,
        )  # fmt: skip
        try:
            self.call("GET_FAULT_REPORT", names.IOCTL_KGSL_GET_FAULT_REPORT, argument.raw)
        except UgpuError as error:
            log.debug("%s: no report of faults: %s", self.path, error)
            return None
        # `count` keeps its input value; a report has READ or WRITE.
        first = layouts.kgsl_pagefault_report.view(reports)
        bits = first.fault_type
        if not bits:
            return None
        access, kind = (
            next((word for name, word in words.items() if bits & names[name]), "")
            for words in (_ACCESSES, _KINDS)
        )
        return Fault(kind, first.fault_addr, access)

    def timestamp(self, kind: str) -> int:
        """Return the context's timestamp: "QUEUED", "CONSUMED" or "RETIRED"."""
        argument = self.layouts.kgsl_cmdstream_readtimestamp_ctxtid.new(
            context_id=self.context, type=self.names[f"KGSL_TIMESTAMP_{kind}"]
        )
        self.call(
            "READTIMESTAMP", self.names.IOCTL_KGSL_CMDSTREAM_READTIMESTAMP_CTXTID, argument.raw
        )
        timestamp: int = argument.timestamp
        return timestamp

    def progress(self) -> dict[str, object]:
        progress: dict[str, object] = {"context": self.context}
        for kind in ("QUEUED", "CONSUMED", "RETIRED"):
            try:
                progress[kind.lower()] = self.timestamp(kind)
            except UgpuError as error:
                progress[kind.lower()] = str(error)
        return progress

    def close(self) -> None:
        self.destroy_context()
        super().close()


class _Command(Submission):
    def __init__(self, kgsl: Kgsl, ranges: Sequence[tuple[Memory, int, int]]) -> None:
        self.kgsl = kgsl
        names, layout = kgsl.names, kgsl.layouts.kgsl_command_object
        self._list = bytearray()
        for memory, start, size in ranges:
            entry = layout.new(
                gpuaddr=memory.address + start, size=size, flags=names.KGSL_CMDLIST_IB,
                id=memory.handle,
            )  # fmt: skip
            self._list += entry.raw
        sync = kgsl.layouts.kgsl_command_syncpoint.size
        self._argument = kgsl.layouts.kgsl_gpu_command.new(
            flags=names.KGSL_CMDBATCH_SUBMIT_IB_LIST, cmdlist=address_of(self._list),
            cmdsize=layout.size, numcmds=len(ranges), syncsize=sync, context_id=kgsl.context,
        )  # fmt: skip

    @property
    def number(self) -> int:
        timestamp: int = self._argument.timestamp
        return timestamp

    def submit(self) -> None:
        if not self.number:
            request = self.kgsl.names.IOCTL_KGSL_GPU_COMMAND
            self.kgsl.call("GPU_COMMAND", request, self._argument.raw)

    def again(self) -> Submission | None:
        if self._argument.context_id != self.kgsl.context:
            return None
        copied = object.__new__(_Command)
        copied.kgsl, copied._list = self.kgsl, self._list  # the list is shared and never modified
        copied._argument = self.kgsl.layouts.kgsl_gpu_command.view(bytearray(self._argument.raw))
        copied._argument.timestamp = 0
        return copied
