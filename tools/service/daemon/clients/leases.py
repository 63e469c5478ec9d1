"""Bookkeeping of leases, waiting requests and time limits. The caller supplies the time.

    off -> booting -> ready <-> leased
              |         |         |
              +---------+---------+--> recovering -> ready, or quarantined (with a reason)

A quarantined device is recovered again only when an operator requests it.

A device is leased exclusively to one holder, leased to several holders that share it, or observed.
Observers never block other leases. Waiters are served by priority, then in order of arrival. A
waiter that no ready device fits does not delay the waiters behind it.
"""

from __future__ import annotations

import enum
import fnmatch
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceBusy, DeviceNotFound, NotSupported
from ugpu.hcq.remote.request import LeaseRequest
from ugpu.tools.service.daemon.clients.tokens import Rights


class State(enum.Enum):
    """State of a device in the daemon."""

    OFF = "off"
    BOOTING = "booting"
    READY = "ready"
    LEASED = "leased"
    RECOVERING = "recovering"
    QUARANTINED = "quarantined"


@dataclass
class Card:
    """A device as the table sees it. labels: other names that a pattern may match. memory: bytes
    available to leases. shares: how many holders may share it; 0: it cannot be shared, for the
    reason in `alone`; -1: not known until it has been opened. transport: whether it can be handed
    out as a vfio-user socket. reason: of the quarantine, or of the recovery. unclean: why data of
    an ended lease may still be on the device; until that data is overwritten, only the current
    holders may use the device. served: leases so far."""

    name: str
    labels: tuple[str, ...] = ()
    memory: int = 0
    shares: int = -1
    alone: str = ""
    transport: bool = False
    state: State = State.OFF
    reason: str = ""
    unclean: str = ""
    leases: list[Lease] = field(default_factory=list)
    served: int = 0

    def matches(self, pattern: str) -> bool:
        """Return whether a request's pattern matches the card."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in (self.name, *self.labels))

    @property
    def quota_left(self) -> int:
        """Bytes that are not promised to any lease."""
        return self.memory - sum(lease.memory for lease in self.leases if lease.holds)

    def share(self, request: LeaseRequest) -> int:
        """Bytes of a shared lease: the requested number, or else an equal part."""
        return request.memory or self.memory // max(1, self.shares)

    def to_map(self) -> dict[str, object]:
        """Return the card's facts for clients."""
        return {
            "name": self.name,
            "labels": list(self.labels),
            "state": self.state.value,
            "reason": self.reason or self.unclean,
            "memory": self.memory,
            "leases": [lease.number for lease in self.leases],
        }


@dataclass(eq=False)
class Lease:
    """A lease that is held. ends: by the table's clock. end: called once, with the reason, when the
    table ends the lease (its time is up, it was taken away, the device is lost)."""

    number: int
    card: Card
    request: LeaseRequest
    holder: str
    memory: int
    ends: float
    end: Callable[[str], None]
    since: float = 0.0
    user: str = ""  # whom the limits of one user count
    told: bool = False  # its end was announced, its device is not clean yet

    def finish(self, reason: str) -> None:
        """End the lease, unless it has been ended already."""
        if not self.told:
            self.told = True
            self.end(reason)

    @property
    def holds(self) -> bool:
        """Return whether the lease excludes other holders from the device."""
        return self.request.kind != "observer"

    def to_map(self, now: float) -> dict[str, object]:
        """Return the lease's facts for clients."""
        return {
            "lease": self.number,
            "device": self.card.name,
            "kind": self.request.kind,
            "holder": self.holder,
            "memory": self.memory,
            "priority": self.request.priority,
            "held_s": now - self.since,
            "left_s": max(0.0, self.ends - now),
        }


@dataclass(eq=False)
class Waiter:
    """A waiting request. give: called once, with the lease."""

    request: LeaseRequest
    rights: Rights
    holder: str
    order: int
    until: float
    give: Callable[[Lease], None]
    end: Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    """usual_s: duration of a lease whose request names no limit. longest_s: the longest duration of
    any lease. waiters: the most waiting requests. user_leases: the most leases and waiting requests
    of one user or token. preempt: whether a request of higher priority ends leases of lower
    priority."""

    usual_s: float = 3600.0
    longest_s: float = 86400.0
    waiters: int = 1000
    preempt: bool = False
    user_leases: int = 64


