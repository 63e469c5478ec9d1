"""The server: a socket on which one client at a time uses a model of a device.

Source: QEMU docs/interop/vfio-user.rst. Where QEMU's client differs from the text, the server
accepts the client's behaviour: an unmap may name any range, as in the kernel's VFIO, not only one
that was mapped.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ugpu.hcq.errors import BadArgument, DeviceBusy, OutOfMemory, TransportError
from ugpu.hcq.remote.address import credentials
from ugpu.hcq.state.threads import start
from ugpu.hcq.transport.vfio_user import wire
from ugpu.hcq.transport.vfio_user.attention import attention_to
from ugpu.hcq.transport.vfio_user.holder import remove_holder, write_holder
from ugpu.hcq.transport.vfio_user.wire import Channel, Disconnected
from ugpu.virtual.serve.model import DeviceModel
from ugpu.virtual.serve.session import Session

log = logging.getLogger(__name__)

# TIMEOUT: for the rest of a message that has begun; after that its sender is gone; our choice.
MESSAGE_LIMIT_S = 10.0
PROBE_LIMIT_S = 1.0  # TIMEOUT: a listening server has room for one more, or is in use
# TIMEOUT: how long the model takes to detach a client, on a busy host; our choice.
END_LIMIT_S = 30.0
# TIMEOUT: by then the kernel has reported the end of a dead client, whose successor may be waiting.
TAKEOVER_LIMIT_S = 0.2
# errors of accept(2) that end by themselves
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
SCARCE_PAUSE_S = 0.5  # our choice


class Server:
    """Serves `model` on a UNIX socket. A second client is refused (EBUSY) while one is connected.

    The device's state is kept between clients. Owns the socket file, which must not be in use.
    """

    def __init__(self, path: str | Path, model: DeviceModel, user: int | None = None) -> None:
        """Bind and listen; clients are served by `run`. DeviceBusy if another server answers at
        `path`; a stale socket is replaced. user: the only one who is served, besides this one;
        default: any that the socket's permissions let in."""
        self.path = Path(path)
        self._user = user
        self.model = model
        self.clients = 0
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._serving: threading.Thread | None = None
        self._stopping = False
        self._scarce = False  # no descriptor is free, as of the last attempt
        self._stopped = threading.Event()
        self._socket = _listen(self.path)

    def run(self) -> None:
        """Serve clients until `stop`; call once. Runs in the caller's thread and one per client."""
        try:
            while not self._stopping:
                try:
                    connection, _ = self._socket.accept()
                except OSError as error:
                    if self._stopping:
                        break
                    if error.errno not in SCARCE:
                        raise
                    self._wait_for_descriptors(error)
                    continue
                self._scarce = False
                if self._may(connection):
                    self._admit(connection)
                else:
                    connection.close()
        finally:
            self.stop()
            if self._serving is not None:
                self._serving.join(END_LIMIT_S)
            self._socket.close()
            remove_holder(self.path)
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()

    def _wait_for_descriptors(self, error: OSError) -> None:
        if not self._scarce:
            self._scarce = True
            log.warning("no client can be accepted for now: %s", error.strerror)
        self._stopped.wait(SCARCE_PAUSE_S)

    def _may(self, connection: socket.socket) -> bool:
        """Return whether the peer's user may use the device."""
        if self._user is None:
            return True
        _, user = credentials(connection)
        if user in (self._user, os.geteuid()):
            return True
        log.warning("user %d was refused: the device is user %d's", user, self._user)
        return False

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            current = self._session
        if current is not None and not current.gone(TAKEOVER_LIMIT_S):
            name = "vfio-user-refusal"
            self._start(_refuse, (connection,), name, connection)
            return
        write_holder(self.path, connection)
        channel = Channel(connection, MESSAGE_LIMIT_S, attention_to(connection))
        session = Session(channel, self.model)
        with self._lock:
            self._session = session  # before it runs: `stop` ends it
        serving = self._start(session.run, (), "vfio-user-client", connection)
        if serving is None:
            with self._lock:
                self._session = None
            return
        self.clients += 1
        self._serving = serving

    def _start(
        self, run: Callable[..., None], args: tuple[object, ...], name: str, peer: socket.socket
    ) -> threading.Thread | None:
        """Return a started thread; None if the system cannot start one: then the connection is
        closed."""
        thread = threading.Thread(target=run, args=args, name=name, daemon=True)
        try:
            start(thread)
        except OutOfMemory as error:
            log.error("a client was refused: %s", error)
            peer.close()
            return None
        return thread

    @property
    def session(self) -> Session | None:
        """The attached client, if any."""
        session = self._session
        return None if session is None or session.ended.is_set() else session

    def stop(self) -> None:
        """End `run` and the client's connection; any thread may call it, any number of times."""
        self._stopping = True
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        session = self._session
        if session is not None:
            session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > 107:
        raise BadArgument("the path of a socket must have at most 107 bytes", path=str(path))
    if path.exists():
        _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A client can make the device write to memory that it shares. The kernel gives the file
        # the mode that the socket has at bind(2), less the umask: never more than this.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise TransportError(
            f"cannot create a socket at {path}", reason=error.strerror or error.errno
        ) from error
    return listener


def _clear(path: Path) -> None:
    """Remove a socket that a dead server left behind."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise BadArgument(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_LIMIT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError as error:
            raise DeviceBusy(f"{path} is in use", holder="another server") from error
    raise DeviceBusy(f"{path} is in use", holder="another server")


def _refuse(connection: socket.socket) -> None:
    """Reply to a second client that the device is taken, once it sends a message. Runs in a
    separate thread: on a busy host that may be some time after it connected."""
    channel = Channel(connection, MESSAGE_LIMIT_S)
    try:
        first = channel.receive(patient=False)
        first.close()
        channel.send(first.number, first.command, flags=wire.REPLY | wire.ERROR, error=errno.EBUSY)
    except (Disconnected, TransportError, OSError):
        log.info("a second client disconnected before it was refused")
    finally:
        channel.close()
