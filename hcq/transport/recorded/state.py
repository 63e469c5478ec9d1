"""The state of a device at one moment of a recording, as a transport that serves reads.

    seen = RecordedTransport(recording, at=120)     after access number 120; default: the end
    seen.window(5).read32(0x3780)                   the last value read or written there by then

Every place serves the last value recorded for it by then, whether the driver read or wrote it. All
other places raise NotRecorded, which names the place. A reset makes all earlier values unknown. If
a register selects the meaning of others (a bank, an index), their values are kept for each
selection; see Banks. Writes are rejected, except to such selectors and to configuration space; they
change only what this object serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ugpu.hcq.errors import BadArgument, NotRecorded, NotSupported
from ugpu.hcq.near import meant
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import DmaMemory, ResetKind, Traits
from ugpu.hcq.transport.life import TransportLife
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access
from ugpu.hcq.transport.recorded.format import (
    BOOTED,
    Entry,
    Failure,
    LongWrite,
    Presence,
    Recording,
    Reset,
    Stage,
)

Place = tuple[int, int]  # window, offset in bytes
Choice = tuple[int | None, ...]  # values of selectors; None: not known
_PAGE = 4096
_WORD = 4  # bytes of a register


def _no_selectors(window: int, offset: int) -> tuple[Place, ...]:
    return ()


def _no_reset(window: int, offset: int, value: int) -> bool:
    return False


@dataclass(frozen=True)
class Banks:
    """Registers that select the meaning of others.

    Attributes:
        window: the BAR that they are in.
        selectors: their places.
        of: the selectors of a register, () if its meaning is fixed.
        resets: whether a value written to a register makes firmware reset the chip.
    """

    window: int = CONFIG - 1
    selectors: frozenset[Place] = frozenset()
    of: Callable[[int, int], tuple[Place, ...]] = _no_selectors
    resets: Callable[[int, int, int], bool] = _no_reset

    def ends_life(self, entry: Entry) -> bool:
        """Return whether the device lost its state by this entry, a reset."""
        if isinstance(entry, Reset):
            return not entry.refusal
        if not isinstance(entry, Access) or not entry.is_write or entry.value is None:
            return False
        return self.resets(entry.window, entry.offset, entry.value)


@dataclass
class _Bytes:
    """Known bytes of a window, by pages: content, and 1 for each byte that is known."""

    pages: dict[int, tuple[bytearray, bytearray]] = field(default_factory=dict)

    def put(self, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            page, start = divmod(offset + at, _PAGE)
            count = min(_PAGE - start, len(data) - at)
            if page not in self.pages:
                self.pages[page] = bytearray(_PAGE), bytearray(_PAGE)
            content, mask = self.pages[page]
            content[start : start + count] = data[at : at + count]
            mask[start : start + count] = b"\1" * count
            at += count

    def forget(self, offset: int, size: int) -> None:
        end = offset + size
        for page, (_, mask) in self.pages.items():
            first, last = max(offset - page * _PAGE, 0), min(end - page * _PAGE, _PAGE)
            if first < last:
                mask[first:last] = bytes(last - first)

    def get(self, offset: int, size: int) -> tuple[bytes, int]:
        """Return the bytes, and how many of them are known, from the first on."""
        data, at = bytearray(), 0
        while at < size:
            page, start = divmod(offset + at, _PAGE)
            count = min(_PAGE - start, size - at)
            if page not in self.pages:
                break
            content, mask = self.pages[page]
            unknown = mask.find(0, start, start + count)
            count = count if unknown < 0 else unknown - start
            data += content[start : start + count]
            at += count
            if unknown >= 0:
                break
        return bytes(data), at


class _State:
    """The known state between two resets."""

    def __init__(self) -> None:
        self.windows: dict[int, _Bytes] = {}
        self.banked: dict[tuple[Place, Choice], bytes] = {}

    def known(self, window: int) -> _Bytes:
        return self.windows.setdefault(window, _Bytes())


def entries_until(recording: Recording, *, at: int | None = None, stage: str = "") -> list[Entry]:
    """Return the entries up to access number `at`, or to the end of a boot stage; by default all.

    Accesses (reads and writes, including block writes) are counted from 1, as `ugpu trace show`
    numbers them. BadArgument for a number or a stage that the recording lacks, and if both are
    given.
    """
    if at is not None and stage:
        raise BadArgument(f"expected an access number or a stage, got {at} and {stage!r}")
    entries: list[Entry] = []
    count, current, stages = 0, "", list[str]()
    for entry in recording.entries:
        if isinstance(entry, Stage):
            if stage and current == stage:
                return entries
            current = entry.name
            stages.append(current)
        if isinstance(entry, Access | LongWrite):
            if count == at:
                return entries
            count += 1
        entries.append(entry)
    if at is not None and not 0 <= at <= count:
        raise BadArgument(f"expected an access number from 0 to {count}, got {at}")
    if stage and stage not in stages:
        names = ", ".join(stages) or "none, as it has no stages"
        hint = meant(stage, stages)
        raise BadArgument(f"the recording has no stage {stage!r}; {hint}expected one of {names}")
    return entries


class RecordedWindow:
    """A window of a recording. See RecordedTransport."""

    def __init__(self, owner: RecordedTransport, index: int, size: int) -> None:
        self._owner = owner
        self.index = index
        self.size = size

    def read32(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 4, 4), "little")

    def read64(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 8, 8), "little")

    def read(self, offset: int, size: int) -> bytes:
        return self._read(offset, size, _WORD)

    def write32(self, offset: int, value: int) -> None:
        self._owner.choose(self.index, offset, value)

    def write64(self, offset: int, value: int) -> None:
        self._owner.refuse_write(self.index, offset)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._owner.refuse_write(self.index, offset)

    def _read(self, offset: int, size: int, align: int) -> bytes:
        outside = offset < 0 or size < 0 or offset + size > self.size
        if outside or offset % align or size % _WORD:
            raise BadArgument(
                "offset or size is out of range", offset=offset, size=size, window=self.size
            )
        return self._owner.content(self.index, offset, size)


class _StoppedClock(Clock):
    """Time of a recorded state, in which nothing changes: a wait ends after its last poll."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += max(seconds, 1.0)


