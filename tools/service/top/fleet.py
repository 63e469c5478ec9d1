"""Read the telemetry of all open devices, independently of each other.

Every device is read by a thread of its own, through the observer interface of the process that owns
it (hcq.device.observe). A device that does not answer keeps its last values, is marked, and delays
no other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ugpu.hcq.device import observe
from ugpu.hcq.device.observe import Reader
from ugpu.hcq.errors import Closed, DeviceNotFound, UgpuError
from ugpu.hcq.state.telemetry import Telemetry

LIMIT_S = 0.5  # TIMEOUT: how long a device may take to answer
KEPT = 240  # values of a history


@dataclass
class Card:
    """The latest data of one device. problem: why there is no newer data. kernels_per_s: between
    the last two answers. history: values of each sensor, by name and label, oldest first. number:
    which of the open devices with this name, from 1; it stays while the device is open."""

    device: str
    path: Path | None = None
    last: Telemetry | None = None
    problem: str = ""
    kernels_per_s: float | None = None
    history: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    number: int = 1

    @property
    def label(self) -> str:
        """The device's name, which no other card of a fleet has: the second is "NAME #2"."""
        return self.device if self.number == 1 else f"{self.device} #{self.number}"

    @property
    def state(self) -> str:
        """ "ok", "failed", "closing", "no answer", or "not open"."""
        if self.path is None:
            return "not open"
        if self.problem or self.last is None:
            return "no answer"
        return self.last.state

    def take(self, telemetry: Telemetry) -> None:
        """Record an answer; a repeated one changes nothing."""
        before, self.problem = self.last, ""
        if before is not None and telemetry.time <= before.time:
            return
        if before is not None:
            passed = telemetry.time - before.time
            self.kernels_per_s = max(0, telemetry.launches - before.launches) / passed
        self.last = telemetry
        for sample in telemetry.samples:
            key = sample.name, sample.label
            self.history.setdefault(key, deque(maxlen=KEPT)).append(sample.value)

    def as_json(self) -> dict[str, object]:
        """Return the card for --json: telemetry, with `state` as in this class."""
        telemetry = {} if self.last is None else self.last.as_json()
        return {
            "device": self.device, **telemetry, "number": self.number, "state": self.state,
            "problem": self.problem, "kernels_per_s": self.kernels_per_s,
        }  # fmt: skip


class Watch:
    """Reads one device. card: its data; other threads do not replace it."""

    def __init__(self, path: Path, limit_s: float = LIMIT_S) -> None:
        self.card = Card(observe.device_of(path), path)
        self._limit_s = limit_s
        self._reader: Reader | None = None

    def step(self) -> bool:
        """Read once; return False if the device's owner has closed it or is gone."""
        assert self.card.path is not None
        try:
            if self._reader is None:
                self._reader = Reader(self.card.path, self._limit_s)
            answer = self._reader.read()
            self.card.device = answer.device  # the socket's name is an abbreviation of a long one
            self.card.take(answer)
        except (Closed, DeviceNotFound) as error:
            self.card.problem = str(error)
            self.close()
            return False
        except UgpuError as error:
            self.card.problem = error.message
            self.close()  # a late answer would be mistaken for the next one
        return True

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Fleet:
    """All devices. idle: names of devices that may be open in no process. A context manager."""

    def __init__(
        self, folder: Path | None, idle: Iterable[str] = (), limit_s: float = LIMIT_S
    ) -> None:
        self.folder = folder
        self.idle = tuple(idle)
        self.interval_s = 1.0
        self._limit_s = limit_s
        self._watches: dict[Path, Watch] = {}
        self._threads: dict[Path, threading.Thread] = {}
        self._numbers: dict[Path, tuple[str, int]] = {}
        self._stopped = threading.Event()

    def once(self) -> list[Card]:
        """Read every device once, all at the same time."""
        watches = [Watch(path, self._limit_s) for path in observe.sockets(self.folder)]
        if not watches:
            return self._sorted([])
        with ThreadPoolExecutor(len(watches)) as pool:
            there = list(pool.map(Watch.step, watches))
        for watch in watches:
            watch.close()
        answers = zip(watches, there, strict=True)
        return self._sorted([watch.card for watch, open_now in answers if open_now])

    def look(self) -> list[Card]:
        """Start to read devices opened since the last call, and return the known data of all. Never
        waits for a device."""
        for path in observe.sockets(self.folder):
            if path not in self._threads and not self._stopped.is_set():
                watch = self._watches[path] = Watch(path, self._limit_s)
                thread = threading.Thread(target=self._run, args=(path, watch), daemon=True)
                self._threads[path] = thread
                thread.start()
        for path in [path for path, thread in self._threads.items() if not thread.is_alive()]:
            del self._threads[path], self._watches[path]
        return self._sorted([watch.card for watch in self._watches.values()])

    def _run(self, path: Path, watch: Watch) -> None:
        while not self._stopped.is_set() and watch.step():
            self._stopped.wait(self.interval_s)
        watch.close()

    def _sorted(self, cards: Sequence[Card]) -> list[Card]:
        open_now = {card.device for card in cards}
        self._number(cards)
        idle = [Card(name) for name in self.idle if name not in open_now]
        return [*sorted(cards, key=lambda card: (card.device, card.number)), *idle]

    def _number(self, cards: Sequence[Card]) -> None:
        """Distinguish the devices of one name by the lowest number that is free: the series of a
        device goes on when its process is started again.

        The number of a device that has not been reached is for this time only: its socket may be
        one that a killed process has left.
        """
        names = {card.path: card.device for card in cards if card.path is not None}
        kept = self._numbers.items()
        self._numbers = {path: held for path, held in kept if names.get(path) == held[0]}
        taken = set(self._numbers.values())
        for card in sorted(cards, key=lambda card: card.last is None):
            if card.path is None:
                continue
            held = self._numbers.get(card.path)
            if held is None:
                free = (n for n in count(1) if (card.device, n) not in taken)
                held = card.device, next(free)
                taken.add(held)
                if card.last is not None or card.problem:
                    self._numbers[card.path] = held
            card.number = held[1]

    def close(self) -> None:
        """End the threads; each ends within its device's limit."""
        self._stopped.set()
        for thread in list(self._threads.values()):
            thread.join(2 * self._limit_s)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
