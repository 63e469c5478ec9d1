"""Pre-flight checks of the path to a function, before the first access to its registers.

A register that is read through a sleeping port, or from a function that has lost its addresses,
reads as all ones or causes a machine check. Each failure is a named error with the fact `step`.
`before` changes nothing; `after` ends an opening that has not accessed a BAR yet.

Source: PCI Express Base Specification 6.0 (header types: 7.5.1.1.9; power states and links: 5.3),
Linux Documentation/power/pci.rst, drivers/pci/pci.c (pci_enable_bridge).
"""

from __future__ import annotations

import logging

from ugpu.hcq.errors import DecodingOff, DeviceAsleep, DeviceLost, LinkDegraded, LinkDown
from ugpu.hcq.transport.pci.function import BRIDGE, PciFunction
from ugpu.hcq.transport.pci.path import Hop, header, hops, ports
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)

_AWAKE = ("D0", "unknown")
_NO_LINK = (0, 63)  # 63: six bits of ones, from a port that does not respond
_REPLUG = "power the card off and on, or unplug it and plug it in again; then rescan the bus"


def before(function: PciFunction, *, narrow_link: bool = False) -> None:
    """Raise unless the path to the function is open, from the root down: DeviceAsleep for a port,
    DeviceLost for an invalid configuration space or header type, LinkDown, LinkDegraded.

    narrow_link: accept a link with fewer lanes than both its ends have.
    """
    check_ports(function)
    for part in (*reversed(ports(function)), function):
        check_header(part)
    check_links(function, narrow_link=narrow_link)


def after(function: PciFunction) -> None:
    """Raise unless every port above is awake and everything decodes memory: DeviceAsleep,
    DeviceLost, DecodingOff. Called for a function that has just been opened and enabled, which
    wakes the ports above it and makes them pass memory accesses on."""
    regs = constants("pci_regs")
    for port in reversed(ports(function)):
        if port.power_state not in _AWAKE:
            raise _asleep(function, port)
        # A port without bus mastering rejects requests from below it: DMA and interrupts.
        _check_command(port, regs.PCI_COMMAND_MEMORY | regs.PCI_COMMAND_MASTER)
    _check_command(function, regs.PCI_COMMAND_MEMORY)


def check_ports(function: PciFunction) -> None:
    """Raise DeviceAsleep for a port above that does not wake when the function is opened."""
    for port in reversed(ports(function)):
        if port.power_state in _AWAKE or port.attribute("power/runtime_status") == "suspended":
            continue
        raise _asleep(function, port)


def _asleep(function: PciFunction, port: PciFunction) -> DeviceAsleep:
    return DeviceAsleep(
        f"the port {port.address} above {function.address} is powered down",
        step="ports",
        port=port.address,
        state=port.power_state,
        remedy=f"echo on | sudo tee {port.folder}/power/control",
    )


def check_header(function: PciFunction) -> None:
    """Raise DeviceLost unless configuration space contains the header of its kind."""
    data = header(function)
    if data is None or data[:4] == b"\xff\xff\xff\xff":
        state = "cannot be read" if data is None else "reads all ones"
        raise DeviceLost(
            f"configuration space of {function.address} {state}",
            step="configuration space",
            remedy=_REPLUG,
        )
    regs = constants("pci_regs")
    kind = data[regs.PCI_HEADER_TYPE] & regs.PCI_HEADER_TYPE_MASK
    bridge = function.base_class == BRIDGE
    expected = regs.PCI_HEADER_TYPE_BRIDGE if bridge else regs.PCI_HEADER_TYPE_NORMAL
    if kind != expected:
        raise DeviceLost(
            f"{function.address}: expected header type {expected}, got {kind:#x}",
            step="header type",
            remedy=_REPLUG,
        )


def check_links(function: PciFunction, *, narrow_link: bool = False) -> None:
    """Raise LinkDown or LinkDegraded unless every link above is trained as wide as both its ends
    are.

    A slower generation is only a warning: cards slow their link down while they are idle. Tunnels
    are left out: their ports state a link that does not exist.
    """
    for hop in reversed(hops(function)):
        if hop.tunnelled:
            continue
        if hop.current.width in _NO_LINK and hop.lower.attribute("current_link_width") != "255":
            raise LinkDown(
                f"the PCIe link {hop.upper.address} to {hop.lower.address} is down",
                step="link",
                remedy=_REPLUG,
            )
        if hop.current.width < hop.expected.width and hop.current.width:
            if not narrow_link:
                raise _degraded(hop)
            log.warning("the PCIe link %s could have %d lanes", hop, hop.expected.width)
        if 0 < hop.current.speed < hop.expected.speed:
            log.warning("the PCIe link %s could run at %g GT/s", hop, hop.expected.speed)


def _degraded(hop: Hop) -> LinkDegraded:
    return LinkDegraded(
        f"the PCIe link {hop.upper.address} to {hop.lower.address}: expected "
        f"x{hop.expected.width}, got x{hop.current.width}",
        step="link",
        expected=str(hop.expected),
        found=str(hop.current),
        remedy="seat the card and its cable, or accept the link: hcq.open(name, narrow_link=True)",
    )


def _check_command(function: PciFunction, bits: int) -> None:
    """Check the hardware's own command register, bypassing VFIO's view of it."""
    check_header(function)
    data = header(function) or bytes(64)
    at = constants("pci_regs").PCI_COMMAND
    command = int.from_bytes(data[at : at + 2], "little")
    if command & bits != bits:
        raise DecodingOff(
            f"{function.address} does not forward memory accesses",
            step="memory decoding",
            command=command,
            needed=bits,
            remedy=f"echo 1 | sudo tee {function.folder}/remove; "
            "echo 1 | sudo tee /sys/bus/pci/rescan",
        )
