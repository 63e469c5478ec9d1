"""ugpud's recovery service: rounds that go further each time, proofs, limits, history."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.daemon import Running, recorded, scaled, settings_text, started
from tests.support.waiting import until
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    ChipError,
    DeviceBusy,
    DeviceNotFound,
    FirmwareNotFound,
    FirmwareRejected,
)
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.ladder import Level
from ugpu.tools import cli
from ugpu.tools.base.ledger import Ledger
from ugpu.tools.ci import health
from ugpu.tools.ci.health import Health
from ugpu.tools.service.daemon.cards.recovery import (
    Breaker,
    Healing,
    RecoveryPolicy,
    can_help,
    reboot,
)
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.outlets.history import TABLES, CardHistory, Record


class Wall:
    """Seconds since 1970, moved by the test."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Sick:
    """A card that is healthy after the step `cure`, and no sooner."""

    name = "sick"
    gone = False

    def __init__(self, cure: str, *, is_open: bool = True, fails: tuple[str, ...] = ()) -> None:
        self.cure, self.is_open, self.fails = cure, is_open, fails
        self.steps: list[str] = []

    def reset(self, to: Level | None) -> Level:
        self._step("reset" if to is None else to.label)
        return to or Level.QUEUE

    def harsher(self, than: Level) -> list[Level]:
        return [level for level in (Level.QUEUE, Level.MODE1, Level.FLR) if level > than]

    def reopen(self) -> None:
        self._step("boot")

    def prove(self) -> None:
        if self.cure not in self.steps:
            raise ChipError("a copy is wrong")

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.fails:
            raise ChipError(f"{name} failed")


def treat(folder: Path, patient: Sick, **policy: Any) -> tuple[str, Record, list[float]]:
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        wall.time += seconds
        return True

    wall, made = Wall(), RecoveryPolicy(**policy)
    history = CardHistory(Ledger(folder / "history.sqlite", TABLES), wall, steady=wall)
    wall.time += 1000
    found = Healing(patient, made, history, pause).run("planted", Breaker(made, wall))
    history.serve([("sick", 4)])
    return found, history.records()["sick"], pauses


@pytest.mark.parametrize(
    ("patient", "steps"),
    [
        (Sick("reset"), ["reset"]),
        (Sick("mode1"), ["reset", "mode1"]),
        (Sick("flr", fails=("mode1",)), ["reset", "mode1", "flr"]),
        (Sick("boot", fails=("reset",)), ["reset", "boot"]),
        (Sick("boot"), ["reset", "mode1", "flr", "boot"]),
        (Sick("boot", is_open=False), ["boot"]),
    ],
)
def test_each_round_goes_further(tmp_path: Path, patient: Sick, steps: list[str]) -> None:
    found, record, pauses = treat(tmp_path, patient, rounds=5)
    assert found == "" and patient.steps == steps
    assert pauses == [5.0 * 2**turn for turn in range(len(pauses))]
    assert record.failures == 1 and record.flake_ratio == 0.25
    assert record.mttr_s == sum(pauses) and record.mtbf_s == 1000


def test_a_card_that_stays_sick_is_quarantined_with_all_that_was_tried(tmp_path: Path) -> None:
    found, record, pauses = treat(tmp_path, Sick("never"), rounds=3)
    assert found.startswith("a copy is wrong (after reset, round 1 failed, mode1, round 2")
    assert "boot" in found and len(pauses) == 2
    assert record.mttr_s is None and record.mtbf_s == 1000, "down time is not time in service"


def test_a_daemon_that_stops_does_not_go_on_trying(tmp_path: Path) -> None:
    patient, policy = Sick("never"), RecoveryPolicy()
    history = CardHistory(Ledger(tmp_path / "h", TABLES), Wall())
    healing = Healing(patient, policy, history, lambda seconds: False)
    assert healing.run("planted", Breaker(policy, Wall())) == "a copy is wrong (ugpud stops)"
    assert patient.steps == ["reset"]


def test_the_circuit_breaker(tmp_path: Path) -> None:
    wall, policy = Wall(), RecoveryPolicy(trips=2, window_s=60)
    history = CardHistory(Ledger(tmp_path / "h", TABLES), wall, steady=wall)
    breaker = Breaker(policy, wall)

    def heal() -> str:
        return Healing(Sick("reset"), policy, history, lambda seconds: True).run("planted", breaker)

    assert [heal(), heal()] == ["", ""]
    assert "circuit breaker: more than 2 failures within 60 s" in heal()
    breaker.forgive()
    assert [heal(), heal()] == ["", ""]
    wall.time += 61
    assert heal() == "", "failures of long ago do not count"


def test_what_a_reset_may_mend() -> None:
    assert can_help(FirmwareRejected("x")) and can_help(ChipError("x"))
    for error in (FirmwareNotFound("x"), DeviceBusy("x"), DeviceNotFound("x"), AccessDenied("x")):
        assert not can_help(error)


# ---- history ---------------------------------------------------------------------------------


def test_a_card_that_has_left_is_not_treated_further(tmp_path: Path) -> None:
    history = CardHistory.at(tmp_path / "history.sqlite")
    patient, policy = Sick("never"), RecoveryPolicy(rounds=5)

    def pause(seconds: float) -> bool:
        patient.gone = True
        return True

    found = Healing(patient, policy, history, pause).run("planted", Breaker(policy, lambda: 0.0))
    assert "not on the bus" in found and patient.steps == ["reset"]


