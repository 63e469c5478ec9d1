"""Processes that use a virtual NVIDIA card behind vfio-user and are killed at any moment.

A helper process has imported everything, and forks: a user, which boots the card and works until it
is killed, or a checker, which opens the card, works, closes it, and tells how it found the card.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.nvidia.nv_machine import work
from tests.support.pci.vfio_user_served import served
from ugpu import hcq
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.hcq.transport.vfio_user.connection import Connection
from ugpu.nv.device.bare import BareDriver
from ugpu.virtual.nvidia.gsp.bus.served import ServedCard
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

ROOT = Path(__file__).resolve().parents[4]
HELPER = """
import sys
from tests.support.nvidia.gsp.gsp_killed import serve_requests
serve_requests(sys.argv[1], sys.argv[2])
"""
LEAVES = ("cold", "warm")
_BUSY_LIMIT_S = 60.0  # TIMEOUT: until the server has put a dead client away, on a slow host


def serve_requests(name: str, firmware: str) -> None:
    """In the helper: fork a process for each line of standard input: check LEAVE, or use LEAVE N,
    which kills itself before its message number N to the card."""
    for line in sys.stdin:
        kind, leave, *last = line.split()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.close(0)
            try:
                if kind == "use":
                    _kill_before(int(last[0]))
                _life(name, firmware, leave, forever=kind == "use")
            except BaseException as error:
                _tell(error=f"{type(error).__name__}: {error}")
                os._exit(1)
            os._exit(0)
        _tell(ended=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _life(name: str, firmware: str, leave: str, *, forever: bool) -> None:
    """Open the card, work, and close it."""
    options: dict[str, object] = {"firmware": firmware, "leave": leave}
    with hcq.open(name, wait_s=_BUSY_LIMIT_S, **options) as device:
        device.limit_s = _BUSY_LIMIT_S
        work(device)
        while forever:
            work(device)
        driver = device.driver
        assert isinstance(driver, BareDriver)
        transport = driver.card.transport
        assert isinstance(transport, VfioUserTransport)
    _tell(found=driver.card.found, messages=transport.messages)


def _kill_before(number: int) -> None:
    """Kill this process before a message to the card."""
    count, following = itertools.count(), Connection._next

    def counted(connection: Connection) -> int:
        if next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return following(connection)

    pytest.MonkeyPatch().setattr(Connection, "_next", counted)


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


@dataclass
class Killing:
    """One card and its helper. messages: that a cold life sends to the card."""

    card: Card
    helper: subprocess.Popen[str]
    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        _, self.messages = self._check("cold")

    def _ask(self, line: str) -> list[dict[str, object]]:
        """Send a request; return the answers, up to the end of its process."""
        assert self.helper.stdin is not None and self.helper.stdout is not None
        self.helper.stdin.write(line + "\n")
        self.helper.stdin.flush()
        answers: list[dict[str, object]] = []
        while not answers or "ended" not in answers[-1]:
            answers.append(json.loads(self.helper.stdout.readline()))
        return answers

    def _check(self, leave: str) -> tuple[str, int]:
        """Open the card and work; return how it was found, and the messages."""
        answers = self._ask(f"check {leave}")
        assert answers[-1] == {"ended": 0}, answers
        found, messages = answers[0]["found"], answers[0]["messages"]
        assert isinstance(messages, int)
        return str(found), messages

    def round(self) -> str:
        """Kill a user at a random message; the next process opens the card and works. Return how it
        found the card."""
        leave, number = self._random.choice(LEAVES), self._random.randrange(2 * self.messages)
        answers = self._ask(f"use {leave} {number}")
        assert answers == [{"ended": -signal.SIGKILL}], (answers, number)
        return self._check(self._random.choice(LEAVES))[0]


@contextmanager
def killing(chip: str, seed: int) -> Iterator[Killing]:
    """A card of a chip, served, and the helper."""
    card = build_card(chip, CardOptions(memory=1 << 30))
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        for name, image in whole_set(chip).items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        with served(ServedCard(card)) as server:
            command = [sys.executable, "-c", HELPER, f"vfio-user:{server.path}", folder]
            with subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as helper:
                try:
                    yield Killing(card, helper, seed)
                finally:
                    assert helper.stdin is not None
                    helper.stdin.close()
                    helper.wait()
    card.close()
