"""Checks and reports common to the protocols of both firmwares."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument, NotSupported, TransportError
from ugpu.usbgpu.bridge.interface import Ability, Bridge, Completion, Status


def require(bridge: Bridge, ability: Ability, what: str) -> None:
    """Raise NotSupported unless the bridge's firmware has an ability. what: the feature that needs
    it."""
    if ability not in bridge.abilities:
        raise NotSupported(f"{what} needs the open firmware, the bridge runs {bridge.firmware}")


def completion_of(status: int, value: int) -> Completion:
    """Return the completion for a PCI Express status; TransportError for a reserved one."""
    if status == Status.OK:
        return Completion(Status.OK, value)
    try:
        return Completion(Status(status))
    except ValueError:
        raise TransportError("reserved completion status", status=status) from None


def check_xdata(address: int, size: int, bank: int) -> None:
    """Raise BadArgument unless these are registers of the bridge."""
    if not 0 <= address <= address + size <= 0x1_0000 or bank not in (0, 1):
        raise BadArgument(
            "XDATA addresses must be below 0x10000, banks 0 or 1",
            address=address, size=size, bank=bank,
        )  # fmt: skip


def check_memory(address: int, size: int) -> None:
    """Raise BadArgument unless the address fits a request and the size is whole dwords."""
    if (address | size) & 3 or not 0 <= address <= address + size <= 1 << 64:
        raise BadArgument(
            "PCI Express requests must be whole, aligned dwords", address=address, size=size
        )
