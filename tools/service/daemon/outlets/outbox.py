"""Messages to clients from the daemon's own threads, which never wait for a client.

A message is sent at once as far as the socket takes it. One thread sends the rest when the socket
takes more, and disconnects clients that take nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from ugpu.hcq.remote.channel import SEND_LIMIT_S, Disconnected
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import Message
from ugpu.hcq.state import threads

MOST_UNSENT = 1 << 14  # messages that wait for one client


class Outbox:
    """Call `close` at the end. Thread-safe."""

    def __init__(self) -> None:
        self._late: dict[Session, tuple[int, float]] = {}  # events, and until when
        self._guard = threading.Lock()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="ugpud outbox", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        threads.start(self._thread)

    def post(self, session: Session, message: Message) -> None:
        """Send a message without waiting. If the client is gone, its own thread notices it."""
        if session.unsent > MOST_UNSENT:
            session.channel.close()
            return
        self._send(session, lambda: session.post(message))

    def push(self, session: Session) -> None:
        """Send the messages that wait in a session, without waiting."""
        self._send(session, session.push)

    def _send(self, session: Session, send: Callable[[], int]) -> None:
        try:
            events = send()
        except Disconnected:
            session.channel.close()
            return
        if events:
            self._later(session, events)

    def close(self) -> None:
        """End the thread; what is not sent is lost. Idempotent."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)

    def _later(self, session: Session, events: int) -> None:
        with self._guard:
            if self._closed:
                return
            self._late.setdefault(session, (events, time.monotonic() + SEND_LIMIT_S))
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            with self._guard:
                if self._closed:
                    return
                late = dict(self._late)
            for session in self._ready(late):
                self._push(session)
            now = time.monotonic()
            for session, (_, until) in late.items():
                if until <= now and self._forget(session, until):
                    session.channel.close()  # its thread cleans up

    def _ready(self, late: dict[Session, tuple[int, float]]) -> list[Session]:
        """Wait for sockets that take more, a new message, or the first limit."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        ready: list[Session] = []
        by_number: dict[int, Session] = {}
        for session, (events, _) in late.items():
            number = session.channel.fileno()
            if number < 0:
                ready.append(session)
            else:
                by_number[number] = session
                poll.register(number, events)
        ends = [until for _, until in late.values()]
        left_s = max(0.0, min(ends) - time.monotonic()) if ends else None
        if ready:
            left_s = 0.0
        for number, _ in poll.poll(None if left_s is None else left_s * 1000):
            if number == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            else:
                ready.append(by_number[number])
        return ready

    def _push(self, session: Session) -> None:
        try:
            events = session.push()
        except Disconnected:
            session.channel.close()
            events = 0
        with self._guard:
            if events:
                self._late[session] = events, time.monotonic() + SEND_LIMIT_S
            else:
                self._late.pop(session, None)

    def _forget(self, session: Session, until: float) -> bool:
        """Remove a session that made no progress since its limit was set."""
        with self._guard:
            if self._late.get(session, (0, 0.0))[1] != until:
                return False
            del self._late[session]
            return True
