"""Registers of a card by index, and what was last read and written there.

Where each access is a message over a link, known values are not read again, and accesses can be
recorded for something else to run (bare.program).
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.fields import BoundRegister, Register, RegisterBlock
from ugpu.hcq.transport.base import Window

ALL_ONES = 0xFFFF_FFFF
Access = tuple[bool, int, int]  # whether it writes, the register's index, the value
RECENT = 1024  # accesses kept for reports


class Recorder(Protocol):
    """Takes register accesses in place of the bus. wait: until bits have a value, or any other
    value (`differs`). keep: `take` gets the register's value at that point, once everything is
    done. fill, put: write zeros or `words` to memory at an address of the
    firmware's context."""

    def read32(self, index: int) -> int: ...
    def write32(self, index: int, value: int) -> None: ...
    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None: ...
    def keep(self, index: int, take: Callable[[int], object]) -> None: ...
    def fill(self, address: int, size: int) -> None: ...
    def put(self, address: int, words: Sequence[int]) -> None: ...


class RegisterBus:
    """Registers by absolute dword index, through a BAR or, beyond its end, an index/data pair.

    The index register is read back before the data access: a posted index write could otherwise
    arrive after it (Linux 6.12 amdgpu_device.c, amdgpu_device_indirect_rreg). Where accesses are
    messages, they arrive in order, at least a microsecond apart, and nothing is read back.
    """

    def __init__(self, window: Window, *, messages: bool = False, runs: bool = True) -> None:
        """messages: each access is a message (Traits.register_messages). runs: neighbouring
        registers can be accessed at once, without a message for each."""
        self.window = window
        self.messages = messages
        self.runs = runs
        self._known: dict[int, int] | None = None  # values by index, inside `setting_up`
        self._aimed: int | None = None  # address that the pair is aimed at, inside `setting_up`
        self._kept: dict[int, int] = {}  # values by index, see `keep`
        self._relied: dict[int, int] = {}  # values by index, see `rely`
        self.selectors: frozenset[int] = frozenset()  # registers that select what others mean
        self.recorder: Recorder | None = None  # see `recorded`
        # Called with the register's index (None: several) before each access while parts of the
        # chip may have no power. False: the register has no power and is left alone (bare.rest).
        self.rouse: Callable[[int | None], bool] | None = None
        self.index_register: int | None = None  # dword indices, once they are known
        self.data_register: int | None = None
        # The last accesses, for the evidence of a failure: whether it was a write, index, value.
        self.recent: deque[Access] = deque(maxlen=RECENT)

    @contextmanager
    def recorded(self, recorder: Recorder | None) -> Iterator[None]:
        """Send the accesses inside to `recorder`, or to the chip itself if it is None. They must
        not include registers that the index/data pair reaches, or banked ones that the recorder
        cannot select."""
        if self.rouse is not None:
            self.rouse(None)
        before, self.recorder = self.recorder, recorder
        try:
            yield
        finally:
            self.recorder = before

    def read32(self, index: int) -> int:
        if self.rouse is not None and not self.rouse(index):
            return ALL_ONES
        if self.recorder is not None:
            return self.recorder.read32(index)
        offset = index * 4
        if offset + 4 <= self.window.size:
            value = self.window.read32(offset)
        else:
            value = self.window.read32(self._select(offset))
        self.recent.append((False, index, value))
        if self._known is not None:
            self._known[index] = value
        return value

    def current32(self, index: int) -> int:
        """See hcq.registers.fields.Bus. Inside `setting_up`, return the value last read or
        written there."""
        if self.recorder is not None:
            return self.recorder.read32(index)
        known = None if self._known is None else self._known.get(index)
        if known is None:
            known = self._kept.pop(index, None)
        return self.read32(index) if known is None or known == ALL_ONES else known

    def write32(self, index: int, value: int) -> None:
        if self.rouse is not None and not self.rouse(index):
            return
        self.recent.append((True, index, value))  # even if the write raises
        self._kept.pop(index, None)
        self._relied.pop(index, None)
        if self.recorder is not None:
            self.recorder.write32(index, value)
            return
        if self._known is not None:
            if index in self.selectors:
                self._known.clear()
            self._known[index] = value
        offset = index * 4
        if offset + 4 <= self.window.size:
            self.window.write32(offset, value)
            return
        data = self._select(offset)
        self.window.write32(data, value)
        if not self.messages:
            self.window.read32(data)

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Where accesses are messages, let updates inside use known register values instead of
        reads. Only the caller may change the registers that it updates. Polls still read."""
        before = self._known
        if self.messages and before is None:
            self._known = {}
        try:
            yield
        finally:
            self._known = before
            self._aimed = None

    def read_ahead(self, first: BoundRegister, last: BoundRegister) -> None:
        """Inside `setting_up`, read all registers from `first` to `last` at once, for the updates
        that follow. Every place between them must be a register that reading does not change."""
        if self._known is None or not self.runs:
            return
        if self.rouse is not None and not self.rouse(None):
            return
        places = range(first.index, last.index + 1)
        if all(place in self._kept for place in places):
            self._known |= {place: self._kept.pop(place) for place in places}
            return
        data = self.window.read(first.index * 4, len(places) * 4)
        for place, (value,) in zip(places, struct.iter_unpack("<I", data), strict=True):
            self.recent.append((False, place, value))
            self._known[place] = value

    def keep(self, register: BoundRegister) -> None:
        """Inside `setting_up`, keep a register's value for its next update, wherever that is. The
        register must not be banked, and only the caller's accesses and resets may change it. The
        caller calls `forget` after a reset."""
        if self._known is not None and register.index in self._known:
            self._kept[register.index] = self._known[register.index]

    def rely(self, register: BoundRegister, value: int | None) -> None:
        """Note that a register has `value`, which only the caller's writes and resets change; None:
        that it may have another one. See `relied`."""
        self._relied.pop(register.index, None)
        if self.messages and value is not None:
            self._relied[register.index] = value

    def relied(self, register: BoundRegister) -> int | None:
        """Return the value that a register has by `rely`; None if the caller must read or write it:
        always, where an access costs little, and after a write or `forget`."""
        return self._relied.get(register.index)

    def forget(self) -> None:
        """Drop all kept values: the chip, or a part of it, was reset."""
        self._kept.clear()
        self._relied.clear()

    def push(self, register: BoundRegister) -> None:
        """Have the writes before this call arrive, by reading a register. Messages arrive in order,
        and a program's accesses are complete one after the other: nothing is read then."""
        if not self.messages and self.recorder is None:
            self.read32(register.index)

    def take(self, register: BoundRegister, taker: Callable[[int], object]) -> None:
        """Give a register's value to `taker`: now, or when the program that reads it has run."""
        if self.recorder is not None:
            self.recorder.keep(register.index, taker)
        else:
            taker(self.read32(register.index))

    def worthwhile(self, all_of: Sequence[int], needed: Sequence[int]) -> Sequence[int]:
        """Return which of `all_of`, places in a row of neighbouring registers, to write, where only
        those at `needed` must be: all, unless each costs a message of its own."""
        return all_of if self.runs else needed

    def read_with(self, index: int, others: Sequence[int]) -> int:
        """Read a register by its index. Where accesses are messages, the registers up to the last
        of `others` (distances from `index`) are read at once, and `others` are kept: see `keep`."""
        if not (self.messages and self.runs):
            return self.read32(index)
        data = self.window.read(4 * index, 4 * (others[-1] + 1))
        words: list[int] = [word for (word,) in struct.iter_unpack("<I", data)]
        self.recent.append((False, index, words[0]))
        self._kept |= {index + other: words[other] for other in others}
        return words[0]

    def _select(self, address: int) -> int:
        """Aim the index/data pair at byte `address`; return the BAR offset of its data register.
        The pair stays aimed inside `setting_up`."""
        if self.index_register is None or self.data_register is None:
            raise BadArgument(
                "the register lies outside its BAR, and the index/data pair is not set up",
                address=address,
            )
        if self._aimed != address:
            self.window.write32(self.index_register * 4, address)
            if not self.messages:
                self.window.read32(self.index_register * 4)
            self._aimed = None if self._known is None else address
        return self.data_register * 4


