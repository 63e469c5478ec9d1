"""Programs of register accesses: recorded from the code that makes them, run by the card itself.

Where an access from the host is a message over a link, a processor of the card runs many of them at
once. The code that sets a unit up is the same either way: it leaves steps to `HostPrograms`, which
does them at once, or to `CardPrograms`. There their accesses go through the bus (bare.bus), which
hands them to a recorder here. Reads that the course depends on are made before, all together.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.space import Mapping
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


class HostPrograms:
    """Does steps that belong together; here the host does each access, at once.

    A step reads, changes and awaits registers, and nothing else: it may be called twice. What it
    finds out it passes on by `RegisterBus.take`. posted: has the host's writes to VRAM arrive
    before its next one (HDP on AMD's cards).
    """

    #: what is left waits for `run`
    collects = False

    def __init__(self, chip: BareChip, posted: Callable[[], object]) -> None:
        self.chip = chip
        self.bus = chip.bus
        self._posted = posted

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While the card starts from its reset: what is left inside and afterwards, up to `end`,
        may be done later than the host's own accesses."""
        yield

    def attach(self, load: Callable[[Any], object]) -> None:
        """The card's processor runs: use it from now on. load: activates a queue of it."""

    def leave(
        self,
        *steps: Callable[[], object],
        read: Callable[[], Sequence[int]] = tuple,
        then: Callable[[list[int]], object] | None = None,
        by_host: Callable[[], object] | None = None,
    ) -> None:
        """Do `steps`, in order, at the latest in the next `run`. Then the host calls `then` with
        the words of VRAM at the places that `read` returns, as they are after the steps. by_host:
        done in place of the steps where the host does them, if it has to do more."""
        for step in (by_host,) if by_host is not None else steps:
            step()
        if then is not None:
            then([int.from_bytes(self.chip.vram.read(at, 4), "little") for at in read()])

    def clear(self, mapping: Mapping) -> None:
        """Zero memory, as a step."""
        if mapping.pieces and mapping.shared is None:
            for start, length in mapping.pieces:
                self.chip.vram.write(start, bytes(length))
            self._posted()
        else:
            mapping.view[:] = bytes(mapping.size)

    def wipe(self, mapping: Mapping) -> None:
        """Zero memory that was just mapped, as a step: what others left in it is not found. Does
        nothing where a dword takes several messages, and a megabyte minutes:
        TODO[usb-stock-arena]."""
        if mapping.pieces and mapping.shared is None:
            self.clear(mapping)
        elif self.bus.runs:
            mapping.clear_behind(0)

    def put(self, place: int, content: bytes) -> None:
        """Write whole dwords of VRAM, as a step."""
        self.chip.vram.write(place, content)
        self._posted()

    def run(self, *, foresee: Sequence[Callable[[], object]] = ()) -> None:
        """Do what was left. foresee: steps that will be left next; nothing else may change what
        they read."""

    def end(self) -> bool:
        """Do what was left; the host does each access from now on. Return whether the card was seen
        to execute steps since `starting`."""
        return False


class _Left(NamedTuple):
    """Steps that wait, see HostPrograms.leave."""

    steps: tuple[Callable[[], object], ...]
    read: Callable[[], Sequence[int]]
    then: Callable[[list[int]], object] | None
    by_host: Callable[[], object] | None


class CardPrograms(HostPrograms, ABC):
    """A processor of the card runs steps, between `starting` and `end`. results: the most values
    that one program returns. selector: dword index of the register that selects what banked
    registers mean; one selection counts at a time."""

    results: int

    def __init__(self, chip: BareChip, posted: Callable[[], object]) -> None:
        super().__init__(chip, posted)
        self._foreseen: dict[_Place, int] = {}  # values read for the next program
        self._left: list[_Left] = []
        self._ran = False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """See HostPrograms. An exception inside drops what was left."""
        self.collects, self._left, self._ran = True, [], False
        try:
            yield
        except BaseException:
            self.collects, self._left = False, []
            raise

    def leave(
        self,
        *steps: Callable[[], object],
        read: Callable[[], Sequence[int]] = tuple,
        then: Callable[[list[int]], object] | None = None,
        by_host: Callable[[], object] | None = None,
    ) -> None:
        """See HostPrograms."""
        if self.collects:
            self._left.append(_Left(steps, read, then, by_host))
        else:
            super().leave(*steps, read=read, then=then, by_host=by_host)

    def clear(self, mapping: Mapping) -> None:
        """See HostPrograms. The processor's caches must not contain any of the memory."""
        if self.collects:
            zero = partial(self.zero, int(mapping.address), mapping.size)
            self.leave(zero, by_host=partial(super().clear, mapping))
        else:
            super().clear(mapping)

    def wipe(self, mapping: Mapping) -> None:
        """See HostPrograms."""
        if self.collects:
            self.clear(mapping)
        else:
            super().wipe(mapping)

    def put(self, place: int, content: bytes) -> None:
        """See HostPrograms. The processor's caches must not contain the dwords."""
        if self.collects:
            write = partial(self.write, place, content)
            self.leave(write, by_host=partial(super().put, place, content))
        else:
            super().put(place, content)

    def run(self, *, foresee: Sequence[Callable[[], object]] = ()) -> None:
        """See HostPrograms. FirmwareSilent if the processor does not run it."""
        if not self.collects:
            return
        left, self._left = self._left, []
        steps = [step for group in left for step in group.steps]
        places = [group.read() for group in left]
        read = [place for group in places for place in group]
        words = self.execute(*steps, read=read, foresee=foresee)
        self._ran = True
        for group, mine in zip(left, places, strict=True):
            values, words = words[: len(mine)], words[len(mine) :]
            if group.then is not None:
                group.then(values)

    def end(self) -> bool:
        """See HostPrograms."""
        left, self._left, self.collects = self._left, [], False
        for group in left:
            self.leave(*group.steps, read=group.read, then=group.then, by_host=group.by_host)
        return self._ran

    @property
    @abstractmethod
    def selector(self) -> int: ...

    @abstractmethod
    def packets(self) -> AccessPackets:
        """Return a program without packets."""

    @abstractmethod
    def run_packets(self, words: Sequence[int], count: int = 0) -> list[int]:
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

    def write(self, place: int, content: bytes) -> None:
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
            found.update(zip(part, self.run_packets(packets.words, len(part)), strict=True))
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

    def __init__(self, programs: CardPrograms, known: dict[_Place, int]) -> None:
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
        values = self._programs.run_packets(packets.words, len(takers)) if packets.words else []
        for take, value in zip(takers, values, strict=True):
            if take is None:
                words.append(value)
            else:
                take(value)
        return words
