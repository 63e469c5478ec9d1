"""Timelines: monotonically rising 64-bit counters in memory. Queues signal them; any thread or
queue can wait for them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.errors import LinkError
from ugpu.hcq.work.buffer import Buffer, MemoryDriver, MemoryState

if TYPE_CHECKING:
    from ugpu.hcq.errors import DeviceHang, UgpuError
    from ugpu.hcq.work.state import OpenDevice

SIZE = 16  # bytes of memory a timeline takes: the value, then 8 bytes the device may use
VALUE_SIZE = 8
_HALF = 1 << 31
# Timeline values that submissions get while they are captured: no timeline ever reaches them. Bits
# 32 and up hold the capture's serial number, so that a value of another capture is recognised.
CAPTURED = 1 << 62


class TimelineDriver(MemoryDriver, Protocol):
    """What timelines use of a driver."""

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None: ...


class Link(Protocol):
    """Raises a timeline to values that one of another device has reached: see hcq.device.follow.

    Attributes:
        source: the timeline of the other device.
        target: the timeline that is raised.
        problem: why a requested value never comes; None if it may.
    """

    source: Timeline
    target: Timeline
    problem: DeviceHang | None

    def follow(self, value: int) -> None: ...
    def forget(self) -> None: ...
    def stop(self) -> None: ...


class Links(Protocol):
    """All links of one device with others: see hcq.device.follow.

    Attributes:
        raising: links whose target is the device's.
        reading: links whose source is the device's.
    """

    raising: list[Link]
    reading: list[Link]

    def gate(self, source: Timeline) -> Timeline: ...
    def relay(self, target: Timeline) -> Timeline: ...
    def drop(self, follower: Link) -> None: ...


class LostWork(Protocol):
    """Work that resets lost: see hcq.work.losses."""

    @property
    def latest(self) -> UgpuError: ...

    def of(self, timeline: Timeline, value: int) -> UgpuError | None: ...
    def check(self, timeline: Timeline, value: int) -> None: ...
    def submitted(self, timeline: Timeline, value: int) -> None: ...
    def tell_own(self, timeline: Timeline) -> None: ...
    def tell_recovered(self, timeline: Timeline) -> None: ...


class TimelineState(MemoryState, Protocol):
    """What timelines, and waits for them, use of their device."""

    @property
    def driver(self) -> TimelineDriver: ...
    @property
    def followers(self) -> Links: ...
    @property
    def losses(self) -> LostWork: ...

    def is_own(self, timeline: Timeline) -> bool: ...
    def last_value(self, timeline: Timeline) -> int: ...
    def wait_for(self, timeline: Timeline, value: int | None, limit_s: float | None) -> None: ...


class Timeline:
    """A counter that the device raises. `memory` is a HOST buffer of SIZE bytes, owned by the
    timeline.

    `last` is the highest value returned by `advance`; `value` is the value that the device has
    reached.

    Attributes:
        clean: a wait has found all work up to this value ended and free of failures.
        lost: ranges of values whose work resets lost (hcq.work.losses), rising: last value, first
            value, number of the reset.
    """

    clean = 0
    lost: Sequence[tuple[int, int, int]] = ()

    def __init__(self, core: TimelineState, memory: Buffer, name: str) -> None:
        self.core = core
        self.memory = memory
        self.address = int(memory.address)
        self.name = name
        self.last = 0
        self._seen = 0
        assert memory.access is not None
        self._view = memory.access
        self._view[:SIZE] = bytes(SIZE)

    @property
    def device(self) -> OpenDevice:
        """The device that the counter belongs to."""
        return self.core.device

    @property
    def value(self) -> int:
        """The value reached by the device. Takes one read of host memory, or of memory behind a
        bridge; the latter raises DeviceLost once the bridge is gone."""
        view = self._view
        if isinstance(view, memoryview):
            return int.from_bytes(view[:VALUE_SIZE], "little")
        # A dword is read in one access, and the high bits are known: the value is never far from
        # `last`. It may be ahead where values are another timeline's (hcq.device.follow).
        ahead = int.from_bytes(view[:4], "little") - self.last + _HALF & 0xFFFF_FFFF
        value = self.last + ahead - _HALF
        self._seen = max(self._seen, value)
        return value

    def reached(self, value: int) -> bool:
        """Return whether the timeline has reached `value`; does not read memory if an earlier call
        has seen it."""
        if self._seen < value:
            self._seen = self.value
        return self._seen >= value

    def advance(self) -> int:
        """Return the next value; the caller must make sure that it is signalled."""
        self.last += 1
        return self.last

    def wait(self, value: int | None = None, *, limit_s: float | None = None) -> None:
        """Block until the timeline reaches `value` (default: `last`).

        Raises what the device reports meanwhile (PageFault, IllegalInstruction, ...), DeviceLost,
        or after `limit_s` (default: the device's) DeviceHang with the device's own diagnosis. If a
        reset lost the work that `value` marks the end of, raises the failure that was reset.
        """
        self.core.wait_for(self, value, limit_s)

    def reach(self, value: int) -> None:
        """Raise the timeline from the host, which carries over another device's progress
        (hcq.device.follow)."""
        self.last = max(self.last, value)
        if value > self.value:
            self._view[:VALUE_SIZE] = value.to_bytes(VALUE_SIZE, "little")

    def restart(self) -> None:
        """Count all values as reached after a reset, since none will be signalled; those that were
        not reached are lost."""
        self.lose(self.reached_surely() + 1, self.last)
        self._view[:VALUE_SIZE] = self.last.to_bytes(VALUE_SIZE, "little")

    def lose(self, first: int, last: int) -> None:
        """Record that the device's last reset lost the work of these values."""
        reset, lost = self.core.resets, [*self.lost]
        if lost and lost[-1][2] == reset and first <= last:
            known, begin, _ = lost.pop()
            first, last = min(first, begin), max(last, known)
        if lost:
            first = max(first, lost[-1][0] + 1)
        if first <= last:
            self.lost = [*lost, (last, first, reset)]

    def reached_surely(self) -> int:
        """Return a value that was reached, during a reset, which may have taken the memory of a
        timeline behind a bridge."""
        if isinstance(self._view, memoryview):
            return self.value
        seen = self._seen
        with contextlib.suppress(LinkError):
            value = self.value
            if seen <= value <= self.last:
                return value
        return seen

    def close(self) -> None:
        """Free the memory of a timeline made by Device.timeline, once work in flight has ended;
        idempotent. The value stays as it is."""
        if not self.memory.closed:
            self.detach()
            self.memory.close()

    def detach(self) -> None:
        """Release the memory, which its owner frees; the value stays as it is."""
        kept = bytearray(SIZE)
        with contextlib.suppress(LinkError):  # behind a bridge that is gone
            kept[:VALUE_SIZE] = max(0, self.value).to_bytes(VALUE_SIZE, "little")
        self._view = memoryview(kept)
        self.memory.view = self.memory.remote = None

    def __repr__(self) -> str:
        return f"<Timeline {self.name} {self.value}/{self.last}>"
