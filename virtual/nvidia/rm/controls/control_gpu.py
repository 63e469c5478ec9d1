"""Controls of a device and a subdevice: identity, classes, shape, memory, engines, partitions.

Source: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/ctrl/ctrl0080/ctrl0080gpu.h,
ctrl2080/ctrl2080gpu.h, ctrl2080gr.h, ctrl2080fb.h, ctrl2080fifo.h, ctrl2080mc.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0, VirtualGpu
from ugpu.virtual.nvidia.host.group import Preemption
from ugpu.virtual.nvidia.options import GRAPHICS_COPY_ENGINES
from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject, ComputeObject
from ugpu.virtual.nvidia.rm.classes import classes_of
from ugpu.virtual.nvidia.rm.contexts import BUFFERS
from ugpu.virtual.nvidia.rm.controls.text import set_text
from ugpu.virtual.nvidia.rm.resources import Device, Subdevice, need_gpu
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.text_files import NAMES
from ugpu.virtual.nvidia.userspace import copy_in, copy_out

_GID_BINARY = 2  # NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT, bits 1:0: ASCII 0, BINARY 2
_PAIR = 8  # bytes of an index and its value
_GRCE, _SHARED = 0x01, 0x02  # NV2080_CTRL_CE_CAPS_CE
_CILP, _GFXP = 1, 2  # NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS
# MC_GET_ARCH_INFO: architecture and implementation (ctrl2080mc.h)
_ARCHITECTURE = {
    "tu102": (0x160, 0x2), "tu116": (0x160, 0x8), "ga100": (0x170, 0x0), "ga102": (0x170, 0x2),
    "ad102": (0x190, 0x2), "gh100": (0x180, 0x0), "gb202": (0x1B0, 0x2),
}  # fmt: skip


def _class_list(device: Device, params: Struct) -> None:
    classes = sorted(classes_of(device.gpu.facts))
    if params.classList:
        require(
            params.numClasses >= len(classes),
            Status.INVALID_PARAM_STRUCT,
            f"room for {params.numClasses} classes, of {len(classes)}",
        )
        copy_out(params.classList, b"".join(number.to_bytes(4, "little") for number in classes))
    params.numClasses = len(classes)


def _class_list2(device: Device, params: Struct) -> None:
    classes = sorted(classes_of(device.gpu.facts))
    params.numClasses = len(classes)
    for index, number in enumerate(classes):
        params.classList[index] = number


def _subdevices(device: Device, params: Struct) -> None:
    params.numSubDevices = 1


def _gid(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    require(params.index == 0, Status.INVALID_ARGUMENT, f"index {params.index}")
    binary = params.flags & _GID_BINARY
    data = gpu.uuid if binary else gpu.uuid_text.encode() + b"\0"
    params.data.raw[:] = data.ljust(len(params.data), b"\0")
    params.length = len(data)


def _name(sub: Subdevice, params: Struct) -> None:
    set_text(params.gpuNameString.ascii, NAMES[need_gpu(sub).facts.name])


def _short_name(sub: Subdevice, params: Struct) -> None:
    set_text(params.gpuShortNameString, need_gpu(sub).facts.name.upper())


def _architecture(sub: Subdevice, params: Struct) -> None:
    params.architecture, params.implementation = _ARCHITECTURE[need_gpu(sub).facts.name]
    params.revision, params.subRevision = 0xA1, 0


def gr_info(gpu: VirtualGpu, name: str) -> int | None:
    """Return a value of the graphics engine's shape, by its name in NV2080_CTRL_GR_INFO_INDEX."""
    facts = gpu.facts
    major, minor = facts.compute_capability
    per_sm = 65536
    return {
        "SHADER_PIPE_COUNT": gpu.gpcs,
        "SHADER_PIPE_SUB_COUNT": -(-facts.sm_count // gpu.sm_per_tpc),
        "SM_REG_BANK_COUNT": 4,
        "SM_REG_BANK_REG_COUNT": per_sm // 4,
        "SM_VERSION": major << 8 | minor,
        "MAX_WARPS_PER_SM": facts.warps_per_sm,
        "MAX_THREADS_PER_WARP": 32,
        "LITTER_NUM_GPCS": gpu.gpcs,
        "LITTER_NUM_TPC_PER_GPC": gpu.tpcs_per_gpc,
        "LITTER_NUM_SM_PER_TPC": gpu.sm_per_tpc,
        "MAX_SUBCONTEXT_COUNT": 64,
        "LITTER_NUM_GRS": 1,
        "THREAD_STACK_SCALING_FACTOR": 0,
        "GPU_CORE_COUNT": facts.sm_count * (64 if facts.family == "turing" else 128),
        "TIMESLICE_ENABLED": 1,
    }.get(name)


def _fb_info(gpu: VirtualGpu, name: str) -> int | None:
    kib = gpu.memory.size >> 10
    free = gpu.memory.free_size >> 10
    return {
        "RAM_SIZE": kib,
        "TOTAL_RAM_SIZE": kib,
        "USABLE_RAM_SIZE": gpu.memory.usable >> 10,
        "HEAP_SIZE": gpu.memory.usable >> 10,
        "HEAP_FREE": free,
        "HEAP_START": 0,
        "BAR1_SIZE": kib,
        "BAR1_AVAIL_SIZE": free,
        "BAR1_MAX_CONTIGUOUS_AVAIL_SIZE": free,
        "MAPPABLE_HEAP_SIZE": gpu.memory.usable >> 10,
        "BUS_WIDTH": 384,
        "L2CACHE_SIZE": 6 << 20,
        "FB_IS_BROKEN": 0,
        "RAM_LOCATION": 0,
    }.get(name)


def smc_mode(gpu: VirtualGpu) -> int:
    """Return whether a GPU is divided (1), could be (2), or cannot be (0)."""
    if gpu.options.mig is not None:
        return 1
    return 2 if gpu.facts.name == "gh100" else 0


def _gpu_info(gpu: VirtualGpu, name: str) -> int | None:
    major, minor = gpu.facts.compute_capability
    return {
        "GPU_SM_VERSION": major << 8 | minor,
        "GPU_SMC_MODE": smc_mode(gpu),
        "SYSMEM_ACCESS": 1,
        "GPU_DEBUGGING_CAPABILITY": 1,
        "GPU_PROFILING_CAPABILITY": 0,
        "PER_RUNLIST_CHANNEL_RAM": int(gpu.facts.family != "turing"),
        "DISPLAY_ENABLED": 0,
    }.get(name)


Values = Callable[[VirtualGpu, str], int | None]


def _answer(gpu: VirtualGpu, prefix: str, index: int, values: Values) -> int:
    """Return the value for an index of one of the information lists."""
    for name in gpu.machine.abi.constants.names(index, prefix=prefix):
        value = values(gpu, name.removeprefix(prefix))
        if value is not None:
            return value
    gpu.machine.asked[f"{prefix}{index:#x}"] += 1
    raise RmError(Status.NOT_SUPPORTED, f"{prefix}{index:#x} is not modelled")


def list_inside(prefix: str, count: str, entries: str, values: Values) -> Callable[..., None]:
    """Return a control whose list of indices is inside its block."""

    def handler(sub: Subdevice | Device, params: Struct) -> None:
        asked, room = params[count], params[entries]
        require(0 < asked <= len(room), Status.INVALID_ARGUMENT, f"{asked} entries")
        for place in range(asked):
            room[place].data = _answer(need_gpu(sub), prefix, room[place].index, values)

    return handler


def list_outside(prefix: str, count: str, pointer: str, values: Values) -> Callable[..., None]:
    """Return a control whose list of indices is at an address given by a pointer."""

    def handler(sub: Subdevice | Device, params: Struct) -> None:
        asked = params[count]
        require(0 < asked <= 256, Status.INVALID_ARGUMENT, f"{asked} entries")
        require(params[pointer], Status.INVALID_ARGUMENT, "a list without an address")
        raw = copy_in(params[pointer], asked * _PAIR)
        words = memoryview(raw).cast("I")
        for place in range(asked):
            words[2 * place + 1] = _answer(need_gpu(sub), prefix, words[2 * place], values)
        copy_out(params[pointer], raw)

    return handler


def _engines(sub: Subdevice, params: Struct) -> None:
    copies = range(need_gpu(sub).options.copy_engines)
    engines = [ENGINE_GR0, *(ENGINE_COPY0 + number for number in copies)]
    params.engineCount = len(engines)
    for place, number in enumerate(engines):
        params.engineList[place] = number


def _sm_order(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    for sm in range(gpu.facts.sm_count):
        tpc = sm // gpu.sm_per_tpc
        entry = params.globalSmId[sm]
        entry.gpcId, entry.localTpcId = tpc % gpu.gpcs, tpc // gpu.gpcs
        entry.localSmId, entry.globalTpcId = sm % gpu.sm_per_tpc, tpc
        entry.virtualGpcId = entry.gpcId
    params.numSm, params.numTpc = gpu.facts.sm_count, -(-gpu.facts.sm_count // gpu.sm_per_tpc)


def _boost(sub: Subdevice, params: Struct) -> None:
    command = params.flags & 0x3  # clear, one level, to the highest
    require(command != 3, Status.INVALID_ARGUMENT, f"flags {params.flags:#x}")
    sub.client.boosts[need_gpu(sub).index] = command


def _flush(sub: Subdevice, params: Struct) -> None:
    require(params.addressArraySize <= len(params.addressArray), Status.INVALID_ARGUMENT)


def _time(sub: Subdevice, params: Struct) -> None:
    params.time_nsec = need_gpu(sub).time_ns()


def _simulation(sub: Subdevice, params: Struct) -> None:
    params.type = 0  # hardware, as far as the driver knows


def _pci(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    params.pciDeviceId = gpu.facts.pci_device << 16 | 0x10DE
    params.pciSubSystemId, params.pciRevisionId = 0x10DE, 0xA1
    params.pciExtDeviceId = gpu.facts.pci_device


def _copy_engine(gpu: VirtualGpu, engine_type: int) -> int:
    number: int = engine_type - ENGINE_COPY0
    if not 0 <= number < gpu.options.copy_engines:
        raise RmError(Status.INVALID_ARGUMENT, f"no copy engine of type {engine_type:#x}")
    return number


def _copy_caps(sub: Subdevice, params: Struct) -> None:
    """Return capabilities as recorded on an H100, driver 580.159.04, where copy engines 2 and 3
    share the physical ones of 0 and 1. UNSURE: other chips."""
    gpu = need_gpu(sub)
    number = _copy_engine(gpu, params.ceEngineType)
    graphics = number < GRAPHICS_COPY_ENGINES
    others = set(range(gpu.options.copy_engines)) - {number}
    shared = any(_physical(gpu, number) & _physical(gpu, other) for other in others)
    # SYSMEM, P2P, BL_SIZE_GT_64K_SUPPORTED, then SUPPORTS_NONPIPELINED_BL, SUPPORTS_PIPELINED_BL
    params.capsTbl = [_GRCE * graphics | _SHARED * shared | 0x20 | 0x40 | 0x80, 0x01 | 0x02]


def _physical_copy_engines(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    params.pceMask = _physical(gpu, _copy_engine(gpu, params.ceEngineType))


def _physical(gpu: VirtualGpu, number: int) -> int:
    """Return the mask of physical engines of one copy engine. As on an H200, the last one has most;
    the others have two each, shared by two engines. UNSURE: other chips."""
    last = number == gpu.options.copy_engines - 1
    return 0xFFF if last else 0x5000 << number % 2


def _preemption_mode(sub: Subdevice, params: Struct) -> None:
    """Set when a running grid leaves the engine; ctrl2080gr.h. hChannel is a channel, or a group of
    several (rpc.c, and CUDA on an H100). A mode without its flag is ignored.

    UNSURE: each status but NOT_SUPPORTED; the firmware checks them. Graphics is not modelled.
    """
    flags = params.flags
    require(flags and not flags & ~(_CILP | _GFXP), Status.INVALID_ARGUMENT, f"flags {flags:#x}")
    found = sub.client.find(params.hChannel, Status.INVALID_CHANNEL)
    if not isinstance(found, ChannelGroup | ChannelObject) or found.gpu is not need_gpu(sub):
        raise RmError(
            Status.INVALID_CHANNEL, f"expected a channel or a group of this GPU, got {found!r}"
        )
    require(found.runlist.number == 0, Status.NOT_SUPPORTED, "a copy engine has no such mode")
    for flag, name in ((_CILP, "cilpPreemptMode"), (_GFXP, "gfxpPreemptMode")):
        if flags & flag:
            require(params[name] <= 2, Status.INVALID_ARGUMENT, f"{name} {params[name]}")
    if flags & _CILP:
        found.runlist.set_preemption(found.slices, Preemption(params.cilpPreemptMode))


def _partitions(sub: Subdevice, params: Struct) -> None:
    params.validPartitionCount = 0


def _active_partitions(sub: Subdevice, params: Struct) -> None:
    numbers = sorted({instance for instance, _ in need_gpu(sub).options.mig or ()})
    params.partitionCount = len(numbers)
    for place, number in enumerate(numbers):
        params.swizzId[place] = number


def _page_size(sub: Subdevice, params: Struct) -> None:
    params.maxSupportedPageSize = 2 << 20


def _context_size(sub: Subdevice, params: Struct) -> None:
    channel = sub.client.find(params.hChannel, Status.INVALID_CHANNEL)
    if not isinstance(channel, ChannelObject):
        raise RmError(Status.INVALID_CHANNEL, f"{channel!r} is not a channel")
    graphics = any(isinstance(child, ComputeObject) for child in channel.children.values())
    require(graphics, Status.INVALID_CHANNEL, "the channel has no graphics context")
    params.totalBufferSize = sum(buffer.size for buffer in BUFFERS)


# Any: controls differ in the class of the object that they apply to
HANDLERS: dict[str, Any] = {
    "NV0080_CTRL_CMD_GPU_GET_CLASSLIST": _class_list,
    "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2": _class_list2,
    "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES": _subdevices,
    "NV2080_CTRL_CMD_GPU_GET_GID_INFO": _gid,
    "NV2080_CTRL_CMD_GPU_GET_NAME_STRING": _name,
    "NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING": _short_name,
    "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2": _engines,
    "NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO": _simulation,
    "NV2080_CTRL_CMD_GPU_GET_PARTITIONS": _partitions,
    "NV2080_CTRL_CMD_CE_GET_CAPS_V2": _copy_caps,
    "NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK": _physical_copy_engines,
    "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE": _preemption_mode,
    "NV2080_CTRL_CMD_GPU_GET_ACTIVE_PARTITION_IDS": _active_partitions,
    "NV2080_CTRL_CMD_GPU_GET_MAX_SUPPORTED_PAGE_SIZE": _page_size,
    "NV2080_CTRL_CMD_MC_GET_ARCH_INFO": _architecture,
    "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE": _context_size,
    "NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER": _sm_order,
    "NV2080_CTRL_CMD_PERF_BOOST": _boost,
    "NV2080_CTRL_CMD_FB_FLUSH_GPU_CACHE": _flush,
    "NV2080_CTRL_CMD_TIMER_GET_TIME": _time,
    "NV2080_CTRL_CMD_BUS_GET_PCI_INFO": _pci,
    "NV2080_CTRL_CMD_GR_GET_INFO": list_outside(
        "NV2080_CTRL_GR_INFO_INDEX_", "grInfoListSize", "grInfoList", gr_info
    ),
    "NV2080_CTRL_CMD_GR_GET_INFO_V2": list_inside(
        "NV2080_CTRL_GR_INFO_INDEX_", "grInfoListSize", "grInfoList", gr_info
    ),
    "NV2080_CTRL_CMD_FB_GET_INFO_V2": list_inside(
        "NV2080_CTRL_FB_INFO_INDEX_", "fbInfoListSize", "fbInfoList", _fb_info
    ),
    "NV2080_CTRL_CMD_GPU_GET_INFO_V2": list_inside(
        "NV2080_CTRL_GPU_INFO_INDEX_", "gpuInfoListSize", "gpuInfoList", _gpu_info
    ),
}