class RecordedTransport(TransportLife):
    """Serves the state at one moment of a recording; see the module. name_of: returns the name of a
    place, for errors."""

    def __init__(
        self,
        recording: Recording,
        name: str = "recording",
        *,
        at: int | None = None,
        stage: str = "",
        banks: Banks | None = None,
        name_of: Callable[[int, int], str] | None = None,
    ) -> None:
        """at, stage: see `entries_until`."""
        super().__init__(name)
        self.identity = recording.identity
        self.traits = Traits(resets=frozenset())
        self.clock = _StoppedClock()
        self.interrupts = None
        self._banks = banks or Banks()
        self._name_of = name_of
        self._state, self._before = _State(), _State()
        self._digests: list[LongWrite] = []
        self._present, self._resets, self._constant = True, 0, False
        self._windows = {
            index: RecordedWindow(self, index, size) for index, size in recording.windows.items()
        }
        for entry in entries_until(recording, at=at, stage=stage):
            self._apply(entry)
        self.opened()

    # ---- the state ---------------------------------------------------------------------------

    def _apply(self, entry: Entry) -> None:
        if isinstance(entry, Presence):
            self._present = entry.present
        elif self._banks.ends_life(entry):
            self._resets += 1
            self._state, self._before = _State(), self._state
            self._digests.clear()
        elif isinstance(entry, LongWrite):
            self._keep(entry)
        elif isinstance(entry, Access):
            data = entry.data
            if data is None:
                assert entry.value is not None
                data = entry.value.to_bytes(entry.width, "little")
            self._put(entry.window, entry.offset, data)

    def _keep(self, entry: LongWrite) -> None:
        if entry.data is not None:
            self._put(entry.window, entry.offset, entry.data)
            return
        self._state.known(entry.window).forget(entry.offset, entry.width)
        self._digests.append(entry)

    def _put(self, window: int, offset: int, data: bytes) -> None:
        self._state.known(window).put(offset, data)
        if window != self._banks.window or offset % _WORD:
            return
        for start in range(0, len(data) - len(data) % _WORD, _WORD):
            place = window, offset + start
            choice = self._choice(place)
            if choice:
                self._state.banked[place, choice] = data[start : start + _WORD]

    def _choice(self, place: Place) -> Choice:
        values = []
        for window, offset in self._banks.of(*place):
            content, size = self._state.known(window).get(offset, _WORD)
            values.append(int.from_bytes(content, "little") if size == _WORD else None)
        return tuple(values)

    def content(self, window: int, offset: int, size: int) -> bytes:
        """Return the bytes at a place; NotRecorded names the first unknown one."""
        self.check_open()
        place = window, offset
        if window == self._banks.window and size == _WORD and self._banks.of(*place):
            choice = self._choice(place)
            content = self._state.banked.get((place, choice))
            if content is None:
                raise self._not_recorded(window, offset, self._chosen(place, choice))
            return content
        data, count = self._state.known(window).get(offset, size)
        if count < size and self._constant:
            data, count = self._before.known(window).get(offset, size)
        if count < size:
            raise self._not_recorded(window, offset + count, self._why(window, offset + count))
        return data

    def _chosen(self, place: Place, choice: Choice) -> str:
        shown = ", ".join(
            f"{self._name(*selector)} {'unknown' if value is None else f'{value:#x}'}"
            for selector, value in zip(self._banks.of(*place), choice, strict=True)
        )
        return f" for {shown}"

    def _why(self, window: int, offset: int) -> str:
        for entry in reversed(self._digests):
            inside = entry.offset <= offset < entry.offset + entry.width
            if entry.window == window and inside:
                return f": of a write of {entry.width} bytes at {entry.offset:#x} only the digest"
        return " after the reset" if self._resets else ""

    def _not_recorded(self, window: int, offset: int, why: str) -> NotRecorded:
        return NotRecorded(f"not recorded: {self._name(window, offset)}{why}", source=self.name)

    def _name(self, window: int, offset: int) -> str:
        place = "config" if window == CONFIG else f"bar{window}"
        return self._name_of(window, offset) if self._name_of else f"{place} {offset:#x}"

    @contextmanager
    def constants(self) -> Iterator[None]:
        """Inside the block, also serve values recorded before the last reset: for values that no
        reset changes, such as the chip's discovery table."""
        self._constant = True
        try:
            yield
        finally:
            self._constant = False

    def choose(self, window: int, offset: int, value: int) -> None:
        """Set a register that selects the meaning of others; NotSupported for any other."""
        self.check_open()
        if (window, offset) not in self._banks.selectors:
            self.refuse_write(window, offset)
        self._state.known(window).put(offset, value.to_bytes(_WORD, "little"))

    def refuse_write(self, window: int, offset: int) -> None:
        """Raise NotSupported: a recording cannot be changed."""
        raise NotSupported(f"a recording cannot be written: {self._name(window, offset)}")

    # ---- hcq.transport.base.Transport --------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        pci_config.check_access(offset, width)
        return int.from_bytes(self.content(CONFIG, offset, width), "little")

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        pci_config.check_access(offset, width)
        self._state.known(CONFIG).put(offset, value.to_bytes(width, "little"))

    def window(self, index: int) -> RecordedWindow:
        self.check_open()
        if index not in self._windows:
            raise NotRecorded(f"not recorded: bar{index}, to which no access was made",
                              source=self.name)  # fmt: skip
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        raise NotSupported("a recording reaches no memory of this host")

    def reset(self, kind: ResetKind) -> None:
        raise NotSupported("a recording cannot be reset")

    def present(self) -> bool:
        """Return whether the device responded at that moment."""
        return self._present and not self.closed


def last_stage(recording: Recording) -> str:
    """Return the last stage of a boot that has ended, whose end is the state that a working device
    has; empty if the boot failed, or if the recording does not mark its end."""
    stages = [entry.name for entry in recording.entries if isinstance(entry, Stage)]
    return stages[stages.index(BOOTED) - 1] if BOOTED in stages[1:] else ""


def failed_stage(recording: Recording) -> tuple[str, Failure] | None:
    """Return the stage in which the boot failed, and how; None if it did not."""
    stage = ""
    for entry in recording.entries:
        if isinstance(entry, Stage):
            stage = entry.name
        elif isinstance(entry, Failure):
            return stage, entry
    return None
