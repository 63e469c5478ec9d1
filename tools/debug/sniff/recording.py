"""A recording: one JSON object a line. The first one describes the whole, the others one call each.

    {"ugpu-sniff": 1, "driver": "580.142", "backend": "preload", "prefix": "/dev/nvidia",
     "command": [...]}
    {"call": "open", "path": ..., "result": fd, "errno": 0, "time": s, "pid": n, "thread": n}
    {"call": "ioctl", "path", "fd", "request", "argument", "before": hex, "after": hex,
     "blocks": [{"at", "inside", "address", "size", "before", "after"}], ...}
    {"call": "mmap", "path", "fd", "length", "access", "flags", "offset", ...}
    {"call": "close", "path", "fd", ...}
    {"call": "doorbell", "address", ...}                     with --memory: a write of a doorbell,
    {"call": "memory", "path", "address", "length", "after"} before it a page that had changed

`before` and `after` are null if the program's pointer was bad. A block is cut after 64 KiB. A last
line that was cut off, because the program was killed, is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument

FORMAT = 1
_LATEST = 1e12  # seconds
_FACTS = ("driver", "backend", "prefix")
_PLACES = ("at", "inside", "address", "size")
CALLS = ("open", "close", "ioctl", "mmap", "doorbell", "memory")


@dataclass(frozen=True)
class BlockCopy:
    """A block that an ioctl pointed to, before and after the call; None if it could not be read."""

    at: int
    inside: int
    address: int
    size: int
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Call:
    """One recorded call. Numbers that a kind of call does not have are 0."""

    kind: str
    path: str
    result: int
    errno: int
    time: float
    pid: int
    thread: int
    fd: int = -1
    request: int = 0
    argument: int = 0
    before: bytes | None = None
    after: bytes | None = None
    blocks: tuple[BlockCopy, ...] = ()
    length: int = 0
    access: int = 0
    flags: int = 0
    offset: int = 0
    address: int = 0


@dataclass
class Recording:
    """All calls of a program, in the order in which they ended."""

    driver: str
    backend: str
    prefix: str
    command: list[str]
    calls: list[Call] = field(default_factory=list)


def _number(line: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = line.get(key, default)
    if type(value) is not int:
        raise BadArgument(f"{key} must be an int", found=value)
    return value


def _text(line: Mapping[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise BadArgument(f"{key} must be a string", found=value)
    return value


def _bytes(line: Mapping[str, Any], key: str) -> bytes | None:
    value = line.get(key)
    if value is None:
        return None
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise BadArgument(f"{key} must be hexadecimal digits") from None


def _block(line: object) -> BlockCopy:
    if not isinstance(line, dict):
        raise BadArgument("a block must be an object")
    at, inside, address, size = (_number(line, key) for key in _PLACES)
    return BlockCopy(at, inside, address, size, _bytes(line, "before"), _bytes(line, "after"))


def _call(line: Mapping[str, Any]) -> Call:
    kind = _text(line, "call")
    if kind not in CALLS:
        raise BadArgument(f"{kind} is not a known kind of call")
    time: Any = line.get("time")  # what JSON holds
    if type(time) not in (int, float) or not 0 <= time < _LATEST:
        raise BadArgument(f"time must be a number below {_LATEST:g}")
    blocks = line.get("blocks", [])
    if not isinstance(blocks, list):
        raise BadArgument("blocks must be a list")
    optional = ("request", "argument", "length", "access", "flags", "offset", "address")
    return Call(
        kind,
        _text(line, "path"),
        _number(line, "result"),
        _number(line, "errno"),
        float(time),
        _number(line, "pid"),
        _number(line, "thread"),
        fd=_number(line, "fd", -1),
        before=_bytes(line, "before"),
        after=_bytes(line, "after"),
        blocks=tuple(map(_block, blocks)),
        **{key: _number(line, key, 0) for key in optional},
    )


def _objects(lines: Iterable[str]) -> Iterable[tuple[int, dict[str, Any]]]:
    whole = list(lines)
    for number, text in enumerate(whole, 1):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            if number == len(whole) > 1:
                return
            raise BadArgument(f"line {number} is not valid JSON") from None
        if not isinstance(row, dict):
            raise BadArgument(f"line {number} is not an object")
        yield number, row


def parse(text: str) -> Recording:
    """Parse a recording; BadArgument names the line that cannot be read."""
    recording: Recording | None = None
    for number, line in _objects(row for row in text.split("\n") if row):
        try:
            if recording is None:
                if line.get("ugpu-sniff") != FORMAT:
                    raise BadArgument("not a recording of `ugpu sniff`")
                command = line.get("command")
                words = [str(word) for word in command] if isinstance(command, list) else []
                driver, backend, prefix = (_text(line, key) for key in _FACTS)
                recording = Recording(driver, backend, prefix, words)
            else:
                recording.calls.append(_call(line))
        except BadArgument as error:
            raise BadArgument(f"line {number}: {error}") from None
    if recording is None:
        raise BadArgument("not a recording of `ugpu sniff`: the file is empty")
    return recording


def read(path: Path) -> Recording:
    """Read a recording from a file; BadArgument if the file is missing or not a recording."""
    try:
        return parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from None


KIND = outfile.Kind("a recording of a program's requests", rb'\{"ugpu-sniff":')


def header(driver: str, backend: str, prefix: str, command: Iterable[str]) -> str:
    """Return the first line of a recording."""
    facts = {"ugpu-sniff": FORMAT, "driver": driver, "backend": backend, "prefix": prefix}
    return json.dumps({**facts, "command": list(command)}) + "\n"
