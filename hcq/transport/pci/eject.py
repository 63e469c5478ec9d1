"""Orderly removal of a card: no transactions pending, all functions unbound, its switch removed.

Source: PCI Express Base Specification 6.0, 7.5.3.5 (Transactions Pending), Linux
Documentation/ABI/testing/sysfs-bus-pci (remove, rescan) and drivers/pci/pci.c
(pci_wait_for_pending_transaction: one second).
"""

from __future__ import annotations

import logging
import os

from ugpu.hcq.errors import AccessDenied, DeviceBusy
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.binding import check_idle, check_rights, write
from ugpu.hcq.transport.pci.checks import VFIO_DRIVER, check_kind
from ugpu.hcq.transport.pci.function import BRIDGE, PciFunction
from ugpu.hcq.transport.pci.path import below, ports, slot_port
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)

AUDIO = 0x0403  # class and subclass, PCI Code and ID Assignment
_OURS = (None, VFIO_DRIVER, "pci-stub")
_DRAIN_LIMIT_S = 1.0


def members(function: PciFunction) -> list[PciFunction]:
    """Return every function of the card that is not a bridge: of its slot, or behind its own
    switch."""
    port = slot_port(function)
    if port is None or port.address == _above(function):
        return function.card()
    return [behind for behind in below(port) if behind.base_class != BRIDGE]


def _above(function: PciFunction) -> str | None:
    parent = function.parent
    return parent.address if parent is not None else None


def own_switch(function: PciFunction) -> PciFunction | None:
    """Return the upstream port of the card's own switch; None for a card without one."""
    port = slot_port(function)
    above = ports(function)
    if port is None or port.address == above[0].address:
        return None
    return above[1]


def ejectable(function: PciFunction, *, rights: bool = True) -> list[PciFunction]:
    """Return all functions of the card, unless one is in use: DeviceBusy names the process, or the
    kernel driver that holds it. An unused audio function may be bound to its driver."""
    check_kind(function)
    card = members(function)
    for member in card:
        if member.driver not in _OURS and not _releasable(function, member):
            raise DeviceBusy(
                f"{member.address} is bound to a kernel driver",
                holder=member.driver,
                remedy=f"sudo ugpu bind pci:{function.address}   # then eject it",
            )
        check_idle(member)
    for member in card if rights else ():
        check_rights(member.folder / "remove")
    return card


def _releasable(function: PciFunction, member: PciFunction) -> bool:
    audio = member.identity().class_code >> 8 == AUDIO
    return audio and member.address != function.address and function.driver in _OURS


def steps(function: PciFunction, *, rights: bool = True) -> list[str]:
    """Return the steps of `eject` as text, after all checks."""
    texts = []
    for member in ejectable(function, rights=rights):
        if member.driver not in _OURS:
            texts.append(f"{member.address}: released by {member.driver}")
        texts.append(f"{member.address}: removed from the bus")
    switch = own_switch(function)
    if switch is not None:
        texts.append(f"{switch.address}: removed from the bus (the card's own switch)")
    return texts


def eject(function: PciFunction, *, clock: Clock | None = None) -> list[PciFunction]:
    """Remove a card from the bus, so that it can be unplugged or powered off; return its functions.

    Before the first function is removed, each function's DMA is stopped and transfers in flight are
    waited for. If a later step fails, the bus is scanned again, so that the card is not left half
    removed.
    """
    card = ejectable(function)
    switch, port = own_switch(function), slot_port(function)
    clock = clock if clock is not None else Clock()
    for member in card:
        drain(member, clock)
    for member in card:
        if member.driver not in _OURS:
            write(member.system, member.folder / "driver/unbind", member.address)
    removed = False
    try:
        for member in card if switch is None else (*card, switch):
            write(member.system, member.folder / "remove", "1")
            removed = True
    except BaseException:
        if removed and port is not None:
            rescan_below(port)
        raise
    return card


def rescan_below(port: PciFunction) -> None:
    """Rescan the bus below a port."""
    write(port.system, port.folder / "rescan", "1")


def drain(function: PciFunction, clock: Clock) -> None:
    """Stop a function's DMA and wait until none of its requests is pending.

    Does nothing for a function that sleeps or no longer responds. UnitTimeout after a second.
    """
    if function.power_state not in ("D0", "unknown"):
        return
    regs, system = constants("pci_regs"), function.system
    path = function.folder / "config"
    try:
        descriptor = system.open(path, os.O_RDWR)
    except PermissionError as error:
        raise AccessDenied(f"no permission to open {path}", remedy="run as root") from error
    except OSError:
        return  # it has left
    try:
        config = pci_config.ConfigFile(system, descriptor)
        if not config.end_bus_mastering():
            return
        place = pci_config.capability(config.read, regs.PCI_CAP_ID_EXP)
        if place is None:
            return
        status = place + regs.PCI_EXP_DEVSTA
        clock.wait_until(
            lambda: not config.read(status, 2) & regs.PCI_EXP_DEVSTA_TRPND,
            unit=f"pci:{function.address}",
            waiting_for="the end of its pending transactions",
            limit_s=_DRAIN_LIMIT_S,
            state=lambda: f"device status {config.read(status, 2):#06x}",
        )
    finally:
        system.close(descriptor)
