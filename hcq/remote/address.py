"""The address of a ugpud: a UNIX socket of this machine, or TCP with TLS."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceNotFound, HostError, TransportError
from ugpu.hcq.state.config import config

PORT = 7847
CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
# TIMEOUT: how long a host may take to accept a connection and complete the handshake
CONNECT_LIMIT_S = 10.0


class UntrustedSocket(HostError):
    """The program that listens on a socket is neither this user's nor root's."""


@dataclass(frozen=True)
class Address:
    """The address of a ugpud.

    Attributes:
        path: a UNIX socket; otherwise host and port.
        host: a name or an IP address.
        port: TCP.
        authority: a file with the certificate that the server's is checked against; default: the
            system's.
        connected: a connected socket, used for one connection, which closes it; `path` is then its
            name in errors.
    """

    path: str = ""
    host: str = ""
    port: int = PORT
    authority: str = ""
    connected: socket.socket | None = None

    def __str__(self) -> str:
        return self.path or f"tls://{self.host}:{self.port}"


def default_socket() -> Path:
    """Return the UNIX socket of this user's ugpud, or the machine's if only that one exists. A
    socket of another user at the place of this user's does not count."""
    machine, own = Path("/run/ugpud/ugpud.sock"), user_socket()
    return machine if machine.exists() and not _is_own(own) else own


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()


def user_socket() -> Path:
    """Return the default socket path of this user's ugpud."""
    folder = config().runtime_folder or Path(tempfile.gettempdir()) / f"ugpu-{os.geteuid()}"
    return folder / "ugpud.sock"


def parse(text: str | None, authority: str = "") -> Address:
    """Return the address in `text`: a path, or tls://host:port; None: UGPU_DAEMON or the default
    socket. BadArgument names the expected form."""
    text = text or config().daemon or str(default_socket())
    if not text.startswith("tls://"):
        if "://" in text:
            raise BadArgument(f"expected a socket's path or tls://HOST[:PORT], got {text!r}")
        return Address(path=text)
    host, colon, port = text.removeprefix("tls://").rstrip("/").rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.removeprefix("tls://").rstrip("/"), str(PORT)
    well = port.isascii() and port.isdecimal() and len(port) <= 5
    if not host or not well or not 0 < int(port) < 1 << 16:
        raise BadArgument(f"expected tls://HOST[:PORT], got {text!r}")
    return Address(host=host.strip("[]"), port=int(port), authority=authority or config().authority)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of a UNIX socket's peer, as the kernel reports them: of the peer when
    it called connect(2), or listen(2)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, user, _ = CREDENTIALS.unpack(raw)
    return pid, user


def connect(address: Address) -> socket.socket:
    """Return a connected socket. DeviceNotFound if nothing listens, AccessDenied if the system
    refuses, UntrustedSocket if another user listens, TransportError for a certificate that cannot
    be trusted."""
    if address.connected is not None:
        return address.connected
    if address.path:
        return _local(address.path)
    if address.authority and not os.access(address.authority, os.R_OK):
        raise HostError(
            f"cannot read the certificate {address.authority}",
            remedy="name the certificate that signed the server's (authority=, UGPU_DAEMON_CA)",
        )
    try:
        plain = socket.create_connection((address.host, address.port), CONNECT_LIMIT_S)
    except (OSError, UnicodeError) as error:  # UnicodeError: not the name of a host
        reason = error.strerror if isinstance(error, OSError) else None
        raise DeviceNotFound(
            f"cannot reach ugpud at {address}: {reason or error}",
            remedy="check host and port, and that ugpud has a [tcp] section",
        ) from None
    try:
        context = ssl.create_default_context(cafile=address.authority or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context.wrap_socket(plain, server_hostname=address.host)
    except (ssl.SSLError, OSError) as error:
        plain.close()
        raise TransportError(
            f"no TLS connection to ugpud at {address}: {error}",
            remedy=(
                "pass the certificate that signed the server's certificate (authority=, "
                "UGPU_DAEMON_CA)"
            ),
        ) from None


def _local(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_LIMIT_S)
        connection.connect(path)
        pid, user = credentials(connection)
        if user not in (0, os.geteuid()):
            connection.close()
            raise UntrustedSocket(
                f"the socket {path} is served by user {user} (pid {pid}), expected root or user "
                f"{os.geteuid()}",
                remedy="set UGPU_DAEMON to the socket of a ugpud that you trust",
            )
        return connection
    except PermissionError:
        connection.close()
        raise AccessDenied(
            f"no permission to use the socket {path}",
            remedy="join the group that owns it (sudo usermod -aG ugpu $USER)",
        ) from None
    except OSError as error:
        connection.close()
        raise DeviceNotFound(
            f"no ugpud is listening on {path}: {error.strerror or error}",
            remedy="start ugpud (or systemctl start ugpud), or set UGPU_DAEMON",
        ) from None
    except ValueError as error:  # a path with a NUL
        connection.close()
        raise BadArgument(f"{path!r} is not the path of a socket: {error}") from None
