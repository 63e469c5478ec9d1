"""Plug in an enclosure around a card's model, as one opened USB device."""

from __future__ import annotations

import time
from typing import Literal

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.clock import Clock, Work
from ugpu.hcq.transport.endpoint import Endpoint
from ugpu.virtual.usb.device import VirtualUsb
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions
from ugpu.virtual.usb.meter import VirtualClock

# A card's model works in real time. Actions that take seconds on boards take it 0.25 s at most,
# before an announced reset (virtual.amd.firmware.smu): no sleep is longer in real time than this.
_LONGEST_SLEEP_S = 0.3


class EnclosureClock(Clock):
    """The clock in front of an enclosure. The cost of transfers and the time slept count as passed,
    though little of it passes in real time. The card works in real time, and its work suspends
    limits."""

    def __init__(self, virtual: VirtualClock, card: Clock) -> None:
        self._virtual = virtual
        self._card = card

    def now(self) -> float:
        return time.monotonic() + self._virtual.now()

    def sleep(self, seconds: float) -> None:
        real = min(seconds, _LONGEST_SLEEP_S)
        self._virtual.advance(seconds - real)
        time.sleep(real)

    def work(self) -> Work:
        return self._card.work()


def plug_in(
    card: Endpoint | None,
    enclosure: Enclosure | EnclosureOptions | None = None,
    firmware: Literal["custom", "uas"] = "custom",
) -> tuple[VirtualUsb, Clock]:
    """Open an enclosure; return its host side and its clock.

    With a card: a new enclosure around it, both closed with the USB device. Without: `enclosure`
    itself, opened again; the caller keeps owning it. firmware: contents of the enclosure's flash.
    """
    options = enclosure.options if isinstance(enclosure, Enclosure) else enclosure
    if options is not None and not isinstance(options, EnclosureOptions):
        raise BadArgument(f"expected an Enclosure or EnclosureOptions, got {enclosure!r}")
    if options is not None and options.firmware != firmware:
        raise BadArgument(f"expected an enclosure with {firmware!r}, got {options.firmware!r}")
    if card is None:
        if not isinstance(enclosure, Enclosure) or enclosure.card is None:
            raise BadArgument(f"enclosure must be an Enclosure with a card, got {enclosure!r}")
        return enclosure.open(), EnclosureClock(enclosure.clock, enclosure.card.clock)
    if isinstance(enclosure, Enclosure):
        raise BadArgument("an enclosure that exists has a card already")
    box = Enclosure(card, enclosure or EnclosureOptions(firmware=firmware))

    def close() -> None:
        box.close()
        card.close()

    return box.open(at_close=close), EnclosureClock(box.clock, card.clock)
