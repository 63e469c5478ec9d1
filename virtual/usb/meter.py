"""Virtual time, and the cost of transfers in it: times are computed, nothing sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Interval between polls of the card's engines, and the longest wait in one control transfer.
_LOOK_S, _SETTLE_S = 50e-6, 0.02


class VirtualClock:
    """Seconds since the enclosure was created. Thread-safe.

    The card works in real time: waiting for it also takes real time.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._lock = threading.Lock()
        self._now = 0.0
        self._sleep = sleep

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance time without waiting."""
        with self._lock:
            self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Advance time to a moment; no-op where it is in the past."""
        with self._lock:
            self._now = max(self._now, moment)

    def pause(self, seconds: float) -> None:
        """Let real time pass but no virtual time."""
        self._sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait for the card: real time passes too."""
        self._sleep(seconds)
        self.advance(seconds)


@dataclass(frozen=True)
class Costs:
    """Duration of transfers in seconds.

    control_s: a control transfer of any length. bulk_s: fixed cost of each bulk transfer, in
    addition to its bytes. A link carries control and bulk transfers, in both directions, at the
    same time. Each endpoint has its own timeline (see Meter.move), and control transfers run one
    after the other.

    Rates in bytes/s. sram_rate: the SRAM's DMA engine (tinygrad's authors measured 323 MB/s).
    write_dword_s, read_dword_s: a streamed memory request by the bridge's 8051 (asm2464pd-firmware
    USBGPU.md: about 4 and 2 MB/s). control_s is inferred: 100 to 200 us are usual.
    """

    control_s: float = 150e-6
    bulk_s: float = 30e-6
    sram_rate: float = 323e6
    high_speed_rate: float = 40e6
    write_dword_s: float = 1e-6
    read_dword_s: float = 2e-6


@dataclass
class Count:
    """Transfers of one kind, and the bytes that they carried."""

    transfers: int = 0
    bytes: int = 0


@dataclass
class Meter:
    """Counts of transfers by kind: "control in", "control out", "bulk in", "bulk out".

    busy: whether the card's engines are running. They run in real time and take no virtual time: a
    control transfer waits for them, at most `_SETTLE_S` of real time. The host therefore sees the
    work that a board would have done during a transfer, and polls as often as it would on a board.
    """

    clock: VirtualClock
    costs: Costs
    busy: Callable[[], bool] = lambda: False
    counts: dict[str, Count] = field(default_factory=dict)
    _free_at: dict[int, float] = field(default_factory=dict)  # by endpoint: end of its data

    def control(self, kind: str, size: int) -> None:
        """Count a control transfer and advance the clock by its duration."""
        self._count(f"control {kind}", size)
        self.clock.advance(self.costs.control_s)

    def settle(self) -> None:
        """Wait for the card's engines. Called before a control transfer, which may read their
        results, and after it, as they may release bulk data."""
        for _ in range(int(_SETTLE_S / _LOOK_S)):
            if not self.busy():
                break
            self.clock.pause(_LOOK_S)

    def move(self, endpoint: int, seconds: float) -> None:
        """Mark an endpoint busy for `seconds`, after its earlier transfers."""
        start = max(self._free_at.get(endpoint, 0.0), self.clock.now())
        self._free_at[endpoint] = start + seconds

    def begin(self, endpoint: int) -> None:
        """Begin a bulk transfer. One that is queued behind another has no fixed cost."""
        if self._free_at.get(endpoint, 0.0) <= self.clock.now():
            self.move(endpoint, self.costs.bulk_s)

    def bulk(self, kind: str, endpoint: int, size: int) -> float:
        """Count a bulk transfer that has ended; return the moment when its last byte crosses."""
        self._count(f"bulk {kind}", size)
        return max(self._free_at.get(endpoint, 0.0), self.clock.now())

    def _count(self, kind: str, size: int) -> None:
        count = self.counts.setdefault(kind, Count())
        count.transfers += 1
        count.bytes += size

    @property
    def transfers(self) -> int:
        """Return the number of transfers of all kinds."""
        return sum(count.transfers for count in self.counts.values())

    @property
    def bytes(self) -> int:
        """Return the number of bytes of all kinds."""
        return sum(count.bytes for count in self.counts.values())

    def clear(self) -> None:
        """Reset the counts; the clock continues."""
        self.counts.clear()
