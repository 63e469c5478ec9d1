"""The runlist of one engine: groups of channels that use the engine in turn, a time slice each.

When the slice of running work is over and another group waits, the work yields. A grid does
so at its next backward branch or group of threads, unless its group's preemption mode is WFI. Other
work does so at its next ring entry. The work resumes where it was at the group's next turn, so a
grid that never ends costs the other groups half of the time and no more.

A grid of a group with WFI, the default, keeps the engine until it ends. It is stopped with Xid 109
after the context switch timeout (observed on an H100, driver 580.159.04).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.threads import start, was_started
from ugpu.virtual.nvidia.host.channel import Channel
from ugpu.virtual.nvidia.host.group import Preemption, TimeSliceGroup
from ugpu.virtual.shader.load import Load

# How long a thread sleeps before it polls again a semaphore that the CPU may have written.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 2e-3
_PATIENCE = 20  # half seconds: a stopped grid ends at its next backward branch
_CLOSE_LIMIT_S = 10.0  # TIMEOUT: the same, for a thread
_AVERAGED_S = 0.1  # of the utilisation that programs read; our choice
_LEAST_WAIT_S = 1e-4  # for work that was asked to yield and has not done so yet


def _now() -> float:
    return time.perf_counter()


class Runlist:
    """Groups of one engine. Any thread may call.

    A group's thread starts at its first doorbell. `idle_hook` is called whenever nothing runs and
    no work is left. A bug of the model itself ends the thread and is stored in `error`.
    switch_limit_s: the context switch timeout.
    """

    def __init__(
        self, number: int, name: str, idle_hook: Callable[[], None], switch_limit_s: float
    ) -> None:
        self.number = number
        self._switch_limit_s = switch_limit_s
        self.name = name
        self.error: BaseException | None = None
        self.switches = 0  # how often running work stood aside
        self.load = Load(_now, _AVERAGED_S)  # assigned to a group
        self._idle_hook = idle_hook
        self._groups: list[TimeSliceGroup] = []
        self._group_of: dict[Channel, TimeSliceGroup] = {}
        self._threads: list[threading.Thread] = []  # of groups, including some removed ones
        self._wake = threading.Condition()
        self._owner: TimeSliceGroup | None = None
        self._waiting: list[TimeSliceGroup] = []  # for the engine, first come first served
        self._closed = False
        self._kicks = 0

    @property
    def work(self) -> Work:
        """Return the work of the channels that is not blocked; see hcq.state.clock.Part. A grid
        holds up all other work until it ends or yields."""
        with self._wake:
            groups = [] if self._closed else self._groups
            if self._owner is not None and self._owner.in_program:
                groups = [self._owner]
            return max((group.work for group in groups), default=Work.NONE)

    @property
    def busy(self) -> bool:
        """Whether a channel is being served, or has work that is not blocked."""
        groups = list(self._groups)
        return any(
            group.working or any(channel.has_work for channel in group.channels) for group in groups
        )

    @property
    def running(self) -> bool:
        """Whether a channel is being served now, or its work yields."""
        return any(group.working for group in list(self._groups))

    def add(self, channel: Channel, group: TimeSliceGroup) -> None:
        """Add a channel, in a group of this runlist."""
        with self._wake:
            self._group_of[channel] = group
            channel.attention.stand_aside = lambda: self._stand_aside(group)
            group.channels.append(channel)
            if group not in self._groups:
                self._groups.append(group)

    def ring(self, channel: Channel) -> None:
        """Handle a doorbell: the channel has new entries."""
        with self._wake:
            group = self._group_of.get(channel)
            if group is None or self._closed:
                return
            channel.pending = True
            self._kicks += 1
            if not was_started(group.thread):
                group.thread = thread = threading.Thread(
                    target=self._serve, args=(group,), name=f"virtual-{self.name}", daemon=True
                )
                alive = [each for each in self._threads if each.is_alive()]
                self._threads = [*alive, thread]
                start(thread)
            self._wake.notify_all()

    def kick(self) -> None:
        """Wake the threads: something that a channel may wait for has changed."""
        if self._groups:
            with self._wake:
                self._kicks += 1
                self._wake.notify_all()

    def remove(self, channel: Channel) -> None:
        """Remove a channel; its running work is stopped first. Idempotent."""
        with self._wake:
            channel.stop()
            self._wake.notify_all()
            group = self._group_of.get(channel)
            if group is None:
                return
            if not self._wait_while(lambda: group.running is channel, group):
                raise TimeoutError(f"{self.name}: work of a stopped channel is still running")
            group.channels.remove(channel)
            del self._group_of[channel]
            if not group.channels:
                self._groups.remove(group)
                self._wake.notify_all()  # the group's thread ends

    def pause(self, channel: Channel) -> None:
        """Wait until the channel is no longer being served, a few seconds at most."""
        with self._wake:
            group = self._group_of.get(channel)
            if group is not None:
                self._wait_while(lambda: group.running is channel, group)

    def preempt(self, group: TimeSliceGroup) -> None:
        """Take the engine from a group as if its slice were over, and wait until it is released."""

        def lasts() -> bool:
            if self._owner is not group or not group.aside:
                return False
            self._end_late(group)
            return True

        with self._wake:
            if self._owner is group and group.working:
                group.ask_aside(True)
                self._wait_while(lasts, group)

    def set_preemption(self, group: TimeSliceGroup, mode: Preemption) -> None:
        """Set when a running grid leaves the engine. Applies to a grid that runs already."""
        with self._wake:
            group.preemption = mode
            if group.aside:
                group.ask_aside(True)

    def _wait_while(self, lasts: Callable[[], bool], group: TimeSliceGroup) -> bool:
        """Wait a few seconds at most; return at once on the group's own thread."""
        for _ in range(_PATIENCE):
            if not lasts() or threading.current_thread() is group.thread:
                return True
            self._wake.wait(0.5)
        return not lasts()

    def wait_idle(self, limit_s: float) -> bool:
        """Wait until there is nothing left to do now; return whether that state was reached."""
        end = time.monotonic() + limit_s
        with self._wake:
            while self.error is None and self.busy:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(min(left, 0.05))
        return True

    def close(self) -> None:
        """Stop all channels, and wait for the threads to end; idempotent."""
        with self._wake:
            self._closed = True
            for group in self._groups:
                for channel in group.channels:
                    channel.stop()
            self._wake.notify_all()
            threads = self._threads
        for thread in filter(was_started, threads):
            if thread is not threading.current_thread():
                thread.join(_CLOSE_LIMIT_S)

    # Time slices; the lock is held.

    def _stand_aside(self, group: TimeSliceGroup) -> None:
        """Wait while the group must yield; called by a thread that runs its work."""
        with self._wake:
            channel = group.running
            if channel is None:
                return
            while channel.attention.aside and not channel.attention.ending and not self._closed:
                # RACE: the next slice may have come and gone before this thread woke up.
                if self._owner is group and group.aside:
                    self._release(group)
                    self._waiting.append(group)
                    self.switches += 1
                    self._grant()
                else:
                    self._wake.wait(self._watch(group))
            self._take_up(group)

    def _release(self, group: TimeSliceGroup) -> None:
        if self._owner is group:
            self.load.end()
            self._owner = None

    def _grant(self) -> None:
        """Give the engine to the group that has waited longest."""
        if self._owner is None and self._waiting:
            self._owner = self._waiting.pop(0)
            self._owner.granted()
            self.load.begin()
            self._wake.notify_all()

    def _take_up(self, group: TimeSliceGroup) -> None:
        """Start the owner's slice: one of its threads has woken up, however late."""
        if self._owner is group and not group.until:
            group.begin()

    def _watch(self, group: TimeSliceGroup) -> float:
        """Check the owner's time slice for a waiter; return the seconds until the next check."""
        owner = self._owner
        if owner is None or owner is group:
            return _LEAST_WAIT_S
        if not owner.until:
            return owner.timeslice_s + _LEAST_WAIT_S
        left = owner.until - time.perf_counter()
        if left > 0:
            return max(left, _LEAST_WAIT_S)
        if not owner.aside:
            owner.ask_aside(True)
        self._end_late(owner)
        return min(owner.timeslice_s, self._switch_limit_s / 10) + _LEAST_WAIT_S

    def _end_late(self, owner: TimeSliceGroup) -> None:
        """Stop the grid of a group that should have left the engine long ago."""
        channel = owner.running
        if not owner.leaves_in_time(self._switch_limit_s) and channel is not None:
            channel.attention.time_out()

    def _take(self, group: TimeSliceGroup) -> bool:
        """Wait for the engine; return False if the group no longer needs it."""
        if self._owner is group:
            if not (group.aside and self._waiting):
                group.ask_aside(False)
                self._take_up(group)
                return True
            self._release(group)
        if group not in self._waiting:
            self._waiting.append(group)
        self._grant()
        while self._owner is not group:
            if self._closed or group.next_channel() is None:
                if group in self._waiting:
                    self._waiting.remove(group)
                return False
            self._wake.wait(self._watch(group))
        self._take_up(group)
        return True

    def _idle(self, group: TimeSliceGroup) -> None:
        """Release the engine: the group has nothing to do now."""
        # Idle groups would wake each other for ever, were it told each time.
        news = self._owner is group or group in self._waiting
        self._release(group)
        if group in self._waiting:
            self._waiting.remove(group)
        group.aside = False
        self._grant()
        if self._owner is None:
            self._idle_hook()
        if news:
            self._wake.notify_all()

    # A group's thread

    def _serve(self, group: TimeSliceGroup) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while True:
                with self._wake:
                    if group.thread is not threading.current_thread():
                        return  # see hcq.state.threads
                    if self._closed or not group.channels:
                        self._idle(group)
                        group.thread = None
                        return
                    channel = group.next_channel()
                    if channel is None:
                        self._idle(group)
                        waiting = any(channel.has_work for channel in group.channels)
                        kicks = self._kicks
                        self._wake.wait(pause if waiting else None)
                        calm = kicks == self._kicks and waiting
                        pause = min(pause * 2, _LONGEST_PAUSE_S) if calm else _FIRST_PAUSE_S
                        continue
                    pause = _FIRST_PAUSE_S
                    if not self._take(group):
                        continue
                    if channel not in group.channels or not (channel.has_work and channel.ready()):
                        continue  # the channel was stopped meanwhile
                    group.turn = group.channels.index(channel) + 1
                    group.running = channel
                    group.ask_aside(group.aside)
                try:
                    channel.advance()
                finally:
                    with self._wake:
                        group.running = None
                        channel.attention.aside = False
                        self._wake.notify_all()
        except BaseException as error:
            with self._wake:
                self.error = error
                self._idle(group)
            raise
