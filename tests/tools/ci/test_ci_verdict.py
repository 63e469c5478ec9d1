"""Verdicts, demands and the history; verdicts on virtual devices with planted faults."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clocks import Manual
from tests.support.waiting import until
from tests.tools.ci.planted import (
    CARD,
    CARDS,
    copies,
    faults,
    hangs,
    judged,
    kinds,
    opened,
    two_runs,
    wrong,
)
from ugpu import hcq
from ugpu.am.device.driver import AmDriver
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceNotFound
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.work.timeline import Timeline
from ugpu.tools import cli
from ugpu.tools.ci import health
from ugpu.tools.ci.demand import Demand, Facts, size_of
from ugpu.tools.ci.health import check
from ugpu.tools.ci.pool import Pool
from ugpu.tools.ci.report.history import History, Line
from ugpu.tools.ci.verdict import Attempt, Verdict, judge

CLOCK = ("clock_hertz", "gfx")
names = st.sampled_from(["a", "b"]).map(lambda name: (name,))
attempts = st.builds(
    Attempt, names, st.sampled_from(["", "AssertionError", "DeviceLost"]), st.booleans(),
    st.sampled_from(["", "a: memory differs"]), st.just(""), st.booleans(),
)  # fmt: skip


@given(attempts, attempts)
def test_every_pair_of_runs_has_one_verdict(first: Attempt, second: Attempt) -> None:
    found = judge([first] if first.passed else [first, second])
    if first.passed:
        assert found.verdict is Verdict.PASSED
    elif second.passed:
        elsewhere = first.hang and second.devices != first.devices
        assert found.verdict is (Verdict.DEVICE if first.sick or elsewhere else Verdict.FLAKY)
    else:
        assert found.verdict is (Verdict.DEVICE if first.sick and second.sick else Verdict.TEST)
    assert bool(found.reason) is (found.verdict is not Verdict.PASSED)


def test_one_run_has_a_verdict_too() -> None:
    assert judge([Attempt(("a",), "AssertionError")]).verdict is Verdict.TEST
    assert judge([Attempt(("a",), "DeviceLost", True)]).verdict is Verdict.DEVICE


@pytest.mark.parametrize(
    ("text", "size"), [("8G", 8 << 30), ("512 MiB", 512 << 20), ("1.5k", 1536), (7, 7), ("0", 0)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "8 apples", "-1G", True, -1, None])
def test_wrong_sizes(text: object) -> None:
    with pytest.raises(BadArgument, match="memory must be a size"):
        size_of(text)  # type: ignore[arg-type]


def test_what_fits() -> None:
    facts = Facts("usb:0", "gfx1100", 24 << 30)
    assert Demand(arch="gfx11*", bus="usb", memory=16 << 30).fits(facts)
    for demand in (Demand(arch="sm_*"), Demand(bus="pci"), Demand(memory=25 << 30)):
        assert not demand.fits(facts)


def one_thread(name: str) -> Device:
    return hcq.open(name, threads=1)


def test_a_device_is_lent_once_and_waited_for(tmp_path: Path) -> None:
    clock = Manual()
    pools = [Pool(["cpu"], tmp_path, "r", clock=clock, opener=one_thread) for _ in range(2)]
    loan = pools[0].take(Demand())
    with pytest.raises(DeviceBusy, match="all were in use by other tests for 3 s"):
        pools[1].take(Demand(), limit_s=3)
    loan.release()
    loan.release()
    pools[1].take(Demand(), limit_s=3).release()
    with pytest.raises(DeviceNotFound, match="expected 2 devices"):
        pools[1].take(Demand(count=2))
    pools[0].quarantine("cpu", "it rattles")
    with pytest.raises(DeviceNotFound, match="it rattles"):
        pools[1].take(Demand())
    pools[0].end()
    pools[1].take(Demand()).release()


def test_history_names_flaky_tests_and_weak_devices(tmp_path: Path) -> None:
    history = History(tmp_path / "new" / "h.sqlite")
    assert history.flaky() == history.weak() == []
    good = [Attempt(("a",))]
    flaky = [Attempt(("a",), "AssertionError"), Attempt(("b",))]
    weak = [Attempt(("b",), "DeviceLost", True), Attempt(("a",))]
    for number, runs in enumerate((good, flaky, weak, good)):
        history.add("r", f"t{number % 3}", runs, judge(runs), float(number))
    assert history.flaky() == [Line("t1", 1, 1)]
    assert history.weak() == [Line("b", 2, 1)]


def test_a_history_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "h.sqlite").write_bytes(b"no database" * 100)
    history = History(tmp_path / "h.sqlite")
    for _ in range(2):
        history.add("r", "t", [Attempt(("a",))], judge([Attempt(("a",))]), 0.0)
    assert caplog.text.count("history is not written") == 1
    with pytest.raises(sqlite3.DatabaseError):
        history.weak()


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_a_healthy_device_passes_its_self_test(name: str) -> None:
    with hcq.open(name) as device:
        assert check(device).trouble == ""


def test_a_clock_that_stays_at_its_lowest_level_fails_the_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CLOCKS_S", 0.2)
    with hcq.open("virtual:navi31") as device:
        driver = device.driver
        assert isinstance(driver, AmDriver)
        smu, (low, high) = driver.units.smu, driver.clock_levels()["gfx"]
        assert (low, high) == (500e6, driver.facts.board.graphics_megahertz * 1e6)
        smu.tell("SetSoftMaxByFreq", 500)
        assert check(device).trouble == (
            "the graphics clock of a busy device reads at most 500 MHz: expected more than its "
            f"lowest level, 500 MHz, of up to {high / 1e6:.0f} MHz"
        )
        smu.tell("SetSoftMaxByFreq", round(high / 1e6))
        assert check(device).trouble == ""


def test_a_card_that_rested_passes_the_self_test() -> None:
    with hcq.open("virtual:navi31") as device:
        assert check(device).trouble == ""
        assert device.rest()
        until(lambda: gauge(device).read() == 0, "the clock of a core without power")
        assert check(device).trouble == ""


def gauge(device: Device) -> Sensor:
    return next(each for each in device.sensors() if (each.name, each.label) == CLOCK)


def test_a_host_that_gives_the_device_breaks_does_not_cost_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every submission has ended before the next: nothing is known about the busy device's
    clock."""
    monkeypatch.setattr(health, "LIMIT_S", 0.2)
    monkeypatch.setattr(health, "CLOCKS_S", 0.1)
    monkeypatch.setattr(Timeline, "reached", lambda timeline, value: True)
    with hcq.open("virtual:navi31") as device:
        driver = device.driver
        assert isinstance(driver, AmDriver)
        driver.units.smu.tell("SetSoftMaxByFreq", 500)
        assert health._clocks(device) == ""
        assert "clock not tested" in caplog.text


