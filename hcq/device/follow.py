"""Timelines across devices: the host carries over a value that one device's queue waits for on
another device.

Neither device reads the other's memory. A queue that waits for another device's timeline stalls on
a *gate*, a timeline of its own device, which a host thread raises once the other timeline has the
value. A queue that signals another device's timeline raises a *relay* of its own device, and the
host raises the other timeline. A thread lives only while a value is awaited. The latency is the
time that the host takes to notice: microseconds if the other device is `cpu` or has interrupts,
else a poll every millisecond.

If the followed device fails, is reset or closed first, the value never comes. The waiting device
then fails with DeviceHang, which has the reason, until it is reset.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import Closed, DeviceHang, NotSupported, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.state.threads import start, was_started
from ugpu.hcq.work.command import Command, Signal, Wait
from ugpu.hcq.work.timeline import SIZE, Timeline

if TYPE_CHECKING:
    from ugpu.hcq.work.timeline import Link, TimelineState

# TIMEOUT: how long a follower may stay inside the device that it follows, which may be closing
PAUSE_S = 0.02


class Follower:
    """Raises `target` to the requested values, once `source` has reached them."""

    def __init__(self, source: Timeline, target: Timeline) -> None:
        self.source = source
        self.target = target
        self.problem: DeviceHang | None = None  # why a requested value never comes
        self._wanted: list[int] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # the last one
        self._following = False
        self._resets = 0
        self._stopped = False

    def follow(self, value: int) -> None:
        """Raise the target to `value` once the source has reached it; returns immediately."""
        with self._lock:
            heapq.heappush(self._wanted, value)
            following = self._following and was_started(self._thread)
            if not following and not self._stopped:
                self._resets = self.source.core.resets
                name = f"{self.source.core.name} for {self.target.core.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._following = True
                start(self._thread)

    def forget(self) -> None:
        """Drop all waits: the target's device was reset."""
        with self._lock:
            self._wanted.clear()
            self.problem = None

    def stop(self) -> None:
        """End the thread permanently; one of the devices is about to close."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if was_started(thread):
            thread.join()

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return  # see hcq.state.threads
        while True:
            reached = self.source.value  # RACE: a reset raises it, and records what it lost
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
            if raised:  # LOCK: it may take the target's, which a caller of `follow` may hold
                self.target.core.driver.notify_memory_written()
            if value is None:
                return
            try:
                self.source.core.driver.pause_until(self.source, value, PAUSE_S)
            except UgpuError:
                continue  # the device keeps the failure, see _trouble

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
        """Return why the source may never continue, or why its value cannot be trusted."""
        core = self.source.core
        if core.resets != self._resets and not core.is_own(self.source):
            return core.losses.latest
        try:
            core.check_failures()  # ORDER: waits for the end of a reset, which records what it lost
        except UgpuError as error:
            return error
        with self._lock:
            lost = (core.losses.of(self.source, value) for value in self._wanted)
            return next((error for error in lost if error is not None), None)

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
    """All connections of one device with others: its gates and relays, which it owns, and the
    followers that raise or read its timelines."""

    def __init__(self, core: TimelineState) -> None:
        self.core = core
        self.raising: list[Link] = []  # whose target is the device's
        self.reading: list[Link] = []  # whose source is the device's
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
        """Follow the timelines that these commands wait for and signal. NotSupported in a graph,
        whose replays would wait for old values."""
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
        """Return why a value that this device waits for never comes."""
        if not self.raising:
            return None
        found = (follower.problem for follower in self.raising)
        return next((problem for problem in found if problem is not None), None)

    def forget(self, *, everything: bool) -> None:
        """Drop waits after a reset: those that have a problem, or all of them."""
        for follower in self.raising:
            if everything or follower.problem is not None:
                follower.forget()

    def stop(self) -> None:
        """End all followers before the device closes: no thread accesses its memory afterwards."""
        for follower in (*self.raising, *self.reading):
            follower.stop()
            others = follower.target.core, follower.source.core
            for each in (other.followers for other in others if other is not self.core):
                each.drop(follower)

    def drop(self, follower: Link) -> None:
        """Remove a follower that has ended because the other device is closed. It stays if it has a
        problem to report. A gate's memory stays until this device closes, since a queue may still
        read it."""
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
