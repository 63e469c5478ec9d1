"""The PCI Express hierarchy behind the bridge chip: requests are routed, answered or refused.

Buses 0 to 3 have one bridge each: the bridge chip's own two ports and the card's two; the card is
on the bus below. Facts: PCI Express Base Specification 5.0, 2.2.7, 2.3.1 (completion status) and
7.3.3 (configuration request routing); shared with public sources: the depth and the bus of the card
(tinygrad runtime/support/system.py), ids 1B21:2463 (asm2464pd-firmware pcie/pcie_bringup.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ugpu.hcq.transport.endpoint import Aperture, Endpoint, EndpointFunction
from ugpu.virtual.usb.bridge import Bridge

#: the card's two ports: pci.ids "Navi 10 XL Upstream/Downstream Port of PCI Express Switch"
_PORTS = ((0x1B21, 0x2463), (0x1B21, 0x2463), (0x1002, 0x1478), (0x1002, 0x1479))

_OF_CARD = 2  # the first bridge that is on the card


class Status(enum.IntEnum):
    """Completion status (2.2.9.1)."""

    SUCCESS = 0
    UNSUPPORTED = 1
    RETRY = 2
    ABORT = 4


@dataclass(frozen=True)
class Completion:
    """Answer to a request that is not posted. data: a dword for reads, None for writes."""

    status: Status
    data: int | None = None


_UNSUPPORTED = Completion(Status.UNSUPPORTED)
_DONE = Completion(Status.SUCCESS)


class Fabric:
    """The bridges, and the card that may be in the slot.

    ports_changed: called after configuration writes, which may have opened or closed the path
    upstream for the card's requests. object_to: records accesses that no driver should make.
    """

    def __init__(
        self,
        card: Endpoint | None,
        object_to: Callable[[str], None],
        ports_changed: Callable[[], None],
        lanes: int,
    ) -> None:
        self.card = card
        self._object_to = object_to
        self._changed = ports_changed
        self.powered = False
        self.retries_left = 0  # configuration requests that the card still answers with RETRY
        self.bridges = [
            Bridge(
                vendor,
                device,
                upstream=index % 2 == 0,
                lanes=lanes,
                secondary_reset=self._resetter(index),
            )
            for index, (vendor, device) in enumerate(_PORTS)
        ]

    def _resetter(self, index: int) -> Callable[[], None]:
        def reset() -> None:
            for bridge in self.bridges[index + 1 :]:
                bridge.reset()
            if self.card is not None and self.powered:
                self.card.reset()

        return reset

    def power(self, on: bool) -> None:
        """Switch the slot's power; the bridges lose their state."""
        self.powered = on
        for bridge in self.bridges:
            bridge.reset()
        if self.card is not None:
            self.card.power(on)
        self._changed()

    def reset(self) -> None:
        """Assert PERST# towards the card while power stays on."""
        for bridge in self.bridges:
            bridge.reset()
        if self.card is not None and self.powered:
            self.card.reset()
        self._changed()

    @property
    def link_up(self) -> bool:
        """Return whether the slot's link can be in L0."""
        return self.powered and self.card is not None and self.card.alive

    @property
    def card_may_master(self) -> bool:
        """Return whether requests of the card reach the bridge chip's memory."""
        return self.link_up and all(
            bridge.masters and not bridge.held_in_reset for bridge in self.bridges
        )

    # ---- configuration requests ---------------------------------------------------------------

    def _target(self, bus: int, device: int, kind: int) -> Bridge | Endpoint | None:
        """Return the function that takes a configuration request; None where there is none."""
        if kind == 0:
            # Type 0 is not routed: it addresses the port at the other end of the link.
            return self.bridges[0] if device == 0 else None
        for above, bridge in enumerate(self.bridges):
            secondary, subordinate = bridge.buses
            if not secondary or not secondary <= bus <= subordinate or bridge.held_in_reset:
                return None
            if bus != secondary:
                continue
            if device:
                return None
            if above + 1 >= _OF_CARD and not self.link_up:
                return None
            return self.bridges[above + 1] if above + 1 < len(self.bridges) else self.card
        return None

    def configure(
        self, kind: int, bus: int, device: int, function: int, offset: int, enables: int,
        value: int | None,
    ) -> Completion:  # fmt: skip
        """Execute a configuration request of type `kind` for one dword. enables: byte enables."""
        target = self._target(bus, device, kind)
        owner: Bridge | EndpointFunction
        if target is None:
            return _UNSUPPORTED
        if isinstance(target, Bridge):
            if function:
                return _UNSUPPORTED
            owner = target
        else:
            if function >= len(target.functions):
                return _UNSUPPORTED
            if self.retries_left:
                self.retries_left -= 1
                return Completion(Status.RETRY)
            owner = target.functions[function]
        if value is None:
            return Completion(Status.SUCCESS, owner.config_read(offset, 4))
        for at, width in _pieces(enables):
            part = value >> 8 * at & ((1 << 8 * width) - 1)
            owner.config_write(offset + at, part, width)
        self._changed()
        return _DONE

    # ---- memory requests ----------------------------------------------------------------------

    def _find(self, address: int, size: int) -> tuple[EndpointFunction, Aperture] | None:
        card = self.card
        if card is None or not self.link_up:
            return None
        for bridge in self.bridges:
            if bridge.held_in_reset or not bridge.routes(address, size):
                return None
        claims = [
            (function, aperture)
            for function in card.functions
            for aperture in function.apertures()
            if aperture.start <= address and address + size <= aperture.start + aperture.size
        ]
        if len(claims) > 1:
            self._object_to(f"two BARs of the card claim address {address:#x}")
        return claims[0] if claims else None

    def read(self, address: int, size: int) -> bytes | None:
        """Read whole dwords, one request for each; None where any of them is not supported."""
        found = self._find(address, size)
        if found is None:
            return None
        function, aperture = found
        return function.read(aperture.index, address - aperture.start, size)

    def write(self, address: int, data: bytes) -> bool:
        """Write by posted requests. False where no function takes them; the host is not
        notified."""
        found = self._find(address, len(data))
        if found is None:
            self._object_to(f"write of {len(data)} bytes to {address:#x}, which nothing decodes")
            return False
        function, aperture = found
        function.write(aperture.index, address - aperture.start, data)
        return True


def _pieces(enables: int) -> Sequence[tuple[int, int]]:
    """Return enabled bytes of a dword as (offset, width) of aligned accesses."""
    if enables == 0b1111:
        return ((0, 4),)
    found: list[tuple[int, int]] = []
    for half in (0, 2):
        pair = enables >> half & 3
        if pair == 3:
            found.append((half, 2))
        else:
            found.extend((half + at, 1) for at in (0, 1) if pair >> at & 1)
    return found
