"""State that survives a broken connection: frames that the peer has not acknowledged.

Both sides number their frames and keep each until the peer's `acknowledged` has reached it. After a
reconnection each side sends again the frames that the other has not received; duplicates are
dropped. So a message is carried out exactly once, whatever happens to the connection, and a large
copy continues where it stopped.

Messages without a reply are acknowledged by a separate frame ("ack") from time to time, so that few
frames are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import msgpack

from ugpu.hcq.remote.channel import Channel, Disconnected, Frame
from ugpu.hcq.remote.wire import Bytes, Message, WireError, encode

ACK_FRAMES, ACK_BYTES = 64, 1 << 20  # received since the last frame that was sent
FULL = 64 << 20  # bytes kept, above which a sender waits for the peer
MOST = 1 << 30  # bytes kept for a peer that acknowledges nothing
PAUSE_S = 0.05  # between checks for acknowledgements of the peer
_FRAME = 256  # approximate bytes that a message takes in addition to its data
UNNUMBERED = ("hello", "ack")
ACKNOWLEDGED = -1  # see `push`


class _Kept(NamedTuple):
    """A frame that was sent. before, after: total bytes sent before and after this frame; the count
    starts again whenever no frames are kept."""

    sequence: int
    message: Message
    before: int
    after: int


class Session:
    """Sends from any thread, receives in one.

    After an exception at any point of `post` or `push` (such as Ctrl-C), each message is either
    sent, or sent by the next `push`, or not taken, and none is sent twice: a message is taken by
    one append, and all later steps can be repeated.

    Attributes:
        keeps: whether the peer can reconnect; before that, frames are not numbered and a broken
            connection ends everything.
        channel: the present connection; replaced by `replace`.
        waits: whether messages wait while too many bytes are kept for the peer (FULL).
    """

    def __init__(self, channel: Channel, *, waits: bool = False, most: int = MOST) -> None:
        """most: bytes kept for a peer that acknowledges nothing."""
        self.channel = channel
        self.waits = waits
        self._most = most
        self.keeps = False
        self.received = 0  # the peer's last frame
        self._sent = 0
        self._waiting: deque[Message] = deque()
        self._current: Frame | None = None  # partly sent, of `_again` or `_waiting`
        self._kept: deque[_Kept] = deque()
        self._again: deque[_Kept] = deque()  # kept frames that a new connection must send again
        self._broken = False
        self._since_frames = self._since_bytes = 0  # received but not acknowledged
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # ---- sending -----------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message; blocks while the peer accepts none. If the connection is broken, the
        message is kept for the next one; Disconnected if there will be none. For threads that do
        not get asynchronous exceptions."""
        if self.post(message):
            self.flush()

    def flush(self) -> None:
        """Send all unsent messages, as `send` does."""
        while events := self.push():
            self.await_peer(events)

    def post(self, message: Message) -> int:
        """Take a message, and send as much as possible without waiting; see `push`."""
        if self.keeps and self._bytes > self._most:
            self.keeps = False
            self.channel.close()
            raise Disconnected("the other side acknowledges nothing", kept=self._bytes)
        self.queue(message)
        return self.push()

    def queue(self, message: Message) -> None:
        """Take a message, for the next `push`."""
        self._waiting.append(message)

    def push(self) -> int:
        """Send as much as possible without waiting. Return 0 if nothing is left, or the connection
        is broken; ACKNOWLEDGED if the peer must acknowledge frames first; else the events that the
        channel waits for. See `await_peer`."""
        with self._lock:
            while not self._broken:
                frame = self._current
                if frame is None:
                    if not self._again and self._waiting and self.full:
                        return ACKNOWLEDGED
                    frame = self._current = self._next()
                    if frame is None:
                        return 0
                events = self._go(frame)
                if events:
                    return events
                if not self._broken:
                    self._written(frame)
            return 0

    def _go(self, frame: Frame) -> int:
        # A separate function: `try` inside `with` is a separate line to debuggers, and an exception
        # that they raise there would leave the lock held (CPython 3.11).
        try:
            return self.channel.push(frame)
        except Disconnected:
            self._break(self.channel)
            return 0

    def await_peer(self, events: int) -> None:
        """Block for the result of `push`."""
        if events == ACKNOWLEDGED:
            with self._changed:
                if self.full:
                    self._changed.wait(PAUSE_S)
            return
        channel = self.channel
        try:
            channel.wait(events)
        except Disconnected:
            self._break(channel)

    @property
    def unsent(self) -> int:
        """Number of messages that wait to be sent."""
        return len(self._waiting)

    def _next(self) -> Frame | None:
        if self._again:
            kept = self._again[0]
            frame = Frame(kept.message, kept.sequence, self.received)
        elif self._waiting:
            message = self._waiting[0]
            numbered = self.keeps and message.operation not in UNNUMBERED
            frame = Frame(message, self._sent + 1 if numbered else 0, self.received)
        else:
            return None
        self._since_frames = self._since_bytes = 0
        return frame

    def _written(self, frame: Frame) -> None:
        """Note that all of the current frame is passed to the system."""
        number, message = frame.sequence, frame.message
        if number:
            if number > self._sent and (not self._kept or self._kept[-1].sequence < number):
                self._keep(number, message)
            self._sent = max(self._sent, number)
        if self._again and self._again[0].message is message:
            self._again.popleft()
        elif self._waiting and self._waiting[0] is message:
            self._waiting.popleft()
        self._current = None

    def _keep(self, number: int, message: Message) -> None:
        before = self._kept[-1].after if self._kept else 0
        size = _FRAME + len(message.data)
        self._kept.append(_Kept(number, message, before, before + size))

    def _break(self, channel: Channel) -> None:
        """Note that a connection is broken. Disconnected if there will be no other one."""
        with self._lock:
            if channel is self.channel:
                self._broken = True
                channel.close()
                if not self.keeps:
                    raise Disconnected("the connection is closed")

    @property
    def full(self) -> bool:
        """Return whether a sender must wait because too many frames are kept."""
        return self.waits and self._bytes > FULL

    @property
    def _bytes(self) -> int:
        return self._kept[-1].after - self._kept[0].before if self._kept else 0

    # ---- receiving ---------------------------------------------------------------------------

    def receive(self, limit_s: float | None = None) -> Message | None:
        """Return the next message that was not received before; see Channel."""
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
        """Return whether an acknowledgement is due to the peer."""
        return self._since_frames >= ACK_FRAMES or self._since_bytes >= ACK_BYTES

    def _acknowledged(self, last: int) -> None:
        frame = self._current
        if last > self._sent and frame is not None and not frame.rest:
            self._written(frame)  # sent by a thread that was then interrupted by an exception
        if last > self._sent:
            raise WireError(f"{last} frames are acknowledged, {self._sent} were sent")
        if self._kept and self._kept[0].sequence <= last:
            while self._kept and self._kept[0].sequence <= last:
                self._kept.popleft()
            self._changed.notify_all()

    # ---- another process ---------------------------------------------------------------------

    def pack(self, again: Message | None = None) -> bytes:
        """Return the state, for a session of another process that continues with the same socket.
        All messages are sent (`flush`), or the connection is broken. The thread that receives calls
        it, and nothing is sent here before `unpack`. again: the last received message, which the
        other process receives again."""
        with self._lock:
            if self._current is not None and self._current.sequence:
                self._written(self._current)
            frames = [[kept.sequence, *_parts(kept.message)] for kept in self._kept]
            waiting = [_parts(message) for message in self._waiting]
            counts = [self._since_frames, self._since_bytes]
            self._current = None
            for messages in (self._kept, self._again, self._waiting):
                messages.clear()
            unread, received = self.channel.unread(), self.received
            if again is not None:
                unread = b"".join((*encode(again), unread))
                received -= bool(again.sequence)
            state = [self.keeps, received, self._sent, frames, waiting, counts, unread]
            packed: bytes = msgpack.packb(state)
            return packed

    def unpack(self, state: Bytes) -> None:
        """Continue after another process, with what `pack` returned there. Messages that wait here
        follow those that wait there. `push` must follow. WireError."""
        with self._lock:
            try:
                keeps, received, sent, frames, waiting, counts, unread = msgpack.unpackb(state)
                kept = [(int(number), Message(*parts)) for number, *parts in frames]
                late = [Message(*parts) for parts in waiting]
                self._since_frames, self._since_bytes = map(int, counts)
                self.channel.restore(bytes(unread))
            except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
                raise WireError(f"expected the state of a session: {error}") from None
            self.keeps, self.received, self._sent = bool(keeps), int(received), int(sent)
            self._kept.clear()
            for number, message in kept:
                self._keep(number, message)
            self._waiting.extendleft(reversed(late))

    # ---- another connection ------------------------------------------------------------------

    def replace(self, channel: Channel, acknowledged: int, first: Message | None = None) -> None:
        """Continue with another connection, whose peer has received `acknowledged` frames. `first`
        is its first message. `push` must follow."""
        with self._lock:
            former, self.channel = self.channel, channel
            former.release()
            frame = self._current
            if frame is not None and frame.sequence:
                self._written(frame)  # all of it may have arrived: treat it as sent
            self._current = None
            self._acknowledged(acknowledged)
            self._again = deque(self._kept)
            self._broken = False
            if first is not None:
                self._current = Frame(first, 0, self.received)
            self._changed.notify_all()


def _parts(message: Message) -> list[object]:
    return [message.operation, message.arguments, message.call, bytes(message.data)]
