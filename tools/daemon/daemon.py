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

import hcq
from hcq import threads
from hcq.device import Device
from hcq.errors import AccessDenied, BadArgument, DeviceBusy, DeviceLost, UgpuError
from hcq.remote.channel import Channel
from hcq.remote.request import LeaseRequest
from hcq.transport.system import System

from .apart import ApartDriver
from .cleaning import clean, overwrite_commands
from .client import Client, Peer
from .config import Settings
from .events import FAILED, LEASE_ENDED, tell
from .handout import Handout
from .holder import Holder
from .leases import Lease, State, Waiter
from .owned import Owned
from .tokens import Rights, Tokens
from .ward import Ward

log = logging.getLogger(__name__)

_STACK = 512 << 10  # bytes per connection's thread: a thousand may wait
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
        self._sessions: dict[int, Client] = {}
        self._note_at = now() + NOTE_S
        self._keeper = threading.Thread(target=self._keep_time, name="ugpud time", daemon=True)

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot all devices, each in a job. Devices that do not boot are quarantined."""
        threads.start(self._keeper)
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
            client.channel.close()
        self.wait_until_left()
        self.close_cards()
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
        """Serve a connection in its own thread; refuse it if there are too many."""
        client = Client(self, channel, peer)
        with self._tick:
            full = len(self.clients) >= self.settings.clients
            if not full and not self._closed:
                self.clients.add(client)
        if full or self._closed:
            client.notify(
                "failed",
                DeviceBusy("this ugpud serves no more clients", limit=self.settings.clients),
            )
            channel.close()
            channel.release()
            return
        former = threading.stack_size(_STACK)
        try:
            threads.start(threading.Thread(target=client.run, name=peer.name, daemon=True))
        except UgpuError:
            self.gone(client)
            raise
        finally:
            threading.stack_size(former)

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
        with self._tick:
            self.clients.discard(client)
            self._tick.notify_all()

    def remember(self, client: Client) -> None:
        """Give a client a session that it can resume, if the policy grants a grace period."""
        if self.settings.grace_s:
            client.number = secrets.randbits(63) | 1
            with self._tick:
                self._sessions[client.number] = client

    def session(self, number: int, rights: Rights) -> Client:
        """Return the client whose session a connection resumes; DeviceLost if there is none."""
        with self._tick:
            found = self._sessions.get(number)
        if found is None or found.rights != rights:
            raise DeviceLost("ugpud no longer has this session; its lease is lost")
        return found

    def rights(self, token: str | None) -> Rights:
        """Return what a token allows; AccessDenied."""
        return self.tokens.rights(token, time.time())

    # ---- leases ------------------------------------------------------------------------------

    def ask(self, client: Client, request: LeaseRequest, rights: Rights) -> Waiter | None:
        """Queue a client's request; `client.granted` or `client.refused` is called, now or later.
        Return None if the request is already served."""
        given: list[Lease] = []

        def give(lease: Lease) -> None:
            given.append(lease)
            client.lease = lease
            self._jobs.submit(client.granted, lease)

        def end(reason: str) -> None:
            if given:
                self._jobs.submit(self._end_told, client, given[0], reason)
            else:
                self._jobs.submit(client.refused, self.table.busy(waiter))

        with self._tick:
            waiter = self.table.ask(request, rights, client.name, give, end)
            self._tick.notify_all()
            if given:
                return None
            client.position(self.table.position(waiter))
            return waiter

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
        """End any holder's lease. AccessDenied unless the caller is an admin; BadArgument if the
        lease does not exist."""
        with self._tick:
            lease = self.table.find(number, rights)
            if not rights.covers(lease.card):
                raise AccessDenied(f"the rights of {rights.name} do not include {lease.card.name}")
        lease.finish(f"released by {rights.name}")

    def _lease(self, client: Client, number: int | None, rights: Rights) -> Lease:
        own = client.lease
        if own is not None and number in (None, own.number):
            return own
        if number is None:
            raise BadArgument("this connection has no lease")
        return self.table.find(number, rights)

    def _end_told(self, client: Client, lease: Lease, reason: str) -> None:
        """End a client's lease: notify the client and close its connection."""
        if client.lease is lease:
            client.notify("ended", reason)
            tell(log, LEASE_ENDED, f"lease {lease.number} of {client.name} ends: {reason}",
                 device=lease.card.name, lease=lease.number, holder=client.name,
                 reason=reason)  # fmt: skip
            client.cut()
            client.channel.farewell()  # its thread cleans up

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
                    self._end_holder(owned, holder)
                    if not owned.gone:
                        owned.check(repair=False)
                except UgpuError as error:
                    problem = str(error)
                    self._tell_failed(lease, client, error)
        with self._tick:
            if not any(each.holds and each is not lease for each in lease.card.leases):
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

    def _end_holder(self, owned: Owned, holder: Holder) -> None:
        """End a lease's work and free its resources. UgpuError if the device needs recovery."""
        drained = holder.close(self.settings.drain_s)
        if isinstance(holder.device.driver, ApartDriver):
            holder.device.driver.process.kill()  # nothing is left of what it had
            holder.free_all()
            return
        there = not owned.gone and (holder.tenant or owned.device is holder.device)
        try:
            if not drained and there:
                holder.device.reset()
            if holder.loaded and there:
                clean(holder.device)
            if there:
                overwrite_commands(holder.device)
        except UgpuError as error:
            if not holder.tenant:
                raise
            # Closing the tenant ends its work too. The card is cleaned when its other holders are
            # gone.
            log.warning("%s: %s", holder.device.name, error)
            with self._tick:
                owned.card.unclean = f"not cleaned after {holder.device.name}: {error}"
        holder.free_all()

    def hold(self, client: Client, owned: Owned, lease: Lease) -> Holder | None:
        """Create the holder of a lease with queues on its device; a shared lease, and one whose
        kernels run in the driver's process, gets a tenant of the device. Return None if the lease
        is over by then."""
        device = owned.device
        assert device is not None
        tenant = lease.request.kind == "shared" or owned.apart
        try:
            owned.wake()
        except UgpuError as error:
            self.failed(owned, error)
            raise
        if tenant:
            device = owned.open_tenant(lease)
        try:
            holder = Holder(device, lease.memory, client.notify, tenant=tenant)
        except BaseException:
            if tenant:
                device.close()
            raise
        with self._tick:
            if client.lease is lease:
                client.holder = holder
                return holder
        with owned.lock:
            self._end_holder(owned, holder)
        return None

    def hand_out(self, owned: Owned, lease: Lease) -> Handout:
        """Hand a device's chip to the holder of a lease."""
        folder = self.settings.socket.parent / f"lease-{lease.number}"
        with owned.lock:
            return owned.hand_out(folder, self.settings.mode)

    def wait_until_left(self) -> None:
        """Return when no client is connected."""
        with self._tick:
            while self.clients:
                self._tick.wait()

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

    def device_of(self, client: Client) -> Device:
        """Return the device that a client has leased or observes."""
        lease = client.lease
        device = None if lease is None else self.owned_by(lease.card).device
        if device is None:
            raise BadArgument("this connection has no lease")
        return device

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.close()
