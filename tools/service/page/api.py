"""The requests that the page makes: state and events, the views of cards, and an admin's actions.

    POST   /api/session               {"token": ...}: log in; a cookie stands for the token
    DELETE /api/session               log out
    GET    /api/state                 cards, leases, waiters; role and name of the client
    GET    /api/history               the plots of the last minutes
    GET    /api/stream                the same whenever it changes, and events: Server-sent events
    GET    /api/cards/NAME            all facts of one card
    GET    /api/bundles[/NAME]        bundles of evidence; one as a file (admin)
    GET    /api/verdicts              of hardware CI
    POST   /api/cards/NAME/reset      for admins, as are the following
    POST   /api/cards/NAME/quarantine {"reason": ...}
    POST   /api/cards/NAME/recover
    POST   /api/leases/NUMBER/release

An error is {"error": class, "message": ..., "remedy": ...}. Programs send a token as
`Authorization: Bearer`. The Content-Type of a body must be JSON, which a form of another site
cannot send. The cookie is SameSite=Strict. Host and Origin of a request without a token in its
header must be the page's own (tools.service.page.origin).

A token has MOST_STREAMS streams, and MOST_REQUESTS other requests at a time; more of them wait.

Source: WHATWG HTML, "Server-sent events"; OWASP Cross-Site Request Forgery Prevention.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar
from weakref import WeakValueDictionary

from aiohttp import web

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceBusy, NotSupported, UgpuError
from ugpu.hcq.state.text import one_line
from ugpu.tools.service.daemon.clients.places import Places
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.outlets.feed import Feed
from ugpu.tools.service.page.fleet import Fleet
from ugpu.tools.service.page.gate import become_known, cut, without_limit
from ugpu.tools.service.page.sessions import IDLE_S, Sessions

log = logging.getLogger(__name__)

COOKIE = "ugpu_session"
WATCHERS = 256  # simultaneous streams
MOST_STREAMS = 8  # of one token
MOST_REQUESTS = 4  # of one token; other requests wait, so that some are left for other users
# TIMEOUT: for a page that reads nothing, and for a request's body; our choice
WRITE_S, BODY_S = 10.0, 10.0
PULSE_S = 1.0  # between two states of a stream
QUIET_S = 4.0  # between two readings while no page is open, for the plots of the next one
BODY = 4096  # bytes of a request's body
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Unknown(AccessDenied):
    """The caller is unknown to ugpud: no session, or an invalid or expired token."""


_STATUS = (
    (Unknown, 401),
    (AccessDenied, 403),
    (BadArgument, 400),
    (NotSupported, 400),
    (DeviceBusy, 409),
)


class Api:
    """Handlers for one daemon. pool: threads for calls that may block. secure: the page is behind
    TLS."""

    def __init__(
        self, daemon: Daemon, fleet: Fleet, feed: Feed, pool: Executor, *, secure: bool
    ) -> None:
        self.daemon = daemon
        self.fleet = fleet
        self.feed = feed
        self.sessions = Sessions(daemon.rights)
        self._pool = pool
        self._secure = secure
        self._watchers: set[asyncio.Event] = set()
        self._closing = False
        self._opened = asyncio.Event()  # a page was opened, or all are to end
        self._streams = Places(WATCHERS, MOST_STREAMS, "open pages")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/api/session", self._log_in),
            web.delete("/api/session", self._log_out),
            web.get("/api/state", self._state),
            web.get("/api/history", self._history),
            web.get("/api/stream", self._stream),
            web.get("/api/cards/{name}", self._card),
            web.get("/api/bundles", self._bundles),
            web.get("/api/bundles/{name}", self._bundle),
            web.get("/api/verdicts", self._verdicts),
            web.post("/api/cards/{name}/reset", self._reset),
            web.post("/api/cards/{name}/quarantine", self._quarantine),
            web.post("/api/cards/{name}/recover", self._recover),
            web.post("/api/leases/{number}/release", self._release),
        ]

    # ---- identity of the client --------------------------------------------------------------

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        token = body.get("token")
        if not isinstance(token, str):
            raise BadArgument(f"token: expected text, got {type(token).__name__}")
        session, rights = self.sessions.open(token)
        response = web.json_response(_who(rights))
        response.set_cookie(
            COOKIE,
            session,
            max_age=int(IDLE_S),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._secure,
        )
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        self.sessions.close(request.cookies.get(COOKIE, ""))
        response = web.json_response({})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _rights(self, request: web.Request) -> Rights:
        """Return the rights of the client; Unknown if it has none."""
        header = request.headers.get("Authorization", "")
        kind, _, token = header.partition(" ")
        if header and kind.lower() != "bearer":
            raise Unknown(f"Authorization: expected Bearer, got {kind[:20]!r}")
        try:
            if header:
                rights = self.daemon.rights(token.strip())
            else:
                rights = self.sessions.rights(request.cookies.get(COOKIE, ""))
        except AccessDenied as error:
            raise Unknown(str(error.message), **error.facts) from None
        become_known(request, rights)
        return rights

    async def _wait(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def _turn(self, rights: Rights, call: Callable[..., T], *arguments: object) -> T:
        """Make a call that may block, when the token has fewer than MOST_REQUESTS of them."""
        turns = self._turns.get(rights.who)
        if turns is None:
            turns = self._turns[rights.who] = asyncio.Semaphore(MOST_REQUESTS)
        async with turns:
            return await self._wait(call, *arguments)

    # ---- views -------------------------------------------------------------------------------

    async def _state(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        self.fleet.readings.ask()
        state = await self._turn(rights, self.fleet.state, rights)
        return web.json_response(state | {"who": _who(rights)})

    async def _history(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        rights.check("see")
        return web.json_response(await self._turn(rights, self.fleet.past, rights))

    async def _card(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        return web.json_response(
            await self._turn(rights, self.fleet.card, request.match_info["name"], rights)
        )

    async def _bundles(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        rights.check("see")
        return web.json_response(await self._turn(rights, self.fleet.bundles, rights))

    async def _bundle(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        rights.check("download")
        name = request.match_info["name"]
        content = await self._turn(rights, self.fleet.bundle, name, rights)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=content, content_type="application/zip", headers=headers)

    async def _verdicts(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        rights.check("see")
        return web.json_response(await self._turn(rights, self.fleet.verdicts))

    # ---- the stream --------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        self._streams.take(rights)
        changed = asyncio.Event()
        changed.set()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        self._watchers.add(changed)
        self.feed.subscribe(tell)
        self._opened.set()
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        response.force_close()
        try:
            await self._show(request, response, changed)
        except (ConnectionResetError, TimeoutError):
            log.debug("a page was closed, or reads nothing")
            cut(request)
        except UgpuError as error:
            await _write(response, _message("end", _told(error)))
        finally:
            self._streams.give_back(rights)
            self._watchers.discard(changed)
            self.feed.unsubscribe(tell)
        return response

    async def _show(
        self, request: web.Request, response: web.StreamResponse, changed: asyncio.Event
    ) -> None:
        """Send events and states until the page is closed or its token is revoked."""
        number = self.feed.number_of(request.headers.get("Last-Event-ID", ""))
        shown = ""
        await response.prepare(request)
        without_limit(request)
        while not self._closing:
            await changed.wait()
            changed.clear()
            if request.transport is None:
                raise ConnectionResetError
            rights = await self._rights(request)  # a token may be revoked meanwhile
            for told in self.feed.after(number):
                number = int(str(told["number"]))
                await _write(response, _message("event", told, self.feed.id_of(told)))
            state = await self._turn(rights, self.fleet.state, rights)
            text = json.dumps(state | {"who": _who(rights)})
            if text != shown:
                shown = text
                await _write(response, f"event: state\ndata: {text}\n\n".encode())

    async def beat(self) -> None:
        """Read the cards repeatedly, and send the state to connected clients; until `end`."""
        while not self._closing:
            self.fleet.readings.ask()
            for changed in self._watchers:
                changed.set()
            self._opened.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULSE_S if self._watchers else QUIET_S):
                    await self._opened.wait()

    def end(self) -> None:
        """End all streams. In the event loop's thread."""
        self._closing = True
        self._opened.set()
        for changed in self._watchers:
            changed.set()

    # ---- an admin's actions ------------------------------------------------------------------

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        name = request.match_info["name"]
        await self._turn(rights, self.daemon.reset, name, rights)
        return self._done(rights, "reset", name)

    async def _quarantine(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        reason = (await _body(request)).get("reason", "")
        if not isinstance(reason, str):
            raise BadArgument(f"reason: expected text, got {type(reason).__name__}")
        name = _exact(request.match_info["name"])
        await self._turn(rights, self.daemon.quarantine, name, reason, rights)
        return self._done(rights, "quarantine", name)

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        name = _exact(request.match_info["name"])
        await self._turn(rights, self.daemon.recover, name, rights)
        return self._done(rights, "recover", name)

    async def _release(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        text = request.match_info["number"]
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise BadArgument(f"expected a lease's number, got {text[:40]!r}")
        await self._turn(rights, self.daemon.end_lease, int(text), rights)
        return self._done(rights, "release lease", text)

    def _done(self, rights: Rights, what: str, name: str) -> web.Response:
        log.info("%s from the page: %s %s", rights.name, what, one_line(name))
        for changed in self._watchers:
            changed.set()
        return web.json_response({})


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors as JSON, with a status; ugpu's errors have a class and often a remedy."""
    try:
        return await handler(request)
    except UgpuError as error:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        return web.json_response(_told(error), status=status)
    except web.HTTPException as error:
        if not request.path.startswith("/api/"):
            raise
        return web.json_response(
            {"error": "BadArgument", "message": error.reason, "remedy": ""}, status=error.status
        )
    except (asyncio.CancelledError, ConnectionResetError):
        raise
    except Exception:
        log.exception("%s %s failed", request.method, one_line(request.path))
        message = "ugpud failed at this request; its log has the cause"
        return web.json_response(
            {"error": "UgpuError", "message": message, "remedy": ""}, status=500
        )


def _told(error: UgpuError) -> dict[str, object]:
    facts = {name: str(value) for name, value in error.facts.items() if name != "remedy"}
    return {
        "error": "AccessDenied" if isinstance(error, Unknown) else type(error).__name__,
        "message": error.message,
        "facts": facts,
        "remedy": str(error.facts.get("remedy", "")),
    }


def _message(kind: str, content: dict[str, object], number: str = "") -> bytes:
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {kind}\ndata: {json.dumps(content)}\n\n".encode()


def _who(rights: Rights) -> dict[str, object]:
    return {"name": rights.name, "role": rights.role, "device": rights.device}


def _exact(name: str) -> str:
    """Return a pattern that matches only this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Send a part of a stream; TimeoutError if the page reads nothing."""
    async with asyncio.timeout(WRITE_S):
        await response.write(data)


async def _body(request: web.Request) -> dict[str, object]:
    """Return the JSON object of a request, in UTF-8; BadArgument."""
    if request.content_type != "application/json":
        raise BadArgument(f"expected a body of application/json, got {request.content_type[:100]}")
    charset = request.charset or "utf-8"
    if charset.lower() not in ("utf-8", "utf8"):
        raise BadArgument(f"expected a body in UTF-8, got {charset[:40]!r}")
    try:
        async with asyncio.timeout(BODY_S):
            content = await request.read()
        body = json.loads(content.decode("utf-8"))
    except TimeoutError:
        raise BadArgument(f"the body did not arrive within {BODY_S:g} s") from None
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadArgument(f"expected a JSON object, got {type(body).__name__}")
    return body
