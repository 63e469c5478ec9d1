"""TCP ports that ugpud listens on, and TLS on them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from pathlib import Path

from ugpu.hcq.errors import HostError

log = logging.getLogger(__name__)

BACKLOG = 512
PAUSE_S = 0.2  # until connections are accepted again after the system had no descriptor; our choice
TOLD_S = 60.0  # between two lines of the log about that
# errors of accept(2) that end by themselves; other ones are of a client that has left again
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bound(host: str, port: int, section: str) -> socket.socket:
    """Listen on an address. HostError names `section`, the part of the configuration to change."""
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=BACKLOG,
        )
    except OSError as error:
        raise HostError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            remedy=f"set listen in [{section}] to a free address and port",
        ) from None


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server with this certificate: TLS 1.3 only. HostError if it cannot be
    loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise HostError(
            f"cannot use {certificate} with {key}: {error}",
            remedy=(
                "both must be PEM files readable by ugpud, and the key must belong to "
                "the certificate"
            ),
        ) from None
    return context


class Spare:
    """A descriptor kept for the time when there is no other one: a connection is then accepted and
    closed, so that its client learns of it. The log has one line
    a minute at most."""

    def __init__(self) -> None:
        self._handle = _nothing()
        self._told = -TOLD_S

    def refused(self, listener: socket.socket, error: OSError) -> bool:
        """Handle an error of accept(2). Return False if the caller should pause."""
        if error.errno not in SCARCE:
            log.debug("a connection could not be accepted: %s", error)
            return True
        if time.monotonic() - self._told >= TOLD_S:
            self._told = time.monotonic()
            log.warning(
                "connections are refused for now: %s; raise LimitNOFILE of the service, or `ulimit "
                "-n`", error.strerror
            )  # fmt: skip
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
        self._handle = _nothing()
        return False

    def accepted(self) -> None:
        """Note that a connection was accepted."""
        if self._handle < 0:
            self._handle = _nothing()

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _nothing() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
