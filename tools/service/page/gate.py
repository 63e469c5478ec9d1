"""The connections of the page: how many there may be, and how long each may take.

A connection carries one request. Its header, TLS included, must arrive within HEAD_S, and the whole
exchange ends within WHOLE_S, except for streams, whose writes have a limit. Connections that have
not shown a token are strangers: when all their places are taken, the oldest one of the host that
has most is closed. The others have places apart, EACH for one token
(tools.service.daemon.clients.places).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ugpu.tools.service.daemon.clients.places import Crowd, Places
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.ports import PAUSE_S, Spare

log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record of aiohttp is not about bytes that are not HTTP: a stranger must not
    fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


_http = logging.getLogger(f"{__name__}.http")
_http.addFilter(_is_ours)
EACH = 16

# TIMEOUT: from the connection to the end of the request's header, and to the end of the answer, of
# which the largest is a bundle; our choice
HEAD_S, WHOLE_S = 10.0, 60.0


class Connection(web.RequestHandler):
    """One connection. `gate` and `place` are set by Gate."""

    __slots__ = ("gate", "limit", "origin", "placed")

    def __init__(self, gate: Gate, server: web.Server, origin: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, keepalive_timeout=HEAD_S, logger=_http)
        self.gate = gate
        self.origin = origin
        self.limit: asyncio.TimerHandle | None = None
        self.placed: Rights | None = None  # those that have a place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gate.enter(self)
        self.set_limit(HEAD_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.set_limit(None)
        self.gate.leave(self)
        super().connection_lost(exc)

    def set_limit(self, seconds: float | None) -> None:
        """Close the connection after `seconds` from now; None: never."""
        if self.limit is not None:
            self.limit.cancel()
        loop = asyncio.get_running_loop()
        self.limit = None if seconds is None else loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close the connection without sending what is left."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class Gate:
    """Accepts connections for `server`, at most `most` at a time."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        server: web.Server,
        most: int,
    ) -> None:
        self._listener = listener
        self._context = context
        self._server = server
        self._strangers: Crowd[Connection] = Crowd(max(1, most // 3))
        self._opening: Crowd[asyncio.Task[None]] = Crowd(max(1, most // 3))  # TLS handshakes
        self._tasks: set[asyncio.Task[None]] = set()  # of these
        self._places = Places(max(1, most // 3), EACH, "connections to the page")
        self._spare = Spare()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Accept connections until `stop` is set."""
        self._listener.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((accepting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (accepting, stopping, *self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Give the spare descriptor back. Idempotent."""
        self._spare.close()

    def enter(self, connection: Connection) -> None:
        """Give a connection a place; another one may lose its own."""
        loser = self._strangers.enter(connection, connection.origin)
        if loser is not None:
            loser.abort()

    def known(self, connection: Connection, rights: Rights) -> None:
        """Give a connection that has shown a token its place; DeviceBusy if there is none."""
        if connection.placed is None:
            self._places.take(rights)
            connection.placed = rights
            self._strangers.leave(connection)

    def leave(self, connection: Connection) -> None:
        """Free the place of a connection. Idempotent."""
        self._strangers.leave(connection)
        rights, connection.placed = connection.placed, None
        if rights is not None:
            self._places.give_back(rights)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as error:
                if not self._spare.refused(self._listener, error):
                    await asyncio.sleep(PAUSE_S)
                continue
            self._spare.accepted()
            origin = str(address[0])
            task = asyncio.create_task(self._open(connection, origin))
            self._tasks.add(task)
            task.add_done_callback(self._opened)
            loser = self._opening.enter(task, origin)
            if loser is not None:
                loser.cancel()
            await asyncio.sleep(0)  # requests of a burst are read before more are accepted

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._opening.leave(task)

    async def _open(self, connection: socket.socket, origin: str) -> None:
        loop = asyncio.get_running_loop()
        limit_s = None if self._context is None else HEAD_S
        try:
            await loop.connect_accepted_socket(
                lambda: Connection(self, self._server, origin),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=limit_s,
            )
        except (OSError, TimeoutError) as error:
            log.debug("%s: no connection to the page: %s", origin, error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


@web.middleware
async def one_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Limit the time of a request, and close its connection after the answer."""
    if isinstance(request.protocol, Connection):
        request.protocol.set_limit(WHOLE_S)
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.force_close()
        raise
    if not response.prepared:
        response.force_close()
    return response


def become_known(request: web.Request, rights: Rights) -> None:
    """Give a request's connection the place of its token; DeviceBusy if there is none."""
    if isinstance(request.protocol, Connection):
        request.protocol.gate.known(request.protocol, rights)


def without_limit(request: web.Request) -> None:
    """Let a request's connection stay open: it is a stream."""
    if isinstance(request.protocol, Connection):
        request.protocol.set_limit(None)


def cut(request: web.Request) -> None:
    """Close a request's connection without sending what is left."""
    if isinstance(request.protocol, Connection):
        request.protocol.abort()
