"""The bridge firmware's console: a serial line that reports links, resets and requests.

Source: asm2464pd-firmware of 2026-04-29: handmade/src/main.c (texts), ftdi_debug.py (921,600 baud,
8 data bits, no parity). Read only: the firmware takes no input.
"""

from __future__ import annotations

import os
import re
import select
import termios
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from ugpu.hcq.errors import BadArgument, LinkError

BAUD = termios.B921600
_LOOK_S = 0.25  # interval at which a reader checks whether to stop
_LONGEST = 512  # characters of a line; the firmware's are below 60
_HEX = "([0-9A-F]{2})"

_Tell = Callable[[re.Match[str]], str]
#: meanings of the texts in brackets
MESSAGES: tuple[tuple[re.Pattern[str], _Tell], ...] = tuple(
    (re.compile(rf"\[{pattern}\]"), tell)
    for pattern, tell in (
        ("BOOT", lambda _: "the firmware starts"),
        (
            f"PCIe {_HEX} (?: UP|down) Gen{_HEX} x{_HEX}( CONNECTED)?",
            lambda m: (
                f"PCIe link {'in L0' if m[4] else f'in LTSSM state 0x{m[1]}'}, "
                f"generation {int(m[2], 16)}, {int(m[3], 16)} lanes"
            ),
        ),
        ("PCIe timeout", lambda _: "the PCIe link did not come up within 2 s"),
        ("PCIE TIMEOUT", lambda _: "no completion came for a PCI Express request"),
        (f"RST {_HEX}", lambda m: f"reset of the USB bus, event 0x{m[1]}"),
        ("USB2 fallback", lambda _: "SuperSpeed failed: the bridge goes on at 480 Mbit/s"),
        (f"LINK EVENT {_HEX} link={_HEX}", lambda m: f"USB link event 0x{m[1]}, status 0x{m[2]}"),
        (f"ALT LINK {_HEX}", lambda m: f"USB link changed, status 0x{m[1]}"),
        (f"C {_HEX} {_HEX} ([0-9A-F]{{4}})", lambda m: (
            f"standard request 0x{m[2]} of type 0x{m[1]}, {int(m[3], 16)} bytes"
        )),
        ("A", lambda _: "the host gives an address"),
        (r"\*\*\* SET CONFIG \*\*\*", lambda _: "the host chooses the configuration"),
        (f"EP_COMPLETE {_HEX}", lambda m: f"endpoint event 0x{m[1]}"),
        (f"UNHANDLED ([A-Z0-9 ]+?) {_HEX}", lambda m: f"not handled: {m[1]} 0x{m[2]}"),
    )
)  # fmt: skip


def decode(text: str) -> list[str]:
    """Explain each known message in a line."""
    meanings = [(m.start(), tell(m)) for pattern, tell in MESSAGES for m in pattern.finditer(text)]
    return [meaning for _, meaning in sorted(meanings)]


def lines(path: Path, *, stop: Callable[[], bool]) -> Generator[tuple[float, str], None, None]:
    """Read a serial line, or a recording of one, until `stop`: (seconds since the start, text).

    LinkError when the adapter is unplugged, BadArgument where `path` is neither a line nor a
    recording.
    """
    if path.is_file():
        yield from _recorded(path)
        return
    try:
        line = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise BadArgument(f"{path} cannot be opened: {error.strerror}") from error
    try:
        _set_up(line, path)
        yield from _live(line, path, stop)
    finally:
        os.close(line)


def _set_up(line: int, path: Path) -> None:
    try:
        modes = termios.tcgetattr(line)
    except termios.error as error:
        raise BadArgument(f"expected a serial line or a recording, got {path}") from error
    modes[0] = modes[1] = modes[3] = 0  # raw
    modes[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
    modes[4] = modes[5] = BAUD
    termios.tcsetattr(line, termios.TCSANOW, modes)


def _live(line: int, path: Path, stop: Callable[[], bool]) -> Iterator[tuple[float, str]]:
    start, rest = time.perf_counter(), b""
    while not stop():
        if not select.select([line], [], [], _LOOK_S)[0]:
            continue
        try:
            data = os.read(line, 4096)
        except OSError as error:
            raise LinkError(f"{path} disappeared: {error.strerror}") from error
        if not data:
            raise LinkError(f"the other end of {path} was closed")
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST:
            whole, rest = [*whole, rest], b""
        for raw in whole:
            if text := raw.decode("ascii", "replace").strip("\r"):
                yield time.perf_counter() - start, text


def _recorded(path: Path) -> Iterator[tuple[float, str]]:
    for number, entry in enumerate(path.read_text(errors="replace").splitlines(), 1):
        seconds, tab, text = entry.partition("\t")
        try:
            at = float(seconds)
        except ValueError:
            at, tab = 0.0, ""
        if not tab:
            raise BadArgument(f"{path}: line {number} is not 'SECONDS, tab, TEXT'")
        yield at, text


def record(at: float, text: str) -> str:
    """Return a line of a recording."""
    return f"{at:.6f}\t{text}\n"
