"""The daemon's cards: booting, recovery after failures, arrival and removal.

`lock` guards the table and the cards' states; a device is accessed under its own lock. Jobs that
take a while run in the threads of `_jobs`, and those that may take minutes in those of `_healers`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceBusy, HostError, UgpuError
from ugpu.hcq.state.telemetry import loads
from ugpu.hcq.state.text import one_line
from ugpu.hcq.transport.pci.hotplug import keep_trying
from ugpu.hcq.transport.system import System
from ugpu.tools.base.events import BOOT_FAILED, FAILED, MISSING, QUARANTINED, READY, tell
from ugpu.tools.service.daemon.cards.distant import own
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.cards.recovery import Breaker, Healing, can_help, reboot
from ugpu.tools.service.daemon.cards.resting import Idle
from ugpu.tools.service.daemon.cards.watch import Watch, links
from ugpu.tools.service.daemon.clients.leases import Card, State, Table
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import DeviceSettings, Settings
from ugpu.tools.service.daemon.hotplug import Plugs
from ugpu.tools.service.daemon.outlets.history import CardHistory, Quarantine, Record
from ugpu.tools.service.daemon.outlets.scribe import Scribe, stored

log = logging.getLogger(__name__)

_JOBS = 16
_LOOKERS = 4
_REASON = 500  # characters of a quarantine's reason
_PLUGGED = ("pci:", "usb:")  # names of cards that can be plugged in and removed
SETTLE_S = 5.0  # TIMEOUT: for udev's rules and drivers after an arrival; our choice
GONE = "the card is not on the bus"
UNKNOWN = "ugpud failed; its log has the cause"


class Ward:
    """All cards of a daemon. system, opener: the machine's bus, and hcq.open; tests replace
    them."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float],
        system: System | None,
        opener: Callable[..., Device],
    ) -> None:
        self.settings = settings
        self.now = now
        self.history = Scribe(CardHistory.at(settings.state / "history.sqlite"))
        self._system = system if system is not None else System()
        self.watch = Watch(settings.state / "history.sqlite")
        self._own = partial(own, opener=opener, ugpud=settings, on_lost=self._lost)
        self.owned = [
            self._own(entry, f"{entry.name}#{number}" if entry.count > 1 else entry.name)
            for entry in settings.devices
            for number in range(entry.count)
        ]
        self.lock = threading.RLock()
        self.table = Table([owned.card for owned in self.owned], settings.policy, now)
        self._tick = threading.Condition(self.lock)
        self._closed = False
        self._jobs = ThreadPoolExecutor(_JOBS, "ugpud job")
        self._healers = ThreadPoolExecutor(max(_JOBS, len(self.owned)), "ugpud recovery")
        self._lookers = ThreadPoolExecutor(_LOOKERS, "ugpud look")  # they read and write files
        self._looking: set[str] = set()  # cards that are being inspected now
        self._idle = Idle(settings.rest_s, now)
        self._plugs = Plugs(settings.hotplug, self._arrived, self._departed, self._names, system)
        self._breakers = {owned.name: Breaker(settings.recovery, now) for owned in self.owned}
        self._beyond: tuple[str, str] | None = None  # card and reason that call for a reboot
        self._barred = self.history.quarantines()  # in force now

    def start_cards(self) -> None:
        """Boot all devices, each in a job, and watch the bus."""
        if self.settings.hotplug or any(name.startswith(_PLUGGED) for name in self._names()):
            self._plugs.start()
        for name in self.watch.expected():
            if not self._known(name) and self._plugs.fits(name):
                self._adopt(name)
        for owned in self.owned:
            barred = self._barred.get(owned.name)
            if barred is not None:
                text = f"{owned.name} stays quarantined: {barred.reason}"
                tell(log, QUARANTINED, text, device=owned.name, reason=barred.reason)
                self.table.changed(owned.card, State.QUARANTINED, barred.reason)
                continue
            owned.card.state = State.BOOTING
            self._jobs.submit(self._boot, owned)

    def close_cards(self) -> None:
        """Close all devices, when no leases are left."""
        self._healers.shutdown()
        self._jobs.shutdown()
        self._lookers.shutdown()
        self._note()
        for owned in self.owned:
            try:
                owned.close()
            except UgpuError as error:
                log.error("%s cannot be closed: %s", owned.card.name, error)
        self.history.close()

    def wait_until_booted(self) -> None:
        """Return when no device is booting any more."""
        with self._tick:
            while any(owned.card.state is State.BOOTING for owned in self.owned):
                self._tick.wait()

    def devices(self) -> list[dict[str, object]]:
        """Return all devices, their states and their history."""
        records = self.history.records()
        with self.lock:
            return [
                {
                    **owned.card.to_map(),
                    "served": owned.card.served,
                    "resting": owned.resting,
                    "trouble": self.history.trouble,
                    "troubles": self.watch.troubles(owned.name) | _missing(owned.card),
                    "history": records.get(owned.name, Record()).to_map(),
                }
                for owned in self.owned
            ]

    def telemetry(self, name: str, rights: Rights) -> bytes:
        """Return a device's telemetry as JSON; BadArgument, AccessDenied, Closed."""
        owned = next((candidate for candidate in self.owned if candidate.name == name), None)
        if owned is None:
            raise BadArgument(f"there is no device named {name!r}")
        rights.check("see", owned.card)
        return owned.telemetry()

    def owned_by(self, card: Card) -> Owned:
        """Return the device of a card in the table."""
        return next(owned for owned in self.owned if owned.card is card)

    def _boot(self, owned: Owned, settle_s: float = 0.0) -> None:
        """Boot a device. settle_s: the longest time until udev's rules have run."""
        start = self.now()
        try:
            with owned.lock:
                if settle_s:
                    keep_trying(owned.boot, settle_s, system=self._system)
                else:
                    owned.boot()
        except UgpuError as error:
            text = f"{owned.name} does not boot: {error}"
            gone = owned.gone or not self._plugs.present(owned.settings.name)
            tell(log, MISSING if gone else BOOT_FAILED, text, device=owned.name, error=error)
            if gone:
                self._change(owned.card, State.OFF, GONE)
            elif can_help(error):
                self._treat(owned, str(error))
            else:
                self._change(owned.card, State.QUARANTINED, str(error))
            return
        except BaseException:
            self._change(owned.card, State.QUARANTINED, UNKNOWN)
            log.exception("%s does not boot", owned.card.name)
            return
        how = "attached warm" if owned.warm else "ready"
        passed = f"{self.now() - start:.1f}"
        text = f"{owned.name} is {how} after {passed} s"
        if owned.name.startswith(_PLUGGED):
            self.watch.expect(owned.name)
        tell(log, READY, text, device=owned.name, serial=owned.serial, duration_s=passed)
        self._change(owned.card, State.READY)

    def _change(self, card: Card, state: State, reason: str = "") -> None:
        with self._tick:
            barred = self._barred.get(card.name)
            if barred is not None and state is State.READY:
                state, reason = State.QUARANTINED, barred.reason
            self.table.changed(card, state, reason)
            self._tick.notify_all()

    # ---- cards that come and go --------------------------------------------------------------

    def _arrived(self, name: str) -> None:
        with self._tick:
            barred = self._barred.get(name)
            if barred is not None and not barred.operator and self._known(name):
                self._lift(name)  # another card, or the same one after a power cycle
            owned = next(
                (candidate for candidate in self.owned if candidate.settings.name == name), None
            )
            if owned is None and self._plugs.adopts(name):
                owned = self._adopt(name)
            if owned is None:
                return
            owned.gone = False
            if name in self._barred:
                self._change(owned.card, State.QUARANTINED, self._barred[name].reason)
            elif owned.card.state in (State.OFF, State.QUARANTINED) and not self._closed:
                self.table.changed(owned.card, State.BOOTING)
                self._jobs.submit(self._boot, owned, SETTLE_S)

    def _adopt(self, name: str) -> Owned:
        """Add a card that the configuration file does not name."""
        owned = self._own(DeviceSettings(name), name)
        with self._tick:
            self.owned.append(owned)
            self.table.cards.append(owned.card)
            self._breakers[name] = Breaker(self.settings.recovery, self.now)
        return owned

    def _names(self) -> list[str]:
        with self._tick:
            return [owned.settings.name for owned in self.owned]

    def _known(self, name: str) -> bool:
        with self._tick:
            return any(owned.settings.name == name for owned in self.owned)

    def _departed(self, name: str) -> None:
        with self._tick:
            for owned in self.owned:
                if owned.settings.name == name and not self._closed:
                    self._jobs.submit(self._remove, owned)

    def _remove(self, owned: Owned) -> None:
        """Handle a card that has left the bus: end its leases and close its device."""
        device = owned.device
        if device is not None:
            with device.driver.core.lock:
                pass  # rungs of the ladder remove a card from the bus and find it again
        if self._plugs.present(owned.settings.name):
            self._returned(owned)
            return
        with self._tick:
            owned.gone = True
            if owned.card.state in (State.BOOTING, State.RECOVERING):
                return  # the running job fails and finds that the card is gone
            self._lookers.submit(self.watch.forget, owned.name)
            tell(log, MISSING, f"{owned.name}: {GONE}", device=owned.name, serial=owned.serial)
            self.table.changed(owned.card, State.OFF, GONE)
            while owned.card.leases:
                self._tick.wait()
        with owned.lock:
            with self._tick:
                back = owned.card.state is not State.OFF
            if not back:
                owned.close()

    def _returned(self, owned: Owned) -> None:
        """Handle a card that left the bus and is back. Either a rung of the ladder did that, or the
        card is not booted. A card with a lease is left alone: its holder finds the failure."""
        with self._tick:
            if owned.card.state is not State.READY or self._closed:
                return
            self.table.changed(owned.card, State.BOOTING)
        with owned.lock:
            works = owned.works()
        if works:
            self._change(owned.card, State.READY)
        else:
            self._boot(owned, SETTLE_S)

    # ---- recovery ------------------------------------------------------------------------------

    def _treat(self, owned: Owned, reason: str, *, failed: bool = True) -> None:
        """Start the recovery of a card that failed. Its lease is over, or about to be."""
        with self._tick:
            if self._closed:
                self.table.changed(owned.card, State.QUARANTINED, reason)
                return
            if owned.name in self._barred:
                self._change(owned.card, State.QUARANTINED, self._barred[owned.name].reason)
                return
            self.table.changed(owned.card, State.RECOVERING, reason)
            self._tick.notify_all()
            self._healers.submit(self._heal, owned, reason, failed)

    def _heal(self, owned: Owned, reason: str, failed: bool = True) -> None:
        treatment = Healing(owned, self.settings.recovery, self.history, self._pause)
        trouble = UNKNOWN
        try:
            with owned.lock:
                trouble = treatment.run(reason, self._breakers[owned.name], failed=failed)
        except Exception:
            log.exception("%s: its recovery failed", owned.name)
        self._note()
        if not trouble:
            with self._tick:
                if self._beyond is not None and self._beyond[0] == owned.name:
                    self._beyond = None
                self._change(owned.card, State.READY)
            return
        if owned.gone or not self._plugs.present(owned.settings.name):
            self._change(owned.card, State.OFF, GONE)  # perhaps before `_departed` is called
            return
        tell(log, QUARANTINED, f"{owned.name} is quarantined: {trouble}", device=owned.name,
             serial=owned.serial, reason=trouble)  # fmt: skip
        with self._tick:
            if owned.name not in self._barred:  # otherwise an operator did, meanwhile
                self.history.quarantine(owned.name, trouble, operator=False)
            barred = self._barred.setdefault(owned.name, Quarantine(trouble, operator=False))
            self._change(owned.card, State.QUARANTINED, barred.reason)
            if not barred.operator:
                self._beyond = owned.name, trouble
        self._reboot_where_allowed()

    def _pause(self, seconds: float) -> bool:
        """Wait; return False if the daemon is stopped meanwhile."""
        end = self.now() + seconds
        with self._tick:
            while not self._closed and (left := end - self.now()) > 0:
                self._tick.wait(left)
            return not self._closed

    def _reboot_where_allowed(self) -> None:
        """Reboot the machine for a card beyond recovery, if the policy allows it and no lease is
        held."""
        policy = self.settings.recovery
        with self._tick:
            held = any(lease.holds for lease in self.table.leases.values())
            if self._beyond is None or not policy.reboot or held or self._closed:
                return
            (name, reason), self._beyond = self._beyond, None
        if self.history.may_reboot(name, reason, policy.reboot_every_s):
            reboot(policy.reboot, name, reason)
        else:
            log.error("%s: the machine was recently rebooted for a card", name)

    def recover(self, pattern: str, rights: Rights) -> list[str]:
        """Start the recovery of quarantined cards and return their names. For admins."""
        with self._tick:
            named = [owned for owned in self.owned if owned.card.matches(pattern)]
            bad = [
                owned
                for owned in named
                if owned.card.state is State.QUARANTINED or owned.name in self._barred
            ]
            rights.check("recover", *(owned.card for owned in bad or named))
            if not bad:
                have = "; ".join(f"{owned.name}: {owned.card.state.value}" for owned in self.owned)
                raise BadArgument(f"no quarantined device matches {pattern!r}: {have}")
            ordered = {name for name, barred in self._barred.items() if barred.operator}
            lifted = self._lift(*(owned.name for owned in bad))
            for owned in bad:
                if owned.card.state is State.QUARANTINED:
                    self._breakers[owned.name].forgive()
                    self._treat(owned, owned.card.reason, failed=owned.name not in ordered)
        if not stored(lifted):
            log.error("%s: quarantines may return with the restart of ugpud: %s", pattern,
                      self.history.trouble or "history is busy")  # fmt: skip
        return [owned.name for owned in bad]

    def reset(self, name: str, rights: Rights) -> None:
        """Start a job that resets a device without leases and runs its self-test. AccessDenied
        unless the caller is an admin; DeviceBusy unless the device is ready."""
        with self._tick:
            owned = next((candidate for candidate in self.owned if candidate.name == name), None)
            if owned is None:
                have = ", ".join(candidate.name for candidate in self.owned)
                raise BadArgument(f"there is no device named {name!r}; there are: {have}")
            rights.check("reset", owned.card)
            if owned.card.state is not State.READY or self._closed:
                raise DeviceBusy(
                    f"{name} must be ready to be reset, it is {owned.card.state.value}",
                    remedy="end its leases first; for a quarantined device use recover",
                )
            self.table.changed(owned.card, State.RECOVERING, f"reset by {rights.name}")
            self._tick.notify_all()
            self._healers.submit(self._reset, owned, rights.name)

    def _reset(self, owned: Owned, by: str) -> None:
        try:
            with owned.lock:
                owned.reset(None)
                owned.prove()
        except UgpuError as error:
            tell(log, FAILED, f"{owned.name} failed when {by} had it reset: {error}",
                 device=owned.name, error=error, serial=owned.serial)  # fmt: skip
            self._treat(owned, str(error))
            return
        except Exception:
            log.exception("%s: its reset failed", owned.name)
            self._treat(owned, UNKNOWN)
            return
        text = f"{owned.name} is ready after a reset by {by}"
        tell(log, READY, text, device=owned.name, serial=owned.serial, operator=by)
        self._change(owned.card, State.READY)

    def quarantine(self, pattern: str, reason: str, rights: Rights) -> list[str]:
        """Take devices out of use until `recover`, even after a restart, and end their leases.
        Return their names. For admins. HostError if not stored: then it lasts until ugpud stops."""
        reason = f"{one_line(reason[:_REASON]) or 'taken out of use'} (by {rights.name})"
        with self._tick:
            named = [owned for owned in self.owned if owned.card.matches(pattern)]
            rights.check("quarantine", *(owned.card for owned in named))
            if not named:
                have = ", ".join(owned.name for owned in self.owned)
                raise BadArgument(f"no device matches {pattern!r}; there are: {have}")
            results = []
            for owned in named:
                results.append(self.history.quarantine(owned.name, reason, operator=True))
                self._barred[owned.name] = Quarantine(reason, operator=True)
                if owned.card.state in (State.READY, State.LEASED, State.QUARANTINED):
                    self._change(owned.card, State.QUARANTINED, reason)
        for owned in named:
            tell(log, QUARANTINED, f"{owned.name} is quarantined: {reason}", device=owned.name,
                 serial=owned.serial, reason=reason, operator=rights.name)  # fmt: skip
        if not stored(results):
            raise HostError(
                f"the quarantine of {pattern} is in force but not stored yet; if it cannot be, it "
                f"lasts until ugpud stops: {self.history.trouble or 'the history is busy'}"
            )
        return [owned.name for owned in named]

    def _lift(self, *names: str) -> list[Future[bool]]:
        """End quarantines, now and for the next start. The lock is held."""
        return [self.history.lift(name) for name in names if self._barred.pop(name, None)]

    def look(self) -> None:
        """Inspect all open cards, each in its own job, so that a card that does not answer delays
        no other."""
        with self._tick:
            for owned in self.owned:
                if owned.is_open and owned.name not in self._looking and not self._closed:
                    self._looking.add(owned.name)
                    self._lookers.submit(self.look_at, owned)

    def look_at(self, owned: Owned) -> None:
        """Read a card's sensors and link, and judge them (tools.service.daemon.cards.watch)."""
        try:
            telemetry = loads(owned.telemetry())
            link = links(owned.settings.name, telemetry, self._system)
            self.watch.look(owned.name, owned.serial, telemetry, link)
            self.watch.refresh(owned.name)
        except UgpuError as error:
            log.debug("%s is not inspected: %s", owned.name, error)
        except Exception:
            log.exception("%s is not inspected", owned.name)
        finally:
            with self._tick:
                self._looking.discard(owned.name)

    def rest_idle(self) -> float | None:
        """Rest the cards that had no lease for a while, each in a job; return when the next one is
        due. The lock is held."""
        due, next_s = self._idle.due(self.owned)
        for owned in due:
            self._jobs.submit(self._rest, owned)
        return next_s

    def _rest(self, owned: Owned) -> None:
        """RACE: a lease may be granted meanwhile; its first operation wakes the device."""
        try:
            with owned.lock:
                with self._tick:
                    if owned.card.state is not State.READY:
                        return
                if owned.rest():
                    log.debug("%s rests", owned.name)
        except UgpuError as error:
            self.failed(owned, error)
        except Exception:
            log.exception("%s: it cannot rest", owned.name)
            self.failed(owned, HostError(UNKNOWN))

    def _lost(self, owned: Owned, error: UgpuError) -> None:
        """End the leases of a card whose process has ended, and start its recovery. If a job uses
        the card, the job fails."""
        with self._tick:
            for lease in list(owned.card.leases):
                lease.finish(str(error))
        self.failed(owned, error)

    def failed(self, owned: Owned, error: UgpuError) -> None:
        """Start the recovery of a card that failed outside of a holder's work."""
        with self._tick:
            if owned.card.state not in (State.READY, State.LEASED):
                return
        text = f"{owned.name} failed: {error}"
        tell(log, FAILED, text, device=owned.name, error=error, serial=owned.serial)
        self._treat(owned, str(error))

    def _note(self) -> None:
        """Write the time in service to the history."""
        with self.lock:
            leases = [(owned.name, owned.card.served) for owned in self.owned]
        self.history.serve(leases)


def _missing(card: Card) -> dict[str, str]:
    """Return the trouble of a card that is missing."""
    return {MISSING.name: GONE} if card.state is State.OFF and card.reason == GONE else {}
