"""`ugpu top`: reading many devices, one of them wedged; the screen and its keys; text and JSON."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.support.service.eight_devices import eight
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device import observe
from ugpu.hcq.device.observe import Observer
from ugpu.hcq.find import registry
from ugpu.hcq.state.config import Config
from ugpu.hcq.state.telemetry import Sample, Telemetry
from ugpu.tools import cli
from ugpu.tools.inspect import smi
from ugpu.tools.service.top import run
from ugpu.tools.service.top.fleet import Card, Fleet
from ugpu.tools.service.top.screen import Plot, Top


def telemetry(device: str = "pci:0000:03:00.0", number: int = 0, **changes: object) -> Telemetry:
    """The `number`th answer of a device, a second after the one before."""
    samples = (
        Sample("usage_ratio", "ratio", 0.1 * (number % 10), "gfx"),
        Sample("memory_used_bytes", "B", 2.0**30 * (1 + number)),
        Sample("memory_total_bytes", "B", 24 * 2.0**30),
        Sample("clock_hertz", "Hz", 2.3e9, "gfx"),
        Sample("power_watts", "W", 100.0 + number, "socket"),
        Sample("temperature_celsius", "°C", 40.0, "edge"),
        Sample("temperature_celsius", "°C", 50.0 + number, "hotspot"),
        Sample("clock_throttled", "flag", 0.0, "ppt0"),
    )
    values: dict[str, object] = {
        "device": device, "target": "gfx1100", "state": "ok", "pid": 4711, "command": "train.py",
        "time": 1000.0 + number, "open_s": 3661.0, "samples": samples, "samples_age_s": 0.0,
        "launches": 250 * number, "submissions": 30, "queue_depth": 2,
    }  # fmt: skip
    return Telemetry(**{**values, **changes})  # type: ignore[arg-type]


def card(device: str, answers: int = 1, problem: str = "", **changes: object) -> Card:
    made = Card(device, Path(f"/{device}.1.0.sock"))
    for number in range(answers):
        made.take(telemetry(device, number, **changes))
    made.problem = problem
    return made


class Cards:
    """A source of devices that a test makes."""

    def __init__(self, *cards: Card) -> None:
        self.interval_s = 1.0
        self.cards: Sequence[Card] = cards
        self.looks = 0

    def look(self) -> Sequence[Card]:
        self.looks += 1
        return self.cards


def fleet_of_three() -> Cards:
    failed = card(
        "pci:0000:0a:00.0", state="failed", failure="PageFault: read of 0x1000", resets=1,
        errors={"PageFault": 2}, pid=12, command="bench",
    )  # fmt: skip
    wedged = card("pci:0000:0c:00.0", 2, "no answer within 0.5 s")
    return Cards(card("pci:0000:03:00.0", 9), failed, wedged, Card("pci:0000:0d:00.0"))


def text_of(app: Top) -> str:
    strips = app.screen._compositor.render_strips()
    return "".join("".join(part.text for part in strip).rstrip() + "\n" for strip in strips)


@pytest.mark.golden
def test_the_screen(golden: Golden) -> None:
    async def look() -> str:
        app = Top(fleet_of_three())
        async with app.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            return text_of(app)

    golden.check("top/screen.txt", asyncio.run(look()))


def test_keys() -> None:
    async def use() -> None:
        source = fleet_of_three()
        app = Top(source)
        async with app.run_test(size=(120, 30)) as pilot:
            await pilot.press("down")
            assert app.selected is not None and app.selected.device == "pci:0000:0a:00.0"
            await pilot.pause()
            assert "failed: PageFault: read of 0x1000" in text_of(app)
            assert "errors: 2 PageFault" in text_of(app)
            await pilot.press("s", "s", "s")
            assert app.sorted_by == 3 and app.cards[0].device == "pci:0000:03:00.0"
            assert app.selected.device == "pci:0000:0a:00.0"  # stays selected
            await pilot.press("plus")
            assert source.interval_s == 0.5
            await pilot.press("plus", "plus", "plus")
            assert source.interval_s == 0.25
            await pilot.press(*["minus"] * 6)
            assert source.interval_s == 5.0
            await pilot.press("p")
            await pilot.pause()
            looks = source.looks
            app.tick()
            assert app.paused and source.looks == looks and "paused" in text_of(app)
            await pilot.press("r")
            assert source.looks == looks + 1
            await pilot.press("question_mark")
            await pilot.pause()
            assert app.screen.query("HelpPanel")
            await pilot.press("question_mark")
            await pilot.pause()
            assert not app.screen.query("HelpPanel")
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(use())


def test_history_is_plotted_and_devices_come_and_go() -> None:
    async def use() -> None:
        source = Cards(card("a", 9))
        app = Top(source)
        async with app.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            power = app.query_one("#plot-power-watts-first", Plot)
            assert power.display
            assert list(power.line.data or ()) == [100.0 + number for number in range(9)]
            assert not app.query_one("#plot-usage-ratio-memory").display
            source.cards = ()
            await pilot.press("r")
            await pilot.pause()
            assert app.selected is None and "no device is open" in text_of(app)
            source.cards = (card("b"), card("c"))
            await pilot.press("r")
            await pilot.pause()
            assert "2 devices" in text_of(app)

    asyncio.run(use())


def test_rates_come_from_two_answers() -> None:
    found = card("a")
    assert found.kernels_per_s is None
    found.take(telemetry("a", 2))
    assert found.kernels_per_s == 250.0
    found.take(telemetry("a", 2))  # the same once more
    assert found.kernels_per_s == 250.0 and len(found.history["power_watts", "socket"]) == 2


def test_a_wedged_device_among_eight_delays_no_other(tmp_path: Path) -> None:
    with eight(tmp_path) as held, Fleet(tmp_path, ["pci:3", "pci:9"], limit_s=1.0) as fleet:
        once = {card.device: card for card in fleet.once()}
        assert [once[f"pci:{n}"].state for n in (0, 1, 2, 4, 5, 6, 7)] == ["ok"] * 7
        wedged = next(card for card in once.values() if card.state == "no answer")
        assert wedged.problem.endswith(": no response within 1.0 s")
        assert once["pci:9"].state == "not open"
        fleet.interval_s = 0.01

        def states() -> list[str]:
            return sorted(card.state for card in fleet.look() if card.path)

        until(lambda: states() == ["no answer", *["ok"] * 7], "seven answers")
        held.set()
        until(lambda: states() == ["ok"] * 8, "the eighth")
        known = {card.device: card for card in fleet.look()}
        assert known["pci:3"].last is not None and known["pci:3"].problem == ""
    assert not [thread for thread in threading.enumerate() if "_run" in thread.name]


def test_a_device_that_is_closed_leaves_the_list(tmp_path: Path) -> None:
    with hcq.open("cpu") as device, Fleet(tmp_path) as fleet:
        fleet.interval_s = 0.01
        observer = Observer(device.driver.core, tmp_path)
        until(lambda: [card.state for card in fleet.look()] == ["ok"])
        observer.stop()
        until(lambda: fleet.look() == [])


def test_text_and_json_of_one_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "config", lambda: Config(observe_folder=tmp_path))
    monkeypatch.setattr(run, "gpus", list)
    assert cli.main(["top", "--once"]) == 0
    assert "no process of this user has a device open" in capsys.readouterr().out
    monkeypatch.setattr(registry, "config", lambda: Config(observe_folder=tmp_path))
    with hcq.open("virtual:navi31") as device:
        device.driver.core.errors["PageFault"] = 1
        assert cli.main(["top"]) == 0  # no terminal
        text = capsys.readouterr().out
        assert "virtual:navi31" in text and "/ 24 GiB" in text
        assert "virtual:navi31: errors: 1 PageFault" in text
        assert cli.main(["top", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
    assert found["device"] == "virtual:navi31" and found["state"] == "ok"
    assert found["errors"] == {"PageFault": 1} and found["samples"]
    assert observe.sockets(tmp_path) == []


def test_a_failed_device_and_wrong_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Fleet", lambda *_: ExitStackOf(fleet_of_three().cards))
    assert cli.main(["top", "--once"]) == 1
    text = capsys.readouterr().out
    assert "failed: PageFault: read of 0x1000" in text and "no answer within 0.5 s" in text
    assert cli.main(["top", "--interval", "0"]) == 2
    assert "0.25 to 60 seconds, got 0" in capsys.readouterr().err


def test_smi_asks_the_owner_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smi, "config", lambda: Config(observe_folder=tmp_path))
    with hcq.open("cpu") as device:
        device.driver.core.name = "pci:0000:99:00.0"  # which is not there: opening it would fail
        observer = Observer(device.driver.core, tmp_path)
        assert cli.main(["smi", "pci:0000:99:00.0", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["owner"]["pid"] == os.getpid()
        assert found["sensors"][0]["name"] == "memory_used_bytes"
        observer.stop()
    assert cli.main(["smi", "pci:0000:99:00.0"]) == 1


class ExitStackOf(ExitStack):
    """A fleet of given devices."""

    def __init__(self, cards: Sequence[Card]) -> None:
        super().__init__()
        self.cards = cards

    def once(self) -> Sequence[Card]:
        return self.cards


def test_two_devices_of_one_name_are_two_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "config", lambda: Config(observe_folder=tmp_path))
    monkeypatch.setattr(run, "gpus", list)
    with hcq.open("cpu") as device:
        owners = [Observer(device.driver.core, tmp_path) for _ in range(2)]
        try:
            assert cli.main(["top", "--once"]) == 0
            rows = capsys.readouterr().out.splitlines()
            assert sum(row.split("  ")[0].strip() == "cpu #2" for row in rows) == 1
            assert sum("cpu" in row and "cpu #2" not in row for row in rows) == 1
            assert cli.main(["--json", "top", "--once"]) == 0
            cards = json.loads(capsys.readouterr().out)
            cards = cards if isinstance(cards, list) else cards["result"]
            assert [(card["device"], card["number"]) for card in cards] == [("cpu", 1), ("cpu", 2)]
        finally:
            for owner in owners:
                owner.stop()
