"""The engine behind request F2: bulk data to and from SRAM, by sectors and slots.

Facts: asm2464pd-firmware handmade/src/main.c (registers C414, C415, C426 to C429), tinygrad
runtime/ops_amd.py and asm2464pd-firmware pcie/test_sram_verify.py (a read waits for the card's
write to the completion queue).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ugpu.virtual.usb.memory import SECTOR, SLOT_SIZE, SLOTS, SRAM, Memory


class SramEngine:
    """One transfer at a time, started by `arm`; `remaining` bytes are still to be transferred.

    shuffled: the sectors of each piece of data are stored in random order. between: called after
    each sector stored that way, so that a test sees what the card may see.
    """

    def __init__(
        self,
        memory: Memory,
        object_to: Callable[[str], None],
        seed: int,
        *,
        shuffled: bool = False,
        between: Callable[[], None] | None = None,
    ) -> None:
        self._memory = memory
        self._object_to = object_to
        self._random = random.Random(seed)
        self._shuffled = shuffled
        self._between = between
        self._first, self._slots = 0, 1
        self._done = 0
        self.remaining = 0
        self.inward = False  # whether the transfer is to the host
        self.unlocked = False

    def reset(self) -> None:
        """Disarm."""
        self.remaining = 0
        self.unlocked = False
        self._memory.end_watch()

    def arm(self, sectors: int, inward: bool, first: int, slots: int) -> None:
        """Begin a transfer; an unfinished one is abandoned."""
        if self.remaining:
            self._object_to(f"F2 with {self.remaining} bytes of the transfer before outstanding")
        slots = slots or 1
        if first >= SLOTS or first + slots > SLOTS or sectors * SECTOR > slots * SLOT_SIZE:
            self._object_to(
                f"F2 of {sectors} sectors in {slots} slots from {first} on: data wraps around"
            )
        self._memory.scribble_submission()
        self._first, self._slots, self._done = first, slots, 0
        self.remaining = sectors * SECTOR
        self.inward = inward
        self.unlocked = False
        if inward:
            self._memory.watch_completion()
        else:
            self._memory.end_watch()

    def ready(self) -> bool:
        """Return whether a transfer to the host may flow: the card completed an entry since
        `arm`."""
        if self.inward and self.remaining and not self.unlocked:
            self.unlocked = self._memory.completed()
        return self.unlocked

    @property
    def awaits_card(self) -> bool:
        """Return whether the transfer waits for the card, which runs independently."""
        return bool(self.inward and self.remaining and not self.unlocked)

    def _place(self, at: int) -> int:
        """Return the address of byte `at` of the transfer: it wraps to the first slot, and at the
        SRAM's end."""
        at %= self._slots * SLOT_SIZE
        return SRAM.offset + (self._first * SLOT_SIZE + at) % SRAM.size

    def put(self, content: memoryview) -> int:
        """Accept data from the host; return how many bytes fit."""
        if self.inward:
            return 0
        content = content[: self.remaining]
        whole = [
            (self._done + at, content[at : at + self._run(self._done + at, len(content) - at)])
            for at in self._starts(len(content))
        ]
        if self._shuffled:
            self._random.shuffle(whole)
        for at, part in whole:
            place = self._place(at)
            self._memory.shared[place : place + len(part)] = part
            if self._shuffled and self._between is not None:
                self._between()
        self._done += len(content)
        self.remaining -= len(content)
        return len(content)

    def _run(self, at: int, size: int) -> int:
        """Return how many bytes from `at` on are contiguous."""
        step = SECTOR if self._shuffled else SLOT_SIZE
        return min(size, step - at % step)

    def _starts(self, size: int) -> list[int]:
        starts, at = [], 0
        while at < size:
            starts.append(at)
            at += self._run(self._done + at, size - at)
        return starts

    def take(self, size: int) -> bytes:
        """Return up to `size` bytes for the host; `ready` must have returned True."""
        size = min(size, self.remaining)
        parts = []
        while size:
            length = min(size, SLOT_SIZE - self._done % SLOT_SIZE)
            place = self._place(self._done)
            parts.append(bytes(self._memory.shared[place : place + length]))
            self._done += length
            self.remaining -= length
            size -= length
        return b"".join(parts)
