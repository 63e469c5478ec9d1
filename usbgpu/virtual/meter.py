"""Virtual time, and what transfers cost in it: figures are computed, nothing sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


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

    def sleep(self, seconds: float) -> None:
        """Wait for the card: real time passes too."""
        self._sleep(seconds)
        self.advance(seconds)


@dataclass(frozen=True)
class Costs:
    """Seconds that transfers take. control_s: a control transfer, any length. bulk_s: what each
    bulk transfer takes besides its bytes.

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
    """What crossed the cable, by kind: "control in", "control out", "bulk in", "bulk out".

    busy: whether the card is at work. A control transfer then takes its time in real time too, as
    the card does: else the host would look ten times where a board answers the first look.
    """

    clock: VirtualClock
    costs: Costs
    busy: Callable[[], bool] = lambda: False
    counts: dict[str, Count] = field(default_factory=dict)

    def control(self, kind: str, size: int) -> None:
        """Count a control transfer and let it take its time."""
        self._count(f"control {kind}", size)
        pass_time = self.clock.sleep if self.busy() else self.clock.advance
        pass_time(self.costs.control_s)

    def bulk(self, kind: str, size: int, seconds: float) -> None:
        """Count a bulk transfer whose bytes took `seconds`."""
        self._count(f"bulk {kind}", size)
        self.clock.advance(self.costs.bulk_s + seconds)

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
