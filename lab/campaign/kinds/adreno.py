"""Faults of the virtual Adreno machines above KGSL."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.adreno import AdrenoStand
from tests.virtual.adreno.kgsl_client import Client
from ugpu.hcq.errors import (
    AccessDenied,
    ChipError,
    DeviceBusy,
    DeviceHang,
    DeviceLost,
    DeviceNotFound,
    DriverRefused,
    NotSupported,
    OutOfMemory,
    PageFault,
    UgpuError,
)
from ugpu.virtual.adreno.planted import Planted

CHIPS = ("a630", "a740")
_KGSL, _DISPATCH = "KGSL kgsl.c", "KGSL adreno_dispatch.c"
_IOMMU = "KGSL kgsl_iommu.c, kgsl_iommu_add_fault_info"
_HW, _MEM, _HOST, _FW = Layer.HARDWARE, Layer.MEMORY, Layer.HOST, Layer.FIRMWARE
_OPEN, _IDLE, _LAUNCH, _COPY = ("open",), ("idle",), ("launch",), ("copy",)
_WORK = ("launch", "copy")
_DIRECT = 0x7FFF_0000_0000  # an address that KGSL gives to nobody
_GUILTY: dict[str, object] = {"state": "guilty"}
_RESET = "device.reset()"


def _cure(stand: AdrenoStand) -> None:
    stand.cure()


def planted(
    which: Planted, stages: tuple[str, ...], error: type[UgpuError] | None, **fields: Any
) -> Kind:
    """A kind that the model plants."""
    made: dict[str, Any] = {
        "layer": _HW, "source": _DISPATCH, "plant": lambda stand: stand.machine.inject(which),
        "planted": f"`machine.inject(Planted.{which.name})`", "cure": _cure,
        "struck": lambda stand: stand.has_struck(which),
        "recovery": Recovery.RESET if error else Recovery.NONE,
    }  # fmt: skip
    return Kind(
        name=f"{which.title} (Adreno)", devices=CHIPS, stages=stages, error=error, **(made | fields)
    )


def refused(
    call: str, code: int, stages: tuple[str, ...], error: type[UgpuError] | None, **fields: Any
) -> Kind:
    """A kind whose call fails with an errno."""
    name = {errno.EDEADLK: "EDEADLK", errno.EOPNOTSUPP: "EOPNOTSUPP"}.get(code)
    name = name or errno.errorcode[code]
    made: dict[str, Any] = {
        "layer": _HOST, "source": _KGSL, "cure": _cure,
        "plant": lambda stand: stand.machine.refuse(call, code),
        "planted": f'`machine.refuse("{call}", {name})`',
        "struck": lambda stand: stand.has_struck(call),
        "recovery": Recovery.GO_ON if error else Recovery.NONE,
    }  # fmt: skip
    return Kind(
        name=f"{call} fails with {name} (Adreno)", devices=CHIPS, stages=stages, error=error,
        **(made | fields),
    )  # fmt: skip


def done(
    name: str, provoke: Callable[[AdrenoStand], object], stages: tuple[str, ...],
    error: type[UgpuError] | None, **fields: Any,
) -> Kind:  # fmt: skip
    """A kind that a program brings about by what it submits."""
    made: dict[str, Any] = {
        "layer": _HW, "source": _IOMMU, "planted": "the program's own submission",
        "provoke": provoke,
        "plant": lambda stand: None, "recovery": Recovery.RESET,
    }  # fmt: skip
    return Kind(
        name=f"{name} (Adreno)", devices=CHIPS, stages=stages, error=error, **(made | fields)
    )


def _page(access: str, fault: str = "translation") -> dict[str, object]:
    return {"access": access, "fault": fault, **_GUILTY}


def _store(address: Callable[[AdrenoStand], int]) -> Callable[[AdrenoStand], object]:
    def provoke(stand: AdrenoStand) -> None:
        stand.fill(stand.program, stand.at(address(stand)))
        stand.device.synchronize()

    return provoke


def _past_the_end(stand: AdrenoStand) -> int:
    return int(stand.result.address) + int(stand.result.size)


def _code(stand: AdrenoStand) -> int:
    return int(stand.program["fill"].address)


def _freed(stand: AdrenoStand) -> int:
    with stand.device.alloc(1 << 16) as buffer:
        return int(buffer.address)


def _copy_from_nowhere(stand: AdrenoStand) -> None:
    stand.copy_between(stand.result, stand.at(_DIRECT))


def _copy_to_nowhere(stand: AdrenoStand) -> None:
    stand.copy_between(stand.at(_DIRECT), stand.buffer)


def _of_another(stand: AdrenoStand) -> None:
    """Another program's submission is at fault; then ours works."""
    other = Client(stand.machine)
    try:
        other.run([0x7000_0000])  # a header with wrong parity
    finally:
        other.node.close()
    stand.launch()


