"""Rest of cards that are not leased: when each card is due. See
`hcq.device.driver.Driver.begin_rest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ugpu.tools.service.daemon.clients.leases import Card, State


class Sleeper(Protocol):
    """A device of the daemon, as in tools.service.daemon.cards.owned."""

    card: Card

    @property
    def can_rest(self) -> bool: ...
    @property
    def resting(self) -> bool: ...


S = TypeVar("S", bound=Sleeper)


class Idle:
    """The time since which each card has been ready without a lease. Under the daemon's lock.

    after_s: seconds until a card is due; 0: never. An observer's lease does not count.
    """

    def __init__(self, after_s: float, now: Callable[[], float]) -> None:
        self._after_s = after_s
        self._now = now
        self._since: dict[str, tuple[int, float]] = {}  # by card: number of leases served, time

    def due(self, devices: Iterable[S]) -> tuple[list[S], float | None]:
        """Return the devices that should rest now, and when the next one is due. A due device that
        does not rest is due again after the same time."""
        resting: list[S] = []
        times: list[float] = []
        now = self._now()
        for device in devices:
            card = device.card
            ready = card.state is State.READY and not any(lease.holds for lease in card.leases)
            if not self._after_s or not ready or not device.can_rest or device.resting:
                self._since.pop(card.name, None)
                continue
            served, since = self._since.get(card.name, (card.served, now))
            if served != card.served:
                since = now
            if now - since >= self._after_s:
                resting.append(device)
                since = now
            self._since[card.name] = card.served, since
            times.append(since + self._after_s)
        return resting, min(times, default=None)
