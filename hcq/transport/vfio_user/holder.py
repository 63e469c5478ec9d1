"""The holder of a served device: a file next to the socket names the client's process.

An error reply of the protocol is only a header (QEMU docs/interop/vfio-user.rst) and cannot name
the process. The server writes the file when a client is attached; a refused client reads it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_MOST_BYTES = 200


def _file(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")


def write_holder(path: Path, connection: socket.socket) -> None:
    """Write the process at the other end of `connection` into a file beside the socket at `path`;
    does nothing if the system does not report the process, or the file cannot be written."""
    with contextlib.suppress(OSError):
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(raw)
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_file(path), flags, 0o600)
        try:
            os.write(descriptor, f"{name} (pid {pid})".encode())
        finally:
            os.close(descriptor)


def read_holder(path: Path) -> str:
    """Return the holder recorded beside a socket; "" if there is none."""
    try:
        with _file(path).open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return text if text.isprintable() else ""


def remove_holder(path: Path) -> None:
    """Remove the file, when the server ends."""
    with contextlib.suppress(OSError):
        _file(path).unlink()
