"""Login sessions of the page: a cookie stands for one of ugpud's tokens.

The token is looked up at each request, so that a session with a revoked or expired token ends
immediately.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable

from ugpu.hcq.errors import AccessDenied
from ugpu.tools.service.daemon.clients.tokens import Rights

IDLE_S = 12 * 3600.0
MOST = 1024
EACH = 16  # of one token


class Sessions:
    """Open sessions. rights: returns the rights of a token, or raises AccessDenied. Thread-safe."""

    def __init__(
        self, rights: Callable[[str], Rights], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rights = rights
        self._now = now
        self._known: dict[str, tuple[str, float]] = {}  # token and last use, by session
        self._guard = threading.Lock()

    def open(self, token: str) -> tuple[str, Rights]:
        """Return a new session for a token, and the token's rights; AccessDenied. If the token has
        EACH sessions already, the one that was not used for longest ends. If there are MOST, that
        is one of the token that has most."""
        rights = self._rights(token)
        with self._guard:
            now = self._now()
            for name in [name for name, (_, at) in self._known.items() if now - at > IDLE_S]:
                del self._known[name]
            counts = Counter(owner for owner, _ in self._known.values())
            if counts[token] >= EACH:
                self._end_oldest(token)
            elif counts.total() >= MOST:
                self._end_oldest(counts.most_common(1)[0][0])
            session = secrets.token_urlsafe(32)
            self._known[session] = token, now
        return session, rights

    def _end_oldest(self, token: str) -> None:
        own = [(at, name) for name, (owner, at) in self._known.items() if owner == token]
        del self._known[min(own)[1]]

    def rights(self, session: str) -> Rights:
        """Return the rights of a session; AccessDenied if it is over."""
        with self._guard:
            token, at = self._known.get(session, ("", 0.0))
            now = self._now()
            if not token or now - at > IDLE_S:
                self._known.pop(session, None)
                raise AccessDenied("not logged in", remedy="log in with a token of ugpud")
            self._known[session] = token, now
        return self._rights(token)

    def close(self, session: str) -> None:
        """End a session. Idempotent."""
        with self._guard:
            self._known.pop(session, None)