def described(
    accesses: Iterable[Access],
    blocks: Sequence[RegisterBlock],
    registers: dict[int, Register],
) -> list[str]:
    """Return accesses by name, with the fields that are not 0. An access repeated in a row is one
    line with its count. registers: those found before, by index; new ones are added."""
    lines: list[str] = []
    known: dict[Access, str] = {}  # polls repeat the same few
    for access, repeated in itertools.groupby(accesses):
        line = known.get(access)
        if line is None:
            index = access[1]
            register = registers.get(index)
            if register is None:
                place = next(filter(None, (block.find(index) for block in blocks)), None)
                if place is not None:
                    register = registers[index] = place.register
            line = known[access] = _described(access, register)
        times = sum(1 for _ in repeated)
        lines.append(line + (f" ({times} times)" if times > 1 else ""))
    return lines


def _described(access: Access, register: Register | None) -> str:
    is_write, index, value = access
    what = "write" if is_write else "read"
    if register is None:
        return f"{what} register {index:#x} {value:#x}"
    parts = []
    for name, field in register.fields.items() if value else ():
        part = value >> field.lsb & ((1 << field.width) - 1)
        if part:
            parts.append(f"{name} {part:#x}")
    return f"{what} {register.name} {value:#x}" + (f"  [{', '.join(parts)}]" if parts else "")
