"""What survives a connection that breaks: frames that the peer has not acknowledged.

Both sides number their frames and keep each until the peer's `acknowledged` has reached it. After a
reconnection each side sends again what the other has not; frames that come twice are dropped. So a
message is carried out once, whatever the connection did, and a large copy goes on where it stopped.

A message without a reply is acknowledged by a frame of its own ("ack") now and then, so that little
is kept.
"""

from __future__ import annotations

import threading
from collections import deque

from hcq.remote.channel import Channel, Disconnected
from hcq.remote.wire import Message, WireError

ACK_FRAMES, ACK_BYTES = 64, 1 << 20  # received since the last frame that was sent
FULL = 64 << 20  # bytes kept, from which on a sender waits for the peer
MOST = 1 << 30  # bytes kept for a peer that acknowledges nothing
_FRAME = 256  # bytes that a message takes besides its data, about
UNNUMBERED = ("hello", "ack")


class Session:
    """Sends from any thread, receives in one. keeps: whether the peer can come back; before that,
    frames are not numbered and a broken connection ends everything.

    channel: the present connection; replaced by `replace`.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.keeps = False
        self.received = 0  # the peer's last frame
        self._sent = 0
        self._kept: deque[tuple[int, Message]] = deque()
        self._bytes = 0
        self._stale = False  # a new connection whose peer has not been sent the kept frames
        self._since_frames = self._since_bytes = 0  # received without telling the peer
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # ---- sending -----------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message. Where the connection is broken it is kept for the next one; Disconnected
        where there will be none."""
        with self._lock:
            sequence = 0
            if self.keeps and message.operation not in UNNUMBERED:
                if self._bytes > MOST:
                    self.keeps = False
                    self.channel.close()
                    raise Disconnected("the other side acknowledges nothing", kept=self._bytes)
                self._sent += 1
                sequence = self._sent
                self._kept.append((sequence, message))
                self._bytes += _FRAME + len(message.data)
            if not self._stale:
                self._put(message, sequence)

    def _put(self, message: Message, sequence: int) -> None:
        self._since_frames = self._since_bytes = 0
        try:
            self.channel.send(message, sequence=sequence, acknowledged=self.received)
        except Disconnected:
            if not self.keeps:
                raise

    @property
    def full(self) -> bool:
        """Whether so much is kept that a sender should wait."""
        return self._bytes > FULL

    def wait(self, limit_s: float) -> None:
        """Wait until something is acknowledged, or the connection is another."""
        with self._changed:
            if self.full and not self._stale:
                self._changed.wait(limit_s)

    # ---- receiving ---------------------------------------------------------------------------

    def receive(self, limit_s: float | None = None) -> Message | None:
        """Return the next message that has not come before; see Channel."""
        while True:
            message = self.channel.receive(limit_s)
            if message is None:
                return None
            with self._lock:
                self._acknowledged(message.acknowledged)
                if message.sequence:
                    if message.sequence <= self.received:
                        continue
                    if message.sequence != self.received + 1:
                        raise WireError(
                            f"expected frame {self.received + 1}, got {message.sequence}"
                        )
                    self.received = message.sequence
                    self._since_frames += 1
                    self._since_bytes += len(message.data)
            if message.operation != "ack":
                return message

    @property
    def owes(self) -> bool:
        """Whether the peer should be told what was received."""
        return self._since_frames >= ACK_FRAMES or self._since_bytes >= ACK_BYTES

    def _acknowledged(self, last: int) -> None:
        if last > self._sent:
            raise WireError(f"{last} frames are acknowledged, {self._sent} were sent")
        while self._kept and self._kept[0][0] <= last:
            self._bytes -= _FRAME + len(self._kept.popleft()[1].data)
        self._changed.notify_all()

    # ---- another connection ------------------------------------------------------------------

    def replace(self, channel: Channel, acknowledged: int, first: Message | None = None) -> None:
        """Go on with another connection, whose peer has received `acknowledged` frames. `first` is
        sent at once; `resend` must follow, and until then other messages are only kept."""
        with self._lock:
            former, self.channel = self.channel, channel
            former.release()
            self._stale = True
            self._acknowledged(acknowledged)
            if first is not None:
                self._put(first, 0)

    def resend(self) -> None:
        """Send what the peer has not, in order; does nothing where that was done."""
        with self._lock:
            if not self._stale:
                return
            self._stale = False
            for sequence, message in list(self._kept):
                self._put(message, sequence)
