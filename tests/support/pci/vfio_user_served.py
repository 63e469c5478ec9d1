"""Servers for tests of vfio-user: in a thread, or in a process of their own."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ugpu.virtual.serve.model import DeviceModel
from ugpu.virtual.serve.server import Server

END_LIMIT_S = 60


@contextmanager
def served(model: DeviceModel) -> Iterator[Server]:
    """A server in a thread of this process; `server.path` is its socket."""
    # Not pytest's tmp_path: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="vu-") as folder:
        server = Server(Path(folder) / "s", model)
        thread = threading.Thread(target=server.run, name="test-server", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(END_LIMIT_S)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def raw_client(server: Server) -> Iterator[socket.socket]:
    """A bare connection, for messages written by hand."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(END_LIMIT_S)
        connection.connect(str(server.path))
        yield connection
