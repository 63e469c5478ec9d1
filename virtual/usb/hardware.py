"""The bridge chip around its firmware: memory, request engine, SRAM engine, slot, clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ugpu.hcq.transport.endpoint import Endpoint
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.fabric import Fabric
from ugpu.virtual.usb.flash import Flash
from ugpu.virtual.usb.memory import REGIONS, Memory
from ugpu.virtual.usb.meter import Costs, VirtualClock
from ugpu.virtual.usb.sensor import Sensor
from ugpu.virtual.usb.sram_engine import SramEngine
from ugpu.virtual.usb.tlp import RequestEngine

# Lowest voltage that a card may get: 12 V less 8 percent. Source: PCI Express CEM 5.0, table 4-1.
LEAST_SUPPLY_V = 11.04
_PACKET, _PACKET_HIGH_SPEED = 1024, 512


@dataclass(frozen=True)
class HardwareOptions:
    """Behaviour of the chip. train_s: seconds from slot power to a link in L0. retries:
    configuration requests that the card answers with Retry Status after power-up. lanes: of the
    link between bridge chip and card. supply_volts: at the power sensor; with less than a card
    needs, its link does not come up. shuffled, between: see SramEngine."""

    train_s: float = 0.12
    retries: int = 0
    lanes: int = 2
    supply_volts: float = 12.0
    shuffled: bool = False
    between: Callable[[], None] | None = None
    costs: Costs = field(default_factory=Costs)
    seed: int = 1


class Hardware:
    """All parts of the chip that firmware uses. objections: accesses that no driver should make."""

    def __init__(
        self, card: Endpoint | None, speed: Speed, options: HardwareOptions, clock: VirtualClock
    ) -> None:
        self.options = options
        self.costs = options.costs
        self.speed = speed
        self.clock = clock
        #: marks an endpoint busy for some seconds (Meter.move)
        self.move: Callable[[int, float], None] = lambda endpoint, seconds: None
        self.objections: list[str] = []
        self._powered_at = 0.0
        self._mapped = False
        self.memory = Memory(options.seed)
        self.memory.reset()
        self.flash = Flash(self, options.seed)
        self.flash_written: Callable[[], None] = lambda: None  # called for each program and erase
        self.sensor = Sensor(self.memory, self.object_to)
        self.sensor.supply(options.supply_volts)
        self.fabric = Fabric(card, self.object_to, self._ports_changed, options.lanes)
        self.requests = RequestEngine(self.memory, self.fabric, self.link_up, self.object_to)
        self.sram = SramEngine(
            self.memory,
            self.object_to,
            options.seed,
            shuffled=options.shuffled,
            between=options.between,
        )
        self.fabric.power(False)

    def object_to(self, text: str) -> None:
        """Record an access that no driver should make; each text once."""
        if text not in self.objections:
            self.objections.append(text)

    @property
    def super_speed(self) -> bool:
        return self.speed >= Speed.SUPER

    @property
    def packet_size(self) -> int:
        """Return the bytes of a full bulk packet."""
        return _PACKET if self.super_speed else _PACKET_HIGH_SPEED

    @property
    def bulk_rate(self) -> float:
        """Return bytes/s between host and SRAM."""
        return self.costs.sram_rate if self.super_speed else self.costs.high_speed_rate

    # ---- the slot -----------------------------------------------------------------------------

    def power(self, on: bool) -> None:
        """Switch the slot's rails; where they are already on, only PERST# resets the card."""
        self._powered_at = self.clock.now()
        self.fabric.retries_left = self.options.retries if on else 0
        if on and self.fabric.powered:
            self.fabric.reset()
        else:
            self.fabric.power(on)

    def link_up(self) -> bool:
        """Return whether the link to the card is in L0 now."""
        trained = self.clock.now() - self._powered_at >= self.options.train_s
        supplied = self.options.supply_volts >= LEAST_SUPPLY_V
        return self.fabric.link_up and trained and supplied

    def memory_written(self) -> None:
        """Note that this side has written memory that the card can access."""
        if self._mapped and self.fabric.card is not None:
            self.fabric.card.memory_changed()

    def _ports_changed(self) -> None:
        """Connect or disconnect the card's requests and our memory, as its bridges are set up."""
        card, wanted = self.fabric.card, self.fabric.card_may_master
        if card is None or wanted == self._mapped:
            return
        self._mapped = wanted
        for region in REGIONS:
            if wanted:
                card.map_dma(region.bus, region.size, self.memory.host + region.offset)
            else:
                card.unmap_dma(region.bus, region.size)

    def close(self) -> None:
        """Detach the memory from the card; idempotent."""
        card = self.fabric.card
        if card is not None and self._mapped:
            for region in REGIONS:
                card.unmap_dma(region.bus, region.size)
            self._mapped = False
