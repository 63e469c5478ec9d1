"""Recordings by meaning: steps with the names of registers, and the first difference of two.

Two runs of the same driver differ in how often it polled before an answer came, and in when memory
changed. Therefore, in a run of reads each place counts once, with its last answer. Accesses that
depend on the clock are ignored. Memory is compared only through what the driver then did. Data that
was read or written is compared to its last byte, however short it is displayed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ugpu.hcq.find.catalogue import pci_drivers
from ugpu.hcq.registers.fields import Register, RegisterValue
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access
from ugpu.hcq.transport.recorded.format import (
    Allocation,
    Content,
    Entry,
    Failure,
    LongWrite,
    Look,
    Moment,
    Presence,
    Recording,
    Stage,
    Wait,
    driven,
)

_CONTEXT = 5  # steps shown before a difference
_SHOWN = 32  # bytes of data that are displayed whole; of longer data, half as many
_WORDS = 8  # words that differ in displayed data


def register_finder(recording: Recording) -> Callable[[int, int], Register | None]:
    """Return a function from (BAR, offset) to the register there, None for an unnamed place."""
    driver = pci_drivers().get((recording.identity.vendor, recording.identity.device))
    if driver is None or not driver.names:
        return lambda window, offset: None
    module, _, function = driver.names.partition(":")
    finder: Callable[[int, int], Register | None] = getattr(
        importlib.import_module(module), function
    )(recording)
    return finder


def names_of(recording: Recording) -> Callable[[int, int], str]:
    """Return a function from (BAR, offset) to the name of that place."""
    find = register_finder(recording)

    def name(window: int, offset: int) -> str:
        if window == CONFIG:
            return f"config {offset:#x}"
        register = find(window, offset)
        return register.name if register is not None else f"bar{window} {offset:#x}"

    return name


@dataclass(frozen=True)
class Step:
    """Recorded step: its operation (`verb` and `place`) and its operand, a value, or text for
    longer data. window, offset: those of an access; window is None for other steps."""

    verb: str
    place: str
    value: int | None = None
    detail: str = ""
    data: bytes | None = None
    register: Register | None = field(default=None, compare=False)
    repeated: int = field(default=1, compare=False)
    window: int | None = field(default=None, compare=False)
    offset: int = field(default=0, compare=False)

    def __str__(self) -> str:
        times = f" ({self.repeated} times)" if self.repeated > 1 else ""
        what = f"{self.value:#x}" if self.value is not None else self.detail or _short(self.data)
        return f"{self.verb} {self.place} {what}".rstrip() + times


class Steps:
    """A recording as steps of its driver."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._find = register_finder(recording)
        self._name = names_of(recording)
        driver = pci_drivers().get((recording.identity.vendor, recording.identity.device))
        self._by_clock = frozenset(driver.by_clock if driver is not None else ())

    def __iter__(self) -> Iterator[Step]:
        reads: dict[str, Step] = {}  # the last of each place in the current run of reads
        for entry in driven(self._recording.entries):
            step = self.step(entry)
            if step is None or (step.window, step.offset) in self._by_clock:
                continue
            if step.verb == "read":
                before = reads.pop(step.place, None)
                count = before.repeated + 1 if before is not None else 1
                reads[step.place] = replace(step, repeated=count)
                continue
            yield from reads.values()
            reads.clear()
            yield step
        yield from reads.values()

    def step(self, entry: Entry) -> Step | None:
        """Return an entry by names; None for other entries (memory, waits, times, looks)."""
        if isinstance(entry, Content | Wait | Moment | Look):
            return None
        if isinstance(entry, Presence):
            return Step("the device", "answers again" if entry.present else "is gone")
        if isinstance(entry, LongWrite):
            place = f"{entry.width} bytes at {self._name(entry.window, entry.offset)}"
            digest = f"sha256 {entry.digest[:16]}"
            return Step("write", place, None, digest, None, None, 1, entry.window, entry.offset)
        if isinstance(entry, Allocation):
            return Step("allocate", f"{entry.size} bytes")
        if isinstance(entry, Stage):
            return Step("stage", entry.name)
        if isinstance(entry, Failure):
            return Step("failed:", entry.kind, detail=entry.message)
        if not isinstance(entry, Access):
            return Step(type(entry).__name__.lower(), str(getattr(entry, "kind", "")))
        at = entry.window, entry.offset
        verb, name = "write" if entry.is_write else "read", self._name(entry.window, entry.offset)
        if entry.value is not None:
            return Step(verb, name, entry.value, "", None, self._find(*at), 1, *at)
        data = entry.data or b""
        return Step(verb, f"{entry.width} bytes at {name}", None, "", data, None, 1, *at)

    def lines(self) -> Iterator[str]:
        """Yield each step with the fields of its register that are not zero."""
        for step in self:
            fields = fields_of(step)
            shown = ", ".join(f"{name} {value:#x}" for name, value in fields.items() if value)
            yield f"{step}  [{shown}]" if shown else str(step)


