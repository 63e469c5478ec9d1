"""Thunderbolt and USB4 facts of this machine: enclosures, authorisation, tunnels, links.

Source: Linux Documentation/ABI/testing/sysfs-bus-thunderbolt, Documentation/admin-guide/
thunderbolt.rst, drivers/thunderbolt (acpi.c: which ports tunnel; switch.c: names and attributes).
Reads a sysfs tree below `System.root`; opens no device.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceNotFound
from ugpu.hcq.transport.pci.function import BRIDGE, DEVICES, PciFunction, normal_address
from ugpu.hcq.transport.pci.path import Hop, hops, slowest
from ugpu.hcq.transport.system import System

BUS = "sys/bus/thunderbolt/devices"
#: security levels at which the firmware creates no PCIe tunnel
NO_PCIE = ("dponly", "usbonly", "nopcie")
NO_PCIE_REMEDY = "set the Thunderbolt security level to 'user' in the firmware setup"
_ROUTER = re.compile(r"(\d+)-([0-9a-f]+)")
_HOP_BITS = 8  # bits of a route for each router on the path
_LEAST_PREFIX = 4
# Payload per bit on the cable: 64b/66b or 128b/132b up to 20 Gb/s a lane; PAM-3 lanes of USB4 v2
# report their payload rate. UNSURE: a measured USB4 v2 link would settle the latter.
_CODED_UP_TO, _CODED = 20.0, 128 / 132


@dataclass(frozen=True)
class Enclosure:
    """A device router: an enclosure, dock or hub.

    name: vendor and device. generation: 1 to 3 for Thunderbolt, 4 for USB4. rate: bytes per second
    of the slowest cable between host and router, in its slower direction; 0 when unknown. host: PCI
    address of the host controller. dma_protection: whether the IOMMU restricts the DMA of attached
    devices; None when the kernel does not report it.
    """

    router: str
    name: str
    unique_id: str
    authorized: bool
    security: str
    dma_protection: bool | None
    generation: int | None
    lanes: int
    lane_speed: float
    rate: int
    firmware: str
    host: str

    @property
    def route(self) -> tuple[int, ...]:
        """Return the port taken at each router on the path, the host's first."""
        match = _ROUTER.fullmatch(self.router)
        assert match is not None
        number, hops = int(match[2], 16), []
        while number:
            hops.append(number & ((1 << _HOP_BITS) - 1))
            number >>= _HOP_BITS
        return tuple(hops)

    @property
    def tunnel(self) -> str:
        """Return generation and width of the cable, for display."""
        kind = "USB4" if self.generation == 4 else f"Thunderbolt {self.generation or '?'}"
        return f"{kind}, {self.lanes} x {self.lane_speed:g} Gb/s"

    @property
    def facts(self) -> dict[str, object]:
        """Return the entries for a device's list of facts."""
        return {
            "enclosure": self.name,
            "enclosure_id": self.unique_id,
            "authorized": "yes" if self.authorized else "no",
            "security": self.security,
            "dma_protection": {True: "on", False: "off", None: "unknown"}[self.dma_protection],
            "tunnel": self.tunnel,
            "enclosure_firmware": self.firmware or None,
        }


def enclosures(system: System) -> list[Enclosure]:
    """Return every device router that is plugged in."""
    folder = system.path(BUS)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    plugged = []
    for name in names:
        match = _ROUTER.fullmatch(name)
        # Route 0 is the host's own router; one without `authorized` is another host (an XDomain).
        if match and int(match[2], 16) and system.read_text(f"{BUS}/{name}/authorized"):
            plugged.append(_enclosure(system, name, f"domain{match[1]}"))
    return plugged


