"""Requests to the resource manager: create, query and free objects, whichever way they travel.

The stock driver takes them by ioctl (nv.rm.client), the GSP's firmware in messages (nv.gsp.rm).
Sources: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/nvos.h, nvstatuscodes.h.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any

from ugpu.hcq.errors import (
    AccessDenied,
    DeviceLost,
    DriverRefused,
    FirmwareSilent,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.layout import Layouts, Struct
from ugpu.hcq.state.clock import Clock
from ugpu.nv import abi

_LOST = frozenset(
    ("NV_ERR_GPU_IS_LOST", "NV_ERR_GPU_NOT_FULL_POWER", "NV_ERR_GPU_IN_FULLCHIP_RESET")
)
_FULL = frozenset(("NV_ERR_NO_MEMORY", "NV_ERR_INSUFFICIENT_RESOURCES"))
_BUSY = frozenset(("NV_ERR_BUSY_RETRY", "NV_ERR_TIMEOUT_RETRY"))
_BUSY_TRIES, _BUSY_PAUSE_S = 100, 1e-3
GONE = "check power and seating, then reboot"
_GPU_RESET = "stop what uses the GPU, then: sudo nvidia-smi --gpu-reset"
_REMEDIES = {
    **dict.fromkeys(_LOST, GONE),
    "NV_ERR_NO_MEMORY": "free memory: close other programs, or allocate less",
    "NV_ERR_INSUFFICIENT_RESOURCES": "close other programs that use the GPU",
    "NV_ERR_TIMEOUT": _GPU_RESET,
    "NV_ERR_RESET_REQUIRED": _GPU_RESET,
    "NV_ERR_LIB_RM_VERSION_MISMATCH": "restart after the driver's update",
    "NV_ERR_INSUFFICIENT_PERMISSIONS": "run as a user who may use the GPU",
}


def status_error(
    status: int, request: str, *, speaker: str = "the NVIDIA driver", **facts: object
) -> UgpuError:
    """The error for a status of the resource manager or of UVM. speaker: which one answered."""
    name = abi.status_name(status)
    text = f"{speaker} answers {name} to {request}"
    if name in _REMEDIES:
        facts = {"remedy": _REMEDIES[name], **facts}
    if name in _LOST:
        return DeviceLost(text, request=request, status=name, **facts)
    if name in _FULL:
        return OutOfMemory(text, request=request, status=name, **facts)
    if name == "NV_ERR_INSUFFICIENT_PERMISSIONS":
        return AccessDenied(text, request=request, status=name, **facts)
    if name == "NV_ERR_TIMEOUT":
        return FirmwareSilent(text, request=request, status=name, **facts)
    return DriverRefused(text, request=request, status=name, **facts)


class Requests(ABC):
    """A client (root object) of the resource manager. `close` frees all its objects.

    version: of the manager. abi, structs, constants: its interface. root: the client's handle.
    Any thread may call. Objects are handles; the owner of an object frees it, which also frees the
    objects below it.
    """

    version: str
    abi: abi.Abi
    structs: Layouts
    constants: Constants
    root: int
    closed: bool
    speaker = "the NVIDIA driver"  # in errors

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Return the clock that waits between repetitions use."""

    @abstractmethod
    def _allocate(
        self, parent: int, number: int, parameters: Struct | None, name: str
    ) -> tuple[int, int]:
        """Make one request to create an object; return its status and the handle."""

    @abstractmethod
    def _free(self, parent: int, handle: int) -> int:
        """Make one request to free an object; return its status."""

    @abstractmethod
    def _control(self, handle: int, command: int, parameters: Struct | None, name: str) -> int:
        """Call a control once; update `parameters`, return the status."""

    @abstractmethod
    def close(self) -> None:
        """Free every object of this client; idempotent. Errors of the driver are not raised."""

    def _error(self, status: int, request: str, **facts: object) -> UgpuError:
        return status_error(status, request, speaker=self.speaker, **facts)

    def allocate(self, parent: int, kind: str | int, parameters: Struct | None = None) -> int:
        """Create an object of class `kind` (name or number) below `parent`; return its handle."""
        number = self.constants[kind] if isinstance(kind, str) else kind
        name = kind if isinstance(kind, str) else self.class_name(number)
        status = handle = 0
        try:
            for _ in range(_BUSY_TRIES):
                status, handle = self._allocate(parent, number, parameters, name)
                if not status:
                    return handle
                if abi.status_name(status) not in _BUSY:
                    break
                self.clock.sleep(_BUSY_PAUSE_S)
        except BaseException:
            if handle and not status:  # created, and the caller will not get its handle
                with contextlib.suppress(UgpuError):
                    self.free(parent, handle)
            raise
        raise self._error(status, f"allocate {name}")

    def class_name(self, number: int) -> str:
        """The name of a class in the headers."""
        rule = self.abi.classes.get(number)
        return f"class {number:#x}" if rule is None else f"{rule.name} ({number:#x})"

    def free(self, parent: int, handle: int) -> None:
        """Free an object and the objects below it."""
        status = self._free(parent, handle)
        if status:
            raise self._error(status, "free", handle=handle)

    def control(self, handle: int, command: str, parameters: Struct | None = None) -> None:
        """Call a control of an object, e.g. NV2080_CTRL_CMD_GPU_GET_...; updates `parameters`."""
        if command not in self.constants:
            raise NotSupported(f"driver branch {self.abi.branch} has no {command}")
        number, status = self.constants[command], 0
        for _ in range(_BUSY_TRIES):
            status = self._control(handle, number, parameters, command)
            if not status:
                return
            if abi.status_name(status) not in _BUSY:
                break
            self.clock.sleep(_BUSY_PAUSE_S)
        raise self._error(status, command)

    def ask(self, handle: int, command: str, **values: Any) -> Any:
        """Call `control` with a new block of the command's own kind, and return the block.

        Any: the tables define the members of structures.
        """
        known = command in self.constants
        name = self.abi.parameters_of_control(self.constants[command]) if known else None
        if name is None:
            raise NotSupported(
                f"driver branch {self.abi.branch} has no {command} with a parameter block"
            )
        block = self.structs[name].new(**values)
        self.control(handle, command, block)
        return block
