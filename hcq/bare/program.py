"""Programs of register accesses: recorded from the code that makes them, run by the card itself.

Where an access from the host is a message over a link, a processor of the card runs many of them at
once. The code that sets a unit up is the same either way: its accesses go through the bus
(bare.bus), which hands them to a recorder here. Reads that the course depends on are made before,
all together.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ugpu.hcq.bare.bus import RegisterBus
from ugpu.hcq.work.command_buffer import Symbol


class AccessPackets(Protocol):
    """Packets of a processor of the card, as they are appended; each is completed before the next.
    words: what it executes. Symbols are constants."""

    words: list[int]

    def write_register(self, index: int, value: int) -> None: ...
    def wait_register(
        self, index: int, mask: int, value: int, *, differs: bool = False
    ) -> None: ...
    def store_register(self, address: Symbol, index: int) -> None: ...
    def copy_word(self, address: Symbol, source: int) -> None: ...
    def fill(self, destination: Symbol, value: int, size: int) -> None: ...
    def store_words(self, address: Symbol, words: Sequence[int]) -> None: ...


class AccessPrograms(ABC):
    """Runs programs of accesses. results: the most values that one returns. selector: dword index
    of the register that selects what banked registers mean; one selection counts at a time."""

    results: int

    def __init__(self, bus: RegisterBus) -> None:
        self.bus = bus
        self._foreseen: dict[_Place, int] = {}  # values read for the next program

    @property
    @abstractmethod
    def selector(self) -> int: ...

    @abstractmethod
    def packets(self) -> AccessPackets:
        """Return a program without packets."""

    @abstractmethod
    def run(self, words: Sequence[int], count: int = 0) -> list[int]:
        """Execute packets; return the `count` values that they stored (`place`). FirmwareSilent."""

    @abstractmethod
    def place(self, number: int) -> Symbol:
        """Return where a program stores its value `number`, from 1 on."""

    @abstractmethod
    def address(self, vram: int) -> int:
        """Return the processor's address of an offset in VRAM."""

    def zero(self, address: int, size: int) -> None:
        """As a step of `execute`: zero memory by its address. The processor's caches must not
        contain any of it."""
        assert self.bus.recorder is not None
        self.bus.recorder.fill(address, size)

    def put(self, place: int, content: bytes) -> None:
        """As a step of `execute`: write whole dwords of VRAM that the processor's caches do not
        have."""
        assert self.bus.recorder is not None
        words = [word for (word,) in struct.iter_unpack("<I", content)]
        self.bus.recorder.put(self.address(place), words)

    def fetch(self, wanted: Sequence[_Place]) -> dict[_Place, int]:
        """Read registers, each under its selection; the last selection stays active."""
        found: dict[_Place, int] = {}
        selected: int | None = None
        for start in range(0, len(wanted), self.results):
            part, packets = wanted[start : start + self.results], self.packets()
            for number, (selection, index) in enumerate(part, 1):
                if selection is not None and selection != selected:
                    packets.write_register(self.selector, selection)
                    selected = selection
                packets.store_register(self.place(number), index)
            found.update(zip(part, self.run(packets.words, len(part)), strict=True))
        return found

    def execute(
        self,
        *steps: Callable[[], object],
        read: Sequence[int] = (),
        foresee: Sequence[Callable[[], object]] = (),
    ) -> list[int]:
        """Have the card do the register accesses of `steps`, in order. Steps only read, change and
        await registers. Each step is called twice: to find out what it reads, and with those
        values. Values that steps keep are passed to them at the end. read: places in VRAM to read
        after the steps; returns their content. foresee: steps of the next lists. What they will
        read is read now, except for registers that `steps` change. Nothing else may change it
        meanwhile."""
        bus = self.bus
        look, ahead = _Reads(self.selector), _Reads(self.selector)
        for reads, those in ((look, steps), (ahead, foresee)):
            with bus.recorded(reads):
                for step in those:
                    step()
        if look.selection is not None:
            look.want(look.selection, self.selector)  # so that the fetch leaves it selected
        known, self._foreseen = self._foreseen, {}
        wanted = [each for each in ahead.wanted | look.wanted if each not in known]
        known |= self.fetch(wanted) if wanted else {}
        self._foreseen = {each: known[each] for each in ahead.wanted}
        with bus.recorded(record := _Record(self, known)):
            for step in steps:
                step()
        for each in [each for each in self._foreseen if each[1] in record.changed]:
            self._foreseen.pop(each)
        for place in read:
            record.read_word(self.address(place))
        return record.run()


