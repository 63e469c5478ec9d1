"""Sources of registers: a device, booted or as it is; a recording; a crash bundle; a file that
`--save` wrote.

On the command line a source is a name that `hcq.open` takes, or a file. See tools.base.device_files
for recordings at one moment.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ugpu import hcq
from ugpu.hcq import outfile
from ugpu.hcq.disk.bundle import Bundle
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.find import offline as window
from ugpu.hcq.registers.fields import Register, RegisterBlock, RegisterValue
from ugpu.hcq.registers.value_file import SAVED, RegisterFile
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.state import entries_until
from ugpu.tools.base.device_files import Moment, kept
from ugpu.tools.base.recorded import register_finder

MOST = 200  # most registers of a device that one pattern may match
REGISTERS, QUEUES = "registers.json", "hqd.json"  # of a bundle


class Source(Protocol):
    """Registers and their values. Names are "block.NAME", or "NAME" if blocks are not known."""

    title: str
    chip: str  # as in virtual:<chip>; "" if it is not known
    note: str  # for people, about the source

    def matching(self, pattern: str) -> list[str]:
        """Return the names that match a pattern ("gc.CP_*", "CP_STAT"), in the source's order.
        BadArgument, with similar names, if there are none."""
        ...

    def read(self, name: str) -> RegisterValue: ...


class Live:
    """Registers of a chip. Each `read` is one access. Patterns omit registers that change on
    reading; such a register is read only if it is named."""

    def __init__(self, title: str, chip: object) -> None:
        blocks = window.blocks_of(chip)
        if not blocks:
            raise NotSupported(
                f"{title} has no registers that this process can access: "
                "its kernel driver or firmware controls them"
            )
        self.title = title
        self.note = ""
        self.blocks = blocks
        self.chip = str(getattr(getattr(chip, "facts", None), "name", ""))

    def matching(self, pattern: str) -> list[str]:
        names = matching(self.blocks, pattern, MOST)
        if len(names) > 1 and self.chip:
            changed = window.module_of_chip(self.chip).CHANGED_BY_READING
            names = [name for name in names if not _like(bare_name(name), changed)]
        return names

    def read(self, name: str) -> RegisterValue:
        block, _, register = name.partition(".")
        return self.blocks[block][register].read()


class Kept:
    """Values of a file, in the file's order."""

    def __init__(
        self, title: str, values: Mapping[str, RegisterValue], chip: str = "", note: str = ""
    ) -> None:
        self.title = title
        self.note = note
        self.chip = chip
        self.values = values

    def matching(self, pattern: str) -> list[str]:
        exact, bare = pattern.lower(), pattern.rpartition(".")[2].upper()
        names = [name for name in self.values if fnmatch.fnmatchcase(name.lower(), exact)]
        names = names or [
            name for name in self.values if fnmatch.fnmatchcase(bare_name(name), bare)
        ]
        if not names:
            raise BadArgument(f"{self.title} has no value for {pattern!r}")
        return names

    def read(self, name: str) -> RegisterValue:
        return self.values[name]


