"""Logging: the TRACE level, and dumps that cost nothing when the log is off.

ERROR someone must act, WARNING we coped, INFO life of a device, DEBUG steps, TRACE single accesses.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.text import lines

TRACE = 5
LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}
OURS = "ugpu"
FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"


class HexDump:
    """Bytes that become text only when a log line is written.

    log.debug("sent %s", HexDump(data)); more than `limit` bytes are truncated, and marked as such.
    """

    def __init__(self, data: bytes | bytearray | memoryview, limit: int = 256) -> None:
        self.data = data
        self.limit = limit

    def __str__(self) -> str:
        size = len(self.data)
        shown = bytes(self.data[: self.limit])
        lines = [f"{size} bytes"]
        for start in range(0, len(shown), 16):
            part = shown[start : start + 16]
            words = " ".join(part[at : at + 4].hex() for at in range(0, len(part), 4))
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            lines.append(f"  {start:06x}  {words:<35}  {text}")
        if size > len(shown):
            lines.append(f"  ... {size - len(shown)} more")
        return "\n".join(lines)


class Safe(logging.Formatter):
    """Formats records so that text of other programs in them neither acts on a terminal nor looks
    like a record: unsafe characters are escaped, and further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        text = lines(super().format(record))
        return text.replace("\n", "\n    ") if "\n" in text else text


def configure(
    level: str = "warning", stream: TextIO | None = None, handler: logging.Handler | None = None
) -> logging.Handler:
    """Send ugpu's log to `handler`, or to `stream` (default: stderr); programs call it once
    at their start."""
    if level not in LEVELS:
        raise BadArgument(f"log level must be one of {', '.join(LEVELS)}", level=level)
    logging.addLevelName(TRACE, "TRACE")
    if handler is None:
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(Safe(FORMAT, "%H:%M:%S"))
    logger = logging.getLogger(OURS)
    logger.setLevel(LEVELS[level])
    logger.addHandler(handler)
    logger.propagate = False
    return handler


def remove(handler: logging.Handler) -> None:
    """Undo `configure`."""
    logger = logging.getLogger(OURS)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
