"""Places of connections: those that have not shown who they are apart from those that have, each
with limits, so that neither strangers nor one user can keep others out."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from ugpu.hcq.errors import DeviceBusy
from ugpu.hcq.remote.wire import WireError
from ugpu.tools.service.daemon.clients.tokens import Rights

T = TypeVar("T")

STRANGERS = 128  # most connections that have not shown who they are; as many more of local users
PAGE = 256  # most connections of the page
# TIMEOUT: for messages of others to arrive whole when there is no memory for one more
ROOM_S = 2.0
RESERVED = 96  # descriptors for devices, files and libraries
_MOST_DESCRIPTORS = 1 << 16


class Crowd(Generic[T]):
    """Connections that have not shown who they are. When all places are taken, a new one takes the
    place of the oldest one of the origin that has most. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._origins: dict[T, str] = {}  # the oldest first
        self._guard = threading.Lock()

    def enter(self, member: T, origin: str) -> T | None:
        """Take a place; return the connection that lost it, which the caller closes."""
        with self._guard:
            self._origins[member] = origin
            if len(self._origins) <= self._most:
                return None
            busiest, _ = Counter(self._origins.values()).most_common(1)[0]
            loser = next(each for each, place in self._origins.items() if place == busiest)
            del self._origins[loser]
            return loser

    def leave(self, member: T) -> None:
        """Give a place back. Idempotent."""
        with self._guard:
            self._origins.pop(member, None)

    def __len__(self) -> int:
        return len(self._origins)


class Places:
    """Places of known clients, limited in total and for each user or token. Thread-safe."""

    def __init__(self, most: int, each: int, what: str, setting: str = "") -> None:
        """what: of what there are too many, for errors. setting: the key that sets `each`."""
        self._most = most
        self._each = each
        self._what = what
        self._setting = setting
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()

    def take(self, rights: Rights) -> None:
        """Take a place; DeviceBusy if there is none."""
        with self._guard:
            own = self._counts[rights.who]
            if rights.limited and own >= self._each:
                more = f"; an admin may raise {self._setting}" if self._setting else ""
                raise DeviceBusy(
                    f"{rights.name} has {own} {self._what}, at most {self._each} are allowed",
                    remedy=f"close some of them{more}",
                )
            if self._counts.total() >= self._most:
                raise DeviceBusy(f"this ugpud serves no more {self._what}", limit=self._most)
            self._counts[rights.who] += 1

    def count(self, rights: Rights) -> int:
        """Return how many places the user or token has."""
        return self._counts[rights.who]

    def give_back(self, rights: Rights) -> None:
        """Undo `take`."""
        with self._guard:
            self._counts[rights.who] -= 1
            if self._counts[rights.who] <= 0:
                del self._counts[rights.who]


class Unfinished(Generic[T]):
    """Memory of messages that have not arrived whole, of all known clients together. One that would
    need more than there is waits for room; then the user or token that has most loses its largest
    message, and that connection ends. Thread-safe."""

    def __init__(self, most: int, end: Callable[[T], None]) -> None:
        """most: bytes. end: ends another member's connection, without waiting."""
        self._most = most
        self._end = end
        self._sizes: dict[T, int] = {}
        self._users: dict[T, str] = {}
        self._changed = threading.Condition()

    def of(self, member: T, rights: Rights) -> Callable[[int], None]:
        """Return what is called with the size of a member's message; see Limits.told."""
        return partial(self._note, member, rights)

    def _note(self, member: T, rights: Rights, size: int) -> None:
        losers: list[T] = []
        with self._changed:
            self._users[member] = rights.who
            self._changed.wait_for(lambda: self._fits(member, size), ROOM_S)
            while not self._fits(member, size):
                losers.append(self._largest(member, size))
                self._sizes.pop(losers[-1], None)
                if losers[-1] is member:
                    break
            else:
                self._sizes[member] = size
            if not size:
                self._sizes.pop(member, None)
            self._changed.notify_all()
        for loser in losers:
            if loser is member:
                raise WireError("the daemon has no memory left for messages", limit=self._most)
            self._end(loser)

    def _fits(self, member: T, size: int) -> bool:
        others = sum(self._sizes.values()) - self._sizes.get(member, 0)
        return not size or others + size <= self._most

    def _largest(self, member: T, size: int) -> T:
        """Return the largest message of the user who would have most."""
        sizes = {**self._sizes, member: size}
        users: Counter[str] = Counter()
        for each, bytes_ in sizes.items():
            users[self._users[each]] += bytes_
        ((greedy, _),) = users.most_common(1)
        return max((each for each in sizes if self._users[each] == greedy), key=sizes.__getitem__)

    def forget(self, member: T) -> None:
        """Give a member's memory back. Idempotent."""
        with self._changed:
            self._sizes.pop(member, None)
            self._users.pop(member, None)
            self._changed.notify_all()


def raise_limit() -> None:
    """Use all descriptors that the system grants this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def share(twelfths: int, most: int) -> int:
    """Return how many connections may have a descriptor: a share of those that this process may
    open, at least 1 and at most `most`. Local and remote users have 4 twelfths each, the page 2,
    and strangers of both kinds 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, twelfths * max(0, soft - RESERVED) // 12))
