"""The requests that the page makes: state and events, the views of cards, and an admin's actions.

    POST   /api/session               {"token": ...}: log in; a cookie stands for the token
    DELETE /api/session               log out
    GET    /api/state                 cards, leases, waiters; role and name of the client
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
cannot send. The cookie is SameSite=Strict.

Source: WHATWG HTML, "Server-sent events"; OWASP Cross-Site Request Forgery Prevention.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar

from aiohttp import web

from hcq.errors import AccessDenied, BadArgument, DeviceBusy, NotSupported, UgpuError

from ..daemon.daemon import Daemon
from ..daemon.feed import Feed
from ..daemon.tokens import Rights
from .fleet import Fleet
from .sessions import IDLE_S, Sessions

log = logging.getLogger(__name__)

COOKIE = "ugpu_session"
WATCHERS = 64  # simultaneous streams
PULSE_S = 1.0  # between two states of a stream
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
        self._pulse: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/api/session", self._log_in),
            web.delete("/api/session", self._log_out),
            web.get("/api/state", self._state),
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
        session, rights = await self._wait(self.sessions.open, token)
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
        given = request.headers.get("Authorization", "")
        kind, _, token = given.partition(" ")
        if given and kind.lower() != "bearer":
            raise Unknown(f"Authorization: expected Bearer, got {kind[:20]!r}")
        try:
            if given:
                return await self._wait(self.daemon.rights, token.strip())
            return await self._wait(self.sessions.rights, request.cookies.get(COOKIE, ""))
        except AccessDenied as error:
            raise Unknown(str(error.message), **error.facts) from None

    async def _wait(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    # ---- views -------------------------------------------------------------------------------

    async def _state(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        self.fleet.readings.ask()
        state = await self._wait(self.fleet.state, rights)
        return web.json_response(state | {"who": _who(rights)})

    async def _card(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        return web.json_response(
            await self._wait(self.fleet.card, request.match_info["name"], rights)
        )

    async def _bundles(self, request: web.Request) -> web.StreamResponse:
        await self._rights(request)
        return web.json_response(await self._wait(self.fleet.bundles))

    async def _bundle(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        if not rights.admin:
            raise AccessDenied(
                f"{rights.name} may not download bundles, which contain memory of the card: "
                "the role must be admin"
            )
        name = request.match_info["name"]
        content = await self._wait(self.fleet.bundle, name)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=content, content_type="application/zip", headers=headers)

    async def _verdicts(self, request: web.Request) -> web.StreamResponse:
        await self._rights(request)
        return web.json_response(await self._wait(self.fleet.verdicts))

    # ---- the stream --------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        if len(self._watchers) >= WATCHERS:
            raise DeviceBusy("too many pages are connected to this ugpud", limit=WATCHERS)
        number = self.feed.number_of(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        changed = asyncio.Event()
        changed.set()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        self._watchers.add(changed)
        self.feed.subscribe(tell)
        if self._pulse is None:
            self._pulse = asyncio.create_task(self._beat())
        shown = ""
        try:
            await response.prepare(request)
            while not self._closing:
                await changed.wait()
                changed.clear()
                for told in self.feed.after(number):
                    number = int(str(told["number"]))
                    await response.write(_message("event", told, self.feed.id_of(told)))
                rights = await self._rights(request)  # a token may be revoked meanwhile
                state = await self._wait(self.fleet.state, rights)
                text = json.dumps(state | {"who": _who(rights)})
                if text != shown:
                    shown = text
                    await response.write(f"event: state\ndata: {text}\n\n".encode())
        except ConnectionResetError:
            log.debug("a page was closed")
        except UgpuError as error:
            await response.write(_message("end", _told(error)))
        finally:
            self._watchers.discard(changed)
            self.feed.unsubscribe(tell)
        return response

    async def _beat(self) -> None:
        """Send the state repeatedly while a client is connected."""
        while self._watchers and not self._closing:
            self.fleet.readings.ask()
            for changed in self._watchers:
                changed.set()
            await asyncio.sleep(PULSE_S)
        self._pulse = None

    def end(self) -> None:
        """End all streams. In the event loop's thread."""
        self._closing = True
        for changed in self._watchers:
            changed.set()

    # ---- an admin's actions ------------------------------------------------------------------

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        name = request.match_info["name"]
        await self._wait(self.daemon.reset, name, rights)
        return self._done(rights, "reset", name)

    async def _quarantine(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        reason = (await _body(request)).get("reason", "")
        if not isinstance(reason, str):
            raise BadArgument(f"reason: expected text, got {type(reason).__name__}")
        name = _exact(request.match_info["name"])
        await self._wait(self.daemon.quarantine, name, reason[:500], rights)
        return self._done(rights, "quarantine", name)

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        name = _exact(request.match_info["name"])
        await self._wait(self.daemon.recover, name, rights)
        return self._done(rights, "recover", name)

    async def _release(self, request: web.Request) -> web.StreamResponse:
        rights = await self._rights(request)
        await _body(request)
        text = request.match_info["number"]
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise BadArgument(f"expected a lease's number, got {text[:40]!r}")
        await self._wait(self.daemon.end_lease, int(text), rights)
        return self._done(rights, "release lease", text)

    def _done(self, rights: Rights, what: str, name: str) -> web.Response:
        log.info("%s from the page: %s %s", rights.name, what, name)
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
        log.exception("%s %s failed", request.method, request.path)
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


async def _body(request: web.Request) -> dict[str, object]:
    """Return the JSON object of a request; BadArgument."""
    if request.content_type != "application/json":
        raise BadArgument(f"expected a body of application/json, got {request.content_type}")
    try:
        found = json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadArgument(f"expected a JSON object, got {type(found).__name__}")
    return found
