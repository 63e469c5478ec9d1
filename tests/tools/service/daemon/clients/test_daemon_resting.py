"""Cards that rest between leases under ugpud: when, what wakes them, and what shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.daemon import (
    ROOT,
    DaemonProcess,
    Running,
    recorded,
    scaled,
    settings_text,
)
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.request import LeaseRequest
from ugpu.hcq.state.telemetry import from_json
from ugpu.tools import cli
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.cards.resting import Idle
from ugpu.tools.service.daemon.clients.leases import Card, State
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.metrics.leases import leases

REST_S = 0.05


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "d"
    made.mkdir()
    return made


def started(folder: Path, device: str = "virtual:navi31", rest_s: float = REST_S) -> Running:
    more = f"rest_s = {rest_s}"
    return Running(parse(settings_text(folder, [device], more, inside=True)))


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    made = started(folder)
    yield made
    made.close()


def chip_of(owned: Owned) -> Any:
    return owned._chip


def rests(running: Running) -> Owned:
    """The card, when it rests and its graphics core is off."""
    (owned,) = running.daemon.owned
    until(lambda: owned.resting and chip_of(owned).smu.graphics.off, "the card to rest")
    return owned


def untouched(owned: Owned) -> None:
    chip = chip_of(owned)
    assert chip.violations == []
    assert [note for note in chip.notes if "GFXOFF" in note] == []


# ---- when a card is due ----------------------------------------------------------------------


@dataclass
class Sleeper:
    card: Card = field(default_factory=lambda: Card("a", state=State.READY))
    can_rest: bool = True
    resting: bool = False


class Clock:
    time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_card_is_due_when_it_was_ready_for_long_enough() -> None:
    clock, one = Clock(), Sleeper()
    idle = Idle(5.0, clock)
    assert idle.due([one]) == ([], 105.0)
    clock.time = 104.0
    assert idle.due([one]) == ([], 105.0)
    clock.time = 105.0
    assert idle.due([one]) == ([one], 110.0)  # and again, where it does not rest
    one.resting = True
    assert idle.due([one]) == ([], None)
    one.resting, clock.time = False, 200.0  # something has woken it
    assert idle.due([one]) == ([], 205.0)


@pytest.mark.parametrize("state", [each for each in State if each is not State.READY])
def test_a_card_that_is_not_ready_is_not_due(state: State) -> None:
    clock, one = Clock(), Sleeper()
    idle = Idle(5.0, clock)
    idle.due([one])
    one.card.state, clock.time = state, 110.0
    assert idle.due([one]) == ([], None)
    one.card.state = State.READY
    assert idle.due([one]) == ([], 115.0)


def test_a_short_lease_begins_the_time_anew() -> None:
    clock, one = Clock(), Sleeper()
    idle = Idle(5.0, clock)
    idle.due([one])
    one.card.served, clock.time = 1, 104.0  # taken and released between two looks
    assert idle.due([one]) == ([], 109.0)


def test_cards_that_cannot_rest_and_a_time_of_0() -> None:
    clock, one = Clock(), Sleeper()
    assert Idle(0.0, clock).due([one]) == ([], None)
    one.can_rest = False
    assert Idle(5.0, clock).due([one]) == ([], None)


def test_the_key_of_the_configuration(folder: Path) -> None:
    assert parse(settings_text(folder, ["cpu"])).rest_s == 5.0
    assert parse(settings_text(folder, ["cpu"], "rest_s = 0")).rest_s == 0.0
    with pytest.raises(UgpuError, match="rest_s: expected a positive number of seconds, got -1"):
        parse(settings_text(folder, ["cpu"], "rest_s = -1"))


# ---- a daemon --------------------------------------------------------------------------------


def test_a_card_rests_before_and_between_leases(running: Running) -> None:
    for kind in ({}, {"shared": True}, {}):
        owned = rests(running)
        with running.lease("virtual:navi31", **kind) as gpu:
            assert not owned.resting and not chip_of(owned).smu.graphics.off
            assert scaled(gpu)
    untouched(rests(running))


def test_what_shows_a_card_at_rest(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    owned = rests(running)

    def told() -> Any:
        return from_json(json.loads(owned.telemetry()))

    until(lambda: told().value("clock_hertz", "gfx") == 0, "telemetry to show the clock")
    assert told().value("resting") == 1
    assert cli.main(["lease", "ls", "--daemon", running.socket]) == 0
    assert "ready, resting  virtual:navi31" in capsys.readouterr().out
    assert cli.main(["lease", "ls", "--daemon", running.socket, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["resting"] is True
    found = leases((running.daemon.devices(), {"leases": [], "waiting": []}), 0.0)
    (family,) = [one for one in found if one.name == "ugpu_card_resting"]
    assert [(one.labels, one.value) for one in family.samples] == [({"device": owned.name}, 1.0)]
    assert owned.resting
    untouched(owned)


def test_a_look_at_a_card_leaves_it_at_rest(running: Running) -> None:
    owned = rests(running)
    before = chip_of(owned).smu.graphics.entries
    with running.connect() as connection:
        request = LeaseRequest("*", "observer")
        assert connection.call("lease", request.to_map()).arguments[0]
        running.daemon.look_at(owned)
        assert owned.resting and chip_of(owned).smu.graphics.entries == before


def test_a_reset_by_an_admin_wakes_it(running: Running) -> None:
    owned = rests(running)
    running.daemon.reset(owned.name, Rights("operator", "admin"))
    until(lambda: owned.card.state is State.READY, "the reset")
    untouched(rests(running))


def test_a_card_without_rest_stays_awake(folder: Path) -> None:
    running = started(folder, rest_s=0)
    try:
        (owned,) = running.daemon.owned
        with running.lease("virtual:navi31") as gpu:
            assert scaled(gpu)
        assert running.daemon.rest_idle() is None and not owned.resting
        assert not chip_of(owned).smu.graphics.entries
    finally:
        running.close()


def test_a_core_that_does_not_come_back_is_recovered(running: Running) -> None:
    owned = rests(running)
    chip = chip_of(owned)
    chip.faults.gfxoff_stuck = True
    mode1 = chip.mode1_reset

    def cured() -> None:
        chip.faults.gfxoff_stuck = False
        mode1()

    chip.mode1_reset = cured
    with pytest.raises(UgpuError, match="has answered DisallowGfxOff"):
        running.lease("virtual:navi31")
    with running.lease("virtual:navi31", wait_s=60) as gpu:
        assert scaled(gpu)
    recorded(running.daemon)
    assert running.daemon.devices()[0]["history"]["failures"] == 1


def test_a_bug_on_the_way_to_rest_has_the_card_recovered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bool:
        raise ZeroDivisionError("made up")

    owned = rests(running)
    with monkeypatch.context() as patched:
        patched.setattr(owned, "rest", broken)
        running.daemon._rest(owned)
    with running.lease("virtual:navi31", wait_s=60) as gpu:
        assert scaled(gpu)
    recorded(running.daemon)
    assert running.daemon.devices()[0]["history"]["failures"] == 1


def test_a_daemon_stops_with_a_card_at_rest(folder: Path) -> None:
    running = started(folder)
    owned = rests(running)
    chip = chip_of(owned)
    running.close()
    assert chip.violations == []


@pytest.mark.slow
def test_a_daemon_that_was_killed_at_rest_attaches_warm(tmp_path: Path) -> None:
    """The chip is in a process of its own, as a card in a machine."""
    words = ["serve", "--vfio-user", str(tmp_path / "gpu.sock"), "--json", "virtual:navi31"]
    images = tmp_path / "images"
    served = subprocess.Popen(
        [sys.executable, "-m", "ugpu.tools.cli", *words, "--firmware", str(images)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None and served.stdout.readline()
        name = f"vfio-user:{tmp_path / 'gpu.sock'}"
        with DaemonProcess([name], f'options = {{ firmware = "{images}" }}', last=True) as daemon:
            with hcq.lease(daemon=daemon.socket) as gpu:
                assert scaled(gpu)
            with Connection(Address(daemon.socket)) as connection:
                listed = partial(connection.call, "devices")
                until(lambda: listed().arguments[0][0]["resting"], "the card to rest")
            daemon.kill()
            daemon.start()
            with hcq.lease(daemon=daemon.socket) as gpu:
                assert scaled(gpu)
            assert "attached warm after" in daemon.log(), daemon.log()
    finally:
        served.terminate()
        served.communicate()
