"""Quarantines outlive ugpud: an operator's until lifted, a failed recovery's until the reboot."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.support.service.daemon import Running, scaled, started
from tests.support.waiting import until
from ugpu.hcq.errors import AccessDenied, BadArgument, ChipError, DeviceBusy, DeviceLost, HostError
from ugpu.tools import cli
from ugpu.tools.base.ledger import Ledger
from ugpu.tools.ci import health
from ugpu.tools.ci.health import Health
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.outlets.history import TABLES, CardHistory, Quarantine


def states(running: Running) -> list[State]:
    with running.daemon.lock:
        return [each.card.state for each in running.daemon.owned]


def test_a_quarantine_of_a_failed_recovery_ends_with_the_boot(tmp_path: Path) -> None:
    path = tmp_path / "h"
    first = CardHistory(Ledger(path, TABLES), boot="one")
    assert first.quarantines() == {}
    assert first.quarantine("a", "sick", operator=False)
    assert first.quarantine("b", "fans", operator=True)
    assert CardHistory(Ledger(path, TABLES), boot="one").quarantines() == {
        "a": Quarantine("sick", False),
        "b": Quarantine("fans", True),
    }
    later = CardHistory(Ledger(path, TABLES), boot="two")
    assert later.quarantines() == {"b": Quarantine("fans", True)}
    assert later.lift("b") and later.quarantines() == {}


def test_an_operators_quarantine_ends_leases_and_outlives_the_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = started(tmp_path)
    try:
        gpu = running.lease("cpu#0")
        asked = ["lease", "quarantine", "cpu#0", "loose", "fan", "--daemon", running.socket]
        assert cli.main(asked) == 0
        assert "quarantined: cpu#0" in capsys.readouterr().out
        with pytest.raises(DeviceLost, match="loose fan"):
            scaled(gpu)
        gpu.close()
        running.settle()
        assert states(running) == [State.QUARANTINED, State.READY]
        with running.lease() as other:
            assert other.name.endswith("cpu#1") and scaled(other)
        with pytest.raises(BadArgument, match="no device matches 'gfx"), running.connect() as made:
            made.call("quarantine", "gfx*", "")
        with pytest.raises(AccessDenied, match="a quarantine requires the role 'admin'"):
            running.daemon.quarantine("*", "", Rights("anna", "use"))
    finally:
        running.close()
    running = started(tmp_path)
    try:
        assert states(running) == [State.QUARANTINED, State.READY]
        assert "loose fan" in running.daemon.owned[0].card.reason
        with pytest.raises(DeviceBusy, match="loose fan"):
            running.lease("cpu#0")
        with running.connect() as connection:
            assert connection.call("recover", "cpu#0").arguments[0] == ["cpu#0"]
        with running.lease("cpu#0", wait_s=60) as gpu:
            assert scaled(gpu)
        record = running.daemon.history.records().get("cpu#0")
        assert record is None or not record.failures, "an order is not a failure of the card"
    finally:
        running.close()
    running = started(tmp_path)
    assert states(running) == [State.READY, State.READY]
    running.close()


def test_a_failed_recoverys_quarantine_outlives_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = started(tmp_path, "[recovery]\nrounds = 1\n", count=1)

    def check(repair: bool) -> None:
        raise ChipError("a copy is wrong")

    monkeypatch.setattr(running.daemon.owned[0], "check", check)
    monkeypatch.setattr(health, "check", lambda device: Health("memory: planted"))
    with running.lease() as gpu:
        assert scaled(gpu)
    until(lambda: states(running) == [State.QUARANTINED], "a quarantine")
    running.close()
    monkeypatch.undo()
    running = started(tmp_path, count=1)
    assert states(running) == [State.QUARANTINED]
    running.close()


def test_a_quarantine_holds_against_a_recovery_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's order comes while the self-test runs, which then finds the card healthy."""
    running = started(tmp_path, count=1)
    admin = Rights("operator", "admin")

    def order(device: object) -> Health:
        running.daemon.quarantine("*", "planted", admin)
        return Health("")

    monkeypatch.setattr(health, "check", order)
    try:
        running.daemon._treat(running.daemon.owned[0], "planted failure")
        until(lambda: states(running) == [State.QUARANTINED], "a quarantine")
        assert "planted (by operator)" in running.daemon.owned[0].card.reason
    finally:
        running.close()


def test_a_quarantine_that_cannot_be_stored_holds_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = started(tmp_path, count=1)

    def full(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(running.daemon.history._history._ledger, "_connect", full)
    try:
        with pytest.raises(HostError, match=r"until ugpud stops.*disk is full"):
            running.daemon.quarantine("*", "", Rights("operator", "admin"))
        assert states(running) == [State.QUARANTINED]
    finally:
        running.close()
