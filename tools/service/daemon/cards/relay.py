"""A lease's way from its client to the process of its card.

A client's socket is passed to the process with its first request, so that requests, replies and
events do not go through ugpud: each way through it costs two changes of the running process. The
session's state goes along (hcq.remote.session). The socket comes back with a request that is
ugpud's to answer, at the end of the connection, and when ugpud has something to send; the next
request of the lease takes it along again. A TLS connection stays here, as does one with a token:
their messages are passed one by one, as are replies and events while the socket is here.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from ugpu.hcq.errors import DeviceLost, HostError, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.channel import Channel, Disconnected
from ugpu.hcq.remote.replies import checked, number, text
from ugpu.hcq.remote.wire import EVENTS, Limits, Message, WireError, check
from ugpu.hcq.state import threads
from ugpu.tools.service.daemon.cards.host import REQUEST_S, state_bytes
from ugpu.tools.service.daemon.cards.process import CALL_S, CardProcess
from ugpu.tools.service.daemon.clients.service import Answers, Terms

log = logging.getLogger(__name__)

#: messages of the process that are not for the client
BACK = "back"  # data: the session's state


class Relay:
    """Lent by a card in another process; see Lent. One thread receives from the process."""

    def __init__(self, process: CardProcess, terms: Terms, answers: Answers) -> None:
        """Raises the card's errors; DeviceLost if the process has ended."""
        self.process = process
        self.number = terms.number
        self._direct = terms.direct
        self._answers = answers
        self._over = False
        self._lost = self._numbers_lost = False
        self._wrong = ""  # what the process found wrong in the client's messages
        self._back = threading.Event()
        self._idle = threading.Event()  # the client's thread is not in `take`
        self._idle.set()
        self._channel = Channel(
            process.connect(["lease", self.number]), Limits(data=state_bytes(terms.message))
        )
        try:
            self._timelines = self._set_up(terms)
            name = f"{terms.holder} relay"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            threads.start(self._thread)
        except BaseException as error:
            self._channel.close()
            self._channel.release()
            with contextlib.suppress(UgpuError):
                process.call("end", self.number, 0.0)
            if isinstance(error, Disconnected):
                raise process.reason() from None
            raise
        answers.recall = self._recall

    def _set_up(self, terms: Terms) -> dict[str, list[int]]:
        asked = [int(terms.shared), terms.memory, terms.message, terms.holder, terms.who]
        self._channel.send(Message("hold", asked, 1))
        reply = self._channel.receive(CALL_S)
        if reply is None:
            raise DeviceLost(f"{self.process.name}: its process does not set up the lease")
        check(reply, EVENTS)
        if reply.operation == "error":
            raise failures.from_wire(*reply.arguments)
        with checked("hold"):
            return {
                text(kind): [number(address) for address in addresses]
                for kind, addresses in reply.arguments[0].items()
            }

    def timelines(self) -> dict[str, list[int]]:
        """See Lent."""
        return self._timelines

    def take(self, message: Message) -> None:
        """See Lent."""
        passed = Message(message.operation, message.arguments, message.call, message.data)
        self._idle.clear()
        try:
            away = self._direct and self._pass_socket()
            try:
                self._channel.send(passed, CALL_S)
            except Disconnected:
                self._lose()
            if away:
                self._back.wait()
        finally:
            self._idle.set()
        if self._wrong:
            raise WireError(self._wrong)
        if self._lost:
            over = DeviceLost(f"lease {self.number} is over")
            reason = over if self._over else self.process.reason()
            if self._numbers_lost:
                self._answers.notify("ended", str(reason))
                self._answers.session.channel.farewell()
                raise Disconnected(str(reason))
            raise reason

    def _pass_socket(self) -> bool:
        """Return whether it is passed. Disconnected if the client is gone."""
        session = self._answers.session
        while True:
            session.flush()
            with self._answers.lock:
                if session.push():
                    continue
                if self._lost or self._answers.stays:
                    return False
                self._back.clear()
                self._answers.away = True
                try:
                    self.process.send(["client", self.number], session.channel.fileno())
                    self._channel.send(Message("yours", [], data=session.pack()), CALL_S)
                except Disconnected:
                    self._lose_socket()
                return True

    def _recall(self) -> None:
        with contextlib.suppress(Disconnected):
            self._channel.send(Message("recall", []))

    def interrupt(self, reason: str) -> None:
        """See Owned.interrupt. If the client's socket is away, the process tells the client the
        reason. If the request does not end, the process is ended."""
        self._over = True
        self.process.call("interrupt", self.number, reason)
        if not self._idle.wait(REQUEST_S):
            self.process.kill("a request of a lease that is over does not end")

    def end(self, drain_s: float) -> str:
        """See Owned.end. If the process has ended, nothing is left."""
        try:
            with contextlib.suppress(Disconnected):
                self._channel.send(Message("bye", []))
            if not self.process.lives:
                return ""
            return text(self.process.call("end", self.number, drain_s))
        except HostError as error:
            self.process.kill(str(error))
            return ""
        finally:
            self._channel.close()
            self._thread.join()
            self._channel.release()

    def _run(self) -> None:
        session = self._answers.session
        try:
            while message := self._channel.receive():
                if message.operation == BACK:
                    self._returned(message)
                    continue
                check(message, EVENTS)
                if message.call and not self._direct:
                    session.send(message)  # waits for the client
                else:
                    self._answers.post(message)
        except WireError as error:
            log.error("%s: lease %d: %s", self.process.name, self.number, error)
            self.process.kill("it sent bytes that are not a message")
        except Disconnected:
            pass  # the client is gone, or the process: its watcher tells
        finally:
            self._lose()

    def _returned(self, message: Message) -> None:
        session = self._answers.session
        with self._answers.lock:
            session.unpack(message.data)
            self._wrong = text(message.arguments[0])
            self._answers.away = False
            self._answers.outbox.push(session)
        self._back.set()

    def _lose(self) -> None:
        with self._answers.lock:
            self._lose_socket()

    def _lose_socket(self) -> None:
        """Go on without the process, which has ended, and with it the numbers of the frames that it
        has sent and received, if it had the socket: from now on they have none."""
        self._lost = True
        if self._answers.away:
            self._answers.away = False
            self._numbers_lost = True
            self._answers.session.keeps = False
            self._answers.outbox.push(self._answers.session)
        self._back.set()
