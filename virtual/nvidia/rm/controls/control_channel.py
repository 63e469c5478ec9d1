"""Controls of channel groups, channels and debuggers: scheduling, doorbells, error reports.

Source: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/ctrl/ctrla06c.h, ctrla06f.h,
ctrlc36f.h, ctrl906f.h, ctrl83de/ctrl83dedebug.h; src/nvidia/src/kernel/gpu/fifo/kernel_channel.c.
"""

from __future__ import annotations

from typing import Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_GR0
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject, Debugger
from ugpu.virtual.nvidia.rm.controls.text import set_text
from ugpu.virtual.nvidia.status import RmError, Status, require

_FAULT_VALID = 1


def _schedule_group(group: ChannelGroup, params: Struct) -> None:
    require(params.bEnable <= 1, Status.INVALID_ARGUMENT, "bEnable")
    group.group.schedule(bool(params.bEnable))


def _bind_group(group: ChannelGroup, params: Struct) -> None:
    for channel in group.group.channels:
        _bind(channel, params)


def _timeslice(group: ChannelGroup, params: Struct) -> None:
    require(params.timesliceUs, Status.NOT_SUPPORTED, "a time slice of 0")
    group.group.set_timeslice(params.timesliceUs)


def _get_timeslice(group: ChannelGroup, params: Struct) -> None:
    params.timesliceUs = group.group.timeslice_us


def _group_info(group: ChannelGroup, params: Struct) -> None:
    params.tsgID = group.group.number


def _preempt(group: ChannelGroup, params: Struct) -> None:
    group.runlist.preempt(group.slices)


def _schedule(channel: ChannelObject, params: Struct) -> None:
    require(params.bEnable <= 1, Status.INVALID_ARGUMENT, "bEnable")
    channel.schedule(bool(params.bEnable))


def _bind(channel: ChannelObject, params: Struct) -> None:
    runlist = channel.gpu.runlist_of(params.engineType)
    if runlist is not channel.runlist:
        raise RmError(Status.INVALID_ARGUMENT, f"engine type {params.engineType:#x}")
    channel.bound = True


def _token(channel: ChannelObject, params: Struct) -> None:
    if not channel.bound:
        raise RmError(
            Status.INVALID_STATE, "the channel is not on a runlist yet: bind or schedule it first"
        )
    params.workSubmitToken = channel.token


def _token_index(channel: ChannelObject, params: Struct) -> None:
    require(params.index <= 2, Status.INVALID_ARGUMENT, f"notifier {params.index}")


def _reset(channel: ChannelObject, params: Struct) -> None:
    require(params.resetReason < 4, Status.INVALID_PARAMETER, "resetReason")
    params.bIsRcPending = int(channel.channel.error is not None)
    channel.channel.stop()
    channel.runlist.pause(channel.channel)
    error = ChannelError(Xid.CHANNEL_RESET, "channel reset by its program")
    channel.gpu.report(error.xid, error.text, channel.channel.number)
    channel.fail(error)


def _mmu_fault(channel: ChannelObject, params: Struct) -> None:
    fault = channel.mmu_fault
    params.addrHi = params.addrLo = params.faultType = 0
    set_text(params.faultString, "NONE")  # observed on an H100
    if fault is not None:
        params.addrHi, params.addrLo = fault.page >> 32, fault.page & 0xFFFF_FFFF
        params.faultType = int(fault.kind)
        set_text(params.faultString, f"FAULT_{fault.kind.name}")
    channel.mmu_fault = None  # reading clears it


def _class_engine(channel: ChannelObject, params: Struct) -> None:
    found = channel.children.get(params.hObject)
    if found is None:
        raise RmError(Status.OBJECT_NOT_FOUND, f"{params.hObject:#x} is not on the channel")
    params.classID = found.class_id
    params.classEngineID = found.class_id
    params.engineID = ENGINE_GR0


def _sm_errors(debugger: Debugger, params: Struct) -> None:
    owner = debugger.target.owner
    gpu = owner.gpu
    count = params.numSMsToRead
    require(0 < count <= len(params.smErrorStateArray), Status.INVALID_ARGUMENT, f"{count} SMs")
    require(
        params.startingSM < gpu.facts.sm_count, Status.INVALID_ARGUMENT, f"SM {params.startingSM}"
    )
    params.smErrorStateArray.raw[:] = bytes(len(params.smErrorStateArray.raw))
    for found in gpu.exceptions:
        place = found.sm - params.startingSM
        if found.channel != owner.channel.number or not 0 <= place < count:
            continue
        state = params.smErrorStateArray[place]
        state.hwwWarpEsr = found.esr
        state.hwwWarpEsrPc = found.program_counter & 0xFFFF_FFFF
        state.hwwWarpEsrPc64 = found.program_counter
        state.hwwGlobalEsr = 0
        state.hwwWarpEsrReportMask = 1 << found.esr
    fault = owner.mmu_fault
    params.mmuFaultInfo = 0 if fault is None else int(fault.kind)
    params.mmuFault.valid = 0 if fault is None else _FAULT_VALID
    params.mmuFault.faultInfo = params.mmuFaultInfo


def _clear_sm_errors(debugger: Debugger, params: Struct) -> None:
    owner = debugger.target.owner
    owner.gpu.exceptions = [
        found
        for found in owner.gpu.exceptions
        if found.channel != owner.channel.number or found.sm >= params.numSMsToClear
    ]


def _mmu_faults(debugger: Debugger, params: Struct) -> None:
    fault = debugger.target.owner.mmu_fault
    params.mmuFaultInfoList.raw[:] = bytes(len(params.mmuFaultInfoList.raw))
    params.count = 0
    if fault is not None:
        entry = params.mmuFaultInfoList[0]
        entry.faultAddress = fault.page
        entry.faultType, entry.accessType = int(fault.kind), int(fault.access)
        params.count = 1


def _exception_mask(debugger: Debugger, params: Struct) -> None:
    """Set which exceptions stop the SMs: no-op, because all do."""


# Any: controls differ in the class of the object that they apply to
HANDLERS: dict[str, Any] = {
    "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE": _schedule_group,
    "NVA06C_CTRL_CMD_BIND": _bind_group,
    "NVA06C_CTRL_CMD_SET_TIMESLICE": _timeslice,
    "NVA06C_CTRL_CMD_GET_TIMESLICE": _get_timeslice,
    "NVA06C_CTRL_CMD_GET_INFO": _group_info,
    "NVA06C_CTRL_CMD_PREEMPT": _preempt,
    "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE": _schedule,
    "NVA06F_CTRL_CMD_BIND": _bind,
    "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN": _token,
    "NVC36F_CTRL_CMD_GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX": _token_index,
    "NV906F_CTRL_CMD_RESET_CHANNEL": _reset,
    "NV906F_CTRL_GET_CLASS_ENGINEID": _class_engine,
    "NV906F_CTRL_CMD_GET_MMU_FAULT_INFO": _mmu_fault,
    "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES": _sm_errors,
    "NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES": _clear_sm_errors,
    "NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO": _mmu_faults,
    "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK": _exception_mask,
}
