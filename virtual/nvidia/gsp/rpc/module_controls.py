"""Controls of NVIDIA's own CPU half of the resource manager, beside those of Linux's nouveau: what
it reads once while it starts, and what it tells.

Sources: open-gpu-kernel-modules 550.163.01 ctrl2080internal.h, ctrl2080bus.h, ctrl2080gpu.h, and
where they are asked: gpu_gspclient.c, kernel_graphics.c, kernel_fifo.c, kern_gmmu.c, kernel_bif.c.
Links (NVLink) and other units that a chip lacks stay NOT_SUPPORTED, as its firmware answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_GR0
from ugpu.virtual.nvidia.gsp.rpc.controls import (
    COPY_TYPE,
    RUNLISTS,
    engines_of,
    fixed,
    runlist_engine,
    server_of,
)
from ugpu.virtual.nvidia.memory.fault_buffers import (
    DEFAULT_ENTRIES,
    ENTRY,
    NON_REPLAYABLE,
    REPLAYABLE,
)
from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject
from ugpu.virtual.nvidia.rm.controls.control_gpu import HANDLERS as SHARED
from ugpu.virtual.nvidia.rm.controls.control_gpu import smc_mode
from ugpu.virtual.nvidia.rm.resources import Device, Subdevice, need_gpu
from ugpu.virtual.nvidia.status import Status, require

_ABSENT = 0xFFFF_FFFF
# NV_REG_BASE_*: graphics, timer, master control, usermode page
_BASES = {1: 0x40_0000, 2: 0x9000, 3: 0, 4: 0xBB_0000}
_COPY_REGISTERS = 0x10_4000
_FAULT_BUFFER = DEFAULT_ENTRIES * ENTRY
_FAULT_BUFFERS = fixed(
    replayableFaultBufferSize=_FAULT_BUFFER, nonReplayableFaultBufferSize=_FAULT_BUFFER
)
_FECS_RECORD = 0x80
_SM_PLACE = ("gpcId", "localTpcId", "localSmId", "globalTpcId", "virtualGpcId", "migratableTpcId")
_NO_COPY = 0xF
_EVENTS, _REPEAT = 192, 2  # NV2080_NOTIFIERS_MAXCOUNT is below; the largest action
_SHARED_DATA = _PAGE = 0x1000
_BOUNDARY = 0x10000  # of partitionable memory. UNSURE: which; MIG_MEMORY_CONFIG has 4 and 64 KiB


def _chip_info(sub: Subdevice, params: Struct) -> None:
    config = server_of(sub).board.config
    params.pciDeviceId = config.read(0x2, 2) << 16 | config.read(0x0, 2)
    params.pciSubDeviceId = config.read(0x2E, 2) << 16 | config.read(0x2C, 2)
    params.pciRevisionId = config.read(0x8, 1)
    for index in range(len(params.regBases)):
        params.regBases[index] = _BASES.get(index, _ABSENT)


def _bars(sub: Subdevice, params: Struct) -> None:
    config, params.pciBarCount = server_of(sub).board.config, 3
    for index, bar in enumerate((0, 1, 3)):
        entry, size = params.pciBarInfo[index], config.bar_size(bar)
        entry.barSizeBytes, entry.barSize = size, size >> 20
        entry.barOffset = config.bar_address(bar)


def _access_map(sub: Subdevice, params: Struct) -> None:
    # No compressed map: the model restricts no registers.
    params.userRegisterAccessMapSize = server_of(sub).board.options.access_maps


def _shared_data(sub: Subdevice, params: Struct) -> None:
    # The GSP writes there what the CPU has it poll, by another control.
    if params.physAddr:
        _buffer(sub, [params.physAddr], _SHARED_DATA)


def _buffer(sub: Subdevice, addresses: Sequence[int], size: int) -> list[int]:
    """Return the pages of a buffer in memory of the host; RmError unless all are reached."""
    pages, reach = -(-size // _PAGE), server_of(sub).board.bus_address
    require(0 < pages <= len(addresses), Status.INVALID_ARGUMENT, f"a buffer of {size} bytes")
    for index, address in enumerate(addresses[:pages]):
        reached = reach(address, _PAGE) is not None
        require(reached, Status.INVALID_ADDRESS, f"page {index} at {address:#x}")
    return [int(address) for address in addresses[:pages]]


def _fault_buffer(sub: Subdevice, params: Struct) -> None:
    fits = params.faultBufferSize == _FAULT_BUFFER
    require(fits, Status.INVALID_ARGUMENT, f"faultBufferSize {params.faultBufferSize}")
    pages = _buffer(sub, params.faultBufferPteArray, params.faultBufferSize)
    server_of(sub).board.mmu_faults.place(REPLAYABLE, pages)


def _no_fault_buffer(sub: Subdevice, params: Struct | None) -> None:
    server_of(sub).board.mmu_faults.place(REPLAYABLE, ())


def _shadow_buffer(sub: Subdevice, params: Struct) -> None:
    kind, size = params.shadowFaultBufferType, params.shadowFaultBufferSize
    require(kind == NON_REPLAYABLE, Status.NOT_SUPPORTED, f"shadowFaultBufferType {kind}")
    (queue,) = _buffer(sub, [params.shadowFaultBufferQueuePhysAddr], 1)
    server_of(sub).shadow.place(queue, _buffer(sub, params.shadowFaultBufferPteArray, size))


def _no_shadow_buffer(sub: Subdevice, params: Struct) -> None:
    server_of(sub).shadow.place(0, ())


def _report_fault(sub: Subdevice, params: Struct) -> None:
    server_of(sub).shadow.end(bytes(params.faultPacket.raw))


def _counter_buffer(sub: Subdevice, params: Struct) -> None:
    # No access is counted.
    require(params.accessCounterIndex == 0, Status.INVALID_ARGUMENT, "accessCounterIndex")
    _buffer(sub, params.bufferPteArray, params.bufferSize)


def _floorsweeping(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    masks = params.floorsweepingMasks[0]
    masks.gpcMask = masks.physGpcMask = masks.physGfxGpcMask = (1 << gpu.gpcs) - 1
    masks.numGfxTpc = gpu.gpcs * gpu.tpcs_per_gpc
    for gpc in range(gpu.gpcs):
        masks.tpcMask[gpc] = (1 << gpu.tpcs_per_gpc) - 1
        masks.tpcCount[gpc] = gpu.tpcs_per_gpc
        masks.mmuPerGpc[gpc] = 1
        masks.numPesPerGpc[gpc] = 1


def _sm_order(sub: Subdevice, params: Struct) -> None:
    """Tell where each SM is, in the order of the ioctl interface."""
    layout = sub.machine.abi.structs["NV2080_CTRL_GR_GET_GLOBAL_SM_ORDER_PARAMS"]
    order = layout.new()
    SHARED["NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER"](sub, order)
    own = params.globalSmOrder[0]
    own.numSm, own.numTpc = order.numSm, order.numTpc
    room = len(own.globalSmId)
    require(order.numSm <= room, Status.INSUFFICIENT_RESOURCES, f"{order.numSm} SMs of {room}")
    for index in range(order.numSm):
        for name in _SM_PLACE:
            own.globalSmId[index][name] = order.globalSmId[index][name]


def _channels(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    known = any(runlist.number == params.runlistId for runlist in gpu.runlists)
    require(known, Status.INVALID_ARGUMENT, f"runlist {params.runlistId}")
    params.numChannels = gpu.options.channels


def _device_table(sub: Subdevice, params: Struct) -> None:
    engines = engines_of(need_gpu(sub))
    params.numEntries = len(engines)
    for index, (engine, copy, runlist) in enumerate(engines):
        entry, graphics = params.deviceInfoTable[index], engine == ENGINE_GR0
        entry.faultId, entry.resetId, entry.instanceId, entry.isEngine = (
            0x40 + index,
            index,
            copy,
            1,
        )
        entry.typeEnum = 0 if graphics else COPY_TYPE
        entry.devicePriBase = _BASES[1] if graphics else _COPY_REGISTERS
        entry.rlEngId = runlist_engine(engine)
        entry.runlistPriBase = RUNLISTS + 0x1000 * runlist


def _record_size(sub: Subdevice, params: Struct) -> None:
    params.fecsRecordSize[0].fecsRecordSize = _FECS_RECORD


def _notification(sub: Subdevice, params: Struct) -> None:
    """Accept which events the CPU wants. Channel errors, the only ones of the model, are sent by
    RC_TRIGGERED to all."""
    require(params.event < _EVENTS, Status.INVALID_ARGUMENT, f"event {params.event}")
    require(params.action <= _REPEAT, Status.INVALID_ARGUMENT, f"action {params.action}")


def _division(sub: Subdevice, params: Struct) -> None:
    params.smcMode = smc_mode(need_gpu(sub))


def _physical_copies(sub: Subdevice, params: Struct) -> None:
    params.fbhubPceMask = (1 << need_gpu(sub).options.copy_engines) - 1


def _method_buffers(group: ChannelGroup, params: Struct) -> None:
    """Accept the buffers into which a copy engine would save its methods at a fault."""
    count = params.numValidEntries
    require(0 < count <= len(params.bar2Addr), Status.INVALID_ARGUMENT, f"{count} buffers")


def _stop(channel: ChannelObject, params: Struct) -> None:
    """End a channel's work for good: UVM, before its memory goes (nvGpuOpsStopChannel)."""
    require(params.bImmediate <= 1, Status.INVALID_ARGUMENT, f"bImmediate {params.bImmediate}")
    channel.channel.stop()
    channel.runlist.pause(channel.channel)


