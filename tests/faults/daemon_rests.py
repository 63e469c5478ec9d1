"""A card that rests under ugpud, and what may happen just then: the daemon dies, the client that
wakes it dies, the SMU or the core does not come back, the card is pulled.

    python -m tests.faults.daemon_rests --rounds 200 --seed 1

The card is a virtual Navi31 in a process of its own on a made-up PCI bus; the daemon, in another
one, lets it rest as soon as no lease is left. Each round draws what happens, and when: while the
card rests with its graphics core off, while a lease wakes it, or about when it goes to rest. Then
the next holder must get the card, with its memory clear, and copy and launch; the card must rest
again; and it must not have seen an access to the core without power. A daemon that was killed while
the card rested must find it warm. The exit code is 1 unless all of that holds.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import select
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.faults.amd.kills import LIMIT_S, in_child, rest_of, wait
from tests.faults.daemon_kills import check_card
from tests.support.pci.pci_machine import PciMachine
from tests.support.service.daemon import Running, settings_text
from tests.support.waiting import came, until
from ugpu import hcq
from ugpu.am.chips import facts_of
from ugpu.hcq.errors import DeviceNotFound, UgpuError
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.tools.control.serve import write_firmware
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.server import Server

ADDRESS = "0000:03:00.0"
NAME, CHIP = f"pci:{ADDRESS}", "navi31"
_FIRST = "GRBM_STATUS read while gc has no power (GFXOFF)"
_TRIES = 5
REST_S = 0.05
WAKING_S = 0.08  # from the start of a request until its card is awake and leased, and more
MORE = f"""rest_s = {REST_S}
[lease]
drain_s = 0.2
[recovery]
pause_s = 0.05
trips = 9999
"""


@dataclass
class Score:
    """rounds: by what happened. rests: daemons that found the card at rest, all warm. moments: what
    the client that woke the card was doing when that happened."""

    rounds: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        what = ", ".join(f"{name} {count}" for name, count in self.rounds.most_common())
        total = self.rounds.total()
        return (
            f"rounds={total} failed={len(self.failed)} found at rest={self.rests} "
            f"clients={dict(self.moments)}: {what}"
        )


# ---- the card, in a process of its own -----------------------------------------------------------


class Slot:
    """The card, and the orders that it takes from a pipe: a line each, answered by a line."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._chip: Any = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._expected = ""  # in a report

    def plug(self) -> str:
        """Power the card on, and serve it."""
        chip = self._chip = build_chip(facts_of(CHIP), ChipOptions(vram=256 << 20, noise=0))
        reset = chip.mode1_reset

        def cured() -> None:
            chip.faults.gfxoff_stuck = chip.faults.smu_silent = False
            reset()

        chip.mode1_reset = cured
        self._server = Server(self._socket, ServedChip(chip))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        return "plugged"

    def pull(self) -> str:
        """Take it out: its link is gone, and what it held."""
        assert self._server is not None and self._thread is not None
        self._server.stop()
        self._thread.join()
        self._chip.close()
        return "pulled"

    def stuck(self) -> str:
        """The core stays without power, until mode1. The driver finds that by a read of it."""
        self._chip.faults.gfxoff_stuck, self._expected = True, _FIRST
        return "stuck"

    def silent(self) -> str:
        """The SMU's firmware hangs, until mode1."""
        self._chip.faults.smu_silent = True
        return "silent"

    def busy(self) -> str:
        """The SMU does not take the next message at once."""
        self._chip.faults.smu_busy = 1
        return "busy"

    def healthy(self) -> str:
        """Whether no planted fault is left."""
        faults = self._chip.faults
        return "no" if faults.gfxoff_stuck or faults.smu_silent or faults.smu_busy else "yes"

    def off(self) -> str:
        """Whether the core has no power now."""
        return "yes" if self._chip.smu.graphics.off else "no"

    def report(self) -> str:
        """What the card has seen since the last report and should not have."""
        found = [note for note in self._chip.notes if "GFXOFF" in note] + self._chip.violations
        found = [each for each in found if each != self._expected]
        self._chip.notes.clear()
        self._chip.violations.clear()
        self._expected = ""
        return "; ".join(found).replace("\n", " ")

    def serve(self, orders: int, tell: Callable[[str], object]) -> None:
        """Obey until the pipe ends."""
        with os.fdopen(orders) as lines:
            for line in lines:
                tell(getattr(self, line.strip())())
        self.pull()


# ---- the daemon, in a process of its own ---------------------------------------------------------


class Bus(Protocol):
    """Where the daemon finds the card."""

    machine: PciMachine
    socket: Path
    firmware: Path


def run_daemon(folder: Path, bus: Bus, tell: Callable[[str], object]) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(filename=folder / "log", level=logging.INFO)

    def opened(name: str, **options: Any) -> Any:
        if not bus.machine.folder(ADDRESS).exists():
            raise DeviceNotFound(f"{name} is not there")
        return hcq.open(f"vfio-user:{bus.socket}", firmware=bus.firmware, **options)

    settings = parse(settings_text(folder, [NAME], MORE))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    running = Running(settings, Daemon(settings, system=bus.machine, opener=opened))
    tell("ready")
    stop.wait()
    running.close()


