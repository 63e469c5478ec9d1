"""Where client connections come from: a UNIX socket, TCP with TLS, or sockets that systemd
opened."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import selectors
import socket
import ssl
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from hcq import threads
from hcq.errors import DeviceBusy, HostError, UgpuError
from hcq.remote.channel import Channel
from hcq.remote.wire import STRANGER

from .client import Peer
from .config import Settings
from .ports import BACKLOG, bound, server_context
from .tokens import Rights

log = logging.getLogger(__name__)

_FIRST = 3  # descriptor: sd_listen_fds(3)
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
# TIMEOUT: of a TLS handshake, as of "hello"
HANDSHAKE_LIMIT_S = 10.0

Serve = Callable[[Channel, Peer], None]


class Listeners:
    """The sockets. `run` accepts until `stop`; `close` removes the socket's file."""

    def __init__(self, settings: Settings, serve: Serve, environment: Mapping[str, str]) -> None:
        self._serve = serve
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._path: Path | None = None
        self._stopping, self._wake = socket.socketpair()
        try:
            tcp = settings.tcp
            context = None if tcp is None else server_context(tcp.certificate, tcp.key)
            passed = _passed(environment)
            for made in passed:
                local = made.family == socket.AF_UNIX
                if not local and context is None:
                    raise HostError(
                        "systemd passed a TCP socket, which requires a [tcp] section with "
                        "a certificate"
                    )
                self._sockets.append((made, None if local else context))
            if not any(made.family == socket.AF_UNIX for made in passed):
                self._sockets.append((self._local(settings), None))
            if settings.tcp is not None and all(m.family == socket.AF_UNIX for m in passed):
                self._sockets.append((bound(settings.tcp.host, settings.tcp.port, "tcp"), context))
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The TCP port, 0 if there is none."""
        names = [m.getsockname() for m, context in self._sockets if context is not None]
        return names[0][1] if names else 0

    def run(self) -> None:
        """Accept connections until `stop`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ, None)
            for made, context in self._sockets:
                made.setblocking(False)
                selector.register(made, selectors.EVENT_READ, (made, context))
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    self._accept(*key.data)

    def stop(self) -> None:
        """End `run`. From any thread or from a signal handler."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for made, _ in self._sockets:
            made.close()
        self._stopping.close()
        self._wake.close()
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def _accept(self, made: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            connection, address = made.accept()
        except OSError as error:  # disconnected again, or no descriptors left
            log.warning("a connection could not be accepted: %s", error)
            return
        try:
            if context is None:
                self._serve(Channel(connection, STRANGER), peer_of(connection))
            else:
                work = threading.Thread(
                    target=self._shake_hands, args=(connection, context, address), daemon=True
                )
                threads.start(work)
        except (UgpuError, OSError) as error:
            log.warning("a connection could not be served: %s", error)
            connection.close()

    def _shake_hands(
        self, connection: socket.socket, context: ssl.SSLContext, address: tuple[str, int]
    ) -> None:
        """Do the TLS handshake in a thread: an unknown peer may be slow."""
        where = f"{address[0]}:{address[1]}"
        try:
            connection.settimeout(HANDSHAKE_LIMIT_S)
            secure = context.wrap_socket(connection, server_side=True)
            self._serve(Channel(secure, STRANGER), Peer(where, None))
        except (UgpuError, OSError) as error:
            log.info("%s failed the TLS handshake: %s", where, error)
            connection.close()

    def _local(self, settings: Settings) -> socket.socket:
        path = settings.socket
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            made.bind(str(path))
            self._path = path
            path.chmod(settings.mode)
            made.listen(BACKLOG)
            return made
        except OSError as error:
            made.close()
            raise HostError(
                f"cannot listen on {path}: {error.strerror or error}",
                remedy="set socket in [daemon] to a path in a folder writable by this user",
            ) from None
        except BaseException:
            made.close()
            raise


def peer_of(connection: socket.socket) -> Peer:
    """Return the identity of a UNIX socket's peer, as the kernel reports it. The daemon's user and
    root are admins. The socket's file mode decides who else can connect."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    role = "admin" if uid in (0, os.geteuid()) else "use"
    name = f"{user}, pid {pid}"
    return Peer(name, Rights(name, role), pid)


def _remove_stale(path: Path) -> None:
    """Remove the file of a socket without a listener. DeviceBusy if it has one, HostError if the
    file is not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise HostError(f"{path} exists and is not a socket", remedy="remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise DeviceBusy(
        f"another ugpud is listening on {path}", remedy="stop it, or set another socket"
    )


def _passed(environment: Mapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd opened for this process: sd_listen_fds(3)."""
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for number in range(_FIRST, _FIRST + int(count)):
        try:
            found.append(socket.socket(fileno=number))
        except OSError as error:
            raise HostError(f"descriptor {number} from systemd is not a socket: {error}") from None
    return found
