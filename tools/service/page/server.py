"""Serve the page in a thread of ugpud, over HTTP on loopback or over TLS.

aiohttp is the server. Handlers block only in threads of their own, so that a card that does not
answer does not block the page. The files are in `static`; `make page` builds the scripts from those
in `web`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web

from ugpu.hcq.state import threads
from ugpu.tools.service.daemon.clients.places import PAGE, share
from ugpu.tools.service.daemon.config import PageSettings
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.outlets.feed import attached, detach
from ugpu.tools.service.daemon.ports import bound, server_context
from ugpu.tools.service.page import api
from ugpu.tools.service.page.fleet import Fleet
from ugpu.tools.service.page.gate import Gate, one_request
from ugpu.tools.service.page.origin import Origin

log = logging.getLogger(__name__)

STATIC = Path(__file__).resolve().parent / "static"
SCRIPTS = ("page", "plots", "words", "dom")
FILES = {"/": "page.html", "/page.css": "page.css"} | {f"/{n}.js": f"{n}.js" for n in SCRIPTS}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_THREADS = 16
_END_S = 2.0  # TIMEOUT: for requests under way when the page stops; our choice
HEADERS = {
    # Only the page's own files. No frames, so that no other site can use the page for clickjacking.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page:
    """The page of a daemon. The constructor listens; `start` serves, `close` ends. port: the port
    that it listens on, even if the configured one is 0 for any free port."""

    def __init__(self, settings: PageSettings, daemon: Daemon, crashes: Path | None = None) -> None:
        self._context = (
            server_context(settings.certificate, settings.key)
            if settings.certificate is not None and settings.key is not None
            else None
        )
        self._socket = bound(settings.host, settings.port, "page")
        self.port = int(self._socket.getsockname()[1])
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"{'https' if self._context else 'http'}://{host}:{self.port}/"
        self.shown = f"the page is at {self.address}"
        self._pool = ThreadPoolExecutor(_THREADS, "ugpud page")
        self._feed = attached()
        fleet = Fleet(daemon, self._pool, settings.verdicts, crashes)
        self._origin = Origin(settings, bool(self._context))
        self._api = api.Api(daemon, fleet, self._feed, self._pool, secure=bool(self._context))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud page", daemon=True)

    def start(self) -> None:
        """Serve in a thread."""
        threads.start(self._thread)

    def close(self) -> None:
        """End all requests and streams. Idempotent."""
        if self._thread.ident is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        detach(self._feed)
        self._pool.shutdown()
        self._socket.close()
        if not self._loop.is_closed():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("the page failed")

    async def _serve(self) -> None:
        app = web.Application(
            middlewares=[one_request, api.errors, self._origin.check], client_max_size=api.BODY
        )
        app.router.add_routes(self._api.routes())
        for path, name in FILES.items():
            app.router.add_get(path, _file(STATIC / name))
        app.on_response_prepare.append(_add_headers)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_S)
        await runner.setup()
        assert runner.server is not None
        beat = asyncio.create_task(self._api.beat())
        gate = Gate(self._socket, self._context, runner.server, share(2, PAGE))
        try:
            await gate.run_until(self._stop)
        finally:
            self._api.end()
            gate.close()
            await runner.cleanup()
            await beat


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _file(path: Path) -> api.Handler:
    content = path.read_bytes()
    kind = _TYPES[path.suffix]

    async def send(request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return send