def _short(data: bytes | None) -> str:
    """Return data as short text for people. Comparisons use the bytes."""
    shown = (data or b"").hex()
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[:_SHOWN]}..."


@dataclass(frozen=True)
class Difference:
    """The first difference of two recordings. same: number of equal steps before it. stage: the
    boot stage that contains it. left, right: the differing steps. fields: the fields that differ,
    for a register; for data, the words."""

    same: int
    stage: str
    what: str
    before: list[str]
    left: str
    right: str
    fields: list[str]


def first_difference(left: Steps, right: Steps) -> Difference | None:
    """Return where two recordings first differ; None if they do not."""
    before: list[str] = []
    stage = ""
    ours, theirs = iter(left), iter(right)
    count = 0
    while True:
        our, their = next(ours, None), next(theirs, None)
        if our is None and their is None:
            return None
        if our != their:
            return Difference(
                count,
                stage,
                _what(our, their),
                before,
                str(our or "the end"),
                str(their or "the end"),
                _differing(our, their),
            )
        assert our is not None
        stage = our.place if our.verb == "stage" else stage
        before = [*before, str(our)][-_CONTEXT:]
        count += 1


def _what(our: Step | None, their: Step | None) -> str:
    if our is None or their is None:
        return "one of them ends"
    if (our.verb, our.place) != (their.verb, their.place):
        return "the driver did something else"
    return "the device answered otherwise" if our.verb == "read" else "another value was written"


def fields_of(step: Step | None) -> dict[str, int]:
    """Return the fields of a step's register, by name."""
    if step is None or step.register is None or step.value is None:
        return {}
    return RegisterValue(step.register, step.value & 0xFFFF_FFFF).fields()


def _differing(our: Step | None, their: Step | None) -> list[str]:
    if our is None or their is None or our.register != their.register:
        return []
    if our.data is not None and their.data is not None:
        return _words(our.data, their.data)
    ours, theirs = fields_of(our), fields_of(their)
    return [
        f"{name}: {ours[name]:#x} < > {theirs[name]:#x}"
        for name in ours
        if ours[name] != theirs.get(name, ours[name])
    ]


def _words(ours: bytes, theirs: bytes) -> list[str]:
    """Return where two blocks differ, in words of four bytes."""
    differing = []
    for offset in range(0, max(len(ours), len(theirs)), 4):
        our, their = (block[offset : offset + 4] for block in (ours, theirs))
        if our != their:
            differing.append(f"at {offset:#x}: {_number(our)} < > {_number(their)}")
    more = [f"and {len(differing) - _WORDS} words more"] if len(differing) > _WORDS else []
    return differing[:_WORDS] + more


def _number(word: bytes) -> str:
    return f"{int.from_bytes(word, 'little'):#x}" if word else "nothing"
