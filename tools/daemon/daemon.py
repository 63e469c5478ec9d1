"""The daemon itself: its devices, its table of leases, its clients.

Threads: one for each connection, one that keeps time, and a few for jobs that take a while (booting
a device, ending a lease). `lock` guards the table; a device is touched under its own lock by jobs,
and by the holder of its lease.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hcq
from hcq import threads
from hcq.device import Device
from hcq.errors import AccessDenied, BadArgument, DeviceBusy, UgpuError
from hcq.remote.channel import Channel
from hcq.remote.request import LeaseRequest
from hcq.transport.hotplug import keep_trying
from hcq.transport.system import System

from .client import Client, Peer
from .config import DeviceSettings, Settings
from .handout import Handout
from .history import CardHistory, Record
from .hotplug import Plugs
from .leases import Card, Lease, State, Table, Waiter
from .owned import Owned
from .recovery import Breaker, Healing, can_help, reboot
from .tokens import Rights, Tokens

log = logging.getLogger(__name__)

_STACK = 512 << 10  # bytes of a connection's thread: a thousand may wait
_JOBS = 16
SETTLE_S = 5.0  # TIMEOUT: for udev's rules and drivers after an arrival; our choice
GONE = "the card is not on the bus"
NOTE_S = 60.0  # between two notes of the time in service


class Daemon:
    """Owns devices and serves clients. `start`, then `serve` for each connection; `close`."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
        *,
        system: System | None = None,
        opener: Callable[..., Device] = hcq.open,
    ) -> None:
        """system, opener: the machine's bus, and hcq.open; replaced by tests."""
        self.settings = settings
        self.now = now
        self.tokens = Tokens(settings.state / "tokens.json")
        self.history = CardHistory.at(settings.state / "history.sqlite")
        self.owned = [
            Owned(each, f"{each.name}#{number}" if each.count > 1 else each.name, opener)
            for each in settings.devices
            for number in range(each.count)
        ]
        self.lock = threading.RLock()
        self.table = Table([each.card for each in self.owned], settings.policy, now)
        self.clients: set[Client] = set()
        self._jobs = ThreadPoolExecutor(_JOBS, "ugpud job")
        self._opener, self._system = opener, system
        self._plugs = Plugs(settings.hotplug, self._arrived, self._departed, system)
        self._healers = ThreadPoolExecutor(max(_JOBS, len(self.owned)), "ugpud recovery")
        self._breakers = {each.name: Breaker(settings.recovery, now) for each in self.owned}
        self._beyond: tuple[str, str] | None = None  # card and reason that call for a reboot
        self._note_at = now() + NOTE_S
        self._tick = threading.Condition(self.lock)
        self._closed = False
        self._keeper = threading.Thread(target=self._keep_time, name="ugpud time", daemon=True)

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot all devices, each in a job; those that do not boot are quarantined."""
        threads.start(self._keeper)
        if self.settings.hotplug or any(each.name.startswith("pci:") for each in self.owned):
            self._plugs.start()
        for owned in self.owned:
            owned.card.state = State.BOOTING
            self._jobs.submit(self._boot, owned)

    def wait_until_booted(self) -> None:
        """Return when no device boots any more."""
        with self._tick:
            while any(each.card.state is State.BOOTING for each in self.owned):
                self._tick.wait()

    def close(self) -> None:
        """End all leases, close all devices. Idempotent."""
        self._plugs.close()
        with self._tick:
            self._closed = True
            clients = list(self.clients)
            self._tick.notify_all()
        for client in clients:
            client.notify("ended", "ugpud stops")
            client.channel.close()
        with self._tick:
            while self.clients:
                self._tick.wait()
        self._healers.shutdown()
        self._jobs.shutdown()
        self._note()
        for owned in self.owned:
            try:
                owned.close()
            except UgpuError as error:
                log.error("%s does not close: %s", owned.card.name, error)
        if self._keeper.ident is not None:
            self._keeper.join()

    def _boot(self, owned: Owned, settle_s: float = 0.0) -> None:
        """settle_s: how long it may take until udev's rules have run."""
        start = self.now()
        try:
            with owned.lock:
                if settle_s:
                    keep_trying(owned.boot, settle_s, system=self._system)
                else:
                    owned.boot()
        except UgpuError as error:
            log.error("%s does not boot: %s", owned.card.name, error)
            if owned.gone or not self._plugs.present(owned.settings.name):
                self._change(owned.card, State.OFF, GONE)
            elif can_help(error):
                self._treat(owned, str(error))
            else:
                self._change(owned.card, State.QUARANTINED, str(error))
            return
        except BaseException:
            self._change(owned.card, State.QUARANTINED, "ugpud failed; its log has the cause")
            log.exception("%s does not boot", owned.card.name)
            return
        how = "attached warm" if getattr(owned.device, "warm", False) else "ready"
        log.info("%s is %s after %.1f s", owned.card.name, how, self.now() - start)
        self._change(owned.card, State.READY)

    def _change(self, card: Card, state: State, reason: str = "") -> None:
        with self._tick:
            self.table.changed(card, state, reason)
            self._tick.notify_all()

    # ---- cards that come and go --------------------------------------------------------------

    def _arrived(self, name: str) -> None:
        with self._tick:
            owned = next((each for each in self.owned if each.settings.name == name), None)
            if owned is None and self._plugs.adopts(name):
                owned = Owned(DeviceSettings(name), name, self._opener)
                self.owned.append(owned)
                self.table.cards.append(owned.card)
                self._breakers[name] = Breaker(self.settings.recovery, self.now)
            if owned is None:
                return
            owned.gone = False
            if owned.card.state in (State.OFF, State.QUARANTINED) and not self._closed:
                self.table.changed(owned.card, State.BOOTING)
                self._jobs.submit(self._boot, owned, SETTLE_S)

    def _departed(self, name: str) -> None:
        with self._tick:
            for owned in self.owned:
                if owned.settings.name == name and not self._closed:
                    self._jobs.submit(self._remove, owned)

    def _remove(self, owned: Owned) -> None:
        """A card has left the bus: its leases end, its device is closed."""
        device = owned.device
        if device is not None:
            with device.driver.core.lock:
                pass  # rungs of the ladder take a card off the bus and find it again
        if self._plugs.present(owned.settings.name):
            return
        with self._tick:
            owned.gone = True
            if owned.card.state in (State.BOOTING, State.RECOVERING):
                return  # what is under way fails, and finds that it is gone
            log.error("%s: %s; remedy: ugpu doctor shows its slot", owned.name, GONE)
            self.table.changed(owned.card, State.OFF, GONE)
            while owned.card.leases:
                self._tick.wait()
        with owned.lock:
            with self._tick:
                back = owned.card.state is not State.OFF
            if not back:
                owned.close()

    # ---- recovery ------------------------------------------------------------------------------

    def _treat(self, owned: Owned, reason: str) -> None:
        """Have a card recovered that failed; its lease is over, or is about to be."""
        with self._tick:
            if self._closed:
                self.table.changed(owned.card, State.QUARANTINED, reason)
                return
            self.table.changed(owned.card, State.RECOVERING, reason)
            self._tick.notify_all()
            self._healers.submit(self._heal, owned, reason)

    def _heal(self, owned: Owned, reason: str) -> None:
        treatment = Healing(owned, self.settings.recovery, self.history, self._pause)
        found = "ugpud failed; its log has the cause"
        try:
            with owned.lock:
                found = treatment.run(reason, self._breakers[owned.name])
        except Exception:
            log.exception("%s: its recovery failed", owned.name)
        self._note()
        if not found:
            with self._tick:
                if self._beyond is not None and self._beyond[0] == owned.name:
                    self._beyond = None
                self._change(owned.card, State.READY)
            return
        if owned.gone:
            self._change(owned.card, State.OFF, GONE)
            return
        log.error("%s is quarantined: %s", owned.name, found)
        with self._tick:
            self._beyond = owned.name, found
            self._change(owned.card, State.QUARANTINED, found)
        self._reboot_where_allowed()

    def _pause(self, seconds: float) -> bool:
        """Wait; False where the daemon stops meanwhile."""
        end = self.now() + seconds
        with self._tick:
            while not self._closed and (left := end - self.now()) > 0:
                self._tick.wait(left)
            return not self._closed

    def _reboot_where_allowed(self) -> None:
        """Reboot the machine for a card beyond recovery: where the policy allows it, and when no
        lease is held."""
        policy = self.settings.recovery
        with self._tick:
            held = any(lease.holds for lease in self.table.leases.values())
            if self._beyond is None or not policy.reboot or held or self._closed:
                return
            (name, reason), self._beyond = self._beyond, None
        if self.history.may_reboot(name, reason, policy.reboot_every_s):
            reboot(policy.reboot, name, reason)
        else:
            log.error("%s: the machine was rebooted for a card not long ago", name)

    def recover(self, pattern: str, rights: Rights) -> list[str]:
        """Have quarantined cards recovered again; their names. For admins."""
        with self._tick:
            named = [each for each in self.owned if each.card.matches(pattern)]
            bad = [each for each in named if each.card.state is State.QUARANTINED]
            if not rights.admin or not all(rights.covers(each.card) for each in bad):
                raise AccessDenied(f"{rights.name} may not have devices recovered: admins may")
            if not bad:
                have = "; ".join(f"{each.name}: {each.card.state.value}" for each in self.owned)
                raise BadArgument(f"no quarantined device matches {pattern!r}: {have}")
            for each in bad:
                self._breakers[each.name].forgive()
                self._treat(each, each.card.reason)
            return [each.name for each in bad]

    def _note(self) -> None:
        """Write the time in service to the history."""
        with self.lock:
            leases = [(each.name, each.card.served) for each in self.owned]
        self.history.serve(leases)

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
                deadline = min(self.table.next_deadline() or self._note_at, self._note_at)
                self._tick.wait(max(0.0, deadline - self.now()))

    # ---- clients -----------------------------------------------------------------------------

    def serve(self, channel: Channel, peer: Peer) -> None:
        """Serve a connection in a thread of its own; refuse it where there are too many."""
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
        """A connection has ended: so does what it holds and waits for. In the client's thread."""
        with self._tick:
            waiter = client.leave()
            if waiter is not None:
                self.table.leave(waiter)
        self.end(client, "the client is gone")
        client.channel.release()
        with self._tick:
            self.clients.discard(client)
            self._tick.notify_all()

    def rights(self, token: str | None) -> Rights:
        """Return what a token allows; AccessDenied."""
        return self.tokens.rights(token, time.time())

    # ---- leases ------------------------------------------------------------------------------

    def ask(self, client: Client, request: LeaseRequest, rights: Rights) -> Waiter | None:
        """Queue a client's request; `client.granted` or `client.refused` is called, now or later.
        None where it is served already."""
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
        """End a lease: the client's own (None), or another's, by an admin."""
        with self._tick:
            lease = self._lease(client, number, rights)
        if lease is client.lease:
            self.end(client, "released")
        else:
            lease.end(f"released by {client.name}")

    def _lease(self, client: Client, number: int | None, rights: Rights) -> Lease:
        own = client.lease
        if own is not None and number in (None, own.number):
            return own
        if number is None:
            raise BadArgument("this connection has no lease")
        return self.table.find(number, rights)

    def _end_told(self, client: Client, lease: Lease, reason: str) -> None:
        """End a client's lease for it: it is told, and cut off."""
        if client.lease is lease:
            client.notify("ended", reason)
            log.info("lease %d of %s ends: %s", lease.number, client.name, reason)
            client.channel.farewell()  # its thread cleans up

    def end(self, client: Client, reason: str) -> None:
        """Clean up behind a lease: work is drained or the device reset, memory freed, the device
        checked; then the next waiter gets it. In the client's thread, or before that runs."""
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
                    log.error("%s failed: %s", lease.card.name, error)
        if holder is not None:
            with owned.lock:
                try:
                    clean = holder.close(self.settings.drain_s)
                    if not clean and owned.device is holder.device and not owned.gone:
                        owned.device.reset()
                    holder.free_all()
                    if not owned.gone:
                        owned.check(repair=False)
                except UgpuError as error:
                    problem = str(error)
                    log.error("%s failed: %s", lease.card.name, error)
        with self._tick:
            if problem and lease.card.state is not State.OFF:
                self._treat(owned, problem)
            self.table.release(lease)
            self._tick.notify_all()
        self._reboot_where_allowed()

    def hand_out(self, owned: Owned, lease: Lease) -> Handout:
        """Leave a device's chip to the holder of a lease."""
        folder = self.settings.socket.parent / f"lease-{lease.number}"
        with owned.lock:
            return owned.hand_out(folder, self.settings.mode)

    def telemetry(self, name: str, rights: Rights) -> bytes:
        """Return a device's telemetry as JSON; BadArgument, AccessDenied, Closed."""
        owned = next((each for each in self.owned if each.name == name), None)
        if owned is None:
            raise BadArgument(f"no device is named {name!r}")
        if not rights.covers(owned.card):
            raise AccessDenied(f"these rights ({rights.name}) do not cover {name}")
        return owned.telemetry()

    # ---- what clients ask --------------------------------------------------------------------

    def devices(self) -> list[dict[str, object]]:
        """Return all devices, their states and their history."""
        records = self.history.records()
        with self.lock:
            return [
                {
                    **each.card.to_map(),
                    "served": each.card.served,
                    "trouble": self.history.trouble,
                    "history": records.get(each.name, Record()).to_map(),
                }
                for each in self.owned
            ]

    def listed(self) -> dict[str, object]:
        """Return all leases, and those who wait, in the order in which they are served."""
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

    def owned_by(self, card: Card) -> Owned:
        """Return the device that a card of the table stands for."""
        return next(each for each in self.owned if each.card is card)

    def device_of(self, client: Client) -> Device:
        """Return the device that a client has leased, or observes."""
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
