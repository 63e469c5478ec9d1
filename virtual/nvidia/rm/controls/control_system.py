"""Controls of a client: versions, the list of GPUs, peer-to-peer capabilities.

Source: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/ctrl/ctrl0000/ctrl0000gpu.h,
ctrl0000system.h, ctrl0000client.h; src/nvidia/src/kernel/rmapi/client_resource.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.rm.controls.text import set_text
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.objects import Client
from ugpu.virtual.nvidia.rm.resources import UserMode
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.userspace import copy_out

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.chip import VirtualGpu

NO_GPU = 0xFFFF_FFFF  # NV0000_CTRL_GPU_INVALID_ID
_P2P_READS_WRITES = 0b11  # WRITES_SUPPORTED 0, READS_SUPPORTED 1
_OPEN_BINARY, _FORMAT = 0x2, 0x3
_SYSTEM, _VIDEO, _REGISTERS = 1, 2, 3  # NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE


def _gpu(client: Client, gpu_id: int) -> VirtualGpu:
    for gpu in client.machine.gpus:
        if gpu.gpu_id == gpu_id:
            return gpu
    raise RmError(Status.INVALID_ARGUMENT, f"no GPU with id {gpu_id:#x}")


def _build_version(client: Client, params: Struct) -> None:
    version = client.machine.options.driver
    set_text(params.driverVersionBuffer, version)
    set_text(params.versionBuffer, f"r{version.split('.')[0]}_00")
    set_text(params.titleBuffer, f"NVIDIA virtual driver {version}")
    if "driverBranch" in params.layout.fields:
        set_text(params.driverBranch, f"r{version.split('.')[0]}_00")
    params.changelistNumber = params.officialChangelistNumber = 0


def _attached(client: Client, params: Struct) -> None:
    ids = [gpu.gpu_id for gpu in client.machine.gpus if not gpu.lost]
    count = len(params.gpuIds)
    params.gpuIds = (ids + [NO_GPU] * count)[:count]


def _probed(client: Client, params: Struct) -> None:
    _attached(client, params)
    params.excludedGpuIds = [NO_GPU] * len(params.excludedGpuIds)


def _attach(client: Client, params: Struct) -> None:
    params.failedId = NO_GPU
    for gpu_id in params.gpuIds:
        if gpu_id == NO_GPU:
            break
        if gpu_id == 0x0000_FFFF:  # NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS
            return
        _gpu(client, gpu_id)


def _id_info(client: Client, params: Struct) -> None:
    gpu = _gpu(client, params.gpuId)
    params.gpuFlags = 0
    params.deviceInstance = gpu.index
    params.subDeviceInstance = 0
    params.sliStatus = 0
    params.boardId = gpu.bus << 8
    params.gpuInstance = gpu.index
    params.numaId = -1


def _pci_info(client: Client, params: Struct) -> None:
    gpu = _gpu(client, params.gpuId)
    params.domain, params.bus, params.slot = 0, gpu.bus, 0


def _device_ids(client: Client, params: Struct) -> None:
    params.deviceIds = (1 << len(client.machine.gpus)) - 1


def _p2p(client: Client, params: Struct) -> None:
    require(0 < params.gpuCount <= 32, Status.INVALID_ARGUMENT, f"{params.gpuCount} GPUs")
    for index in range(params.gpuCount):
        _gpu(client, params.gpuIds[index])
    params.p2pCaps = _P2P_READS_WRITES
    params.p2pOptimalReadCEs = params.p2pOptimalWriteCEs = 0


def _p2p_pointers(client: Client, params: Struct) -> None:
    _p2p(client, params)
    count = params.gpuCount
    if params.busPeerIds:
        ids = [0 if a == b else b for a in range(count) for b in range(count)]
        copy_out(params.busPeerIds, b"".join(number.to_bytes(4, "little") for number in ids))


def _uuid_from_id(client: Client, params: Struct) -> None:
    gpu = _gpu(client, params.gpuId)
    binary = params.flags & _FORMAT == _OPEN_BINARY
    data = gpu.uuid if binary else gpu.uuid_text.encode() + b"\0"
    params.gpuUuid.raw[:] = data.ljust(len(params.gpuUuid), b"\0")
    params.uuidStrLen = len(data)


def _address_space(client: Client, params: Struct) -> None:
    """Report the kind of memory that a mapping of an object leads to. The doorbell's page in BAR1
    counts as video memory (recorded on an H100, driver 580.159.04). UNSURE: other mappable objects.
    """
    found = client.find(params.hObject)
    if isinstance(found, UserMode):
        params.addrSpaceType = _VIDEO if found.in_bar1 else _REGISTERS
    elif isinstance(found, Memory):
        params.addrSpaceType = _SYSTEM if found.backing.gpu is None else _VIDEO
    else:
        raise RmError(Status.INVALID_OBJECT, f"{found!r} is not memory")


def _memop(client: Client, params: Struct) -> None:
    params.enableMask = 0


# Any: controls differ in the class of the object that they apply to
HANDLERS: dict[str, Any] = {
    "NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE": _address_space,
    "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2": _build_version,
    "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS": _attached,
    "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS": _probed,
    "NV0000_CTRL_CMD_GPU_ATTACH_IDS": _attach,
    "NV0000_CTRL_CMD_GPU_GET_ID_INFO": _id_info,
    "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2": _id_info,
    "NV0000_CTRL_CMD_GPU_GET_PCI_INFO": _pci_info,
    "NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS": _device_ids,
    "NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID": _uuid_from_id,
    "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS": _p2p_pointers,
    "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2": _p2p,
    "NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE": _memop,
}
