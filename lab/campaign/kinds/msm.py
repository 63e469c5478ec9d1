"""Faults of the virtual Adreno machines above msm, the upstream kernel driver.

Page faults of shaders are not here: msm logs them, the GPU goes on, and no call tells them.
"""

from __future__ import annotations

import errno
from dataclasses import replace

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.kinds.adreno import done, planted, refused
from lab.campaign.stands.adreno import AdrenoStand
from tests.virtual.adreno.msm_client import MsmClient
from ugpu.hcq.errors import (
    AccessDenied,
    DeviceBusy,
    DeviceHang,
    DeviceLost,
    DeviceNotFound,
    DriverRefused,
    OutOfMemory,
)
from ugpu.virtual.adreno.planted import Planted

CHIPS = ("a630+msm", "a740+msm")
_MSM, _GPU = "Linux msm_gem_submit.c", "Linux msm_gpu.c, recover_worker"
_HOST, _MEM, _HW = Layer.HOST, Layer.MEMORY, Layer.HARDWARE
_OPEN, _WORK = ("open",), ("launch", "copy")
_GUILTY: dict[str, object] = {"state": "guilty"}


def _of_another(stand: AdrenoStand) -> None:
    """Another program's submission hangs; ours is resubmitted and ends right."""
    other = MsmClient(stand.machine)
    try:
        other.run([0x7000_0000])  # a header with wrong parity
    finally:
        other.node.close()
    stand.launch()


_P = Planted
_KINDS = [
    planted(_P.HANG, _WORK, DeviceHang, facts=_GUILTY, source=_GPU),
    planted(_P.OPCODE, _WORK, DeviceHang, facts=_GUILTY, source=_GPU),
    planted(_P.PARITY, _WORK, DeviceHang, facts=_GUILTY, source=_GPU),
    planted(_P.PROTECTED, _WORK, DeviceHang, facts=_GUILTY, source=_GPU),
    planted(_P.SHADER, _WORK, DeviceHang, facts=_GUILTY, source=_GPU),
    planted(_P.LOST_SIGNAL, _WORK, DeviceHang, source=_GPU),
    planted(_P.STRANGE_CHIP, _OPEN, DeviceNotFound, source="Linux adreno_gpu.c"),
    planted(_P.VANISHED, ("open", "idle", *_WORK, "reset", "close"), DeviceLost, layer=Layer.LINK,
            errors={"open": DeviceNotFound, "close": None}, recovery=Recovery.REOPEN, source=_MSM),
    done("another program's context at fault", _of_another, ("launch",), None, source=_GPU,
         planted="a submission of another program with a damaged packet",
         recovery=Recovery.NONE),
    refused("open", errno.EACCES, _OPEN, AccessDenied, remedy="chmod"),
    refused("open", errno.EBUSY, _OPEN, DeviceBusy),
    refused("MSM_PARAM_CHIP_ID", errno.EINVAL, _OPEN, DeviceNotFound, source="Linux adreno_gpu.c"),
    refused("MSM_PARAM_CHIP_ID", errno.ENXIO, _OPEN, DeviceLost, source="Linux msm_drv.c"),
    refused("SUBMITQUEUE_NEW", errno.ENOMEM, ("open", "reset"), OutOfMemory),
    refused("SUBMITQUEUE_NEW", errno.ENODEV, ("open", "reset"), DeviceLost),
    refused("SUBMITQUEUE_CLOSE", errno.ENOENT, ("reset", "close"), None),
    refused("GEM_NEW", errno.ENOMEM, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("MSM_INFO_GET_IOVA", errno.ENOSPC, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("MSM_INFO_GET_OFFSET", errno.ENOMEM, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("GEM_CLOSE", errno.EINVAL, ("idle", "close"), None),
    refused("mmap", errno.ENOMEM, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("GEM_SUBMIT", errno.ENOMEM, ("open", *_WORK), OutOfMemory, layer=_MEM,
            recovery=Recovery.RESET),
    refused("GEM_SUBMIT", errno.EINVAL, ("open", *_WORK), DriverRefused,
            recovery=Recovery.RESET),
    refused("GEM_SUBMIT", errno.ENXIO, _WORK, DeviceLost, layer=_HW, recovery=Recovery.RESET),
    refused("any ioctl", errno.EINTR, ("open", "idle", *_WORK, "reset", "close"), None),
    refused("any ioctl", errno.EAGAIN, ("open", "idle", *_WORK, "reset", "close"), None),
]  # fmt: skip


def _above_msm(kind: Kind) -> Kind:
    source = _MSM if kind.source.startswith("KGSL") else kind.source
    return replace(kind, name=kind.name.replace("(Adreno)", "(msm)"), devices=CHIPS, source=source)


KINDS = [_above_msm(kind) for kind in _KINDS]
