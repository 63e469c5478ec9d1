"""Random SIGKILLs: a driver's process dies while it boots, works and resets; the next one gets the
card up, warm where the dead one had not touched it.

    python -m tests.faults.amd.kills --kills 1000 --seed 1 [--chip navi32]

The card is a virtual Navi31, or a Navi32, which has mode2 resets too, in a process of its own
(`ugpu serve`), which outlives its clients.
Each round forks a driver, kills it after a random part of its life, and opens the card in another
process, which checks copies and a kernel, and leaves the card warm. The seed decides which part of
a life; at which instruction that is depends on the machine. The exit code is 1 unless every next
open works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice, open_device
from ugpu.hcq.errors import PageFault
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport

ROOT = Path(__file__).resolve().parents[3]
LIFE_S = 1.2  # of a driver that is killed, at most; boot, work and resets are shorter
LIMIT_S = 120.0  # for an open that checks the card
UNTOUCHED = ("start", "config space", "board firmware", "discovery", "memory")
WORDS = 4096


@dataclass
class Score:
    """kills: by what the process did when it died. warm: how many opens found a card that a dead
    process had not touched, or had not begun to use. failed: what went wrong, for people."""

    kills: Counter[str] = field(default_factory=Counter)
    warm: int = 0
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = ", ".join(f"{name} {count}" for name, count in self.kills.most_common())
        total = sum(self.kills.values())
        return f"kills={total} next open works={total - len(self.failed)} warm={self.warm}: {where}"


@contextlib.contextmanager
def card(chip: str) -> Iterator[tuple[Path, Path]]:
    """A served card: its socket, and the folder with its firmware."""
    folder = Path(tempfile.mkdtemp(prefix="vu-"))
    command = [sys.executable, "-m", "ugpu.tools.cli", "serve", f"virtual:{chip}", "--json"]
    options = ["--vfio-user", str(folder / "s"), "--vram", "0.25", "--firmware", str(folder / "fw")]
    server = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it says that clients leave without a word
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "}\n")
        ready = json.loads("".join(lines) + "}")
        yield Path(ready["socket"]), Path(ready["firmware"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def live(socket: Path, firmware: Path, image: bytes, tell: Callable[[str], object]) -> None:
    """What is killed: boot, work, a fault and its reset, the whole chip's reset, again."""
    with connect(socket, firmware, tell) as device, device.load(image) as program:
        buffer, value = device.alloc(4 * WORDS), 0
        while True:
            value += 1
            tell("copy")
            buffer.copy_from(np.arange(WORDS, dtype=np.uint32))
            tell("launch")
            for _ in range(20):
                with device.queue() as queue:
                    queue.launch(
                        program["good"], grid=(1,), block=(32,), args=(buffer, np.uint32(value))
                    )
            device.synchronize()
            tell("fault")
            with contextlib.suppress(PageFault), device.queue() as queue:
                wild = np.uint64(0x1234_5678_9000)
                queue.launch(program["read_at"], grid=(1,), block=(32,), args=(buffer, wild))
            with contextlib.suppress(PageFault):
                device.synchronize()
            tell("reset")
            device.reset()
            rungs = ("block", "warm", "mode2", "mode1")
            for rung in rungs if device.driver.facts.mode2_since else (*rungs[:2], "mode1"):
                tell(f"{rung} reset")
                device.reset(rung)


def connect(socket: Path, firmware: Path, tell: Callable[[str], object]) -> AmDevice:
    """The driver on the served card; the faults that are planted here leave no bundles."""
    device = open_device(
        "card",
        Attachment(VfioUserTransport(str(socket))),
        firmware=firmware,
        on_stage=lambda stage, _: tell(stage),
    )
    device.driver.core.keeper.folder = None
    return device


def check(socket: Path, firmware: Path, image: bytes, tell: Callable[[str], object]) -> None:
    """The next open: copies and a kernel give the right answers."""
    with connect(socket, firmware, lambda _: None) as device, device.load(image) as program:
        data = np.arange(WORDS, dtype=np.uint32)
        buffer = device.alloc(data.nbytes)
        buffer.copy_from(data)
        assert np.array_equal(buffer.numpy(np.uint32), data), "a copy"
        with device.queue() as queue:
            queue.launch(program["good"], grid=(1,), block=(32,), args=(buffer, np.uint32(77)))
        device.synchronize()
        assert buffer.numpy(np.uint32)[0] == 77, "a kernel"
        tell("warm" if device.warm else "cold")


def in_child(work: Callable[[Callable[[str], object]], None]) -> tuple[int, int]:
    """Fork, and run `work` in the child with a way to tell; its pid, and what it tells is read
    from."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        work(lambda text: os.write(writer, f"{text}\n".encode()))
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(code)


def rest_of(reader: int) -> str:
    """All that a child still tells."""
    with os.fdopen(reader, "rb") as stream:
        return stream.read().decode()


def wait(pid: int, limit_s: float) -> int | None:
    """The exit status of a child; None, once it is killed, where it took longer than `limit_s`."""
    handle = os.pidfd_open(pid)
    try:
        ended = bool(select.select([handle], [], [], limit_s)[0])
    finally:
        os.close(handle)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if ended else None


def one_round(socket: Path, firmware: Path, image: bytes, life_s: float, score: Score) -> None:
    """Kill a driver after `life_s`, then open the card."""
    pid, reader = in_child(lambda tell: live(socket, firmware, image, tell))
    status = wait(pid, life_s)
    told = rest_of(reader)
    place = told.splitlines()[-1] if told else "start"
    score.kills[place if status is None else "not killed"] += 1
    if status is not None:
        score.failed.append(f"the driver ended by itself ({status}): {told}")
        return
    pid, reader = in_child(lambda tell: check(socket, firmware, image, tell))
    status, answer = wait(pid, LIMIT_S), rest_of(reader)
    warm = answer.startswith("warm")
    score.warm += warm
    if status != 0:
        score.failed.append(f"killed after {place!r}: the next open: {status}: {answer}")
    elif place in UNTOUCHED and not warm:
        score.failed.append(f"killed after {place!r}: the next open was not warm")


def campaign(
    kills: int, seed: int, progress: Callable[[int, Score], object] | None = None,
    chip: str = "navi31",
) -> Score:  # fmt: skip
    """Kill so many drivers, one after the other."""
    draw, score, image = random.Random(seed), Score(), faulty_object(facts_of(chip).isa)
    with card(chip) as (socket, firmware):
        pid, reader = in_child(lambda tell: check(socket, firmware, image, tell))
        if wait(pid, LIMIT_S) != 0:
            raise SystemExit(f"the card does not come up at all: {rest_of(reader)}")
        os.close(reader)
        for number in range(kills):
            one_round(socket, firmware, image, draw.uniform(0.0, LIFE_S), score)
            if progress is not None:
                progress(number + 1, score)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chip", choices=("navi31", "navi32"), default="navi31")
    arguments = parser.parse_args()

    told = 0

    def progress(number: int, score: Score) -> None:
        nonlocal told
        for text in score.failed[told:]:
            sys.stdout.write(f"{text}\n")
        told = len(score.failed)
        if number % 50 == 0:
            sys.stdout.write(f"{number}: {score}\n")
        sys.stdout.flush()

    score = campaign(arguments.kills, arguments.seed, progress, arguments.chip)
    verdict = "FAIL" if score.failed else "PASS"
    sys.stdout.write(f"kills: {verdict} seed={arguments.seed} {score}\n")
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
