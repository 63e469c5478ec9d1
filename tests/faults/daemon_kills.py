"""Random SIGKILLs of a ugpud and of its clients: what was acknowledged is there, every card works.

    python -m tests.faults.daemon_kills --kills 500 --seed 1

Two virtual Navi31 are processes of their own (`ugpu serve`), which outlive the daemon that owns
them. Each round starts six clients, which lease a card one after the other, copy and launch; then
some of the clients or the daemon are killed. A client whose daemon lives reads back all that it was
told is done; one whose daemon dies gets DeviceLost, or DeviceNotFound where it had not connected
yet; the next holder of each card finds its memory clear, copies and launches. Two operators work
beside the clients and are killed too (`tests.faults.daemon_operator`): tokens that were
created or revoked and quarantines that were ordered or lifted stay so. The seed decides who is
killed, and after how long. The exit code is 1 unless all of that holds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.faults.amd.kills import LIMIT_S, card, in_child, rest_of, wait
from tests.faults.daemon_operator import SPARE, Facts, operate
from tests.support.kernels import contract_object
from tests.support.service.daemon import DaemonProcess
from ugpu import hcq
from ugpu.hcq.errors import DeviceLost, DeviceNotFound
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.tools.service.daemon.clients.tokens import Tokens

CLIENTS, SLOTS, WORDS = 6, 64, 256
LIFE_S = 2.0  # from the start of the clients to the last kill, at most
PATTERN = "vfio-user:*"  # of the cards that clients lease
DAEMONS = 0.2  # share of rounds that kill the daemon
_WORKS = ("ready", "leased")
# Cards that wait for the next holder rest.
MORE = """rest_s = 0.05
[lease]
drain_s = 0.2
"""


@dataclass
class Score:
    """kills: by victim and what it did when it died. checked: acknowledged copies read back.
    facts: acknowledged tokens and quarantines; how many checks of them."""

    kills: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    facts: Facts = field(default_factory=Facts)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = ", ".join(f"{name} {count}" for name, count in self.kills.most_common())
        total = sum(self.kills.values())
        return (
            f"kills={total} failed={len(self.failed)} copies checked={self.checked} "
            f"tokens and quarantines checked={self.facts.checked}: {where}"
        )


@dataclass
class Worker:
    """A client or operator that works until it is told to stop (SIGTERM)."""

    pid: int
    reader: int
    operator: bool = False


def work(socket: str, tell: Callable[[str], object]) -> None:
    """Copy and launch until SIGTERM; then read back all that was acknowledged. Where the daemon
    dies: one DeviceLost, told as "lost"."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    done = 0
    try:
        tell("lease")
        with hcq.lease(PATTERN, daemon=socket, wait_s=LIMIT_S) as gpu:
            tell("load")
            with (
                gpu.load(contract_object(gpu.target)) as program,
                gpu.alloc(4 * WORDS * SLOTS) as kept,
                gpu.alloc(4 * WORDS) as result,
            ):
                while not told:
                    tell("copy")
                    kept[4 * WORDS * (done % SLOTS) : 4 * WORDS * (done % SLOTS + 1)].copy_from(
                        np.full(WORDS, done + 1, np.uint32)
                    )
                    gpu.synchronize()
                    done += 1
                    tell("launch")
                    with gpu.queue() as queue:
                        arguments = (result, kept, np.uint32(WORDS), np.uint32(3))
                        queue.launch(
                            program["scale"], grid=(WORDS // 64,), block=(64,), args=arguments
                        )
                    gpu.synchronize()
                first = 1 + (done - 1) // SLOTS * SLOTS if done else 0
                found = kept.numpy(np.uint32).reshape(SLOTS, WORDS)
                for slot in range(min(done, SLOTS)):
                    wanted = slot + first if slot + first <= done else slot + first - SLOTS
                    assert (found[slot] == wanted).all(), f"slot {slot}: not {wanted}"
                if done:
                    assert (result.numpy(np.uint32) == 3 * found[0][0]).all(), "a kernel"
    except (DeviceLost, DeviceNotFound):  # the latter: no daemon, so far
        tell(f"lost {done}")
        return
    tell(f"done {min(done, SLOTS)}")


def check_card(socket: str, name: str, tell: Callable[[str], object]) -> None:
    """A card is free, clear, copies and launches."""
    with hcq.lease(name, daemon=socket, wait_s=LIMIT_S) as gpu:
        tell("leased")
        data = np.arange(WORDS, dtype=np.uint32)
        with (
            gpu.load(contract_object(gpu.target)) as program,
            gpu.alloc(4 * WORDS * SLOTS) as buffer,
            gpu.alloc(4 * WORDS) as result,
        ):
            assert not buffer.numpy(np.uint8).any(), "another holder's memory"
            buffer[: data.nbytes].copy_from(data)
            with gpu.queue() as queue:
                arguments = (result, buffer, np.uint32(WORDS), np.uint32(7))
                queue.launch(program["scale"], grid=(WORDS // 64,), block=(64,), args=arguments)
            gpu.synchronize()
            assert np.array_equal(result.numpy(np.uint32), 7 * data), "a kernel"


def check(socket: str, cards: list[str], tell: Callable[[str], object]) -> None:
    """Every card is free, clear, copies and launches."""
    for name in cards:
        check_card(socket, name, tell)
    with Connection(Address(socket)) as connection:
        devices = connection.call("devices").arguments[0]
    bad = [one for one in devices if one["name"] != SPARE and one["state"] not in _WORKS]
    assert not bad and len(devices) == len(cards) + 1, f"devices: {devices}"
    tell("healthy")


def start(socket: str) -> Worker:
    """Start a client."""
    return Worker(*in_child(lambda tell: work(socket, tell)))


def operators(daemon: DaemonProcess, facts: Facts, turn: int) -> list[Worker]:
    """Start two operators; the first also orders quarantines."""
    state, both = daemon.folder / "state", (facts, None)

    def begin(number: int) -> Worker:
        name = f"{turn}-{number}"
        return Worker(
            *in_child(lambda tell: operate(daemon.socket, state, name, both[number], tell)), True
        )

    return [begin(number) for number in range(2)]


def end(worker: Worker, score: Score, *, daemon_died: bool) -> None:
    """Wait for a client that was not killed; all that it was told is done must be there."""
    status, told = wait(worker.pid, LIMIT_S), rest_of(worker.reader)
    last = told.splitlines()[-1] if told else "nothing"
    if worker.operator:
        score.facts.take(told)
        if status != 0 or (last.startswith("lost ") and not daemon_died):
            score.failed.append(f"an operator that was not killed: {status}: {told[-2000:]}")
    elif status == 0 and last.startswith("done "):
        score.checked += int(last.split()[1])
    elif not (status == 0 and daemon_died and last.startswith("lost ")):
        score.failed.append(f"a client that was not killed: {status}: {told[-2000:]}")


def kill(worker: Worker, score: Score) -> None:
    """Kill a client or operator, whatever it does."""
    os.kill(worker.pid, signal.SIGKILL)
    os.waitpid(worker.pid, 0)
    told = rest_of(worker.reader)
    doing = told.splitlines()[-1] if told else "start"
    if worker.operator:
        score.facts.take(told)
        doing = f"operator: {doing.split()[0]}"
    score.kills[doing] += 1


def one_round(
    daemon: DaemonProcess, cards: list[str], draw: random.Random, score: Score, room: int
) -> None:
    """Start clients, kill some of them or the daemon, look at what is left. room: kills."""
    workers = [start(daemon.socket) for _ in range(CLIENTS)]
    workers += operators(daemon, score.facts, score.kills.total())
    first = workers[0]
    rest = workers[1:]
    draw.shuffle(rest)
    workers = [first, *rest]
    victims = min(room, draw.randrange(1, CLIENTS))
    moments = sorted(draw.uniform(0.0, LIFE_S) for _ in range(victims))
    daemon_dies = draw.random() < DAEMONS
    # No client ends before it is told to: this one's end would be a failure, seen below.
    handle = os.pidfd_open(first.pid)
    try:
        pause(handle, moments[0])
        if daemon_dies:
            daemon.kill()
            score.kills["daemon"] += 1
            daemon.start()
        else:
            kill(workers.pop(), score)
            for before, moment in itertools.pairwise(moments):
                pause(handle, moment - before)
                kill(workers.pop(), score)
    finally:
        os.close(handle)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
    for worker in workers:
        end(worker, score, daemon_died=daemon_dies)
    pid, reader = in_child(lambda tell: check(daemon.socket, cards, tell))
    status, answer = wait(pid, 2 * LIMIT_S), rest_of(reader)
    if status != 0 or not answer.endswith("healthy\n"):
        score.failed.append(f"the next holders: {status}: {answer[-2000:]}")
    try:
        score.facts.check(Tokens(daemon.folder / "state" / "tokens.json"), daemon.socket)
    except AssertionError as error:
        score.failed.append(str(error))


def pause(handle: int, limit_s: float) -> None:
    """Let clients work for a while; not longer than the process behind `handle` runs."""
    select.select([handle], [], [], limit_s)


def campaign(
    kills: int, seed: int, progress: Callable[[int, Score], object] | None = None
) -> Score:
    """Kill so many clients and daemons."""
    draw, score = random.Random(seed), Score()
    with contextlib.ExitStack() as ends:
        served = [ends.enter_context(card("navi31")) for _ in range(2)]
        names = [f"vfio-user:{socket}" for socket, _ in served]
        os.environ["UGPU_FIRMWARE"] = str(served[0][1])
        daemon = ends.enter_context(DaemonProcess([*names, SPARE], MORE))
        while score.kills.total() < kills:
            one_round(daemon, names, draw, score, kills - score.kills.total())
            if progress is not None:
                progress(score.kills.total(), score)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    told = 0

    def progress(number: int, score: Score) -> None:
        nonlocal told
        for text in score.failed[told:]:
            sys.stdout.write(f"{text}\n")
        told = len(score.failed)
        sys.stdout.write(f"{number}: {score}\n")
        sys.stdout.flush()

    score = campaign(arguments.kills, arguments.seed, progress)
    verdict = "FAIL" if score.failed else "PASS"
    sys.stdout.write(f"daemon kills: {verdict} seed={arguments.seed} {score}\n")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
