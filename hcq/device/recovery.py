"""Healer: recovers a device after a failure, on request or automatically (`on_fault`).

With `on_fault="recover"` the first thread that meets a failure resets the device and continues. The
failure is still reported, once for each queue that lost work: by the next wait for that queue, or
by the next `synchronize`. Work on queues that were not set up again continues, and no failure is
reported for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument, ChipError, DeviceHang, LinkError, UgpuError
from ugpu.hcq.state import trace
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level
from ugpu.hcq.state.weak_registry import WeakRegistry
from ugpu.hcq.work.recovery import Recovery

if TYPE_CHECKING:
    from ugpu.hcq.device.state import CoreState
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.queue import HardwareQueue

log = logging.getLogger(__name__)

FAULT_POLICIES = ("raise", "recover")


class Healer:
    """Recovery of one device. Its lock is held unless a method says otherwise.

    Attributes:
        policy: "raise" or "recover".
        last: report of the last reset.
        buffers: those whose content a reset may lose.
        repeated: for a driver, inside `recover`: the previous reset was interrupted, and its losses
            were not reported.
    """

    def __init__(self, core: CoreState) -> None:
        self.core = core
        self.last: Recovery | None = None
        self.buffers: WeakRegistry[Buffer] = WeakRegistry()
        self._policy = "raise"
        self._beyond: UgpuError | None = None  # a failure that a reset did not fix
        self._resetting = False
        self._unfinished = self.repeated = False
        self._reached: dict[HardwareQueue, int] = {}  # before the reset, or the first of several

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

    def reset(self, only: Level | None = None, *, asked: bool = False) -> Recovery:
        """See Device.reset. After an exception the device has failed, and can be reset again.
        asked: by the calling thread, for a user."""
        core = self.core
        core.check_open()
        failure, self._resetting = core.failure, True
        self.repeated, self._unfinished = self._unfinished, True
        try:
            with trace.step("reset", device=core.name, failure=failure):
                recovery = self._recover(failure, only, asked)
        except BaseException as error:
            if core.failure is None:
                core.failure = ChipError(
                    f"{core.name}: a reset was cut off; reset the device again", cause=repr(error)
                )
                core.losses.heard(core.failure)  # by the error that is being raised
            raise
        finally:
            self._resetting = False
        self._unfinished = False
        return recovery

    def _recover(self, failure: UgpuError | None, only: Level | None, asked: bool) -> Recovery:
        core = self.core
        core.last_failure = failure
        core.resets += 1
        error = core.losses.begin(failure, asked=asked)
        with contextlib.suppress(UgpuError):
            core.complete()  # for queues that the driver leaves as they are
        if core.replaying is not None:
            core.replaying.give_up()
        queues = core.driver.all_queues()
        # Work may end until the queue stops. It counts as lost: the driver's own work on the queue
        # raises the timeline, so its value cannot be read afterwards, nor after an interrupt.
        for queue in queues:
            self._reached.setdefault(queue, queue.timeline.reached_surely())
        ends = {queue: queue.timeline.last for queue in queues}
        recovery = core.driver.recover() if only is None else core.driver.recover(only)
        recovery = recovery or _plain(failure, queues)
        core.replaying = None
        concerned = []
        for queue in recovery.restarted:
            timeline, reached, end = queue.timeline, self._reached[queue], ends[queue]
            timeline.restart()
            hidden = _hides(failure) and queue in (recovery.failed or recovery.restarted)
            timeline.lose((timeline.clean if hidden else reached) + 1, end)
            timeline.clean = max(timeline.clean, end)
            if reached < end or queue in recovery.failed:
                concerned.append(queue)
        self._reached.clear()
        self.last = recovery = replace(recovery, lost=self._lost(recovery))
        core.losses.end([queue.timeline for queue in concerned])
        if failure is not None and self.policy == "recover":
            core.losses.shared = None if concerned else failure
            told = [queue.timeline for queue in concerned or recovery.restarted]
            core.losses.automatic |= dict.fromkeys(told, error)
        core.was_reset(all_queues=len(recovery.restarted) == len(queues))
        return recovery

    def _lost(self, recovery: Recovery) -> tuple[Buffer, ...]:
        if not recovery.lost_placements:
            return ()
        kinds = recovery.lost_placements
        found = [one for one in self.buffers if one.placement in kinds and not one.closed]
        return tuple(sorted(found, key=lambda one: int(one.address)))

    # ---- automatic recovery ------------------------------------------------------------------

    def recover(self) -> None:
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


def _hides(failure: UgpuError | None) -> bool:
    """Return whether work may have ended although the failure concerns it: a kernel that faults may
    continue to its end."""
    return failure is not None and not isinstance(failure, DeviceHang | LinkError)


def _plain(failure: UgpuError | None, queues: Sequence[HardwareQueue]) -> Recovery:
    """Return the report for a driver whose only rung sets all queues up again."""
    reason = str(failure) if failure is not None else "no failure is known"
    done = Attempt("all queues", Level.QUEUE, True, 0.0)
    return Recovery(Diagnosis(Level.QUEUE, reason), (done,), tuple(queues))
