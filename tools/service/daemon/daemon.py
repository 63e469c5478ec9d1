"""The daemon: its devices, its table of leases, its clients.

There is one thread for each connection, one that keeps time, and a few for jobs that take a while
(booting a device, ending a lease). `lock` guards the table. A device is accessed by jobs, under the
device's own lock, and by the holder of its lease.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceLost, UgpuError
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.request import LeaseRequest
from ugpu.hcq.remote.wire import WireError
from ugpu.hcq.state import threads
from ugpu.hcq.transport.system import System
from ugpu.tools.base.events import FAILED, LEASE_ENDED, tell
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.cards.ward import Ward
from ugpu.tools.service.daemon.clients.client import Client
from ugpu.tools.service.daemon.clients.handout import Place
from ugpu.tools.service.daemon.clients.leases import Lease, State, Waiter
from ugpu.tools.service.daemon.clients.peers import Peer
from ugpu.tools.service.daemon.clients.places import STRANGERS, Crowd, Places, Unfinished, share
from ugpu.tools.service.daemon.clients.replies import lost
from ugpu.tools.service.daemon.clients.service import Lent, Terms
from ugpu.tools.service.daemon.clients.tokens import Rights, Tokens
from ugpu.tools.service.daemon.config import Settings
from ugpu.tools.service.daemon.outlets.outbox import Outbox

log = logging.getLogger(__name__)

_STACK = 512 << 10  # bytes per connection's thread: a thousand may wait
# TIMEOUT: for work of a lease that ugpud ended, whose results can no longer be read. It only spares
# a reset to work that is about to end.
OVER_S = 0.5
NOTE_S = 60.0  # between two records of the time in service


class Daemon(Ward):
    """Own devices and serve clients. Call `start`, then `serve` for each connection, then
    `close`."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
        *,
        system: System | None = None,
        opener: Callable[..., Device] = hcq.open,
    ) -> None:
        """system, opener: the machine's bus, and hcq.open. Tests replace them."""
        super().__init__(settings, now, system, opener)
        self.tokens = Tokens(settings.state / "tokens.json")
        self.clients: set[Client] = set()
        # apart from the tick, which other threads wait for
        self._parted = threading.Condition(self.lock)
        self.outbox = Outbox()
        self._strangers: dict[bool, Crowd[Client]] = {
            # half of the remote ones have not begun their message (tools.service.daemon.porch)
            False: Crowd(max(1, share(1, 2 * STRANGERS) // 2)),
            True: Crowd(share(1, STRANGERS)),
        }
        most = share(4, settings.clients)
        self._places = {
            local: Places(most, settings.user_clients, "clients", "user_clients in [daemon]")
            for local in (False, True)
        }
        most = max(settings.messages, 2 * settings.message)
        self.unfinished: Unfinished[Client] = Unfinished(most, self._crowded_out)
        self._sessions: dict[int, Client] = {}
        self._note_at = now() + NOTE_S
        self._keeper = threading.Thread(target=self._keep_time, name="ugpud time", daemon=True)

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot all devices, each in a job. Devices that do not boot are quarantined."""
        threads.start(self._keeper)
        self.outbox.start()
        self.start_cards()

    def close(self) -> None:
        """End all leases and close all devices. Idempotent."""
        self._plugs.close()
        with self._tick:
            self._closed = True
            clients = list(self.clients)
            self._tick.notify_all()
        for client in clients:
            client.cut()
            client.notify("ended", "ugpud stops")
            if client.answers.away:
                client.part()
            else:
                client.channel.close()
        self.wait_until_left()
        self.close_cards()
        self.outbox.close()
        if self._keeper.ident is not None:
            self._keeper.join()

    def _keep_time(self) -> None:
        while True:
            with self._tick:
                if self._closed:
                    return
                for waiter in self.table.tick():
                    waiter.end("")
                if self.now() >= self._note_at:
                    self._note_at = self.now() + NOTE_S
                    self._jobs.submit(self._note)
                    self.look()
                times = self.table.next_deadline(), self.rest_idle(), self._note_at
                deadline = min(time for time in times if time is not None)
                self._tick.wait(max(0.0, deadline - self.now()))

    # ---- clients -----------------------------------------------------------------------------

    def serve(self, channel: Channel, peer: Peer) -> None:
        """Serve a connection in its own thread. The caller does not wait. If there are too many
        that have not shown who they are, one of them is closed."""
        client = Client(self, channel, peer)
        with self._tick:
            closed = self._closed
            if not closed:
                self.clients.add(client)
        if closed:
            channel.close()
            channel.release()
            return
        loser = self._strangers[peer.local].enter(client, peer.origin)
        if loser is not None:
            loser.channel.close()  # its thread cleans up
        former = threading.stack_size(_STACK)
        try:
            threads.start(threading.Thread(target=client.run, name=peer.name, daemon=True))
        except UgpuError:
            self.gone(client)
            raise
        finally:
            threading.stack_size(former)

    def known(self, client: Client, rights: Rights) -> None:
        """Give a place to a client that has shown who it is; DeviceBusy if there is none."""
        self._places[client.peer.local].take(rights)
        client.placed = rights
        self._strangers[client.peer.local].leave(client)

    def connections(self, client: Client) -> int:
        """Return how many connections a client's user or token has, at least 1."""
        rights = client.placed
        return 1 if rights is None else max(1, self._places[client.peer.local].count(rights))

    def dismiss(self, client: Client, reason: str) -> None:
        """End what a client without rights has: its lease, its place in the queue, its place among
        the clients. In the client's thread."""
        with self._tick:
            waiter = client.leave()
            if waiter is not None:
                self.table.leave(waiter)
        lease = client.lease
        if lease is not None:
            self._tell_ended(client, lease, reason)
        client.notify("ended", reason)
        self.end(client, reason)
        if waiter is not None:
            client.refused(AccessDenied(reason))
        self._give_place_back(client)
        self._strangers[client.peer.local].enter(client, client.peer.origin)

    def _give_place_back(self, client: Client) -> None:
        self._strangers[client.peer.local].leave(client)
        rights, client.placed = client.placed, None
        if rights is not None:
            self._places[client.peer.local].give_back(rights)

    def gone(self, client: Client) -> None:
        """End everything that a closed connection holds and waits for. In the client's thread."""
        with self._tick:
            waiter = client.leave()
            if waiter is not None:
                self.table.leave(waiter)
        self.end(client, "the client has disconnected")
        client.channel.release()
        with self._tick:
            self._sessions.pop(client.number, None)
        self.left(client)

    def left(self, client: Client) -> None:
        """Forget a client whose thread ends. Its resources are cleaned up, or another client has
        them."""
        self._give_place_back(client)
        self.unfinished.forget(client)
        with self._parted:
            self.clients.discard(client)
            self._parted.notify_all()

    def _crowded_out(self, client: Client) -> None:
        log.warning("%s loses its connection: it has most of the memory for messages", client.name)
        client.notify("error", WireError("the daemon has no memory left for this message"))
        client.cut()
        client.part()

    def remember(self, client: Client) -> None:
        """Give a client a session that it can resume, if the policy grants a grace period."""
        if self.settings.grace_s:
            client.number = secrets.randbits(63) | 1
            with self._tick:
                self._sessions[client.number] = client

    def session(self, number: int, rights: Rights) -> Client:
        """Return the client whose session a connection resumes; DeviceLost if there is none."""
        with self._tick:
            client = self._sessions.get(number)
        if client is None or client.rights != rights:
            raise lost()
        return client

    def rights(self, token: str | None) -> Rights:
        """Return what a token allows; AccessDenied."""
        return self.tokens.rights(token, time.time())

    # ---- leases ------------------------------------------------------------------------------

    def ask(self, client: Client, request: LeaseRequest, rights: Rights) -> Waiter | None:
        """Queue a client's request; `client.granted` or `client.refused` is called, now or later.
        Return None if the request is already served."""
        granted: list[Lease] = []

        def give(lease: Lease) -> None:
            granted.append(lease)
            client.lease = lease
            self._start_grant(client, lease)

        def end(reason: str) -> None:
            if granted:
                self._jobs.submit(self._end_told, client, granted[0], reason)
            else:
                self._jobs.submit(client.refused, self.table.busy(waiter))

        with self._tick:
            waiter = self.table.ask(request, rights, client.name, give, end)
            self._tick.notify_all()
            if granted:
                return None
            place = self.table.position(waiter)
        client.position(place)
        return waiter

    def _start_grant(self, client: Client, lease: Lease) -> None:
        """Set up a lease in a thread of its own: other leases do not wait for its device."""
        name = f"lease {lease.number}"
        try:
            threads.start(
                threading.Thread(target=client.granted, args=(lease,), name=name, daemon=True)
            )
        except UgpuError as error:
            log.error("lease %d cannot be set up: %s", lease.number, error)
            self._jobs.submit(self._end_told, client, lease, str(error))

    def extend(self, client: Client, number: int | None, limit_s: float, rights: Rights) -> float:
        """See Table.extend."""
        with self._tick:
            granted = self.table.extend(self._lease(client, number, rights), limit_s)
            self._tick.notify_all()
            return granted

    def release(self, client: Client, number: int | None, rights: Rights) -> None:
        """End a lease: the client's own (None), or that of another holder if the client is an
        admin."""
        with self._tick:
            lease = self._lease(client, number, rights)
        if lease is client.lease:
            self.end(client, "released")
        else:
            lease.finish(f"released by {client.name}")

    def end_lease(self, number: int, rights: Rights) -> None:
        """End any holder's lease. AccessDenied unless the caller is an admin of its device;
        BadArgument if the lease does not exist."""
        with self._tick:
            lease = self.table.find(number, rights)
        lease.finish(f"released by {rights.name}")

    def _lease(self, client: Client, number: int | None, rights: Rights) -> Lease:
        own = client.lease
        if own is not None and number in (None, own.number):
            return own
        if number is None:
            raise BadArgument("this connection has no lease")
        return self.table.find(number, rights)

    def _end_told(self, client: Client, lease: Lease, reason: str) -> None:
        """End a client's lease: notify the client and close its connection. Does not wait."""
        if client.lease is lease:
            client.notify("ended", reason)
            self._tell_ended(client, lease, reason)
            client.cut()
            client.part()  # its thread cleans up
            name = f"lease {lease.number} is over"
            cut_off = threading.Thread(
                target=self._cut_off, args=(client, lease, reason), name=name
            )
            with contextlib.suppress(UgpuError):  # the client's thread ends by itself, later
                threads.start(cut_off)

    def _cut_off(self, client: Client, lease: Lease, reason: str) -> None:
        """Stop the work of a lease that is over if its client's thread still waits for it after
        OVER_S, in a request, so that the thread can end the lease."""
        holder = client.holder
        if holder is None:
            return
        with self._tick:
            if self._tick.wait_for(lambda: client.holder is not holder, OVER_S):
                return
        with self.owned_by(lease.card).lock:
            if client.holder is not holder:
                return
            try:
                self.owned_by(lease.card).interrupt(holder, reason)
            except UgpuError as error:
                log.info("%s: stopping a lease's work: %s", lease.card.name, error)

    def _tell_ended(self, client: Client, lease: Lease, reason: str) -> None:
        tell(log, LEASE_ENDED, f"lease {lease.number} of {client.name} ends: {reason}",
             device=lease.card.name, lease=lease.number, holder=client.name,
             reason=reason)  # fmt: skip

    def end(self, client: Client, reason: str) -> None:
        """Clean up after a lease: drain its work or reset the device, free its memory, check the
        device. Then the next waiter gets it. In the client's thread, or before that thread runs."""
        with self._tick:
            lease, client.lease = client.lease, None
            holder, client.holder = client.holder, None
        if lease is None:
            return
        log.debug("lease %d of %s is over: %s", lease.number, client.name, reason)
        owned = self.owned_by(lease.card)
        problem = ""
        if lease.request.kind == "transport":
            with owned.lock:
                try:
                    owned.take_back()
                except UgpuError as error:
                    problem = str(error)
                    self._tell_failed(lease, client, error)
        if holder is not None:
            with owned.lock:
                try:
                    limit_s = OVER_S if lease.told else self.settings.drain_s
                    self._end_held(owned, holder, min(limit_s, self.settings.drain_s))
                    if owned.is_open and not owned.gone:
                        owned.check(repair=False)
                except UgpuError as error:
                    problem = str(error)
                    self._tell_failed(lease, client, error)
        with self._tick:
            if not any(other.holds and other is not lease for other in lease.card.leases):
                problem = problem or lease.card.unclean
            if problem and lease.card.state is not State.OFF:
                self._treat(owned, problem)
            self.table.release(lease)
            self._tick.notify_all()
        self._reboot_where_allowed()

    def _tell_failed(self, lease: Lease, client: Client, error: UgpuError) -> None:
        name = lease.card.name
        tell(log, FAILED, f"{name} failed: {error}", device=name, error=error, lease=lease.number,
             holder=client.name, serial=self.owned_by(lease.card).serial)  # fmt: skip

    def _end_held(self, owned: Owned, holder: Lent, drain_s: float) -> None:
        """End a lease's work and free its resources. UgpuError if the device needs recovery."""
        unclean = owned.end(holder, drain_s)
        if unclean:
            with self._tick:
                owned.card.unclean = unclean

    def hold(self, client: Client, owned: Owned, lease: Lease, terms: Terms) -> Lent | None:
        """Give the client of a lease with queues its device; see Owned.hold. Return None if the
        lease is over by then."""
        try:
            owned.wake()
        except UgpuError as error:
            self.failed(owned, error)
            raise
        holder = owned.hold(terms, client.answers)
        with self._tick:
            if client.lease is lease:
                client.holder = holder
                return holder
        with owned.lock:
            self._end_held(owned, holder, OVER_S)
        return None

    def hand_out(self, client: Client, owned: Owned, lease: Lease) -> Place:
        """Hand a device's chip to the holder of a lease. DeviceLost if the lease is over by now."""
        parent, name = self.settings.socket.parent, f"lease-{lease.number}"
        with owned.lock:
            if client.lease is not lease:
                raise DeviceLost(f"lease {lease.number} is over")
            return owned.hand_out(parent, name, client.peer.user)

    def wait_until_left(self) -> None:
        """Return when no client is connected."""
        with self._parted:
            while self.clients:
                self._parted.wait()

    # ---- requests of clients -----------------------------------------------------------------

    def listed(self) -> dict[str, object]:
        """Return all leases, and the waiting requests in the order in which they are served."""
        with self.lock:
            now = self.now()
            waiting = sorted(self.table.waiters, key=self.table.position)
            return {
                "leases": [lease.to_map(now) for lease in self.table.leases.values()],
                "waiting": [
                    {
                        "device": waiter.request.device,
                        "kind": waiter.request.kind,
                        "holder": waiter.holder,
                        "priority": waiter.request.priority,
                        "left_s": max(0.0, waiter.until - now),
                    }
                    for waiter in waiting
                ],
            }

    def device_of(self, client: Client) -> Owned:
        """Return the device that a client has leased or observes."""
        lease = client.lease
        if lease is None:
            raise BadArgument("this connection has no lease")
        return self.owned_by(lease.card)

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.close()
