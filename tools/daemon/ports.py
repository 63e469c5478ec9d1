"""TCP ports that ugpud listens on, and TLS on them."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from hcq.errors import HostError

BACKLOG = 512


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