class Table:
    """All cards, leases and waiters. Not thread-safe: the caller holds a lock."""

    def __init__(self, cards: list[Card], policy: Policy, now: Callable[[], float]) -> None:
        self.cards = cards
        self.policy = policy
        self.now = now
        self.leases: dict[int, Lease] = {}
        self.waiters: list[Waiter] = []
        self._numbers = itertools.count(1)
        self._orders = itertools.count()

    # ---- requests ----------------------------------------------------------------------------

    def ask(
        self,
        request: LeaseRequest,
        rights: Rights,
        holder: str,
        give: Callable[[Lease], None],
        end: Callable[[str], None],
    ) -> Waiter:
        """Queue a request; `give` is called immediately if a device is free. Raises if the request
        can never be served; DeviceBusy if no device is free and the request does not wait."""
        action = "see" if request.kind == "observer" else "lease"
        rights.check(action)
        self._check_possible(request, rights, action)
        self._check_count(rights)
        waiter = Waiter(
            request, rights, holder, next(self._orders), self.now() + request.wait_s, give, end
        )
        self.waiters.append(waiter)
        if self.policy.preempt and request.wait_s:  # no device is free before it is cleaned
            self._preempt_for(waiter)
        self.serve()
        if waiter in self.waiters and not request.wait_s:
            self.waiters.remove(waiter)
            raise self._busy(request)
        return waiter

    def position(self, waiter: Waiter) -> int:
        """Return a waiter's place in the queue, from 1; 0 if it is not waiting any more."""
        ordered = self._ordered()
        return ordered.index(waiter) + 1 if waiter in ordered else 0

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue. Idempotent."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def extend(self, lease: Lease, limit_s: float) -> float:
        """Let a lease end `limit_s` from now; return the granted seconds. They may be fewer than
        requested and never exceed the policy's longest."""
        granted = min(limit_s or self.policy.usual_s, self.policy.longest_s)
        lease.ends = self.now() + granted
        return granted

    def release(self, lease: Lease) -> None:
        """Remove a lease that is over and whose device is clean, and serve the next waiter.
        Idempotent."""
        if self.leases.pop(lease.number, None) is None:
            return
        lease.card.leases.remove(lease)
        if lease.card.state is State.LEASED and not any(each.holds for each in lease.card.leases):
            lease.card.state = State.READY
        self.serve()

    def find(self, number: int, rights: Rights) -> Lease:
        """Return a lease by its number. AccessDenied unless the rights allow changing it."""
        lease = self.leases.get(number)
        if lease is None:
            raise BadArgument(f"lease {number} does not exist; see `ugpu lease ls`")
        try:
            rights.check("end", lease.card)
        except AccessDenied as error:
            error.add_facts(holder=lease.holder)
            raise
        return lease

    # ---- time and devices --------------------------------------------------------------------

    def tick(self) -> list[Waiter]:
        """End leases whose time is up; remove and return the waiters whose waiting time is over."""
        now = self.now()
        for lease in list(self.leases.values()):
            if lease.ends <= now:
                lease.finish(f"the lease's time limit is over ({now - lease.since:.0f} s)")
        late = [waiter for waiter in self.waiters if waiter.until <= now]
        for waiter in late:
            self.waiters.remove(waiter)
        return late

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is next needed; None if there is none."""
        times = [lease.ends for lease in self.leases.values() if not lease.told]
        times += [waiter.until for waiter in self.waiters]
        return min(times, default=None)

    def changed(self, card: Card, state: State, reason: str = "") -> None:
        """Record a device's new state. If it is quarantined or off, all its leases end. If it is
        being recovered, its shared leases end, because a harsh rung of the ladder ends their work
        anyway."""
        card.state, card.reason = state, reason
        for lease in list(card.leases):
            shared = state is State.RECOVERING and lease.request.kind == "shared"
            if shared or state in (State.QUARANTINED, State.OFF):
                lease.finish(f"{card.name} is {state.value}: {reason}" if reason else state.value)
        if state is State.READY and any(lease.holds for lease in card.leases):
            card.state = State.LEASED
        self.serve()

    def serve(self) -> None:
        """Give free devices to waiters. A shared device takes no further holder while an earlier
        waiter wants it exclusively."""
        kept: list[Card] = []
        for waiter in self._ordered():
            request = waiter.request
            free = self._free(request, waiter.rights)
            if request.kind == "shared":
                free = (card for card in free if not any(card is each for each in kept))
            card = next(free, None)
            if card is not None and waiter in self.waiters:
                self.waiters.remove(waiter)
                waiter.give(self._grant(waiter, card))
            elif request.kind in ("exclusive", "transport"):
                kept += self._fitting(request, waiter.rights)

    def busy(self, waiter: Waiter) -> DeviceBusy:
        """Return the error for a waiter whose waiting time is over."""
        return self._busy(waiter.request)

    # ---- implementation ----------------------------------------------------------------------

    def _ordered(self) -> list[Waiter]:
        return sorted(self.waiters, key=lambda each: (-each.request.priority, each.order))

    def _grant(self, waiter: Waiter, card: Card) -> Lease:
        request = waiter.request
        now = self.now()
        limit = min(request.limit_s or self.policy.usual_s, self.policy.longest_s)
        memory = card.share(request) if request.kind == "shared" else request.memory or card.memory
        lease = Lease(
            next(self._numbers), card, request, waiter.holder, memory, now + limit, waiter.end, now,
            waiter.rights.who,
        )  # fmt: skip
        card.leases.append(lease)
        self.leases[lease.number] = lease
        if lease.holds:
            card.state = State.LEASED
            card.served += 1
        return lease

    def _free(self, request: LeaseRequest, rights: Rights) -> Iterator[Card]:
        """Yield the devices that the request can have now."""
        for card in self._fitting(request, rights):
            holders = [lease for lease in card.leases if lease.holds]
            if request.kind == "observer":
                if card.state in (State.READY, State.LEASED):
                    yield card
            elif card.unclean:
                continue
            elif card.state is State.READY and not holders:
                yield card
            elif request.kind == "shared" and card.state is State.LEASED:
                shared = all(lease.request.kind == "shared" for lease in holders)
                if shared and len(holders) < card.shares and card.share(request) <= card.quota_left:
                    yield card

    def _fitting(self, request: LeaseRequest, rights: Rights) -> list[Card]:
        """Return the devices that the request could have if they were free."""
        return [
            card
            for card in self.cards
            if card.matches(request.device)
            and rights.covers(card)
            and request.memory <= card.memory
            and (request.kind != "shared" or card.shares)
            and (request.kind != "transport" or card.transport)
        ]

    def _check_count(self, rights: Rights) -> None:
        """Raise DeviceBusy if too many requests wait, or the user has too many leases and waiting
        requests."""
        if len(self.waiters) >= self.policy.waiters:
            raise DeviceBusy(
                "too many requests are waiting at this ugpud", limit=self.policy.waiters
            )
        most = self.policy.user_leases
        own = sum(each.rights.who == rights.who for each in self.waiters)
        own += sum(each.user == rights.who for each in self.leases.values())
        if rights.limited and own >= most:
            raise DeviceBusy(
                f"{rights.name} has {own} leases and waiting requests, at most {most} are allowed",
                remedy="end some of them; an admin may raise user_leases in [lease]",
            )

    def _check_possible(self, request: LeaseRequest, rights: Rights, action: str) -> None:
        named = [card for card in self.cards if card.matches(request.device)]
        have = ", ".join(card.name for card in self.cards) or "none"
        if not named:
            raise DeviceNotFound(f"no device matches {request.device!r}; this ugpud has: {have}")
        allowed = [card for card in named if rights.covers(card)]
        if not allowed:
            rights.check(action, named[0])
        large = [card for card in allowed if request.memory <= card.memory]
        if not large:
            most = max(card.memory for card in allowed)
            raise DeviceNotFound(
                f"no device that matches {request.device!r} has {request.memory} bytes of memory",
                largest=most,
            )
        if not self._fitting(request, rights):
            no_chip = "it has no chip that can be handed out"
            why = large[0].alone if request.kind == "shared" else no_chip
            raise NotSupported(
                f"{large[0].name} cannot be leased as {request.kind!r}: {why}; lease it exclusively"
            )

    def _busy(self, request: LeaseRequest) -> DeviceBusy:
        named = [card for card in self.cards if card.matches(request.device)]
        states = "; ".join(
            f"{card.name}: {card.state.value}"
            + (f" to {', '.join(each.holder for each in card.leases)}" if card.leases else "")
            + (f" ({card.reason})" if card.reason else "")
            for card in named[:8]
        )
        return DeviceBusy(
            f"no device that matches {request.device!r} is free: {states}",
            remedy="wait for one (wait_s=), or see `ugpu lease ls`",
        )

    def _preempt_for(self, waiter: Waiter) -> None:
        """End the leases that block a request of higher priority. Of the devices that fit, choose
        the one whose holders have the lowest priority."""
        if next(iter(self._free(waiter.request, waiter.rights)), None) is not None:
            return
        priority = waiter.request.priority
        found: list[list[Lease]] = []
        for card in self._fitting(waiter.request, waiter.rights):
            holders = [lease for lease in card.leases if lease.holds]
            holders.sort(key=lambda lease: (lease.request.priority, -lease.number))
            if waiter.request.kind == "shared" and holders[1:]:
                del holders[1:]  # one place among the sharing holders is enough
            if holders and holders[-1].request.priority < priority:
                found.append(holders)
        if found:
            for lease in min(found, key=lambda each: (each[-1].request.priority, -each[0].number)):
                lease.finish(f"preempted by a request of priority {priority}")
