"""Virtual time, and what transfers cost in it: figures are computed, nothing sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A look at the card's engines, and the longest wait for them in one control transfer.
_LOOK_S, _SETTLE_S = 50e-6, 0.02


class VirtualClock:
    """Seconds since the enclosure was made. Any thread may call.

    Waiting for the card, which works in real time, also passes real time.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._lock = threading.Lock()
        self._now = 0.0
        self._sleep = sleep

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass without waiting."""
        with self._lock:
            self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Let time pass up to a moment, which may lie in the past."""
        with self._lock:
            self._now = max(self._now, moment)

    def pause(self, seconds: float) -> None:
        """Let real time pass, and no virtual time."""
        self._sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait for the card: real time passes too."""
        self._sleep(seconds)
        self.advance(seconds)


@dataclass(frozen=True)
class Costs:
    """Seconds that transfers take. control_s: a control transfer, any length. bulk_s: what each
    bulk transfer takes besides its bytes.

    A link carries control and bulk transfers, and both directions, at once: each endpoint has its
    own time (see Meter.move), and control transfers take theirs one after the other.

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
    """Counts of transfers over the cable, by kind: "control in", "control out", "bulk in", "bulk
    out".

    busy: whether the card's engines are at work. They work in real time and take no virtual time:
    a control transfer waits for them, at most `_SETTLE_S` of real time. So the host finds what a
    board would have done during a transfer, and looks as often as it would there.
    """

    clock: VirtualClock
    costs: Costs
    busy: Callable[[], bool] = lambda: False
    counts: dict[str, Count] = field(default_factory=dict)
    _free_at: dict[int, float] = field(default_factory=dict)  # by endpoint: its data has crossed

    def control(self, kind: str, size: int) -> None:
        """Count a control transfer and let it take its time."""
        self._count(f"control {kind}", size)
        self.clock.advance(self.costs.control_s)

    def settle(self) -> None:
        """Wait for the card's engines: before a control transfer, which may look at what they did,
        and after it, as they may let bulk data go out.
        """
        for _ in range(int(_SETTLE_S / _LOOK_S)):
            if not self.busy():
                break
            self.clock.pause(_LOOK_S)

    def move(self, endpoint: int, seconds: float) -> None:
        """Let an endpoint be busy for so long, after what it moved before."""
        start = max(self._free_at.get(endpoint, 0.0), self.clock.now())
        self._free_at[endpoint] = start + seconds

    def begin(self, endpoint: int) -> None:
        """Begin a bulk transfer: one that waits behind another costs no time of its own."""
        if self._free_at.get(endpoint, 0.0) <= self.clock.now():
            self.move(endpoint, self.costs.bulk_s)

    def bulk(self, kind: str, endpoint: int, size: int) -> float:
        """Count a bulk transfer that has ended; returns the moment when its last byte crosses."""
        self._count(f"bulk {kind}", size)
        return max(self._free_at.get(endpoint, 0.0), self.clock.now())

    def _count(self, kind: str, size: int) -> None:
        count = self.counts.setdefault(kind, Count())
        count.transfers += 1
        count.bytes += size

    @property
    def transfers(self) -> int:
        """Transfers of all kinds."""
        return sum(count.transfers for count in self.counts.values())

    @property
    def bytes(self) -> int:
        """Bytes of all kinds."""
        return sum(count.bytes for count in self.counts.values())

    def clear(self) -> None:
        """Begin counting anew; the clock goes on."""
        self.counts.clear()