def _like(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def bare_name(name: str) -> str:
    """Return a register's name without its block."""
    return name.rpartition(".")[2]


def matching(blocks: Mapping[str, RegisterBlock], pattern: str, most: int) -> list[str]:
    """Return the names of registers in `blocks` for a name or a pattern, of one block or of all."""
    head, dot, tail = pattern.rpartition(".")
    if dot and head.lower() not in blocks:
        raise BadArgument(f"unknown block {head!r}, expected one of {', '.join(sorted(blocks))}")
    places = {head.lower(): blocks[head.lower()]} if dot else blocks
    name = tail.upper()
    if any(sign in name for sign in "*?["):
        registers = [
            (owner, register)
            for owner in places
            for register in fnmatch.filter(places[owner].map, name)
        ]
        if not 0 < len(registers) <= most:
            raise BadArgument(
                f"{pattern!r} matches {len(registers)} registers, expected 1 to {most}"
            )
    else:
        registers = [(owner, name) for owner, block in places.items() if name in block.map]
        if not registers:
            near = _near(places[head.lower()], name) if dot else _near_anywhere(blocks, name)
            raise BadArgument(f"no register {tail!r} in {', '.join(sorted(places))}{near}")
    return [f"{owner}.{register}" for owner, register in registers]


def _near(block: RegisterBlock, name: str) -> str:
    try:
        block.map[name]
    except KeyError as error:
        return f": {error.args[0]}"
    return ""


def _near_anywhere(blocks: Mapping[str, RegisterBlock], name: str) -> str:
    names = {
        register for block in blocks.values() for register in block.map if register[0] == name[:1]
    }
    near = difflib.get_close_matches(name, names, 3)
    return f"; near: {', '.join(near)}" if near else ""


@contextmanager
def open_source(text: str, *, boot: bool = True, at: int | None = None) -> Iterator[Source]:
    """Open the source `text`. boot: bring a device up as `hcq.open` does; otherwise inspect it as
    it is (hcq.find.offline). at: of a recording, see tools.base.device_files."""
    file = kept(text, at)
    if file is not None:
        yield _of_file(text, file)
    elif boot:
        with hcq.open(text) as device:
            yield Live(text, getattr(device, "chip", None))
    else:
        with window.open_window(text) as chip:
            yield Live(text, chip)


def _of_file(title: str, file: Bundle | Moment | RegisterFile) -> Kept:
    if isinstance(file, Moment):
        return _of_recording(file)
    if isinstance(file, RegisterFile):
        return _of_values(title, file)
    content = file.parts.get(REGISTERS)
    if content is None:
        raise BadArgument(f"{file.path} has no {REGISTERS}; its manifest has the reason")
    registers = RegisterFile.loads(content, str(file.path))
    values = {**registers.values, **_queues(file.parts.get(QUEUES, b"[]"))}
    return _of_values(str(file.path), replace(registers, values=values))


def _queues(content: bytes) -> dict[str, int]:
    """Return registers of hardware queues, which are banked: "gc[pipe.queue].NAME"."""
    queues: list[dict[str, Any]] = json.loads(content)
    return {
        f"gc[{queue['pipe']}.{queue['queue']}].{name}": value
        for queue in queues
        if "more" not in queue
        for name, value in queue["registers"].items()
    }


def _of_recording(moment: Moment) -> Kept:
    """Return the last value of each register, read or written, at that moment, since the last
    reset."""
    recording = moment.recording
    find = register_finder(recording)
    values: dict[str, RegisterValue] = {}
    banks = window.banks_of(recording)
    for entry in entries_until(recording, at=moment.at, stage=moment.stage):
        if banks.ends_life(entry):
            values.clear()
        if not isinstance(entry, Access) or entry.value is None:
            continue
        register = find(entry.window, entry.offset)
        if register is not None:
            values[register.name] = register.decode(entry.value & 0xFFFF_FFFF)
    if not values:
        note = f"; {moment.note}" if moment.note else ""
        raise BadArgument(f"{moment.title} has no access to a named register{note}")
    return Kept(moment.title, values, note=moment.note)


def save(path: Path, source: Source, values: Mapping[str, RegisterValue]) -> None:
    """Write values to a file for `open_source`."""
    outfile.check_file(path, SAVED)
    path.write_text(RegisterFile(source.title, source.chip, values).dumps(), "utf-8")


def _of_values(title: str, file: RegisterFile) -> Kept:
    """Return a file's values; fields are named if the chip is known."""
    blocks: Mapping[str, RegisterBlock] = {}
    if file.chip:
        with contextlib.suppress(hcq.errors.DeviceNotFound):  # saved where more chips are known
            blocks = window.module_of_chip(file.chip).usual_blocks(file.chip)
    values = {name: _named(blocks, name, value) for name, value in file.values.items()}
    return Kept(title, values, file.chip)


def _named(blocks: Mapping[str, RegisterBlock], name: str, value: int) -> RegisterValue:
    block, _, register = name.rpartition(".")
    block = block.partition("[")[0]
    register_of = blocks[block].map.get(register) if block in blocks else None
    register_of = register_of or Register(bare_name(name), 0, 0)
    return register_of.decode(value & 0xFFFF_FFFF)
