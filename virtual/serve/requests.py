"""The server's side of a connection: receives commands, and sends its own.

A client may pass a second socket for the server's commands (twin-socket mode). Without one they use
the main socket: then the answer arrives between the client's commands, which wait meanwhile.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import TransportError
from ugpu.hcq.transport.vfio_user import wire
from ugpu.hcq.transport.vfio_user.wire import Channel, Disconnected, Message

ANSWER_LIMIT_S = 10.0  # TIMEOUT: a client that serves no DMA for this long is broken; our choice


class Requests:
    """Serves a client's commands in one thread, and sends commands to the client from any
    thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._twin: Channel | None = None
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()  # one of our commands at a time
        self._answered = threading.Condition()
        self._answer: Message | None = None
        self._expected: int | None = None
        self._ended = False
        self._waiting: deque[Message] = deque()
        self._thread: threading.Thread | None = None

    def use_twin(self, connection: socket.socket) -> None:
        """Send the server's commands on `connection`, which this object owns from now on."""
        self._twin = Channel(connection, ANSWER_LIMIT_S)

    def serve(self, handle: Callable[[Message], None]) -> None:
        """Pass each command to `handle` until the connection ends (Disconnected, or an error)."""
        self._thread = threading.current_thread()
        waiting, receive = self._waiting, self._channel.receive
        while True:
            message = waiting.popleft() if waiting else receive()
            if message.is_reply:
                self._take(message)
            else:
                handle(message)

    def ask(self, command: int, parts: Sequence[bytes]) -> bytes:
        """Return the payload of the client's answer; TransportError if it refuses or is gone."""
        with self._asking:
            number = next(self._numbers) & 0xFFFF
            try:
                answer = self._ask(number, command, parts)
            except (Disconnected, OSError) as error:
                raise TransportError("the client has disconnected") from error
        answer.close()
        if answer.command != command or answer.number != number:
            raise TransportError("the client replied to another command", command=answer.command)
        if answer.flags & wire.ERROR:
            raise TransportError(
                "the client rejected the request",
                command=command,
                reason=wire.errno_name(answer.error),
            )
        return answer.payload

    def _ask(self, number: int, command: int, parts: Sequence[bytes]) -> Message:
        if self._twin is not None:
            self._twin.send(number, command, parts)
            return self._twin.receive(patient=False)
        if threading.current_thread() is self._thread:
            self._channel.send(number, command, parts)
            while not (message := self._channel.receive(patient=False)).is_reply:
                self._waiting.append(message)
            return message
        with self._answered:
            self._expected, self._answer = number, None
            self._channel.send(number, command, parts)
            self._answered.wait_for(lambda: self._answer or self._ended, ANSWER_LIMIT_S)
            self._expected = None
            if self._answer is None:
                raise TransportError("the client does not respond", command=command)
            return self._answer

    def _take(self, message: Message) -> None:
        with self._answered:
            if self._expected is None:
                message.close()
                raise TransportError("a reply without a request", command=message.command)
            self._answer = message
            self._answered.notify_all()

    def close(self) -> None:
        """End all waits; the main channel still belongs to its owner."""
        with self._answered:
            self._ended = True
            self._answered.notify_all()
        if self._twin is not None:
            self._twin.shut()
            with self._asking:  # the waiting thread has left
                self._twin.close()
        for message in self._waiting:
            message.close()
        self._waiting.clear()