_P = Planted
KINDS = [
    done("store to an unmapped address", _store(lambda stand: _DIRECT), _LAUNCH, PageFault,
         facts=_page("write")),
    done("store to a null pointer", _store(lambda stand: 0), _LAUNCH, PageFault,
         facts=_page("write")),
    done("store past the end of a buffer", _store(_past_the_end), _LAUNCH, PageFault,
         facts=_page("write")),
    done("store to freed memory", _store(_freed), _LAUNCH, PageFault, facts=_page("write")),
    done("store to code", _store(_code), _LAUNCH, PageFault, facts=_page("write", "permission")),
    done("copy from an unmapped address", _copy_from_nowhere, _COPY, PageFault,
         facts=_page("read")),
    done("copy to an unmapped address", _copy_to_nowhere, _COPY, PageFault, facts=_page("write")),
    done("another program's context at fault", _of_another, _LAUNCH, ChipError,
         facts={"state": "innocent"}, source=_DISPATCH,
         planted="a submission of another program with a damaged packet"),
    planted(_P.FETCH, _WORK, PageFault, source=_IOMMU, facts=_page("read")),
    planted(_P.EXTERNAL, _WORK, PageFault, source=_IOMMU, facts=_page("read", "external")),
    done("page fault without a report of faults", _store(lambda stand: _DIRECT), _LAUNCH,
         DeviceHang, facts=_GUILTY, remedy="dmesg", source=_KGSL,
         planted="`machine.inject(Planted.OLD_FAULTS)`", cure=_cure,
         plant=lambda stand: stand.machine.inject(_P.OLD_FAULTS)),
    planted(_P.HANG, _WORK, DeviceHang, facts=_GUILTY),
    planted(_P.OPCODE, _WORK, DeviceHang, facts=_GUILTY),
    planted(_P.PARITY, _WORK, DeviceHang, facts=_GUILTY),
    planted(_P.PROTECTED, _WORK, DeviceHang, facts=_GUILTY),
    planted(_P.SHADER, _WORK, DeviceHang, facts=_GUILTY),
    planted(_P.STUCK, _WORK, DeviceHang),
    planted(_P.LOST_SIGNAL, _WORK, DeviceHang),
    planted(_P.UNKNOWN_RESET, _LAUNCH, DeviceHang, facts={"state": "unknown"}, source=_KGSL),
    planted(_P.STRANGE_CHIP, _OPEN, DeviceNotFound, source="Mesa freedreno_devices.py"),
    planted(_P.VANISHED, ("open", "idle", *_WORK, "reset", "close"), DeviceLost, source=_KGSL,
            layer=Layer.LINK, errors={"open": DeviceNotFound, "close": None},
            recovery=Recovery.REOPEN),
    refused("open", errno.EACCES, _OPEN, AccessDenied, remedy="chmod"),
    refused("open", errno.ENODEV, _OPEN, DeviceLost),
    refused("open", errno.EBUSY, _OPEN, DeviceBusy),
    refused("KGSL_PROP_DEVICE_INFO", errno.EINVAL, _OPEN, DriverRefused,
            facts={"status": "EINVAL"}),
    refused("KGSL_PROP_GPU_RESET_STAT", errno.EINVAL, ("launch",), DriverRefused,
            facts={"status": "EINVAL"}, recovery=Recovery.RESET,
            plant=lambda stand: (stand.machine.inject(_P.HANG),
                                 stand.machine.refuse("KGSL_PROP_GPU_RESET_STAT", errno.EINVAL))),
    refused("DRAWCTXT_CREATE", errno.ENOMEM, ("open", "reset"), OutOfMemory),
    refused("DRAWCTXT_CREATE", errno.ENOSPC, ("open", "reset"), OutOfMemory,
            remedy="other programs", source="KGSL adreno_drawctxt.c"),
    refused("DRAWCTXT_CREATE", errno.EINVAL, _OPEN, DriverRefused),
    refused("DRAWCTXT_DESTROY", errno.EINVAL, ("reset", "close"), None),
    refused("GPUMEM_ALLOC_ID", errno.ENOMEM, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("GPUMEM_ALLOC_ID", errno.EINVAL, ("open", "idle"), DriverRefused),
    refused("GPUMEM_FREE_ID", errno.EINVAL, ("idle", "close"), None),
    refused("GPUOBJ_SYNC", errno.ENOMEM, ("idle", "copy"), OutOfMemory, layer=_MEM),
    refused("GPUOBJ_SYNC", errno.EINVAL, ("idle", "copy"), DriverRefused),
    refused("mmap", errno.ENOMEM, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("mmap", errno.EINVAL, ("open", "idle"), OutOfMemory, layer=_MEM),
    refused("GPU_COMMAND", errno.ENOMEM, ("open", *_WORK), OutOfMemory, layer=_MEM,
            recovery=Recovery.RESET, source=_DISPATCH),
    refused("GPU_COMMAND", errno.ETIMEDOUT, ("open", *_WORK), DeviceHang, layer=_HW,
            facts={"status": "ETIMEDOUT"}, recovery=Recovery.RESET, source=_DISPATCH),
    refused("GPU_COMMAND", errno.EDEADLK, _WORK, ChipError, layer=_HW, recovery=Recovery.RESET,
            facts={"status": "EDEADLK"}, source=_DISPATCH),
    refused("GPU_COMMAND", errno.EPROTO, _WORK, ChipError, layer=_HW, recovery=Recovery.RESET,
            facts={"status": "EPROTO"}, source=_DISPATCH),
    refused("GPU_COMMAND", errno.ENOENT, _WORK, DriverRefused, recovery=Recovery.RESET,
            facts={"status": "ENOENT"}, source=_DISPATCH),
    refused("GPU_COMMAND", errno.EBUSY, _WORK, DeviceBusy, layer=Layer.POWER,
            recovery=Recovery.RESET, facts={"status": "EBUSY"}, source="KGSL kgsl_pwrctrl.c"),
    refused("GPU_COMMAND", errno.EIO, _WORK, DeviceLost, layer=Layer.POWER,
            recovery=Recovery.RESET, facts={"status": "EIO"}, source="KGSL kgsl_pwrctrl.c"),
    refused("GPU_COMMAND", errno.EOPNOTSUPP, _OPEN, NotSupported),
    refused("any ioctl", errno.EINTR, ("open", "idle", *_WORK, "reset", "close"), None),
    refused("any ioctl", errno.EAGAIN, ("open", "idle", *_WORK, "reset", "close"), None),
]  # fmt: skip
