"""RM_CONTROL: which object accepts a control, the size of its block, and its handler.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/libraries/resserv/src/rs_resource.c
(resControlLookup): a control that an object's class does not export is NOT_SUPPORTED, one with a
wrong block size is INVALID_PARAM_STRUCT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from ugpu.hcq.registers.layout import Layout, Struct
from ugpu.nv.abi import Abi
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.rm import shared_data
from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject, Debugger
from ugpu.virtual.nvidia.rm.controls import (
    control_channel,
    control_gpu,
    control_sensors,
    control_system,
)
from ugpu.virtual.nvidia.rm.objects import Client, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, I2c, Subdevice, VaSpace, gpu_of
from ugpu.virtual.nvidia.rm.shared_data import UserSharedData
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.userspace import copy_in, copy_out

# Any: each handler takes the class of object that exports its interface.
Handler = Callable[[Any, Struct], None]
_NONE: Mapping[str, Handler] = MappingProxyType({})

# Controls whose parameters have pointers: only programs, whose memory the model reads, make them.
POINTERS = frozenset(
    (
        "NV0080_CTRL_CMD_GPU_GET_CLASSLIST",
        "NV2080_CTRL_CMD_GR_GET_INFO",
        "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS",
    )
)

# Which objects export the controls of an interface (upper half of the number).
_INTERFACES: dict[int, tuple[type[RmObject], ...]] = {
    0x0000: (Client,),
    0x0080: (Device,),
    0x00DE: (UserSharedData,),
    0x2080: (Subdevice,),
    0x402C: (I2c,),
    0x83DE: (Debugger,),
    0x906F: (ChannelObject,),
    0x90F1: (VaSpace,),
    0xA06C: (ChannelGroup,),
    0xA06F: (ChannelObject,),
    0xC36F: (ChannelObject,),
}


@cache
def _handlers(abi: Abi) -> dict[int, Handler]:
    """Return the handlers by number, for names that are in this branch's headers."""
    constants = abi.constants
    named = {
        **control_system.HANDLERS,
        **control_gpu.HANDLERS,
        **control_sensors.HANDLERS,
        **control_channel.HANDLERS,
        **shared_data.HANDLERS,
    }
    return {constants[name]: handler for name, handler in named.items() if name in constants}


def control(client: Client, block: Struct) -> None:
    """Execute one control of a program. Raises RmError with its status."""
    call = find(client, block.hObject, block.cmd, block.paramsSize)
    if call.layout is None:
        call.handler(call.target, block)
        return
    require(block.params, Status.INVALID_ARGUMENT, f"{call.name} without parameters")
    params = call.layout.view(copy_in(block.params, call.layout.size))
    call.handler(call.target, params)
    copy_out(block.params, params.raw)


@dataclass(frozen=True)
class Call:
    """A control that has passed the rules. layout: of its block; None if it has none."""

    name: str
    target: RmObject
    layout: Layout[Any] | None
    handler: Handler


def find(
    client: Client, handle: int, command: int, size: int, own: Mapping[str, Handler] = _NONE
) -> Call:
    """Find a control for an object, and check its block's size. Raises RmError.

    own: handlers beside, or instead of, those of the ioctl interface, by the header's name.
    """
    machine = client.machine
    found = client.find(handle, Status.INVALID_OBJECT_HANDLE)
    gpu = gpu_of(found)
    if gpu is not None:
        require(not gpu.lost, Status.GPU_IS_LOST)
        if machine.faults.take(Fault.FIRMWARE_TIMEOUT, gpu.index):
            gpu.report(Xid.GSP_TIMEOUT, "Timeout after 6s of waiting for RPC response from GPU GSP")
            raise RmError(Status.TIMEOUT, "planted")
    name = machine.abi.control_name(command) or f"control {command:#x}"
    exporters = _INTERFACES.get(command >> 16, ())
    if not isinstance(found, exporters) or command not in machine.abi.controls:
        machine.asked[name] += 1
        raise RmError(Status.NOT_SUPPORTED, f"{name} is not valid for {found!r}")
    layout_name = machine.abi.controls[command]
    if layout_name is not None and layout_name not in machine.abi.structs:
        machine.asked[name] += 1
        raise RmError(Status.NOT_SUPPORTED, f"{name}: no open header has {layout_name}")
    layout = machine.abi.structs[layout_name] if layout_name is not None else None
    expected = layout.size if layout is not None else 0
    if size != expected:
        raise RmError(
            Status.INVALID_PARAM_STRUCT,
            f"{name} must have {expected} bytes in this branch, got {size}",
        )
    handler = own.get(name) or _handlers(machine.abi).get(command)
    if handler is None:
        machine.asked[name] += 1
        raise RmError(Status.NOT_SUPPORTED, f"{name} is not modelled")
    return Call(name, found, layout, handler)
