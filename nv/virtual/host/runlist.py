"""One engine's runlist: a thread that serves the channels on it, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nv.virtual.host.channel import Channel

# How long a thread sleeps before it looks at a semaphore again that the CPU may have written.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 2e-3
_PATIENCE = 20  # half seconds: a stopped grid ends at its next backward branch


class Runlist:
    """Channels of one engine, served in turn. Any thread may call.

    The thread starts with the first doorbell. `idle_hook` is called on it whenever nothing is left
    to do. A bug of the model itself ends the thread and stays in `error`.
    """

    def __init__(self, number: int, name: str, idle_hook: Callable[[], None]) -> None:
        self.number = number
        self.name = name
        self.error: BaseException | None = None
        self.busy_s = 0.0
        self._idle_hook = idle_hook
        self._channels: list[Channel] = []
        self._wake = threading.Condition()
        self._running: Channel | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._kicks = 0

    @property
    def busy(self) -> bool:
        """A channel is being served, or has work that nothing holds up."""
        return self._running is not None or any(channel.has_work for channel in self._channels)

    @property
    def running(self) -> bool:
        """A channel is being served now."""
        return self._running is not None

    def add(self, channel: Channel) -> None:
        """Take a channel on."""
        with self._wake:
            self._channels.append(channel)

    def ring(self, channel: Channel) -> None:
        """A doorbell: the channel has new entries."""
        with self._wake:
            channel.pending = True
            self._kicks += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._serve, name=f"virtual-{self.name}", daemon=True
                )
                self._thread.start()
            self._wake.notify_all()

    def kick(self) -> None:
        """Something that a channel may wait for has changed."""
        if self._channels:
            with self._wake:
                self._kicks += 1
                self._wake.notify_all()

    def remove(self, channel: Channel) -> None:
        """Take a channel off; work of its own that runs is stopped first. Idempotent."""
        with self._wake:
            channel.stop()
            for _ in range(_PATIENCE):
                if self._running is not channel or threading.current_thread() is self._thread:
                    break
                self._wake.wait(0.5)
            else:
                raise TimeoutError(f"{self.name}: work of a channel that was stopped goes on")
            if channel in self._channels:
                self._channels.remove(channel)

    def pause(self, channel: Channel) -> None:
        """Wait until the channel is not being served, at most a few seconds."""
        with self._wake:
            for _ in range(_PATIENCE):
                if self._running is not channel or threading.current_thread() is self._thread:
                    return
                self._wake.wait(0.5)

    def wait_idle(self, limit_s: float) -> bool:
        """Wait until nothing more can be done now; whether that came to pass."""
        end = time.monotonic() + limit_s
        with self._wake:
            while self.error is None and self.busy:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(min(left, 0.05))
        return True

    def close(self) -> None:
        """Stop all channels, and end the thread; idempotent."""
        with self._wake:
            self._closed = True
            for channel in self._channels:
                channel.stop()
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)

    def _next(self, after: int) -> Channel | None:
        """The next channel with something to do, in turn."""
        count = len(self._channels)
        for step in range(count):
            channel = self._channels[(after + step) % count]
            if channel.has_work and channel.ready():
                return channel
        return None

    def _serve(self) -> None:
        turn, pause = 0, _FIRST_PAUSE_S
        try:
            while True:
                with self._wake:
                    channel = None if self._closed else self._next(turn)
                    if channel is None:
                        if self._closed:
                            return
                        self._idle_hook()
                        self._wake.notify_all()
                        waiting = any(channel.has_work for channel in self._channels)
                        kicks = self._kicks
                        self._wake.wait(pause if waiting else None)
                        calm = kicks == self._kicks and waiting
                        pause = min(pause * 2, _LONGEST_PAUSE_S) if calm else _FIRST_PAUSE_S
                        continue
                    pause = _FIRST_PAUSE_S
                    turn = self._channels.index(channel) + 1
                    self._running = channel
                started = time.perf_counter()
                try:
                    channel.advance()
                finally:
                    self.busy_s += time.perf_counter() - started
                    with self._wake:
                        self._running = None
                        self._wake.notify_all()
        except BaseException as error:
            self.error = error
            with self._wake:
                self._wake.notify_all()
            raise
