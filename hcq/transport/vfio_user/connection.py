"""A client's connection: commands and answers, posted writes, and the server's own commands."""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn, Protocol

from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    NotSupported,
    OutOfMemory,
    TransportError,
    UgpuError,
)
from ugpu.hcq.state.threads import start
from ugpu.hcq.transport.vfio_user import version, wire
from ugpu.hcq.transport.vfio_user.attention import attention_to
from ugpu.hcq.transport.vfio_user.wire import Channel, Command, Disconnected, Message

MESSAGE_LIMIT_S = 30.0  # TIMEOUT: as for the main socket, see client.ANSWER_LIMIT_S
# TIMEOUT: a woken thread needs a time slice to leave; one within a batch may take longer.
CLOSE_LIMIT_S = 5.0
BATCH_LIMIT = 256  # writes in one message
READ_AHEAD = 3  # messages of a block requested before the first has arrived
_READ, _WRITE = int(Command.REGION_READ), int(Command.REGION_WRITE)
_HEAD, _ACCESS = wire.HEADER.size, wire.REGION_ACCESS.size
_PLACE = _HEAD + _ACCESS


class DmaSource(Protocol):
    """Responder to the server's DMA commands; BadArgument outside mapped memory."""

    def read(self, address: int, size: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...


class Connection:
    """A connection to a server. Any thread; one command at a time.
    DeviceLost once the server is gone."""

    def __init__(
        self, connection: socket.socket, name: str, memory: DmaSource, limit_s: float
    ) -> None:
        self._name = name
        self._memory = memory
        self._channel = Channel(connection, limit_s, attention_to(connection))
        self._twin: Channel | None = None
        self._twin_thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._number = 0
        self.messages = 0  # sent so far
        self._batch: list[bytes] | None = None
        self._closed = False
        self.alive = True
        self.peer = version.Capabilities()

    def negotiate(self, *, twin_socket: bool) -> None:
        """Agree on the version. DeviceBusy if the server has another client."""
        offered: dict[str, object] = {
            "max_msg_fds": wire.LARGEST_DESCRIPTORS,
            "max_data_xfer_size": wire.LARGEST_TRANSFER,
            "pgsizes": version.PAGE_SIZES,
            "write_multiple": True,
            "model_work": True,
        }
        if twin_socket:
            offered["twin_socket"] = {"supported": True}
        answer = self._call(Command.VERSION, (version.build(offered),))
        major, minor, self.peer = version.parse(answer.payload)
        if (major, minor) != (wire.MAJOR, wire.MINOR):
            answer.close()
            raise NotSupported(f"{self._name} uses unsupported version {major}.{minor}")
        if self.peer.twin_socket:
            index = self.peer.twin_index
            if not twin_socket or index is None or index >= len(answer.descriptors):
                answer.close()
                raise TransportError(f"{self._name} announced a second socket and did not send it")
            self._serve_twin(answer.descriptors.pop(index))
        answer.close()

    # ---- commands ----------------------------------------------------------------------------

    def call(
        self,
        command: Command,
        parts: Sequence[bytes | memoryview] = (),
        *,
        descriptors: Sequence[int] = (),
    ) -> bytes:
        """Execute a command; return the payload of its answer."""
        answer = self._call(command, parts, descriptors)
        answer.close()
        return answer.payload

    def call_for_descriptors(
        self, command: Command, parts: Sequence[bytes]
    ) -> tuple[bytes, list[int]]:
        """Execute a command whose answer carries descriptors; the caller closes them."""
        answer = self._call(command, parts)
        return answer.payload, answer.descriptors

    def _call(
        self,
        command: Command,
        parts: Sequence[bytes | memoryview],
        descriptors: Sequence[int] = (),
    ) -> Message:
        with self._lock:
            self._flush()
            number = self._next()
            try:
                self._channel.send(number, command, parts, descriptors=descriptors)
                return self._answer(number, command)
            except (Disconnected, OSError) as error:
                self._lost(error)

    def _answer(self, number: int, command: int) -> Message:
        while True:
            try:
                message = self._channel.receive(patient=False)
            except TransportError as error:
                self._fail(error)
            if message.is_reply:
                break
            self._serve(self._channel, message)
        if message.number != number or message.command != command:
            message.close()
            self._fail(TransportError(f"{self._name} answers another command than {command}"))
        if message.flags & wire.ERROR:
            message.close()
            raise _refusal(self._name, command, message.error)
        return message

    def read_register(self, region: int, offset: int, size: int) -> int:
        """Read a register of 4 or 8 bytes."""
        layout = wire.REGISTER[size]
        whole = layout.size
        with self._lock:
            if self._batch:
                self._flush()
            number = self._next()
            request = wire.READ_REGISTER.pack(number, _READ, _PLACE, 0, 0, offset, region, size)
            try:
                self._channel.send_bytes(request)
                answer = self._first(whole)
                if len(answer) == whole:
                    fields = layout.unpack(answer)
                    if fields[:5] == (number, _READ, whole, wire.REPLY, 0):
                        return int(fields[8])
                self._channel.hold(answer)
                message = self._answer(number, Command.REGION_READ)
            except (Disconnected, OSError) as error:
                self._lost(error)
        return int.from_bytes(self._data(message, size), "little")

    def read(self, region: int, offset: int, size: int) -> bytes:
        """Read `size` bytes of a region in one message, at most the peer's transfer size."""
        place = wire.REGION_ACCESS.pack(offset, region, size)
        return self._data(self._call(Command.REGION_READ, (place,)), size)

    def _data(self, message: Message, size: int) -> bytes:
        """Return the data of the answer to a read."""
        message.close()
        if len(message.payload) != _ACCESS + size:
            raise TransportError(f"{self._name} replied to a read with a different size", size=size)
        return message.payload[_ACCESS:]

    def read_many(self, region: int, offset: int, size: int) -> bytes:
        """Read a block in as many messages as needed; the server prepares one while the previous
        one is in flight."""
        limit = min(self.peer.transfer, wire.DEFAULT_TRANSFER)
        # Received into its final place: getvalue returns the memory of the view, not a copy.
        content = io.BytesIO(bytes(size))
        asked: deque[tuple[int, int]] = deque()  # number of a request, its place in the block
        with self._lock, content.getbuffer() as room:
            self._flush()
            try:
                for start in range(0, size, limit):
                    count = min(limit, size - start)
                    request = wire.REGION_ACCESS.pack(offset + start, region, count)
                    number = self._next()
                    self._channel.send(number, Command.REGION_READ, (request,))
                    asked.append((number, start))
                    if len(asked) == READ_AHEAD:
                        number, ready = asked.popleft()
                        self._read_answer(number, room[ready : ready + limit])
                while asked:
                    number, ready = asked.popleft()
                    self._read_answer(number, room[ready : ready + limit])
            except (Disconnected, OSError) as error:
                self._lost(error)
            except UgpuError:
                self._skip_answers(number for number, _ in asked)
                raise
        return content.getvalue()

    def _read_answer(self, number: int, room: memoryview) -> None:
        head = self._first(_PLACE)
        if len(head) == _PLACE:
            expected = (number, Command.REGION_READ, _PLACE + len(room), wire.REPLY, 0)
            if wire.HEADER.unpack_from(head) == expected:
                try:
                    self._channel.receive_into(room)
                except TransportError as error:  # within a message: the rest cannot be parsed
                    self._fail(error)
                return
        self._channel.hold(head)
        room[:] = self._data(self._answer(number, Command.REGION_READ), len(room))

    def _first(self, size: int) -> bytes:
        try:
            return self._channel.answer(size)
        except BlockingIOError:
            self._fail(TransportError(f"{self._name} does not answer"))

    def _skip_answers(self, numbers: Iterable[int]) -> None:
        """Receive and drop the remaining answers, after one that was a refusal."""
        for number in numbers:
            if self.alive:
                with contextlib.suppress(UgpuError, Disconnected, OSError):
                    self._answer(number, Command.REGION_READ).close()

    def write(self, region: int, offset: int, data: bytes) -> None:
        """Write and wait until it is done."""
        self.call(Command.REGION_WRITE, (wire.REGION_ACCESS.pack(offset, region, len(data)), data))

    # ---- posted writes -----------------------------------------------------------------------

    def post(self, region: int, offset: int, size: int, value: int) -> None:
        """Send a register write of 4 or 8 bytes without waiting; server errors are not reported."""
        with self._lock:
            if self._batch is not None:
                self._batch.append(wire.WRITE_ENTRY.pack(offset, region, size, value))
                if len(self._batch) >= BATCH_LIMIT:
                    self._flush()
                return
            layout, number = wire.REGISTER[size], self._next()
            message = layout.pack(
                number, _WRITE, layout.size, wire.NO_REPLY, 0, offset, region, size, value
            )
            try:
                self._channel.send_bytes(message)
            except OSError as error:
                self._lost(error)

    def post_many(self, region: int, offset: int, data: memoryview) -> None:
        """Send a block without waiting."""
        limit = min(self.peer.transfer, wire.DEFAULT_TRANSFER)
        with self._lock:
            self._flush()
            for start in range(0, len(data), limit):
                piece = data[start : start + limit]
                place = wire.REGION_ACCESS.pack(offset + start, region, len(piece))
                try:
                    self._channel.send(
                        self._next(), Command.REGION_WRITE, (place, piece), flags=wire.NO_REPLY
                    )
                except OSError as error:
                    self._lost(error)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Collect posted writes until the end; see VfioUserTransport.batch."""
        with self._lock:
            outermost = self._batch is None and self.peer.write_multiple
            if outermost:
                self._batch = []
            try:
                yield
            finally:
                if outermost:
                    try:
                        self._flush()
                    finally:
                        self._batch = None

    def _flush(self) -> None:
        if not self._batch:
            return
        entries = b"".join(self._batch)
        count = wire.WRITE_COUNT.pack(len(self._batch))
        self._batch.clear()
        command, flags = Command.REGION_WRITE_MULTI, wire.NO_REPLY
        try:
            self._channel.send(self._next(), command, (count, entries), flags=flags)
        except OSError as error:
            self._lost(error)

    # ---- the server's commands ---------------------------------------------------------------

    def _serve_twin(self, descriptor: int) -> None:
        twin = self._twin = Channel(socket.socket(fileno=descriptor), MESSAGE_LIMIT_S)

        def run() -> None:
            with contextlib.suppress(Disconnected, TransportError, OSError):
                while True:
                    self._serve(twin, twin.receive())

        thread = threading.Thread(target=run, name="vfio-user-dma", daemon=True)
        start(thread)
        self._twin_thread = thread

    def _serve(self, channel: Channel, message: Message) -> None:
        """Answer a DMA command of the server."""
        message.close()
        parts: tuple[bytes, ...] = ()
        number = 0
        try:
            parts = self._access(message)
        except (BadArgument, TransportError):
            number = errno.EINVAL
        if not message.flags & wire.NO_REPLY:
            flags = wire.REPLY | (wire.ERROR if number else 0)
            channel.send(message.number, message.command, parts, flags=flags, error=number)

    def _access(self, message: Message) -> tuple[bytes, ...]:
        if message.command not in (Command.DMA_READ, Command.DMA_WRITE):
            raise BadArgument("expected a DMA command from the server", command=message.command)
        address, count = wire.unpack(wire.DMA_ACCESS, message.payload)
        if count > wire.LARGEST_TRANSFER:
            raise BadArgument("the request is too large", count=count)
        head = message.payload[: wire.DMA_ACCESS.size]
        data = message.payload[wire.DMA_ACCESS.size :]
        if message.command == Command.DMA_READ:
            return head, self._memory.read(address, count)
        if len(data) != count:
            raise BadArgument(
                "the data has a different size than announced", count=count, size=len(data)
            )
        self._memory.write(address, data)
        return (head,)

    # ---- life --------------------------------------------------------------------------------

    def _next(self) -> int:
        if not self.alive:
            if self._closed:
                raise Closed(f"{self._name} was closed")
            raise DeviceLost(f"the server of {self._name} has disconnected")
        self._number = (self._number + 1) & 0xFFFF
        self.messages += 1
        return self._number

    def _lost(self, error: BaseException) -> NoReturn:
        if self._closed:
            raise Closed(f"{self._name} was closed") from error
        self.alive = False
        raise DeviceLost(f"the server of {self._name} has disconnected") from error

    def _fail(self, error: TransportError) -> NoReturn:
        """Mark the stream as unusable and raise the error."""
        if self._closed:
            raise Closed(f"{self._name} was closed") from error
        self.alive = False
        self._channel.shut()
        raise error

    def close(self) -> None:
        """Close the connection and wake all waiters."""
        self._closed = True
        self.alive = False
        # RACE: waiters leave before the descriptor is closed, and perhaps reused.
        self._channel.shut()
        left = self._lock.acquire(timeout=CLOSE_LIMIT_S)
        self._channel.close()
        if left:
            self._lock.release()
        if self._twin is not None:
            self._twin.shut()
            thread = self._twin_thread
            if thread is not None and thread is not threading.current_thread():
                thread.join(CLOSE_LIMIT_S)
            self._twin.close()

    def forked(self) -> None:
        """Close in a child process, without a message to the server."""
        self._lock = threading.RLock()
        self._closed, self.alive = True, False
        self._channel.socket.close()
        if self._twin is not None:
            self._twin.socket.close()


def _refusal(name: str, command: int, number: int) -> Exception:
    """Return the error for a server's errno."""
    title = Command(command).name
    reason = wire.errno_name(number)
    if number == errno.EBUSY and command == Command.DEVICE_RESET:
        return DeviceBusy(f"{name} cannot be reset: something else would be", holder="its server")
    if number == errno.EBUSY:
        return DeviceBusy(f"{name} has another client", holder="another process")
    if number in (errno.ENODEV, errno.ENXIO, errno.EIO):
        return DeviceLost(f"{name} refuses {title}: its device is gone", reason=reason)
    if number in (errno.ENOTSUP, errno.ENOTTY, errno.ENOSYS):
        return NotSupported(f"{name} does not do {title}", reason=reason)
    if number in (errno.ENOMEM, errno.ENOSPC):
        return OutOfMemory(f"{name} has no room for {title}", reason=reason)
    return TransportError(f"{name} refuses {title}", reason=reason)
