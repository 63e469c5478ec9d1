"""Where client connections come from: a UNIX socket, TCP with TLS, or sockets that systemd
opened."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import DeviceBusy, HostError, UgpuError
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.wire import STRANGER
from ugpu.tools.service.daemon.cards.forks import readable
from ugpu.tools.service.daemon.clients.peers import peer_of
from ugpu.tools.service.daemon.config import Settings
from ugpu.tools.service.daemon.porch import Porch, Serve
from ugpu.tools.service.daemon.ports import BACKLOG, PAUSE_S, Spare, bound, server_context

log = logging.getLogger(__name__)

_FIRST = 3  # descriptor: sd_listen_fds(3)


class Listeners:
    """The sockets. `run` accepts until `stop`; `close` removes the socket's file."""

    def __init__(self, settings: Settings, serve: Serve, environment: Mapping[str, str]) -> None:
        self._serve = serve
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._porch: Porch | None = None
        self._path: Path | None = None
        self._spare = Spare()
        self._stopping, self._wake = socket.socketpair()
        try:
            tcp = settings.tcp
            context = None if tcp is None else server_context(tcp.certificate, tcp.key)
            passed = _passed(environment)
            for listener in passed:
                local = listener.family == socket.AF_UNIX
                if not local and context is None:
                    raise HostError(
                        "systemd passed a TCP socket, which requires a [tcp] section with "
                        "a certificate"
                    )
                self._sockets.append((listener, None if local else context))
            if not any(listener.family == socket.AF_UNIX for listener in passed):
                self._sockets.append((self._local(settings), None))
            if settings.tcp is not None and all(m.family == socket.AF_UNIX for m in passed):
                self._sockets.append((bound(settings.tcp.host, settings.tcp.port, "tcp"), context))
            remote = [listener for listener, secure in self._sockets if secure is not None]
            if context is not None:
                self._porch = Porch(remote, context, serve)
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
        if self._porch is not None:
            self._porch.start()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopping, selectors.EVENT_READ, None)
            for listener, context in self._sockets:
                if context is None:
                    listener.setblocking(False)
                    selector.register(listener, selectors.EVENT_READ, listener)
            while True:
                pause = False
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    pause |= not self._accept(key.data)
                if pause and readable(self._stopping.fileno(), PAUSE_S):
                    return

    def stop(self) -> None:
        """End `run`. From any thread or from a signal handler."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        porch, self._porch = self._porch, None
        if porch is not None:
            porch.close()
        for listener, _ in self._sockets:
            listener.close()
        self._stopping.close()
        self._wake.close()
        self._spare.close()
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection. Return False if the system has no descriptor for it."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            return self._spare.refused(listener, error)
        self._spare.accepted()
        try:
            self._serve(Channel(connection, STRANGER), peer_of(connection))
        except (UgpuError, OSError) as error:
            log.warning("a connection could not be served: %s", error)
            connection.close()
        return True

    def _local(self, settings: Settings) -> socket.socket:
        path = settings.socket
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _check_folder(path.parent)
            _remove_stale(path)
            # The kernel gives the file the mode that the socket has at bind(2), less the umask:
            # never more than this.
            os.fchmod(listener.fileno(), settings.mode)
            listener.bind(str(path))
            self._path = path
            path.chmod(settings.mode)
            listener.listen(BACKLOG)
            return listener
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            listener.close()
            reason = error.strerror if isinstance(error, OSError) else None
            raise HostError(
                f"cannot listen on {path}: {reason or error}",
                remedy="set socket in [daemon] to a path in a folder writable by this user",
            ) from None
        except BaseException:
            listener.close()
            raise


def _check_folder(folder: Path) -> None:
    """Make the folder of the socket if it is missing. HostError if another user could replace the
    socket: a folder that is another user's, or that others can write unless it is sticky."""
    if not folder.exists():
        ownfolder.make_private(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    remedy = "set socket in [daemon] to a path in a folder of the user that runs ugpud"
    if status.st_uid not in (0, os.geteuid()):
        raise HostError(
            f"the folder {folder} of the socket belongs to user {status.st_uid}, expected "
            f"{os.geteuid()} or root",
            remedy=remedy,
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise HostError(
            f"the folder {folder} of the socket can be written by others (mode {mode:04o})",
            remedy=remedy,
        )


def _remove_stale(path: Path) -> None:
    """Remove the file of a socket without a listener. DeviceBusy if it has one, HostError if the
    file is not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise HostError(f"{path} exists and is not a socket", remedy="remove it")
    if path.lstat().st_uid != os.geteuid():
        raise HostError(f"{path} is a socket of another user", remedy="remove it")
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
    passed = []
    for number in range(_FIRST, _FIRST + int(count)):
        try:
            passed.append(socket.socket(fileno=number))
        except OSError as error:
            raise HostError(f"descriptor {number} from systemd is not a socket: {error}") from None
    return passed
