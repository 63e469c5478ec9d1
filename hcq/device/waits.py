"""Waits of host threads for one device's queues, with limits.

They raise failures that the device reports meanwhile. Which work a reset has lost, and which thread
must be told of it, is decided in hcq.work.losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument, DeviceHang
from ugpu.hcq.state.checks import seconds
from ugpu.hcq.work.timeline import CAPTURED

if TYPE_CHECKING:
    from ugpu.hcq.device.state import CoreState
    from ugpu.hcq.work.queue import HardwareQueue
    from ugpu.hcq.work.timeline import Timeline

_LONGEST_PAUSE_S = 1.0  # in one call of a driver: system calls limit the size of time-outs
# RACE: of two waiting threads, one may take the interrupt that the other waits for. That delays the
# other by a share of the time that it has waited, and not by less than the first pause.
_FIRST_PAUSE_S, _SHARE = 1e-3, 1 / 16


class Waits:
    """Waits for one device. The lock is not held."""

    def __init__(self, core: CoreState) -> None:
        self.core = core

    def reach(self, timeline: Timeline, value: int, limit_s: float | None) -> None:
        """Wait until the timeline has the value, without checking for failures once it has.
        limit_s: seconds from now on; None: the device's limit, each time from the end of the last
        work before it, so that long work of others, or a slow host, does not count."""
        core = self.core
        limit = seconds("limit_s", core.limit_s if limit_s is None else limit_s)
        if value >= CAPTURED:
            raise BadArgument("cannot wait for a captured submission; wait for the replay")
        if core.closed or core.failure is not None:
            core.recover()
            core.check_alive()
        resets = core.resets
        before = timeline.value
        reached = before >= value
        if reached:
            return
        driver = core.driver
        deadline = driver.clock.deadline(limit)
        begun = deadline.now
        while not reached:
            core.look()
            if core.resets != resets and not core.is_own(timeline) and core.idle:
                raise core.losses.latest  # the work that would have raised it was lost
            if deadline.expired():
                self._report_hang(timeline, value, limit)
                return
            if driver.announces:
                longest = max(_FIRST_PAUSE_S, (deadline.now - begun) * _SHARE)
                driver.pause(min(deadline.pause_s, longest))
            else:
                driver.pause_until(timeline, value, min(deadline.pause_s, _LONGEST_PAUSE_S))
            now = timeline.value
            reached = now >= value
            driver.clock.polled(reached)
            if limit_s is None and now != before:
                deadline, before = driver.clock.deadline(limit), now

    def await_room(self, hardware: HardwareQueue, words: int) -> None:
        """Block until `hardware` has room for an image of `words` words. DeviceHang if no work of
        the queue ends for as long as a wait may take. The queue may be waiting for another thread's
        submission."""
        core, timeline = self.core, hardware.timeline
        clock = core.driver.clock
        deadline, reached = clock.deadline(core.limit_s), timeline.value
        while True:
            core.look()
            with core.lock:
                room = hardware.room(words)
            clock.polled(room)
            if room:
                return
            value = timeline.value
            if value != reached:
                deadline, reached = clock.deadline(core.limit_s), value
            if deadline.expired():
                self._report_hang(timeline, value + 1, core.limit_s)
            core.driver.pause_until(timeline, value + 1, min(deadline.pause_s, _LONGEST_PAUSE_S))

    def _report_hang(self, timeline: Timeline, value: int, limit_s: float) -> None:
        core = self.core
        with core.lock:
            # Check once more: this thread may have overslept although the device met the limit.
            if timeline.value >= value:
                return
            core.check_alive()
            reached, state = timeline.value, core.driver.diagnose(timeline, value)
            own = timeline.name.startswith(core.name)
            where = timeline.name if own else f"{core.name}: {timeline.name}"
            what = f"kernel {state['kernel']}" if own and state.get("kernel") else "work"
            cause = f"{state.pop('cause')}; " if state.get("cause") else ""
            failure = DeviceHang(
                f"{where}: {what} has not ended within {limit_s} s: {cause}"
                f"expected signal {value}, got {reached}",
                timeline=timeline.name,
                reached=reached,
                limit_s=limit_s,
                **state,
            )
            core.fail(failure)
        core.recover()
        core.losses.tell_recovered(timeline)
        raise failure
