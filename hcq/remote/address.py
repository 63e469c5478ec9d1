"""The address of a ugpud: a UNIX socket of this machine, or TCP with TLS."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hcq.config import config
from hcq.errors import AccessDenied, BadArgument, DeviceNotFound, HostError, TransportError

PORT = 7847
# TIMEOUT: how long a host may take to accept a connection and complete the handshake
CONNECT_LIMIT_S = 10.0


@dataclass(frozen=True)
class Address:
    """path: a UNIX socket; otherwise host and port. authority: a file with the certificate that the
    server's is checked against; default: the system's. made: a connected socket, used for one
    connection, which closes it; `path` is then its name in errors."""

    path: str = ""
    host: str = ""
    port: int = PORT
    authority: str = ""
    made: socket.socket | None = None

    def __str__(self) -> str:
        return self.path or f"tls://{self.host}:{self.port}"


def default_socket() -> Path:
    """Return the UNIX socket of this user's ugpud, or the machine's if only that one exists."""
    machine, own = Path("/run/ugpud/ugpud.sock"), user_socket()
    return machine if machine.exists() and not own.exists() else own


def user_socket() -> Path:
    """Return the default socket path of this user's ugpud."""
    folder = config().runtime_folder or Path(tempfile.gettempdir()) / f"ugpu-{os.geteuid()}"
    return folder / "ugpud.sock"


def parse(text: str | None, authority: str = "") -> Address:
    """Return the address in `text`: a path, or tls://host:port; None: UGPU_DAEMON or the default
    socket. BadArgument says what is expected."""
    text = text or config().daemon or str(default_socket())
    if not text.startswith("tls://"):
        if "://" in text:
            raise BadArgument(f"expected a socket's path or tls://HOST[:PORT], got {text!r}")
        return Address(path=text)
    host, colon, port = text.removeprefix("tls://").rstrip("/").rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.removeprefix("tls://").rstrip("/"), str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise BadArgument(f"expected tls://HOST[:PORT], got {text!r}")
    return Address(host=host.strip("[]"), port=int(port), authority=authority or config().authority)


def connect(address: Address) -> socket.socket:
    """Return a connected socket. DeviceNotFound if nothing listens, AccessDenied if the system
    refuses, TransportError for a certificate that cannot be trusted."""
    if address.made is not None:
        return address.made
    if address.path:
        return _local(address.path)
    if address.authority and not os.access(address.authority, os.R_OK):
        raise HostError(
            f"cannot read the certificate {address.authority}",
            remedy="name the certificate that signed the server's (authority=, UGPU_DAEMON_CA)",
        )
    try:
        plain = socket.create_connection((address.host, address.port), CONNECT_LIMIT_S)
    except OSError as error:
        raise DeviceNotFound(
            f"cannot reach ugpud at {address}: {error.strerror or error}",
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
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(CONNECT_LIMIT_S)
        made.connect(path)
        return made
    except PermissionError:
        made.close()
        raise AccessDenied(
            f"no permission to use the socket {path}",
            remedy="join the group that owns it (sudo usermod -aG ugpu $USER)",
        ) from None
    except OSError as error:
        made.close()
        raise DeviceNotFound(
            f"no ugpud is listening on {path}: {error.strerror or error}",
            remedy="start ugpud (or systemctl start ugpud), or set UGPU_DAEMON",
        ) from None
