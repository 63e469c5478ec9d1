"""The place of an instruction: its kernel, and its line of kernel IR or of source."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ugpu.hcq.device.debugging import Code
from ugpu.hcq.errors import UsageError

_PLACE = re.compile(r"(?P<kernel>[A-Za-z_.$*?][\w.$*?]*)(?:\+(?P<offset>0x[0-9a-fA-F]+|\d+))?")


@dataclass(frozen=True)
class Row:
    """The instructions of one line: addresses from start up to end."""

    start: int
    end: int
    file: str  # "kernel-ir", a source file, or "KERNEL.ptx"
    line: int
    text: str = ""


@dataclass
class Known:
    """A kernel by its name. rows: of kernel IR or source, or of other text if neither exists.
    written: rows of the text that the model executes, if it executes text."""

    name: str
    entry: int
    listing: dict[int, str]
    rows: list[Row] = field(default_factory=list)
    written: list[Row] = field(default_factory=list)

    def where(self, pc: int) -> str:
        """Return "kernel+offset"."""
        return f"{self.name}+{pc - self.entry:#x}"

    def row(self, pc: int) -> Row | None:
        """Return the line that an instruction belongs to."""
        return next((row for row in self.rows if row.start <= pc < row.end and row.line), None)


class Devices:
    """The devices opened under the debugger, and their kernels."""

    def __init__(self) -> None:
        self.opened: list[Any] = []  # hcq.device.device.Device with any driver
        self._known: dict[tuple[int, str], Known] = {}

    def kernel(self, code: Code) -> Known:
        """Return the facts of a kernel that is about to run."""
        kept = self._known.get((code.entry, code.digest))
        if kept is not None:
            return kept
        listing = code.listing()
        kernel = Known(code.kernel, code.entry, {pc: text for pc, text, _ in listing})
        if code.kernel:
            self._by_listing(kernel, listing)
        else:
            self._by_driver(kernel)
        self._known[code.entry, code.digest] = kernel
        return kernel

    def row(self, pc: int) -> Row | None:
        """Return the line of an instruction of any kernel that has run; the latest of them."""
        rows = (kernel.row(pc) for kernel in reversed(list(self._known.values())))
        return next((row for row in rows if row is not None), None)

    def _by_listing(self, kernel: Known, listing: Any) -> None:
        ends = [pc for pc, _, _ in listing[1:]] + [listing[-1][0] + 1] if listing else []
        places = [(pc, end, line) for (pc, _, line), end in zip(listing, ends, strict=True)]
        file = f"{kernel.name}.ptx"
        kernel.rows = kernel.written = [Row(pc, end, file, line) for pc, end, line in places]
        for device in self.opened:
            lines = _compiled_text(device, kernel.name)
            if lines:
                kernel.rows = [
                    Row(pc, end, "kernel-ir", *lines[line])
                    for pc, end, line in places if line in lines
                ]  # fmt: skip
                return

    def _by_driver(self, kernel: Known) -> None:
        kernel.name = f"{kernel.entry:#x}"
        for device in self.opened:
            programs: Any = getattr(device.driver, "programs", None)  # of a driver with models
            location = None if programs is None else programs.find(kernel.entry)
            if location is None:
                continue
            kernel.name = location[0]
            kernel.rows = [
                Row(kernel.entry + start, kernel.entry + end, "kernel-ir", line, text)
                for start, end, line, text in _compiled(device, location[0])
            ] or [
                Row(start, end, *_split(place))
                for start, end, place in programs.lines(kernel.entry)
            ]
            return


def _split(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)


def _compiled(device: object, name: str) -> list[tuple[int, int, int, str]]:
    module = sys.modules.get("ugpu.compiler.runtime.runtime")
    runtime = None if module is None else module.known_runtime(device)
    return [] if runtime is None else list(runtime.programs.places.lines(name))


def _compiled_text(device: object, name: str) -> dict[int, tuple[int, str]]:
    module = sys.modules.get("ugpu.compiler.runtime.runtime")
    runtime = None if module is None else module.known_runtime(device)
    return {} if runtime is None else dict(runtime.programs.places.text_lines(name))


@dataclass(frozen=True)
class Breakpoint:
    """The place of a breakpoint. kernel: a name, with * and ? as in a shell; "" for any. Exactly
    one of address, offset and line applies."""

    number: int
    text: str
    once: bool = False
    kernel: str = ""
    address: int | None = None
    offset: int | None = None
    line: int | None = None
    file: str = ""

    def addresses(self, kernel: Known) -> set[int]:
        """Return the breakpoint's instructions in a kernel; for a line, the first of each run of
        instructions."""
        if self.address is not None:
            return {self.address} & kernel.listing.keys()
        if self.kernel and not fnmatchcase(kernel.name, self.kernel):
            return set()
        if self.line is None:
            return {kernel.entry + (self.offset or 0)} & kernel.listing.keys()
        meant_text = self.file.endswith(".ptx")
        rows = sorted(kernel.written if meant_text else kernel.rows, key=lambda row: row.start)
        starts, before = set(), None
        for row in rows:
            meant = row.line == self.line and row.file.endswith(self.file)
            if meant and (before is None or before.line != row.line or before.end != row.start):
                starts.add(row.start)
            before = row
        return starts & kernel.listing.keys()


def breakpoint_at(number: int, text: str, current: str, once: bool = False) -> Breakpoint:
    """Read KERNEL, KERNEL+OFFSET, 0xADDRESS, LINE (of the kernel `current`) or NAME:LINE, where
    NAME is a kernel or a file. UsageError for anything else."""
    if text.lower().startswith("0x"):
        try:
            return Breakpoint(number, text, once, address=int(text, 16))
        except ValueError:
            raise UsageError(f"expected an address such as 0x200000, got {text!r}") from None
    name, colon, line = text.rpartition(":")
    if line.isdecimal():
        if colon and "." in name:
            return Breakpoint(number, text, once, file=name, line=int(line))
        return Breakpoint(number, text, once, kernel=name or current, line=int(line))
    match = _PLACE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"expected KERNEL, KERNEL+OFFSET, KERNEL:LINE, LINE or 0xADDRESS, got {text!r}"
        )
    return Breakpoint(number, text, once, match["kernel"], offset=int(match["offset"] or "0", 0))
