"""The requests of a lease with queues: what they do, on the holder's device, and their replies.

A client's thread carries them out in ugpud, or passes them to the process that has the card
(tools.service.daemon.cards.relay), where a thread of that process does.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import Bytes, Message
from ugpu.hcq.state import threads
from ugpu.tools.service.daemon.clients.holder import Holder
from ugpu.tools.service.daemon.clients.replies import reply_of
from ugpu.tools.service.daemon.outlets.outbox import Outbox

log = logging.getLogger(__name__)

# what a client may request while its lease's device has failed
AFTER_FAILURE = ("reset", "plan", "free", "unload", "drop")
MOST_WATCHES = 64  # threads that wait for a client's timelines


@dataclass(frozen=True)
class Terms:
    """What a lease with queues grants.

    Attributes:
        number: the lease's.
        shared: whether the device has other holders.
        memory: quota in bytes.
        message: most bytes of one message.
        holder: who it is, for events.
        who: the user or token, whose messages have limits together.
        direct: whether the card's process may receive from the client's socket itself. A TLS
            connection has keys of this process, and a token is checked here at each request.
    """

    number: int
    shared: bool
    memory: int
    message: int
    holder: str
    who: str
    direct: bool = False


class Answers:
    """Messages to the client, by the session of its connection.

    Attributes:
        session: can be replaced, under the lock.
        outbox: sends for threads that must not wait.
        lock: held while a message is posted.
        away: whether another process has the socket (tools.service.daemon.cards.relay). What is
            posted meanwhile waits in the session.
        recall: asks for the socket, without waiting.
        stays: whether the socket must not go away again; see `stay`.
    """

    def __init__(self, session: Session, outbox: Outbox) -> None:
        self.session = session
        self.outbox = outbox
        self.lock = threading.Lock()
        self.away = self.stays = False
        self.recall: Callable[[], None] = lambda: None

    def reply(self, call: int, result: object) -> None:
        """Reply to a call. Waits for the client; for the thread that receives its messages."""
        self.session.send(reply_of(call, result))

    def post(self, message: Message) -> None:
        """Send a message without waiting. If the client is gone, the receiving thread notices."""
        with self.lock:
            if self.away:
                self.session.queue(message)
                self.recall()
            else:
                self.outbox.post(self.session, message)

    def stay(self) -> None:
        """Have the socket here from now on, soon: the connection is about to end."""
        with self.lock:
            self.stays = True
            if self.away:
                self.recall()

    def notify(self, operation: str, *arguments: object) -> None:
        """Send an event without waiting."""
        given = list(arguments)
        if given and isinstance(given[0], UgpuError):
            given = failures.to_wire(given[0])
        self.post(Message(operation, given))


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error says that this process has no memory left, not a device or lease."""
    cause: BaseException | None = error
    while cause is not None:
        refused = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        if refused or (isinstance(cause, MemoryError) and not isinstance(cause, UgpuError)):
            return True
        if isinstance(cause, RuntimeError) and "can't start new thread" in str(cause):
            return True
        cause = cause.__context__
    return False


class Lent(Protocol):
    """What a lease with queues gives to its client."""

    def take(self, message: Message) -> None:
        """Carry out a request that `wire.check` has passed, and reply. In the thread that receives
        the client's messages; if another process receives them meanwhile, return after that.
        Disconnected if the client is gone."""
        ...

    def timelines(self) -> dict[str, list[int]]:
        """Return the address of each queue's timeline, by kind; see Grant."""
        ...


class Service:
    """Lent by a device of this process. holder: what the lease has of it."""

    def __init__(
        self,
        holder: Holder,
        answers: Answers,
        terms: Terms,
        exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        """exhausted: called when this process has no memory left."""
        self.holder = holder
        self._exhausted = exhausted
        self._answers = answers
        self._terms = terms
        self._watches = 0
        self._lock = threading.Lock()
        self._work: dict[str, Callable[[Holder, list[Any], Bytes], object]] = {
            "allocate": lambda held, given, data: held.allocate(*given),
            "free": lambda held, given, data: held.free(*given),
            "write": lambda held, given, data: held.write(given[0], data),
            "read": lambda held, given, data: held.read(given[0], self._readable(given[1])),
            "load": lambda held, given, data: held.load(data),
            "unload": lambda held, given, data: held.unload(*given),
            "submit": lambda held, given, data: held.work.submit(given[0], given[1], data),
            "place": lambda held, given, data: held.work.place(given[0], given[1], given[2], data),
            "replay": lambda held, given, data: held.work.replay(given[0], data),
            "drop": lambda held, given, data: held.work.drop(*given),
            "diagnose": lambda held, given, data: failures.facts_of(held.work.diagnose(*given)),
            "reset": lambda held, given, data: held.work.reset(*given),
            "plan": lambda held, given, data: held.work.plan(*given),
        }

    @property
    def device(self) -> Device:
        """The holder's device."""
        return self.holder.device

    def timelines(self) -> dict[str, list[int]]:
        """See Lent."""
        addresses: dict[str, list[int]] = {}
        work = self.holder.work
        for queue, timeline in zip(work.hardware, work.timelines, strict=True):
            addresses.setdefault(queue.kind.value, []).append(timeline.address)
        return addresses

    def handles(self, operation: str) -> bool:
        """Return whether a request is one of a lease with queues."""
        return operation == "watch" or operation in self._work

    def take(self, message: Message) -> None:
        """See Lent."""
        operation = message.operation
        try:
            if operation == "watch":
                self._watch(message.call, message.arguments)
                return
            failed = self.holder.work.failed
            if failed is not None and operation not in AFTER_FAILURE:
                if not message.call:
                    return  # the client has been notified
                if operation != "diagnose":
                    raise failed
            work = self._work.get(operation)
            if work is None:
                raise BadArgument(f"{operation} is not expected here")
            result = work(self.holder, message.arguments, message.data)
        except UgpuError as error:
            self._failed(message, error)
            return
        except Exception as error:
            if is_exhausted(error):
                self._exhausted()
            log.exception("%s: %s failed in the daemon", self._terms.holder, operation)
            self._failed(message, UgpuError(f"ugpud failed at {operation}; its log has the cause"))
            return
        if message.call:
            self._answers.reply(message.call, result)

    def _failed(self, message: Message, error: UgpuError) -> None:
        if message.call:
            self._answers.reply(message.call, error)
        else:
            self.holder.work.fail(error)
            self._answers.notify("failed", error)

    def _readable(self, size: int) -> int:
        most = self._terms.message
        if size > most:
            raise BadArgument(f"at most {most} bytes can be read in one message, got {size}")
        return size

    def _watch(self, call: int, given: list[Any]) -> None:
        """Wait in another thread, which replies; this thread continues to receive messages."""
        with self._lock:
            if self._watches >= MOST_WATCHES:
                raise BadArgument("too many simultaneous waits", limit=MOST_WATCHES)
            self._watches += 1

        def wait() -> None:
            result: object
            try:
                result = self.holder.watch(*given)
            except UgpuError as error:
                result = error
            finally:
                with self._lock:
                    self._watches -= 1
            self._answers.post(reply_of(call, result))

        name = f"{self._terms.holder} waits"
        threads.start(threading.Thread(target=wait, name=name, daemon=True))
