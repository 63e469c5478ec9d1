"""A plain client of ugpud's protocol that can misbehave: frames are sent as the test makes them."""

from __future__ import annotations

import contextlib
import socket
import zlib
from types import TracebackType
from typing import Any, Self

import msgpack

from ugpu.hcq.remote.wire import HEADER, MAGIC, VERSION

LIMIT_S = 60.0


def frame(
    operation: str,
    arguments: tuple[object, ...] = (),
    call: int = 1,
    data: bytes = b"",
    sequence: int = 0,
    *,
    announced: int | None = None,
) -> bytes:
    """One frame. announced: bytes of data that its header promises, if not those it has."""
    meta: bytes = msgpack.packb([operation, call, list(arguments)])
    size = len(data) if announced is None else announced
    crc = zlib.crc32(data, zlib.crc32(meta))
    return HEADER.pack(MAGIC, len(meta), size, crc, sequence, 0) + meta + data


class Raw:
    """A connection to a UNIX socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(path)
        self.events: list[tuple[str, list[Any]]] = []
        self._calls = self._sequence = 0
        self._numbered = False

    def hello(self, token: str | None = None) -> tuple[str, Any]:
        """The reply, or the error as its class."""
        kind, found = self.call("hello", VERSION, token, 0)
        self._numbered = kind == "reply" and bool(found["session"])
        return kind, found

    def post(self, operation: str, *arguments: object, call: int = 0, data: bytes = b"") -> None:
        """Send a request and read nothing."""
        self._sequence += self._numbered
        number = self._sequence if self._numbered else 0
        self.socket.sendall(frame(operation, arguments, call, data, number))

    def call(self, operation: str, *arguments: object, data: bytes = b"") -> tuple[str, Any]:
        """Send a request; return "reply" and its value, or "error" and its class."""
        self._calls += 1
        self.post(operation, *arguments, call=self._calls, data=data)
        while True:
            kind, call, given = self.message()
            if kind in ("reply", "error") and call == self._calls:
                return kind, given[0]
            self.events.append((kind, given))

    def message(self) -> tuple[str, int, list[Any]]:
        """The next message; EOFError at the end."""
        _, meta, data, _, _, _ = HEADER.unpack(self._read(HEADER.size))
        kind, call, given = msgpack.unpackb(self._read(meta), strict_map_key=False)
        self._read(data)
        return kind, call, given

    def until_closed(self) -> None:
        """Read until the server ends the connection."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise EOFError("the server closed the connection")
            found += part
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
