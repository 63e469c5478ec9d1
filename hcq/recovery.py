"""Healer: recovers a device after a failure, on request or automatically (`on_fault`).

With `on_fault="recover"` the first thread that meets a failure resets the device and continues. The
failure is still reported, once for each queue that lost work: by the next wait for that queue, or
by the next `synchronize`. Work on queues that were not set up again continues, and no failure is
reported for it.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hcq import trace
from hcq.errors import BadArgument, ChipError, LinkError, UgpuError
from hcq.ladder import Attempt, Diagnosis, Level, Recovery

if TYPE_CHECKING:
    from hcq.buffer import Buffer
    from hcq.core import Core
    from hcq.queue import HardwareQueue
    from hcq.timeline import Timeline

log = logging.getLogger(__name__)

FAULT_POLICIES = ("raise", "recover")


class Healer:
    """Recovery of one device. Its lock is held unless a method says otherwise.

    policy: "raise" or "recover". last: report of the last reset. buffers: those whose content a
    reset may lose. repeated: for a driver, inside `recover`: the previous reset was interrupted,
    and its losses were not reported.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.last: Recovery | None = None
        self.buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._policy = "raise"
        self._beyond: UgpuError | None = None  # a failure that a reset did not fix
        self._resetting = False
        self._unfinished = self.repeated = False
        self.untold: dict[Timeline, UgpuError] = {}
        self._shared: UgpuError | None = None  # one of them that only one queue has to report

    @property
    def policy(self) -> str:
        """See `hcq.open`."""
        return self._policy

    @policy.setter
    def policy(self, policy: str) -> None:
        if policy not in FAULT_POLICIES:
            known = " or ".join(map(repr, FAULT_POLICIES))
            raise BadArgument(f"on_fault must be {known}, got {policy!r}")
        self._policy = policy

    # ---- reset -------------------------------------------------------------------------------

    def reset(self, only: Level | None = None) -> Recovery:
        """See Device.reset. After an exception the device has failed, and can be reset again."""
        core = self.core
        core.check_open()
        failure, self._resetting = core.failure, True
        self.repeated, self._unfinished = self._unfinished, True
        try:
            with trace.step("reset", device=core.name, failure=failure):
                recovery = self._recover(failure, only)
        except BaseException as error:
            if core.failure is None:
                core.failure = ChipError(
                    f"{core.name}: a reset was cut off; reset the device again", cause=repr(error)
                )
            raise
        finally:
            self._resetting = False
        self._unfinished = False
        return recovery

    def _recover(self, failure: UgpuError | None, only: Level | None) -> Recovery:
        core = self.core
        core.last_failure = failure
        core.resets += 1
        with contextlib.suppress(UgpuError):
            core.complete()  # for queues that the driver leaves as they are
        queues = core.driver.all_queues()
        behind = self._behind(queues)
        found = core.driver.recover() if only is None else core.driver.recover(only)
        recovery = found or _plain(failure, queues)
        core.replaying = None
        for hardware in recovery.restarted:
            hardware.timeline.restart()
        core.followers.forget(everything=len(recovery.restarted) == len(queues))
        self.last = recovery = replace(recovery, lost=self._lost(recovery))
        if failure is not None and self.policy == "recover":
            concerned = [one for one in recovery.restarted if one in (*behind, *recovery.failed)]
            self._shared = None if concerned else failure
            self.untold |= {one.timeline: failure for one in concerned or recovery.restarted}
        core.failure = None
        core.keeper.mended()
        core.retired.collect()
        return recovery

    def _behind(self, queues: Sequence[HardwareQueue]) -> list[HardwareQueue]:
        """Return the queues with work in flight; all queues if the link is gone."""
        try:
            return [queue for queue in queues if queue.timeline.value < queue.timeline.last]
        except LinkError:
            return [*queues]

    def _lost(self, recovery: Recovery) -> tuple[Buffer, ...]:
        if not recovery.lost_placements:
            return ()
        kinds = recovery.lost_placements
        found = [one for one in self.buffers if one.placement in kinds and not one.closed]
        return tuple(sorted(found, key=lambda one: int(one.address)))

    # ---- automatic recovery ------------------------------------------------------------------

    def heal(self) -> None:
        """Reset the device if it has failed and `policy` is "recover"; takes the device's lock. If
        the reset fails, the failure stays, and carries the reason."""
        if self._policy != "recover":
            return
        core = self.core
        with core.lock:
            failure = core.failure
            if failure is None or failure is self._beyond or self._resetting or core.closed:
                return
            self._beyond = failure
            try:
                recovery = self.reset()
            except UgpuError as error:
                failure.add_facts(recovery=f"failed: {error}")
                return
            self._beyond = None
            lost = [f"{one.size} bytes at {int(one.address):#x}" for one in recovery.lost]
            failure.add_facts(recovered=recovery.level.label)
            if recovery.memory_lost:
                failure.add_facts(lost=", ".join(lost) or "no buffer")
            log.warning("%s: recovered: %s", core.name, recovery)

    def tell(self, timeline: Timeline) -> None:
        """Raise the failure that lost work of the timeline's queue, if it was not reported yet.
        Called without the lock."""
        if self.untold:
            with self.core.lock:
                failure = self.untold.pop(timeline, None)
                if failure is not None and failure is self._shared:
                    self.untold.clear()  # no queue had lost work: reporting it once is enough
            if failure is not None:
                raise failure

    def tell_all(self) -> None:
        """Raise the failures of all queues, as one error. Called without the lock."""
        if self.untold:
            with self.core.lock:
                failures = [*self.untold.values()]
                self.untold.clear()
            if failures:
                raise failures[-1]

    def epoch(self, timeline: Timeline) -> int:
        """Return a number that changes when a reset loses work that a timeline would have reached.
        Called without the lock."""
        return timeline.restarts if self.core.is_own(timeline) else self.core.resets


def _plain(failure: UgpuError | None, queues: Sequence[HardwareQueue]) -> Recovery:
    """Return the report for a driver whose only rung sets all queues up again."""
    reason = str(failure) if failure is not None else "no failure is known"
    done = Attempt("all queues", Level.QUEUE, True, 0.0)
    return Recovery(Diagnosis(Level.QUEUE, reason), (done,), tuple(queues))