class Stand:
    """Bus, card and daemon of a campaign."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket, self.firmware = folder, folder / "card", folder / "fw"
        write_firmware(facts_of(CHIP), self.firmware)
        self.machine = PciMachine(folder / "machine")
        self.log = folder / "log"
        reader, self._orders = os.pipe()
        slot = Slot(self.socket)

        def card(tell: Callable[[str], object]) -> None:
            os.close(self._orders)
            slot.serve(reader, tell)

        self._card, self._answers = in_child(card)
        os.close(reader)
        self._pulled = 0
        self.plug()
        self.start()

    def ask(self, order: str) -> str:
        """Have the card's process do something; its answer."""
        os.write(self._orders, f"{order}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            more = os.read(self._answers, 4096)
            if not more:
                raise AssertionError(f"the card's process has ended: {answer.decode()}")
            answer += more
        return answer.decode().strip()

    def plug(self) -> None:
        self.ask("plug")
        self.machine.add(ADDRESS, group=None)

    def pull(self) -> None:
        self.ask("pull")
        link = self.machine.folder(ADDRESS)
        found = link.resolve()
        link.unlink()
        self._pulled += 1  # kept: its inode's number must not be the next card's
        found.rename(found.with_name(f"gone-{self._pulled}"))

    @property
    def healthy(self) -> bool:
        """Whether no planted fault is left."""
        return self.ask("healthy") == "yes"

    def start(self) -> None:
        """Start a daemon, and return when it has booted its card, or knows that it cannot."""

        def daemon(tell: Callable[[str], object]) -> None:
            os.close(self._orders)  # else the card's process outlives the campaign
            run_daemon(self.folder, self, tell)

        self.daemon, self._told = in_child(daemon)
        first = os.read(self._told, 4096)
        if first != b"ready\n":
            raise AssertionError(f"ugpud did not start: {(first + os.read(self._told, 1 << 16))!r}")

    def kill(self) -> None:
        os.kill(self.daemon, signal.SIGKILL)
        os.waitpid(self.daemon, 0)
        os.close(self._told)

    def listed(self) -> dict[str, Any]:
        """The card, as the daemon sees it."""
        with Connection(Address(str(self.folder / "ugpud.sock"))) as connection:
            (found,) = connection.call("devices").arguments[0]
        device: dict[str, Any] = found
        return device

    def call(self, *arguments: Any) -> None:
        """What an operator asks of the daemon."""
        with Connection(Address(str(self.folder / "ugpud.sock"))) as connection:
            connection.call(*arguments)

    def rests(self) -> None:
        """Return when the card rests and its core is off."""
        came(lambda: self.listed()["resting"] and self.ask("off") == "yes")
        assert self.listed()["resting"], f"the card does not rest: {self.listed()}"

    def client(self) -> tuple[int, int]:
        """Start one that leases the card and uses it."""
        socket = str(self.folder / "ugpud.sock")
        return in_child(lambda tell: check_card(socket, "pci:*", tell))

    def close(self) -> None:
        """Stop everything. AssertionError where the daemon does not end well."""
        os.kill(self.daemon, signal.SIGTERM)
        status, told = wait(self.daemon, LIMIT_S), rest_of(self._told)
        os.close(self._orders)
        ended = wait(self._card, LIMIT_S)
        os.close(self._answers)
        assert (status, ended) == (0, 0), f"daemon: {status} {told}; card: {ended}"


# ---- what happens --------------------------------------------------------------------------------


def nap(seconds: float) -> None:
    select.select([], [], [], seconds)


def killed_at_rest(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    before = stand.log.read_text().count("attached warm after")
    stand.kill()
    stand.start()
    found = stand.log.read_text().count("attached warm after") - before
    assert found == 1, "the next daemon did not find the card warm"
    score.rests += 1


def killed_while_waking(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    pid, reader = stand.client()
    nap(draw.uniform(0.0, WAKING_S))
    stand.kill()
    wait(pid, LIMIT_S)
    _note(score, reader)
    stand.start()


def _note(score: Score, reader: int) -> None:
    """Count what a client had come to."""
    score.moments["holds" if rest_of(reader).startswith("leased") else "asks"] += 1


def killed_on_the_way_to_rest(stand: Stand, draw: random.Random, score: Score) -> None:
    use(stand)
    nap(draw.uniform(0.0, 3 * REST_S))
    stand.kill()
    stand.start()


def client_killed_while_waking(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    pid, reader = stand.client()
    nap(draw.uniform(0.0, WAKING_S))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _note(score, reader)


def quarantined_at_rest(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    stand.call("quarantine", NAME, "drawn")
    if draw.random() < 0.5:
        stand.kill()
        stand.start()
        assert stand.listed()["state"] == "quarantined", stand.listed()
    stand.call("recover", NAME)


def _fault(name: str) -> Callable[[Stand, random.Random, Score], None]:
    """A fault at rest, on the way there or back; a client, an operator or the next daemon meets
    it."""

    def happen(stand: Stand, draw: random.Random, score: Score) -> None:
        moment, who = draw.randrange(3), draw.randrange(3)
        if moment:
            stand.rests()
        else:
            use(stand)
            nap(draw.uniform(0.0, 2 * REST_S))
        client = stand.client() if moment == 2 else None
        nap(draw.uniform(0.0, WAKING_S))
        stand.ask(name)
        if client is not None:
            wait(client[0], LIMIT_S)
            _note(score, client[1])
        if who == 1:
            stand.call("quarantine", NAME, "drawn")
            stand.call("recover", NAME)
        elif who == 2:
            stand.kill()
            stand.start()
        for _ in range(_TRIES):
            came(lambda: stand.healthy or stand.listed()["resting"])
            if stand.healthy:
                return
            pid, reader = stand.client()
            wait(pid, LIMIT_S)  # it may get the error, or wait for the recovery
            rest_of(reader)
        raise AssertionError("the fault is still there")

    return happen


def pulled_at_rest(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    _pulled(stand, draw)


def pulled_while_waking(stand: Stand, draw: random.Random, score: Score) -> None:
    stand.rests()
    pid, reader = stand.client()
    nap(draw.uniform(0.0, WAKING_S))
    _pulled(stand, draw)
    wait(pid, LIMIT_S)
    _note(score, reader)


def _pulled(stand: Stand, draw: random.Random) -> None:
    """The card is back after a while, perhaps under another daemon; an operator orders another
    recovery where the daemon has given it up meanwhile."""
    stand.pull()
    if draw.random() < 0.5:
        until(lambda: stand.listed()["state"] == "off", "the daemon to miss the card")
    if draw.random() < 0.3:
        stand.kill()
        stand.start()
    stand.plug()


HAPPENINGS: dict[str, Callable[[Stand, random.Random, Score], None]] = {
    "daemon killed at rest": killed_at_rest,
    "daemon killed while the card wakes": killed_while_waking,
    "daemon killed on the way to rest": killed_on_the_way_to_rest,
    "client killed while the card wakes": client_killed_while_waking,
    "quarantined at rest": quarantined_at_rest,
    "core stuck": _fault("stuck"),
    "SMU silent": _fault("silent"),
    "SMU busy": _fault("busy"),
    "pulled at rest": pulled_at_rest,
    "pulled while it wakes": pulled_while_waking,
}


def use(stand: Stand, *, pulled: bool = False) -> None:
    """The next holder gets the card and finds that it works. pulled: one may come before the daemon
    has looked at the bus, and loses the card that is not there."""
    pid, reader = stand.client()
    status, told = wait(pid, LIMIT_S), rest_of(reader)
    if pulled and status != 0 and "DeviceLost" in told:
        use(stand)
        return
    assert status == 0, f"the next holder: {status}: {told[-2000:]}\n{stand.listed()}"


def one_round(stand: Stand, name: str, draw: random.Random, score: Score) -> None:
    """Let it happen; then the next holder gets the card, and it rests again."""
    score.rounds[name] += 1
    HAPPENINGS[name](stand, draw, score)
    use(stand, pulled=name.startswith("pulled"))
    stand.rests()
    seen = stand.ask("report")
    assert not seen, f"the card has seen: {seen}"


@contextlib.contextmanager
def made() -> Iterator[Stand]:
    os.environ["UGPU_CRASHES"] = "0"
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        stand = Stand(Path(folder))
        try:
            yield stand
        finally:
            stand.close()


def campaign(
    rounds: int, seed: int, progress: Callable[[int, Score], object] | None = None
) -> Score:
    """So many rounds; each kind comes before one comes again. Ends at the first that fails, whose
    daemon's log is told."""
    draw, score = random.Random(seed), Score()
    order: list[str] = []
    with made() as stand:
        while score.rounds.total() < rounds:
            order = order or draw.sample(list(HAPPENINGS), len(HAPPENINGS))
            name = order.pop()
            try:
                one_round(stand, name, draw, score)
            except (AssertionError, UgpuError, OSError) as error:
                log = stand.log.read_text()[-6000:]
                score.failed.append(f"{name}: {type(error).__name__}: {error}\n{log}")
                return score
            if progress is not None:
                progress(score.rounds.total(), score)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    def progress(number: int, score: Score) -> None:
        if number % 10 == 0:
            sys.stdout.write(f"{number}: {score}\n")
            sys.stdout.flush()

    score = campaign(arguments.rounds, arguments.seed, progress)
    sys.stdout.writelines(f"{text}\n" for text in score.failed)
    verdict = "FAIL" if score.failed else "PASS"
    sys.stdout.write(f"daemon rests: {verdict} seed={arguments.seed} {score}\n")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
