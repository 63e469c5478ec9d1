"""Work that resets lost, and the threads and waits that must report it.

A reset that restarts a queue raises its timeline although the work has not ended, so a thread that
waits for that work must not take the value for its end. Timeline.lost holds the ranges of values
that resets lost. They include work that has ended, if no wait has found it free of failures and the
reset was for a failure other than a hang: a kernel that faults may continue to its end.

    wait for a value    raises the error of the reset that lost the value, each time
    wait for all work   Timeline.wait(), Device.synchronize, copies: raises it once in each thread
                        that submitted lost work; in any one thread, if no thread has been told
    any wait            raises a failure that a device recovered from by itself, once per queue

A thread that calls Device.reset itself, and a thread to which the failure was raised before the
reset, are not told again.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ugpu.hcq.errors import DeviceHang, UgpuError
from ugpu.hcq.work.command import Command, Wait

if TYPE_CHECKING:
    from ugpu.hcq.work.queue import HardwareQueue, QueueState
    from ugpu.hcq.work.timeline import Timeline

_ERRORS = 16  # resets whose error is kept; waits for work of earlier ones get a general one


class _Mine(threading.local):
    """State of the calling thread. first, last: by timeline, the range of values that it submitted
    and has not waited for. told: the error last raised to it. resets: resets of the device when its
    last wait for all work began. name: identifies the thread; system identifiers are used again."""

    def __init__(self) -> None:
        self.name = object()
        self.first: dict[Timeline, int] = {}
        self.last: dict[Timeline, int] = {}
        self.told: UgpuError | None = None
        self.resets = 0


class Losses:
    """Lost work of one device.

    Attributes:
        told: the error last raised to any thread.
        automatic: errors of queues that lost work in a recovery by the device itself, until they
            are reported; `shared` is one of them that only one queue has to report.
    """

    def __init__(self, core: QueueState) -> None:
        self.core = core
        self.mine = _Mine()
        self.told: UgpuError | None = None
        self.automatic: dict[Timeline, UgpuError] = {}
        self.shared: UgpuError | None = None
        self._errors: dict[int, tuple[UgpuError, object]] = {}  # by reset: error, its thread
        self._unheard: dict[Timeline, tuple[UgpuError, object]] = {}

    # ---- hot paths ---------------------------------------------------------------------------

    def submitted(self, timeline: Timeline, value: int) -> None:
        """Note that the calling thread has submitted work that `value` marks the end of."""
        mine = self.mine
        last = mine.last.get(timeline)
        if last is not None and last <= timeline.clean:  # found so by a wait that did not note it
            mine.first[timeline] = value
        else:
            mine.first.setdefault(timeline, value)
        mine.last[timeline] = value

    def waited(self, timeline: Timeline, value: int) -> None:
        """Note that a wait has found the work up to `value` ended and free of failures."""
        if value > timeline.clean:
            timeline.clean = value
        mine = self.mine
        last = mine.last.get(timeline)
        if last is not None and last <= value and self._own(timeline) is None:
            del mine.last[timeline], mine.first[timeline]

    def found_clean(self, queues: Sequence[HardwareQueue], ends: Sequence[int]) -> None:
        """Note that a wait has found all work of all queues up to these values ended and free of
        failures."""
        for place, end in enumerate(ends):  # zip(strict=True) takes 0.2 us
            timeline = queues[place].timeline
            if end > timeline.clean:
                timeline.clean = end
        mine = self.mine
        if mine.first:
            mine.first.clear()
            mine.last.clear()

    # ---- resets ------------------------------------------------------------------------------

    def begin(self, failure: UgpuError | None, *, asked: bool) -> UgpuError:
        """Note that a reset begins, for `failure`, if there is one; return the error of the work
        that it loses. asked: the calling thread asked for it; otherwise the device recovers by
        itself. The device's lock is held."""
        core = self.core
        error = failure or DeviceHang(f"{core.name} was reset: its work was lost")
        self._errors[core.resets] = error, self.mine.name if asked else None
        if asked:
            self._forget_all()
        if len(self._errors) > _ERRORS:
            del self._errors[next(iter(self._errors))]
        return error

    def end(self, timelines: Sequence[Timeline]) -> None:
        """Note that a reset is over. timelines: those that lost work. Unless a thread has been
        told of the reset's error, one will be. The device's lock is held."""
        error, resetter = self._errors[self.core.resets]
        if resetter is not None and error is not self.told:
            self._unheard |= dict.fromkeys(timelines, (error, resetter))

    @property
    def latest(self) -> UgpuError:
        """The error of the work that the last reset lost."""
        return self._errors[self.core.resets][0]

    def of(self, timeline: Timeline, value: int) -> UgpuError | None:
        """Return the error of the reset that lost the work that `value` marks the end of."""
        lost = timeline.lost
        at = bisect_left(lost, (value,))
        if at < len(lost) and lost[at][1] <= value:
            return self._error(timeline, lost[at][2])[0]
        return None

    # ---- reports, all without the lock unless stated -----------------------------------------

    def heard(self, error: UgpuError) -> None:
        """Note that `error` is being raised to the calling thread. The device's failure concerns
        all work that the thread has in flight."""
        self.mine.told = self.told = error
        if error is self.core.failure:
            self._forget_all()

    def check(self, timeline: Timeline, value: int) -> None:
        """Raise the error of the reset that lost the work that `value` marks the end of; with or
        without the lock."""
        if timeline.lost:
            error = self.of(timeline, value)
            if error is not None:
                self._forget(timeline, value)
                self._raise(error, timeline)

    def check_waits(self, commands: Sequence[Command]) -> None:
        """Raise the error if a command waits for lost work. The device's lock is held."""
        for command in commands:
            if isinstance(command, Wait):
                self.check(command.timeline, command.value.addend)

    def tell_own(self, timeline: Timeline) -> None:
        """Raise the error of lost work of the queue that the calling thread has submitted, if it
        was not told."""
        error = self._own(timeline)
        if error is not None:
            self._forget(timeline, timeline.lost[-1][0])
            self._raise(error, timeline)

    def tell_recovered(self, timeline: Timeline) -> None:
        """Raise the failure that lost work of the timeline's queue and that the device recovered
        from by itself, if it was not reported yet."""
        if self.automatic:
            with self.core.lock:
                error = self.automatic.get(timeline)
            if error is not None:
                self._raise(error, timeline)

    def tell(self, timelines: Sequence[Timeline]) -> None:
        """Raise, as one error, all errors of work of these queues that the calling thread must be
        told of. For waits for all work; the queues are idle."""
        errors = []
        for timeline in timelines:
            with self.core.lock:
                unheard, resetter = self._unheard.pop(timeline, (None, None))
                recovered = self.automatic.get(timeline)
            own = self._own(timeline)
            self._forget(timeline, timeline.last)
            if resetter is self.mine.name:
                unheard = None
            error = recovered or own or unheard
            if error is not None:
                errors.append((error, timeline))
        for error, timeline in errors:
            self._settle(error, timeline)
        if errors:
            self._raise(*errors[-1])

    def dismiss(self) -> None:
        """Note that no thread needs to be told of work that was lost so far."""
        with self.core.lock:
            self._unheard.clear()
            self.automatic.clear()
        for hardware in self.core.driver.all_queues():
            self._forget(hardware.timeline, hardware.timeline.last)

    def pending(self) -> UgpuError | None:
        """Return an error that no thread has been told of, after the device has closed."""
        mine = self.mine.name
        unheard = [error for error, resetter in self._unheard.values() if resetter is not mine]
        errors = [*self.automatic.values(), *unheard]
        failure = self.core.failure
        if failure is not None and failure is not self.told:
            errors.append(failure)
        return errors[-1] if errors else None

    # ---- internals ---------------------------------------------------------------------------

    def _own(self, timeline: Timeline) -> UgpuError | None:
        """Return the error of lost work that the calling thread has submitted, unless it was
        told."""
        lost, mine = timeline.lost, self.mine
        if not lost or timeline not in mine.first or timeline not in mine.last:
            return None
        first, last = mine.first[timeline], mine.last[timeline]
        for at in range(bisect_left(lost, (first,)), len(lost)):
            if lost[at][1] > last:
                return None
            error, resetter = self._error(timeline, lost[at][2])
            if error is not mine.told and resetter is not mine.name:
                return error
        return None

    def _forget_all(self) -> None:
        mine = self.mine
        mine.first.clear()
        mine.last.clear()

    def _forget(self, timeline: Timeline, value: int) -> None:
        """Forget the calling thread's submissions up to `value`."""
        mine = self.mine
        if timeline not in mine.first:
            return
        # A submission that an exception cut off may be noted by its first value alone.
        if mine.last.get(timeline, value) <= value:
            mine.last.pop(timeline, None)
            mine.first.pop(timeline, None)
        else:
            mine.first[timeline] = max(mine.first[timeline], value + 1)

    def _error(self, timeline: Timeline, reset: int) -> tuple[UgpuError, object]:
        known = self._errors.get(reset)
        if known is not None:
            return known
        return DeviceHang(f"{timeline.name}: reset {reset} of the device lost this work"), None

    def _settle(self, error: UgpuError, timeline: Timeline) -> None:
        with self.core.lock:
            told = [each for each, (known, _) in self._unheard.items() if known is error]
            for each in told:
                del self._unheard[each]
            if self.automatic.pop(timeline, None) is not None and error is self.shared:
                self.automatic.clear()  # no queue had lost work: reporting it once is enough

    def _raise(self, error: UgpuError, timeline: Timeline) -> NoReturn:
        self._settle(error, timeline)
        self.heard(error)
        raise error.with_traceback(None)