_Place: TypeAlias = tuple[int | None, int]  # the selector's value (None: as it is), register index


class _Reads:
    """Recorder that finds the registers that are read before they are written; they read as 0."""

    def __init__(self, selector: int) -> None:
        self.wanted: dict[_Place, None] = {}
        self.selection: int | None = None
        self._selector = selector
        self._written: dict[int, int] = {}

    def want(self, selection: int | None, index: int) -> None:
        self.wanted[selection, index] = None

    def read32(self, index: int) -> int:
        if index in self._written:
            return self._written[index]
        self.want(self.selection, index)
        return 0

    def write32(self, index: int, value: int) -> None:
        if index == self._selector:
            self.selection = value
        else:
            self._written[index] = value

    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None:
        """Do nothing: the wait is recorded later."""

    def keep(self, index: int, take: Callable[[int], object]) -> None:
        """Do nothing: the value is not known yet."""

    def fill(self, address: int, size: int) -> None:
        """Do nothing: this reads no register."""

    def put(self, address: int, words: Sequence[int]) -> None:
        """Do nothing: this reads no register."""


class _Record:
    """Recorder that makes a list of writes and waits. A read of an unknown value (where the course
    depends on a value) ends the list and begins another one."""

    def __init__(self, programs: AccessPrograms, known: dict[_Place, int]) -> None:
        self.packets = programs.packets()
        self._programs = programs
        self._known = known
        self._selection: int | None = None
        self.changed: set[int] = set()  # registers that are written or awaited
        self._takers: list[Callable[[int], object] | None] = []  # of values; None: `run` returns it

    def read32(self, index: int) -> int:
        place = self._selection, index
        if place not in self._known:
            self.run()
            self._known.update(self._programs.fetch([place]))
        return self._known[place]

    def write32(self, index: int, value: int) -> None:
        if index == self._programs.selector:
            self._selection = value
        self.changed.add(index)
        self._known[self._selection, index] = value
        self.packets.write_register(index, value)

    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None:
        """Poll the register's bits; its content is unknown afterwards."""
        self.changed.add(index)
        self._known.pop((self._selection, index), None)
        self.packets.wait_register(index, mask, value, differs=differs)

    def keep(self, index: int, take: Callable[[int], object]) -> None:
        """Store the register with the list's values."""
        self.packets.store_register(self._programs.place(self._results(take)), index)

    def read_word(self, address: int) -> None:
        """Store a word of memory with the list's values; `run` returns it."""
        self.packets.copy_word(self._programs.place(self._results(None)), address)

    def _results(self, take: Callable[[int], object] | None) -> int:
        """Return the number of the next value."""
        assert len(self._takers) < self._programs.results
        self._takers.append(take)
        return len(self._takers)

    def fill(self, address: int, size: int) -> None:
        self.packets.fill(Symbol.constant(address), 0, size)

    def put(self, address: int, words: Sequence[int]) -> None:
        self.packets.store_words(Symbol.constant(address), words)

    def run(self) -> list[int]:
        """Execute the packets made so far, and pass the kept values to their takers."""
        packets, self.packets = self.packets, self._programs.packets()
        takers, self._takers = self._takers, []
        words: list[int] = []
        values = self._programs.run(packets.words, len(takers)) if packets.words else []
        for take, value in zip(takers, values, strict=True):
            if take is None:
                words.append(value)
            else:
                take(value)
        return words
