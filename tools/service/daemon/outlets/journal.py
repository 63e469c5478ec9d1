"""Log records and events as entries of systemd's journal, with fields.

Each entry is a datagram of lines KEY=value. A value of several lines is written as KEY, its length
in 64 bits, and the value. An entry that is too large for a datagram is put into a sealed memfd, and
only the memfd's descriptor is sent. The socket does not block: while journald does not accept
entries, they are counted and dropped, and the count is written as an entry (`journal.lost`).

systemd-python is not used because it needs libsystemd's headers and a compiler at installation, and
blocks while journald is stopped.

Source: systemd, "Native Journal Protocol" (docs/JOURNAL_NATIVE_PROTOCOL.md),
systemd.journal-fields(7), systemd.exec(5) on JOURNAL_STREAM, memfd_create(2), fcntl(2).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.text import lines
from ugpu.tools.base.events import JOURNAL_LOST, event_of

SOCKET = Path("/run/systemd/journal/socket")
CHOICES = ("auto", "journal", "stderr")
# The size that libsystemd sets, so that bursts fit. Source: systemd, sd-journal/journal-send.c
_SEND_BUFFER = 8 << 20
_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
# Priorities of syslog(3).
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def wanted(choice: str, environ: Mapping[str, str]) -> bool:
    """Return whether records go to the journal: always for "journal", never for "stderr". "auto"
    chooses the journal if stderr is the journal's stream. systemd names that stream to its services
    in JOURNAL_STREAM."""
    if choice not in CHOICES:
        raise BadArgument(f"log must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice != "auto":
        return choice == "journal"
    try:
        status = os.fstat(sys.__stderr__.fileno()) if sys.__stderr__ is not None else None
    except (OSError, ValueError):
        return False
    stream = environ.get("JOURNAL_STREAM")
    return status is not None and stream == f"{status.st_dev}:{status.st_ino}"


def encoded(fields: Mapping[str, str]) -> bytes:
    """Return an entry. fields: values by upper case name."""
    parts = []
    for name, value in fields.items():
        data = value.encode("utf-8", "surrogateescape")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


class JournalHandler(logging.Handler):
    """Send records to journald. path: its socket, looked up again for each entry, so that journald
    may restart. lost: entries dropped since the last accepted one."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self.lost = 0
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. Never blocks."""
        try:
            if self.lost:
                self._send(encoded(dict(self._loss())))
                self.lost = 0
            self._send(encoded({name: lines(value) for name, value in _fields(record)}))
        except OSError:
            self.lost += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _loss(self) -> Iterator[tuple[str, str]]:
        yield "MESSAGE", f"journald did not take {self.lost} entries in time"
        yield "PRIORITY", str(_priority(JOURNAL_LOST.level))
        yield "SYSLOG_IDENTIFIER", "ugpud"
        yield "MESSAGE_ID", JOURNAL_LOST.message_id
        yield "UGPU_EVENT", JOURNAL_LOST.name
        yield "UGPU_COUNT", str(self.lost)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._send_sealed(data)

    def _send_sealed(self, data: bytes) -> None:
        handle = os.memfd_create("ugpud-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", handle))
            self._socket.sendmsg([], [rights], 0, self._path)
        finally:
            os.close(handle)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    event = event_of(record)
    text = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    yield "MESSAGE", text
    yield "PRIORITY", str(_priority(record.levelno))
    yield "SYSLOG_IDENTIFIER", "ugpud"
    yield "LOGGER", record.name
    yield "CODE_FILE", record.pathname
    yield "CODE_LINE", str(record.lineno)
    yield "CODE_FUNC", record.funcName or ""
    yield "THREAD_NAME", record.threadName or ""
    if event is not None:
        yield "MESSAGE_ID", event.kind.message_id
        yield "UGPU_EVENT", event.kind.name
        if event.remedy:
            yield "UGPU_REMEDY", event.remedy
        for name, value in event.fields.items():
            yield f"UGPU_{name.upper()}", value


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)
