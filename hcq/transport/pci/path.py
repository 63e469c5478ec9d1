"""The path from the root of the bus to a function: ports and the links between them.

Source: PCI Express Base Specification 6.0 (encodings: 4.2; types of ports: 1.3), Linux
Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci-sysfs.c. Reads sysfs only: it does not
wake a port that sleeps.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from ugpu.hcq.errors import AccessDenied
from ugpu.hcq.transport.pci.function import BRIDGE, PciFunction, is_address
from ugpu.hcq.transport.system import check_files

HEADER_SIZE = 64  # of configuration space; the part that sysfs shows to an unprivileged user
# Bits that arrive for each bit on the wire: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, then
# flits (Linux drivers/pci/pci.h, PCIE_SPEED2MBS_ENC).
_ENCODINGS = ((5.0, 8 / 10), (32.0, 128 / 130))
_TUNNEL_SPEED = 2.5
# The start of the capability list, the id of the PCI Express capability, and the offset in it of
# Link Control 2, whose low four bits are an index of speeds in GT/s (pci_regs.h:
# PCI_CAPABILITY_LIST, PCI_CAP_ID_EXP, PCI_EXP_LNKCTL2, PCI_EXP_LNKCTL2_TLS).
_CAPABILITIES, _EXPRESS, _LINK_CONTROL_2, _SPACE_SIZE = 0x34, 0x10, 0x30, 256
_SPEEDS = (0.0, 2.5, 5.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class LinkState:
    """State of a link. 0 if the kernel does not report it.

    Attributes:
        speed: GT/s per lane.
        width: lanes.
    """

    speed: float
    width: int

    @property
    def rate(self) -> int:
        """Bytes per second in one direction, packet headers included."""
        share = next((share for limit, share in _ENCODINGS if self.speed <= limit), 1.0)
        return int(self.speed * 1e9 * share * self.width / 8)

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"


@dataclass(frozen=True)
class Hop:
    """A link on the path.

    Attributes:
        lower: the function at its lower end.
        upper: the port above.
        current: its state now.
        expected: the highest state that both ends support.
        tunnelled: its packets travel through a Thunderbolt or USB4 fabric; such ports state 2.5
            GT/s whatever the fabric carries (Linux, "PCI: ACPI: Detect PCIe root ports that are
            used for tunneling", quoting the USB4 specification).
    """

    lower: PciFunction
    upper: PciFunction
    current: LinkState
    expected: LinkState
    tunnelled: bool

    def __str__(self) -> str:
        return f"{self.upper.address} to {self.lower.address} at {self.current}"


def ports(function: PciFunction) -> list[PciFunction]:
    """Return every bridge above the function, the nearest first."""
    bridges = []
    port = function.parent
    while port is not None:
        bridges.append(port)
        port = port.parent
    return bridges


def slot_port(function: PciFunction) -> PciFunction | None:
    """Return the port that the card is plugged into: the one above the function, or above the
    card's own switch, whose two bridges have the function's vendor id. None on a root bus."""
    above = ports(function)
    vendor = function.identity().vendor
    own = len(above) > 2 and all(bridge.identity().vendor == vendor for bridge in above[:2])
    return above[2] if own else next(iter(above), None)


def below(port: PciFunction) -> list[PciFunction]:
    """Return every function below a port, including bridges, the nearest first."""
    functions = []
    for entry in sorted(port.folder.resolve().iterdir()):
        if is_address(entry.name) and (entry / "vendor").is_file():
            function = PciFunction(port.system, entry.name)
            functions += [function, *below(function)]
    return functions


def hops(function: PciFunction) -> list[Hop]:
    """Return every link above the function, the nearest first."""
    way = [function, *ports(function)]
    links = []
    for index, (lower, upper) in enumerate(itertools.pairwise(way)):
        # Counted from the root: root port, link, upstream port, inside of a switch, downstream
        # port, link... The connection inside a switch is not a link.
        if (len(way) - 1 - index) % 2 and _reads_as_link(lower):
            links.append(_hop(lower, upper))
    return links


def _reads_as_link(function: PciFunction) -> bool:
    return function.attribute("current_link_width") is not None


def _hop(lower: PciFunction, upper: PciFunction) -> Hop:
    most = [_state(end, "max_link") for end in (lower, upper)]
    speeds = [end.speed for end in most if end.speed]
    widths = [end.width for end in most if end.width]
    expected = LinkState(min(speeds, default=0.0), min(widths, default=0))
    tunnelled = (
        lower.base_class == BRIDGE
        and speeds == [_TUNNEL_SPEED, _TUNNEL_SPEED]
        # Kernels before 5.14 have no such file.
        and lower.attribute("removable") in (None, "removable")
    )
    return Hop(lower, upper, _state(lower, "current_link"), expected, tunnelled)


def _state(function: PciFunction, beginning: str) -> LinkState:
    speed = (function.attribute(f"{beginning}_speed") or "").split(" ")[0]
    width = function.attribute(f"{beginning}_width") or ""
    try:
        rate = float(speed)
    except ValueError:
        rate = 0.0  # "Unknown"
    return LinkState(rate, int(width) if width.isdecimal() and width != "255" else 0)


def target_speed(port: PciFunction) -> float:
    """Return the highest speed in GT/s that a port's link may have, from its Link Control 2
    register. Firmware, an administrator or the kernel (drivers/pci/quirks.c,
    pcie_failed_link_retrain) may have set it below what the port supports. 0 if unknown: the port
    sleeps, or this user may read only the header of its configuration space."""
    if port.attribute("power/runtime_status") in ("suspended", "suspending"):
        return 0.0
    space = _configuration(port, _SPACE_SIZE)
    if len(space) < _SPACE_SIZE:
        return 0.0
    at = space[_CAPABILITIES] & ~3
    for _ in range(48):  # there is room for no more
        if not HEADER_SIZE <= at <= _SPACE_SIZE - _LINK_CONTROL_2 - 2:
            return 0.0
        if space[at] == _EXPRESS:
            old = space[at + 2] & 15 < 2  # version 1 has no such register
            code = 0 if old else space[at + _LINK_CONTROL_2] & 15
            return _SPEEDS[code] if code < len(_SPEEDS) else 0.0
        at = space[at + 1] & ~3
    return 0.0


def slowest(links: list[Hop]) -> Hop | None:
    """Return the link with the lowest rate. Tunnels are left out: their stated width is not their
    rate."""
    real = [hop for hop in links if not hop.tunnelled and hop.current.rate]
    return min(real, key=lambda hop: hop.current.rate, default=None)


def header(function: PciFunction) -> bytes | None:
    """Return the first 64 bytes of configuration space; None if they cannot be read. Reading them
    wakes a function that the kernel has put to sleep (drivers/pci/pci-sysfs.c, pci_read_config).
    AccessDenied if this user may not read them; the kernel itself lets every user read them."""
    data = _configuration(function, HEADER_SIZE)
    return data if len(data) == HEADER_SIZE else None


def _configuration(function: PciFunction, size: int) -> bytes:
    """Return the first bytes of configuration space, as many as can be read; AccessDenied."""
    system = function.system
    try:
        descriptor = system.open(function.folder / "config", os.O_RDONLY)
    except PermissionError as error:
        raise AccessDenied(
            f"no permission to open {function.folder}/config", remedy="run as root"
        ) from error
    except OSError as error:
        check_files(error, f"{function.folder}/config")
        return b""
    try:
        return system.pread(descriptor, size, 0)
    except OSError:
        return b""
    finally:
        system.close(descriptor)