def test_wrong_memory_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with hcq.open("cpu", threads=1) as device:
        real = device.alloc

        def alloc(size: int) -> object:
            buffer = real(size)
            read = buffer.numpy

            def numpy(kind: type) -> np.ndarray:
                found: np.ndarray = read(kind).copy()
                found[5] ^= 1 << 7
                return found

            buffer.numpy = numpy  # type: ignore[method-assign,assignment]
            return buffer

        device.alloc = alloc  # type: ignore[method-assign,assignment]
        assert check(device).trouble.startswith("memory: 1 of 262144 words differ, the first at")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LIMIT_S", 0.5)


# The ladder climbs far for these two before it gives up.
SLOW = ("doorbells_lost", "dma_refused")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CARD],
)
def test_a_card_that_breaks_is_blamed(fault: str, tmp_path: Path) -> None:
    pool = Pool(CARDS, tmp_path, "r", opener=opened)
    assert two_runs(pool, copies, CARD[fault]) is Verdict.DEVICE


@pytest.mark.parametrize("use", [wrong, hangs, faults])
def test_a_bug_is_the_tests(use: Callable[[Device], None], tmp_path: Path) -> None:
    pool = Pool(CARDS, tmp_path, "r", opener=opened)
    assert two_runs(pool, use, None) is Verdict.TEST


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("number", range(len(kinds())))
def test_a_share_of_the_campaign(number: int, tmp_path: Path) -> None:
    kind, right, given = judged(number, 1, tmp_path)
    assert given == right, kind


def test_the_verb_shows_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.sqlite"
    runs = [Attempt(("virtual:a",), "DeviceLost", True), Attempt(("virtual:b",), "AssertionError")]
    History(path).add("r", "t[x]", runs, judge(runs), 0.0)
    flaky = [Attempt(("virtual:b",), "AssertionError"), Attempt(("virtual:b",))]
    History(path).add("r", "t[y]", flaky, judge(flaky), 0.0)
    assert cli.main(["ci", "history", str(path)]) == 0
    text = capsys.readouterr().out
    assert "1 of 1 runs flaky  t[y]" in text and "1 of 1 runs sick  virtual:a" in text
    assert cli.main(["ci", "history", str(tmp_path / "none")]) != 0
    assert "writes one" in capsys.readouterr().err
    (tmp_path / "bad").write_bytes(b"x" * 5000)
    assert cli.main(["ci", "history", str(tmp_path / "bad")]) != 0
    assert "not a history" in capsys.readouterr().err
