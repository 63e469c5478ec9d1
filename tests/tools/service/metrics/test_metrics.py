"""`ugpu metrics`: what a scrape returns, judged by prometheus_client's own parser."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.service.eight_devices import WEDGED, eight
from tests.support.waiting import until
from tests.tools.service.top.test_top import card
from ugpu import hcq
from ugpu.hcq.device.observe import Observer
from ugpu.hcq.errors import BadArgument, HostError
from ugpu.hcq.state.config import Config
from ugpu.hcq.state.telemetry import Sample
from ugpu.tools import cli
from ugpu.tools.base.console import Output
from ugpu.tools.service.metrics import run as metrics
from ugpu.tools.service.metrics.families import STATES, families
from ugpu.tools.service.top.fleet import Card, Fleet


class Fixed:
    """prometheus_client's collector of some cards."""

    def __init__(self, *cards: Card, expected: tuple[str, ...] = (), dcgm: bool = False) -> None:
        self.made = list(families(cards, expected, dcgm=dcgm))

    def collect(self) -> Iterator[object]:
        yield from self.made


def scraped(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def text_of(fixed: Fixed) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(fixed)  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def test_names_units_and_labels() -> None:
    one = card("pci:0000:03:00.0", 3, errors={"PageFault": 2}, resets=1)
    assert one.last is not None
    object.__setattr__(one.last, "samples", (*one.last.samples, Sample("ecc_errors", "", 5, "x")))
    found = scraped(text_of(Fixed(one, Card("pci:0000:09:00.0"), expected=("pci:0000:0a:00.0",))))
    name = ("device", "pci:0000:03:00.0")
    assert found["ugpu_temperature_celsius", (name, ("sensor", "hotspot"))] == 52
    assert found["ugpu_kernels_total", (name,)] == 500
    assert found["ugpu_ecc_errors_total", (name, ("sensor", "x"))] == 5
    assert found["ugpu_errors_total", (name, ("kind", "PageFault"))] == 2
    assert found["ugpu_resets_total", (name,)] == 1
    assert found["ugpu_queue_depth", (name,)] == 2
    facts = (("command", "train.py"), name, ("target", "gfx1100"))
    assert found["ugpu_device_info", facts] == 1
    states = {s: found["ugpu_state", (name, ("state", s))] for s in STATES}
    assert states == {s: float(s == "ok") for s in STATES}
    assert found["ugpu_state", (("device", "pci:0000:09:00.0"), ("state", "not open"))] == 1
    assert found["ugpu_device_present", (("device", "pci:0000:0a:00.0"),)] == 0
    assert (found["ugpu_devices_open", ()], found["ugpu_devices_expected", ()]) == (1, 1)


def names(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[str, float]:
    """The owner's pid by the label `device`."""
    return {dict(labels)["device"]: v for (n, labels), v in found.items() if n == "ugpu_owner_pid"}


def test_devices_of_one_name_are_told_apart_and_no_label_has_a_pid(tmp_path: Path) -> None:
    with ExitStack() as stack:
        core = stack.enter_context(hcq.open("cpu")).driver.core
        fleet = stack.enter_context(Fleet(tmp_path))
        fleet.interval_s = 0.01
        owners = [Observer(core, tmp_path) for _ in range(3)]
        for owner in owners:
            stack.callback(owner.stop)

        def look(*sockets: Path) -> dict[str, Path]:
            """The path by the label of these devices, once all have answered."""
            until(lambda: {c.path for c in fleet.look() if c.last is not None} == set(sockets))
            cards = fleet.look()
            text = text_of(Fixed(*cards, dcgm=True))  # `scraped` refuses a series given twice
            assert set(names(scraped(text))) == {card.label for card in cards}
            assert f'pid="{os.getpid()}"' not in text and f"pid {os.getpid()}" not in text
            return {card.label: card.path for card in cards if card.path is not None}

        before = look(*(owner.path for owner in owners))
        assert set(before) == {"cpu", "cpu #2", "cpu #3"}
        first = next(owner for owner in owners if owner.path == before["cpu"])
        first.stop()
        after = look(before["cpu #2"], before["cpu #3"])
        assert after == {"cpu #2": before["cpu #2"], "cpu #3": before["cpu #3"]}
        again = Observer(core, tmp_path)
        stack.callback(again.stop)
        assert look(*after.values(), again.path) == {**after, "cpu": again.path}


def test_a_socket_that_a_killed_process_left_takes_no_number(tmp_path: Path) -> None:
    with ExitStack() as stack:
        core = stack.enter_context(hcq.open("cpu")).driver.core
        gone = Observer(core, tmp_path)
        left = tmp_path / gone.path.name.replace(f".{os.getpid()}.", ".1.")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left))
        gone.stop()
        owner = Observer(core, tmp_path)
        stack.callback(owner.stop)
        fleet = stack.enter_context(Fleet(tmp_path))
        fleet.interval_s = 0.01
        until(lambda: [c.label for c in fleet.look() if c.last is not None] == ["cpu"])
        assert [card.label for card in fleet.once()] == ["cpu"]


