"""The devices whose `with` blocks the running code is in: the innermost is the default of tensors.

A context variable holds them: a thread starts with none, a task of asyncio with those of the code
that created it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device

_entered: ContextVar[tuple[Device, ...]] = ContextVar("entered", default=())


def enter(device: Device) -> None:
    """Make a device the innermost one."""
    _entered.set((*_entered.get(), device))


def leave(device: Device) -> None:
    """Remove a device, which need not be the innermost one. Does nothing if it is not there."""
    before = _entered.get()
    for place in reversed(range(len(before))):
        if before[place] is device:
            _entered.set((*before[:place], *before[place + 1 :]))
            return


def entered() -> tuple[Device, ...]:
    """Return the devices that are open, innermost last."""
    return tuple([device for device in _entered.get() if not device.closed])