def _enclosure(system: System, router: str, domain: str) -> Enclosure:
    def text(name: str) -> str:
        return system.read_text(f"{BUS}/{router}/{name}") or ""

    protection = system.read_text(f"{BUS}/{domain}/iommu_dma_protection")
    generation = text("generation")
    return Enclosure(
        router=router,
        name=" ".join(word for word in (text("vendor_name"), text("device_name")) if word),
        unique_id=text("unique_id"),
        authorized=text("authorized") not in ("", "0"),
        security=system.read_text(f"{BUS}/{domain}/security") or "unknown",
        dma_protection=None if protection is None else protection == "1",
        generation=int(generation) if generation.isdecimal() else None,
        lanes=_number(text("rx_lanes")),
        lane_speed=_speed(text("rx_speed")),
        rate=_rate(system, router),
        firmware=text("nvm_version"),
        host=system.path(f"{BUS}/{domain}").resolve().parent.name,
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _speed(text: str) -> float:
    """Return Gb/s per lane, from text such as "20.0 Gb/s"."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/s", text)
    return float(match[1]) if match else 0.0


def _rate(system: System, router: str) -> int:
    """Return bytes per second of the slowest cable from the host to a router; 0 when one is
    unknown."""
    domain, _, route = router.partition("-")
    rates = []
    while int(route, 16):
        for way in ("rx", "tx"):
            folder = f"{BUS}/{domain}-{route}"
            speed = _speed(system.read_text(f"{folder}/{way}_speed") or "")
            lanes = _number(system.read_text(f"{folder}/{way}_lanes") or "")
            share = _CODED if speed <= _CODED_UP_TO else 1.0
            rates.append(int(speed * 1e9 * share * lanes / 8))
        # The last router's port is the highest byte that is not 0; the host's is the lowest.
        size = _HOP_BITS * ((int(route, 16).bit_length() - 1) // _HOP_BITS)
        route = f"{int(route, 16) & ((1 << size) - 1):x}"
    return min(rates)


# ---- which function is in which enclosure ------------------------------------------------------


def enclosure_of(function: PciFunction) -> Enclosure | None:
    """Return the enclosure that contains a function. None where no tunnel leads to the function, or
    the machine does not report which of several enclosures contains it."""
    tunnels = [hop for hop in hops(function) if hop.tunnelled]
    if not tunnels:
        return None
    port, depth = tunnels[-1].upper, len(tunnels)
    candidates = [
        enclosure
        for enclosure in enclosures(function.system)
        if len(enclosure.route) == depth and _leads_to(function.system, enclosure, port)
    ]
    return candidates[0] if len(candidates) == 1 else None


def _leads_to(system: System, enclosure: Enclosure, port: PciFunction) -> bool:
    """Return whether the host's PCIe port belongs to the enclosure's cable.

    UNSURE: the n-th PCIe port is taken as that of the n-th socket, as on Intel's and Apple's hosts;
    a host with two enclosures and another order would settle it.
    """
    tunnelling = _tunnelling_ports(system, enclosure.host)
    if port.address not in tunnelling:
        return False
    socket = (enclosure.route[0] - 1) // 2  # a socket has two lanes, each with its own port number
    return socket >= len(tunnelling) or tunnelling[socket] == port.address


def _tunnelling_ports(system: System, host: str) -> list[str]:
    """Return the PCI ports that lead into the fabric of a host controller, in order.

    A controller on the processor's die is the supplier of these ports (device links of
    drivers/thunderbolt/acpi.c). A discrete controller is a function of the same switch as they are.
    """
    controller = PciFunction(system, host)
    links = sorted(path.name for path in controller.folder.glob("consumer:pci:*"))
    if links:
        return [normal_address(name.removeprefix("consumer:pci:")) for name in links]
    own = controller.parent
    switch = own.parent if own is not None else None
    if own is None or switch is None:
        return []
    return sorted(
        entry.name
        for entry in switch.folder.resolve().iterdir()
        if (entry / "vendor").is_file() and entry.name != own.address
    )


def functions_in(system: System, enclosure: Enclosure) -> list[PciFunction]:
    """Return the functions in an enclosure that are not bridges."""
    folder = system.path(DEVICES)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    every = (PciFunction(system, name) for name in names)
    return [
        function
        for function in every
        if function.base_class != BRIDGE and enclosure_of(function) == enclosure
    ]


def address_of(
    unique_id: str, drivers: Collection[tuple[int, int]], system: System | None = None
) -> str:
    """Return the PCI address of the card in an enclosure, for `thunderbolt:<unique id>`.

    unique_id: the enclosure's id or a prefix of it. The same enclosure has the same id wherever it
    is plugged in. drivers: (vendor, device) of supported cards. Raises DeviceNotFound for an
    enclosure that is not there, is empty or has no supported card; AccessDenied for one that is not
    authorised, or whose host's security level allows no PCIe; BadArgument where the id matches
    several.
    """
    system = system if system is not None else System()
    if len(unique_id) < _LEAST_PREFIX:
        raise BadArgument(
            f"expected at least {_LEAST_PREFIX} characters of an enclosure's id, got {unique_id!r}"
        )
    everything = enclosures(system)
    matching = [router for router in everything if router.unique_id.startswith(unique_id.lower())]
    if not matching:
        have = ", ".join(f"{router.unique_id} ({router.name})" for router in everything) or "none"
        raise DeviceNotFound(f"no enclosure {unique_id!r} is plugged in; there are: {have}")
    if len(matching) > 1:
        raise BadArgument(
            f"{len(matching)} enclosures have the id {unique_id!r}",
            routers=", ".join(router.router for router in matching),
            remedy="open the card by its PCI address",
        )
    enclosure = matching[0]
    if enclosure.security in NO_PCIE:
        raise AccessDenied(
            f"the firmware does not create a PCIe tunnel to the enclosure {enclosure.name}",
            security=enclosure.security,
            remedy=NO_PCIE_REMEDY,
        )
    if not enclosure.authorized:
        raise AccessDenied(
            f"the enclosure {enclosure.name} is not authorised",
            security=enclosure.security,
            remedy=authorise(system, enclosure),
        )
    return _card_in(system, enclosure, drivers)


def _card_in(system: System, enclosure: Enclosure, drivers: Collection[tuple[int, int]]) -> str:
    inside = [
        (function.address, function.identity()) for function in functions_in(system, enclosure)
    ]
    cards = [address for address, who in inside if (who.vendor, who.device) in drivers]
    if len(cards) == 1:
        return cards[0]
    if cards:
        raise BadArgument(
            f"the enclosure {enclosure.name} contains several cards", cards=", ".join(cards)
        )
    have = ", ".join(f"{address} ({who})" for address, who in inside)
    what = f"no card that ugpu supports, only {have}" if have else "no PCI function"
    raise DeviceNotFound(
        f"the enclosure {enclosure.name} contains {what}",
        present=bool(have),
        remedy="seat the card and switch the enclosure's power supply on",
    )


def authorise(system: System, enclosure: Enclosure) -> str:
    """Return the command that authorises an enclosure: bolt, which stores it, where bolt
    runs."""
    if system.path("run/boltd").exists():
        return f"boltctl enroll --policy auto {enclosure.unique_id}"
    return f"echo 1 | sudo tee /{BUS}/{enclosure.router}/authorized"


# ---- the path to a function --------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """The path to a function. `slowest`: its slowest part, for display; `rate`: bytes per second of
    that part, 0 when unknown; `cost`: how far that rate is below the card's own, in bytes per
    second."""

    hops: list[Hop]
    enclosure: Enclosure | None
    slowest: str
    rate: int
    cost: int


def way_to(function: PciFunction) -> Way:
    """Return the links to a function, its enclosure, and the cost of the slowest of them."""
    links = hops(function)
    enclosure = enclosure_of(function)
    hop = slowest(links)
    name, rate = (str(hop), hop.current.rate) if hop is not None else ("unknown", 0)
    if enclosure is not None and enclosure.rate and (not rate or enclosure.rate < rate):
        name, rate = f"tunnel ({enclosure.tunnel})", enclosure.rate
    # A card may have its own switch: the fastest link on the path is the card's capability.
    best = max((link.expected.rate for link in links if not link.tunnelled), default=0)
    return Way(links, enclosure, name, rate, max(0, best - rate) if rate else 0)


def facts(function: PciFunction) -> dict[str, object]:
    """Return the facts about the path to a function, for `ugpu ls` and `ugpu info`."""
    way = way_to(function)
    properties: dict[str, object] = {"iommu": function.group_type or "off"}
    if way.enclosure is not None:
        properties |= way.enclosure.facts
        properties["name_of_enclosure"] = f"thunderbolt:{way.enclosure.unique_id}"
    elif any(hop.tunnelled for hop in way.hops):
        properties["enclosure"] = "unknown: the kernel does not report it"
    if way.rate:
        properties["slowest_link"] = f"{way.slowest}, {way.rate / 1e9:.1f} GB/s"
        if way.cost:
            properties["link_cost"] = f"{way.cost / 1e9:.1f} GB/s less than the card's own link"
    return properties