def test_the_names_of_dcgm_in_its_units() -> None:
    text = text_of(Fixed(card("pci:0000:03:00.0", 3), dcgm=True))
    assert {"Hostname", "hostname"} <= set(re.findall(r'(\w+)="', text))
    found = scraped(text)
    values = {name: value for (name, _), value in found.items() if name.startswith("DCGM_")}
    assert values == {
        "DCGM_FI_DEV_SM_CLOCK": 2300, "DCGM_FI_DEV_GPU_TEMP": 40, "DCGM_FI_DEV_POWER_USAGE": 102,
        "DCGM_FI_DEV_GPU_UTIL": 20, "DCGM_FI_DEV_FB_USED": 3072,
        "DCGM_FI_DEV_FB_FREE": 21 * 1024,
    }  # fmt: skip


@contextmanager
def served(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The endpoint's URL."""
    monkeypatch.setattr(metrics, "config", lambda: Config(observe_folder=folder))
    stop = threading.Event()
    said: list[str] = []
    thread = threading.Thread(
        target=lambda: metrics.run(Output(), listen="127.0.0.1:0", stop=stop), daemon=True
    )
    thread.start()
    try:
        until(lambda: "metrics" in (said.append(capsys.readouterr().out) or "".join(said)))  # type: ignore[func-returns-value]
        yield "".join(said).split()[-1]
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_a_scrape_waits_for_no_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with eight(tmp_path), served(tmp_path, capsys, monkeypatch) as url:

        def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
            with urllib.request.urlopen(url) as answer:
                return scraped(answer.read().decode())

        def stands() -> list[float]:
            found = scrape()
            state = "ok", "no answer"
            keys = [(("device", f"pci:{n}"), ("state", state[n == WEDGED])) for n in range(8)]
            return [found.get(("ugpu_state", key), 0.0) for key in keys]

        until(lambda: stands() == [1.0] * 8, "seven devices that answer and one that does not")


def test_a_file_for_node_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "config", lambda: Config(observe_folder=tmp_path / "none"))
    stop = threading.Event()
    stop.set()
    place = tmp_path / "ugpu.prom"
    assert metrics.run(Output(), textfile=place, stop=stop) == 0
    assert scraped(place.read_text())["ugpu_devices_open", ()] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ugpu.prom"]
    with pytest.raises(HostError, match="cannot write"):
        metrics.run(Output(), textfile=tmp_path / "none" / "ugpu.prom", stop=stop)


def test_wrong_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "config", lambda: Config(observe_folder=tmp_path))
    for listen in ("9464", "host:port", "localhost:70000", ":1"):
        with pytest.raises(BadArgument, match="must be ADDRESS:PORT"):
            metrics.run(Output(), listen=listen)
    with pytest.raises(BadArgument, match=r"--interval must be 0\.25 to 3600"):
        metrics.run(Output(), interval_s=0)
    with pytest.raises(HostError, match=r"cannot listen on 203\.0\.113\.1:1"):
        metrics.run(Output(), listen="203.0.113.1:1", stop=threading.Event())


def test_the_verb_prints_metrics_rules_and_dashboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "config", lambda: Config(observe_folder=tmp_path))
    assert cli.main(["metrics", "--once", "--expect", "pci:0000:03:00.0"]) == 0
    found = scraped(capsys.readouterr().out)
    assert found["ugpu_device_present", (("device", "pci:0000:03:00.0"),)] == 0
    assert cli.main(["metrics", "--print", "alerts"]) == 0
    assert "alert: UgpuOverTemperature" in capsys.readouterr().out
    assert cli.main(["metrics", "--print", "dashboard"]) == 0
    board = json.loads(capsys.readouterr().out)
    assert all(panel["targets"] for panel in board["panels"])


def test_threads_end_with_the_fleet(tmp_path: Path) -> None:
    before = threading.active_count()
    with eight(tmp_path), Fleet(tmp_path) as fleet:
        list(metrics.Collector(fleet, (), dcgm=False).collect())
    until(lambda: threading.active_count() <= before)
