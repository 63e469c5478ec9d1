"""Timelines across devices: what one device's queue waits for on another, the host carries over.

Neither device reads the other's memory. A queue that waits for another device's timeline stalls on
a *gate* of its own device, which a thread of the host raises once the other timeline is there; a
queue that signals another device's timeline raises a *relay* of its own, and the host the other. A
thread lives only while something is awaited. It costs what the host takes to notice: microseconds
where the other device is `cpu` or interrupts, a look every millisecond elsewhere.

Where the device that is followed fails, is reset or closed before it gets there, the value never
comes: the device that waits for it then fails by DeviceHang, which says why, until it is reset.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hcq.command import Command, Signal, Wait
from hcq.errors import Closed, DeviceHang, NotSupported, UgpuError
from hcq.memory import Placement
from hcq.threads import start
from hcq.timeline import SIZE, Timeline

if TYPE_CHECKING:
    from hcq.core import Core

# TIMEOUT: how long a follower may stay inside the device that it follows, which may be closing
PAUSE_S = 0.02


class Follower:
    """Raises `target` to the values that are asked for, once `source` has reached them."""

    def __init__(self, source: Timeline, target: Timeline) -> None:
        self.source = source
        self.target = target
        self.problem: DeviceHang | None = None  # why a value asked for never comes
        self._wanted: list[int] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # the last one
        self._following = False
        self._resets = 0
        self._stopped = False

    def follow(self, value: int) -> None:
        """Raise the target to `value` when the source is there; returns at once."""
        with self._lock:
            heapq.heappush(self._wanted, value)
            if not self._following and not self._stopped:
                self._resets = self.source.core.healer.epoch(self.source)
                name = f"{self.source.core.name} for {self.target.core.name}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                start(thread)
                self._thread, self._following = thread, True

    def forget(self) -> None:
        """Drop all waits: the target's device was reset."""
        with self._lock:
            self._wanted.clear()
            self.problem = None

    def stop(self) -> None:
        """End the thread, for good; one of the devices is about to close."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            reached = self.source.value  # RACE: a reset raises it after it has counted itself
            trouble = self._trouble()
            with self._lock:
                if trouble is None and self._stopped:
                    trouble = Closed(f"{self.source.core.name} closes")
                trusted = trouble is None or isinstance(trouble, Closed)
                raised = trusted and self._raise(reached)
                if self._wanted and trouble is not None:
                    self.problem = self._explained(trouble)
                value = self._wanted[0] if self._wanted and trouble is None else None
                self._following = value is not None
            if raised:  # LOCK: it may take the target's, which a caller of `follow` may have
                self.target.core.driver.nudge()
            if value is None:
                return
            try:
                self.source.core.driver.pause_until(self.source, value, PAUSE_S)
            except UgpuError:
                continue  # the device remembers it, see _trouble

    def _raise(self, reached: int) -> bool:
        """Return whether the target was raised."""
        highest = 0
        while self._wanted and self._wanted[0] <= reached:
            highest = heapq.heappop(self._wanted)
        if not highest or self.target.core.closed:
            return False
        self.target.reach(highest)
        return True

    def _trouble(self) -> UgpuError | None:
        """Why the source may never go on, or why its value is not to be trusted."""
        core = self.source.core
        if core.healer.epoch(self.source) != self._resets:
            return core.last_failure or DeviceHang(f"{core.name} was reset")
        try:
            core.check_failures()
        except UgpuError as error:
            return error
        return None

    def _explained(self, trouble: UgpuError) -> DeviceHang:
        source, value = self.source, self._wanted[0]
        found = DeviceHang(
            f"{self.target.core.name} waits for {source.name} of {source.core.name} to reach "
            f"{value}, which it never will: {trouble}",
            timeline=source.name,
            reached=source.value,
            waiting_for=value,
        )
        found.__cause__ = trouble
        return found


class Followers:
    """All that connects one device with others: its gates and relays, which it owns, and who raises
    or reads its timelines."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.raising: list[Follower] = []  # whose target is the device's
        self.reading: list[Follower] = []  # whose source is the device's
        self._gates: dict[Timeline, Follower] = {}  # by the other device's timeline
        self._relays: dict[Timeline, Follower] = {}
        self._by_own: dict[Timeline, Follower] = {}  # by gate or relay
        self._held: list[Timeline] = []  # gates and relays of closed devices, until we close too

    def gate(self, source: Timeline) -> Timeline:
        """Return the timeline of this device to wait for instead of another device's timeline."""
        return self._own(self._gates, source, "gate").target

    def relay(self, target: Timeline) -> Timeline:
        """Return the timeline of this device to signal instead of another device's timeline."""
        return self._own(self._relays, target, "relay").source

    def submitted(self, commands: Sequence[Command], captured: bool) -> None:
        """Follow what these commands wait for and signal. NotSupported in a graph, whose replays
        would wait for values of the past."""
        if not self._by_own:
            return
        for command in commands:
            if isinstance(command, Wait | Signal):
                follower = self._by_own.get(command.timeline)
                if follower is None:
                    continue
                if captured:
                    raise NotSupported(
                        "a graph cannot wait for or signal another device's timeline"
                    )
                follower.follow(command.value.addend)

    def problem(self) -> DeviceHang | None:
        """Why something that this device waits for never comes."""
        if not self.raising:
            return None
        found = (follower.problem for follower in self.raising)
        return next((problem for problem in found if problem is not None), None)

    def forget(self, *, everything: bool) -> None:
        """After a reset: what has a problem is no longer awaited; or the device waits for
        nothing."""
        for follower in self.raising:
            if everything or follower.problem is not None:
                follower.forget()

    def stop(self) -> None:
        """Before the device closes: no thread reads or writes its memory afterwards."""
        for follower in (*self.raising, *self.reading):
            follower.stop()
            others = follower.target.core, follower.source.core
            for each in (other.followers for other in others if other is not self.core):
                each.drop(follower)

    def drop(self, follower: Follower) -> None:
        """A follower that has ended: the other device is closed. It stays where it has a problem to
        tell; a gate's memory stays until this device closes, since a queue may still read it."""
        if follower in self.reading:
            self.reading.remove(follower)
        if follower in self.raising and follower.problem is None:
            self.raising.remove(follower)
        self._held += [own for own, each in self._by_own.items() if each is follower]
        for known in (self._gates, self._relays, self._by_own):
            for key in [key for key, each in known.items() if each is follower]:
                del known[key]

    def _own(self, known: dict[Timeline, Follower], other: Timeline, kind: str) -> Follower:
        with self.core.lock:
            follower = known.get(other)
            if follower is None:
                memory = self.core.alloc(SIZE, placement=Placement.HOST)
                own = Timeline(self.core, memory, f"{kind} of {other.core.name} {other.name}")
                pair = (other, own) if kind == "gate" else (own, other)
                follower = known[other] = self._by_own[own] = Follower(*pair)
                follower.target.core.followers.raising.append(follower)
                follower.source.core.followers.reading.append(follower)
            return follower