def _map_copies(sub: Subdevice, params: Struct) -> None:
    """Accept the division of physical copy engines, which the model's engines do not have."""
    count = need_gpu(sub).options.copy_engines
    logical = [value for value in params.pceLceMap if value != _NO_COPY]
    known = all(value < count for value in logical) and not params.exposeCeMask >> count
    require(known, Status.INVALID_ARGUMENT, f"copy engines of {count}: {logical}")


def _partitionable(sub: Subdevice, params: Struct) -> None:
    """Report what of the memory instances of a divided card could have; the model divides none."""
    start = params.bottomRsvdSize
    end = start + params.partitionableMemSize
    fits = start < end and end + params.topRsvdSize <= need_gpu(sub).memory.size
    require(fits, Status.INVALID_ARGUMENT, f"partitionable memory {start:#x} to {end:#x}")
    params.partitionableStartAddr = -(-start // _BOUNDARY) * _BOUNDARY
    params.partitionableEndAddr = end // _BOUNDARY * _BOUNDARY - 1


def _workaround(device: Device, params: Struct) -> None:
    """Accept a channel for bug 4208224 of Turing's graphics engine, which the model's lacks."""
    channels = [each for each in device.children.values() if isinstance(each, ChannelObject)]
    graphics = any(channel.runlist.number == 0 for channel in channels)
    require(graphics, Status.INVALID_STATE, "bug 4208224: the device has no graphics channel")


def _flush(sub: Subdevice, params: Struct) -> None:
    need_gpu(sub).settle()


def _trace(sub: Subdevice, params: Struct) -> None:
    require(not params.bEnable, Status.NOT_SUPPORTED, "tracing of context switches")


# By the header's name. Any: see rm.controls.control.Handler.
HANDLERS: Mapping[str, Any] = {
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS": _floorsweeping,
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER": _sm_order,
    "NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_CHANNELS": _channels,
    "NV2080_CTRL_CMD_INTERNAL_BIF_GET_STATIC_INFO": fixed(bPcieGen4Capable=1),
    "NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE": _device_table,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_GET_STATIC_INFO": _FAULT_BUFFERS,
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FECS_RECORD_SIZE": _record_size,
    # UNSURE: bits of NV0080_CTRL_GR_CAPS; none is known to matter to compute.
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CAPS": fixed(),
    # A context's header is not divided among its subcontexts.
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_PDB_PROPERTIES": fixed(),
    "NV2080_CTRL_CMD_INTERNAL_BUS_FLUSH_WITH_SYSMEMBAR": _flush,
    "NV2080_CTRL_CMD_INTERNAL_MEMSYS_L2_INVALIDATE_EVICT": _flush,
    "NV2080_CTRL_CMD_INTERNAL_GR_SET_FECS_TRACE_HW_ENABLE": _trace,
    "NV2080_CTRL_CMD_INTERNAL_GR_GET_FECS_TRACE_HW_ENABLE": fixed(),
    # Boost is not synchronised with other cards; the card is not a module of a baseboard.
    "NV2080_CTRL_CMD_INTERNAL_PERF_GPU_BOOST_SYNC_GET_INFO": fixed(),
    "NV2080_CTRL_CMD_PMGR_GET_MODULE_INFO": fixed(),
    "NV0080_CTRL_CMD_INTERNAL_KGR_INIT_BUG4208224_WAR": _workaround,
    "NV402C_CTRL_CMD_I2C_GET_PORT_INFO": fixed(),
    "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION": _notification,
    "NV2080_CTRL_CMD_CE_UPDATE_CLASS_DB": fixed(stubbedCeMask=0),
    "NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS": SHARED["NV2080_CTRL_CMD_CE_GET_CAPS_V2"],
    "NV2080_CTRL_CMD_INTERNAL_PERF_BOOST_SET_2X": SHARED["NV2080_CTRL_CMD_PERF_BOOST"],
    "NVA06F_CTRL_CMD_STOP_CHANNEL": _stop,
    "NVA06C_CTRL_CMD_INTERNAL_PROMOTE_FAULT_METHOD_BUFFERS": _method_buffers,
    "NV2080_CTRL_CMD_CE_GET_HUB_PCE_MASK": _physical_copies,
    "NV2080_CTRL_CMD_CE_UPDATE_PCE_LCE_MAPPINGS": _map_copies,
    "NV2080_CTRL_CMD_INTERNAL_GPU_GET_SMC_MODE": _division,
    "NV2080_CTRL_CMD_INTERNAL_MEMSYS_SET_PARTITIONABLE_MEM": _partitionable,
    # UNSURE: the boundaries of a board that is not divided.
    "NV2080_CTRL_CMD_INTERNAL_KMEMSYS_GET_MIG_MEMORY_CONFIG": fixed(),
    "NV2080_CTRL_CMD_INTERNAL_UVM_UNREGISTER_ACCESS_CNTR_BUFFER": fixed(),
    # Confidential Computing is off.
    "NV2080_CTRL_CMD_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO": fixed(),
    "NV2080_CTRL_CMD_INTERNAL_UVM_REGISTER_ACCESS_CNTR_BUFFER": _counter_buffer,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_FAULT_BUFFER": _fault_buffer,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER": _no_fault_buffer,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER": _shadow_buffer,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER": _no_shadow_buffer,
    "NV2080_CTRL_CMD_GPU_REPORT_NON_REPLAYABLE_FAULT": _report_fault,
    "NV2080_CTRL_CMD_INTERNAL_GPU_GET_CHIP_INFO": _chip_info,
    "NV2080_CTRL_CMD_INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP": _access_map,
    "NV2080_CTRL_CMD_INTERNAL_INIT_USER_SHARED_DATA": _shared_data,
    "NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO": _bars,
}