def test_a_full_disk_costs_history_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = [20]

    def connect(path: Path) -> sqlite3.Connection:
        made = sqlite3.connect(path)
        made.execute(f"PRAGMA max_page_count = {pages[0]}")
        return made

    history = CardHistory(Ledger(tmp_path / "history.sqlite", TABLES, connect), Wall())
    first = history.failed("one", "planted")
    history.ended(first, "recovered", "reset")
    assert first is not None and not history.trouble
    for _ in range(3):
        assert history.failed("one", "x" * 100_000) is None
    assert "database or disk is full" in history.trouble
    assert caplog.text.count("history is not written") == 1
    assert history.records()["one"].failures == 1
    pages[0] = 10_000
    assert history.failed("one", "x" * 100_000) is not None and not history.trouble


@pytest.mark.parametrize("content", [b"no database at all " * 100, None])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "history.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    history = CardHistory(Ledger(path, TABLES), Wall())
    assert history.failed("one", "planted") is None and history.trouble
    history.ended(None, "recovered", "")
    history.serve([("one", 1)])
    assert history.records() == {} and not history.may_reboot("one", "planted", 60)


def test_a_machine_is_not_rebooted_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wall = Wall()
    history = CardHistory(Ledger(tmp_path / "h", TABLES), wall, steady=wall)
    assert history.may_reboot("one", "planted", 60) and not history.may_reboot("two", "x", 60)
    wall.time += 61
    assert history.may_reboot("two", "planted", 60)
    reboot(f"touch {tmp_path}/rebooted", "one", "planted")
    assert (tmp_path / "rebooted").exists()
    for command in ("false", "/nowhere/reboot", "'"):
        caplog.clear()
        reboot(command, "one", "planted")
        assert "the machine was not rebooted" in caplog.text


# ---- in the daemon ---------------------------------------------------------------------------

RECOVERY = "[recovery]\nrounds = 2\npause_s = 0.001\n"


def scraped(socket: str) -> str:
    prometheus_client = pytest.importorskip("prometheus_client", reason="the extra metrics")
    from ugpu.tools.service.metrics.leases import Desk

    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    with Desk(socket) as desk:
        registry.register(desk)
        text: str = prometheus_client.generate_latest(registry).decode()
    return text


def state(running: Running) -> State:
    with running.daemon.lock:
        return running.daemon.owned[0].card.state


def test_a_sick_card_is_recovered_or_quarantined_and_an_operator_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card fails the check between leases; its self-test decides after each reset."""
    rebooted = tmp_path / "rebooted"
    running = started(tmp_path, RECOVERY + f'reboot = "touch {rebooted}"', count=1)
    trouble = ["", ""]  # what the check finds, and what the self-test finds

    def check(repair: bool) -> None:
        if trouble[0]:
            raise ChipError(trouble[0])

    monkeypatch.setattr(running.daemon.owned[0], "check", check)
    monkeypatch.setattr(health, "check", lambda device: Health(trouble[1]))
    try:
        trouble[0] = "a copy is wrong"
        with running.lease() as gpu:
            assert scaled(gpu)
        with running.lease(wait_s=60) as gpu, running.connect() as connection:
            assert scaled(gpu), "healthy by its self-test"
            recorded(running.daemon)
            (row,) = connection.call("devices").arguments[0]
            assert row["history"]["failures"] == 1 and row["history"]["mttr_s"] >= 0
            trouble[1] = "memory: planted"
        until(lambda: state(running) is State.QUARANTINED, "a quarantine")
        until(rebooted.exists, "a reboot")
        recorded(running.daemon)
        assert cli.main(["lease", "ls", "--daemon", running.socket]) == 0
        told = capsys.readouterr().out
        assert "cpu                      quarantined: " in told and "(2 failures, MTBF " in told
        metrics = scraped(running.socket)
        assert 'ugpu_card_state{device="cpu",state="quarantined"} 1.0' in metrics
        assert 'ugpu_card_failures_total{device="cpu"} 2.0' in metrics
        assert 'ugpu_card_flake_ratio{device="cpu"} 1.0' in metrics
        with pytest.raises(DeviceBusy, match=r"quarantined .*memory: planted \(after reset, round"):
            running.lease()
        with Connection(Address(running.socket)) as connection:
            with pytest.raises(BadArgument, match="no quarantined device matches 'gfx"):
                connection.call("recover", "gfx*")
            trouble[:] = ["", ""]
            assert connection.call("recover", "cpu*").arguments[0] == ["cpu"]
        with running.lease(wait_s=60) as gpu:
            assert scaled(gpu)
    finally:
        running.close()


@pytest.mark.slow
def test_a_chip_whose_firmware_is_refused_comes_back_when_that_is_over(tmp_path: Path) -> None:
    """A virtual Navi31 that loses power under its driver, and whose PSP then refuses its ring."""
    running = Running(parse(settings_text(tmp_path, ["virtual:navi31"], RECOVERY, inside=True)))
    try:
        chip = running.daemon.owned[0]._chip
        assert chip is not None
        gpu = running.lease()
        assert scaled(gpu)
        chip.faults.psp_ring_status = 7
        chip.power_cycle()
        gpu.close()
        until(lambda: state(running) is State.QUARANTINED, "a quarantine")
        chip.faults.psp_ring_status = 0
        with running.connect() as connection:
            connection.call("recover", "*")
            with running.lease(wait_s=120) as gpu:
                assert scaled(gpu)
            recorded(running.daemon)
            (row,) = connection.call("devices").arguments[0]
        assert row["history"]["failures"] == 2 and row["history"]["mttr_s"] > 0
    finally:
        running.close()
