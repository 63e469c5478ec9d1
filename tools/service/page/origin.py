"""Whether a browser's request comes from the page itself: its Host and Origin.

A site of another name that resolves to this machine (DNS rebinding), and a page of another port,
are refused. A request with a token in its header needs no check: only a program that has the token
can send it.

Source: RFC 9110, 7.2 (Host); WHATWG Fetch, "Origin header"; OWASP Cross-Site Request Forgery
Prevention.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from ugpu.hcq.errors import AccessDenied
from ugpu.tools.service.daemon.config import PageSettings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Origin:
    """The names of one page. secure: it is behind TLS."""

    def __init__(self, settings: PageSettings, secure: bool) -> None:
        self._secure = secure
        self._loopback = settings.host in LOOPBACK
        own = LOOPBACK if self._loopback else (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower() for name in (settings.host, *settings.names, *own)}

    @web.middleware
    async def check(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Raise AccessDenied unless the request may have come from the page."""
        if "Authorization" not in request.headers:
            host = request.headers.get("Host", "")
            if not self.is_own(host):
                raise AccessDenied(
                    f"the page is not at {host[:100]!r}",
                    remedy="open it by its own address; other names belong to names in [page]",
                )
            origin = request.headers.get("Origin")
            schemes = ("https",) if self._secure else ("http", "https")  # a proxy may have TLS
            if origin is not None and origin not in [f"{scheme}://{host}" for scheme in schemes]:
                raise AccessDenied(f"a request from {origin[:100]!r} is refused")
        return await handler(request)

    def is_own(self, host: str) -> bool:
        """Return whether a Host header names this page."""
        name = _without_port(host).lower()
        if name in self._names:
            return True
        if self._loopback:
            return False
        try:  # an address is not a name that another site could have
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or port[0] == ":") else host
    name, _, port = host.rpartition(":")
    return name if name and port.isascii() and port.isdecimal() else host
