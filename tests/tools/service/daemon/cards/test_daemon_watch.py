"""Slow decay of cards: links and memory errors are compared with what the card itself was."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvidia.nv_machine import opened, powered
from tests.support.pci.pci_machine import PciMachine
from tests.support.service.daemon import Running, scaled, settings_text, started
from tests.support.usb.thunderbolt_tree import ThunderboltTree
from tests.support.waiting import until
from tests.tools.service.daemon.test_daemon_devices import GPU, OTHER, Slots
from ugpu.hcq.device.observe import Sampler
from ugpu.hcq.state.telemetry import Sample, Telemetry
from ugpu.hcq.transport.system import System
from ugpu.tools import cli
from ugpu.tools.base.events import Event, event_of
from ugpu.tools.service.daemon.cards.watch import KEPT_S, LOOKS, Link, Links, Watch, links
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.options import MachineOptions

FAST, SLOW, NARROW, IDLE = Link(16, 4), Link(16, 3), Link(4, 4), Link(16, 1)


class Wall:
    """Seconds since 1970, moved by the test."""

    time = 1e9

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[Event]]:
    """Events, as they come."""
    found: list[Event] = []

    class Taker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = event_of(record)
            if event is not None:
                found.append(event)

    taker, logger = Taker(), logging.getLogger("ugpu.tools.service.daemon")
    caplog.set_level("INFO", "ugpu.tools.service.daemon")
    logger.addHandler(taker)
    yield found
    logger.removeHandler(taker)


def names(told: list[Event]) -> list[str]:
    return [event.kind.name for event in told]


def seen(usage: float = 1.0, age_s: float | None = 0.0, **ecc: float) -> Telemetry:
    errors = [
        Sample("ecc_errors", "errors", value, label.replace("_", " "))
        for label, value in ecc.items()
    ]
    samples = (Sample("usage_ratio", "ratio", usage, "gfx"), *errors)
    return Telemetry("a", "gfx1100", "ok", 1, "u", 0.0, samples=samples, samples_age_s=age_s)


def look(made: Watch, now: Link | None, found: Telemetry | None = None, times: int = 1) -> None:
    for _ in range(times):
        made.look("a", "", seen() if found is None else found, Links(now))


@pytest.mark.parametrize("worse", [SLOW, NARROW])
def test_a_link_that_is_worse_at_work_is_told_once_with_a_remedy(
    tmp_path: Path, wall: Wall, told: list[Event], worse: Link
) -> None:
    made = Watch(tmp_path / "h", wall)
    look(made, IDLE)  # clocks rise: the first look is no measure
    look(made, FAST)
    look(made, worse, times=LOOKS - 1)
    assert told == [] and made.troubles("a") == {}
    look(made, worse, times=5)
    (event,) = told
    assert event.kind.name == "card.link_degraded" and "seat the card" in event.remedy
    assert event.fields == {"device": "a", "link": str(worse), "was": "x16 generation 4"}
    assert list(made.troubles("a")) == ["card.link_degraded"]
    again = Watch(tmp_path / "h", wall)  # after a restart
    look(again, worse, times=LOOKS)
    assert names(told) == ["card.link_degraded"] * 2
    look(again, FAST)
    assert names(told)[2:] == ["card.link_restored"] and again.troubles("a") == {}


def test_an_idle_link_is_not_compared(tmp_path: Path, wall: Wall, told: list[Event]) -> None:
    made = Watch(tmp_path / "h", wall)
    look(made, FAST)
    look(made, IDLE, seen(usage=0.1), times=10)
    look(made, IDLE, seen(age_s=60.0), times=10)  # what the GPU did then is not known
    look(made, IDLE, seen(age_s=None), times=10)
    look(made, NARROW, Telemetry("a", "x", "failed", 1, "ugpud", 0.0), times=10)
    look(made, SLOW, times=LOOKS - 1)
    look(made, FAST)
    look(made, SLOW, times=LOOKS - 1)
    assert told == []


def test_what_a_links_ends_can_do_is_compared_when_idle(
    tmp_path: Path, wall: Wall, told: list[Event]
) -> None:
    made = Watch(tmp_path / "h", wall)
    idle = seen(usage=0.0)
    made.look("a", "", idle, Links(IDLE, FAST))
    for _ in range(LOOKS):
        made.look("a", "", idle, Links(IDLE, NARROW))
    (event,) = told
    assert "can do no more than x4 generation 4, it was x16 generation 4" in event.text
    made.look("b", "", idle, Links(IDLE, NARROW))  # another card is compared with itself
    assert made.troubles("b") == {}


def test_another_card_in_the_slot_and_an_old_best_are_no_measure(
    tmp_path: Path, wall: Wall, told: list[Event]
) -> None:
    made = Watch(tmp_path / "h", wall)
    made.look("a", "serial 1", seen(), Links(FAST))
    for _ in range(LOOKS):
        made.look("a", "serial 2", seen(), Links(NARROW))
    assert told == []
    for _ in range(LOOKS):
        made.look("a", "serial 1", seen(), Links(NARROW))
    wall.time += KEPT_S + 1
    made.look("a", "serial 1", seen(), Links(NARROW))
    assert names(told) == ["card.link_degraded", "card.link_restored"]
    assert "accepted" in told[1].text and made.troubles("a") == {}


def test_memory_errors_and_their_trend(tmp_path: Path, wall: Wall, told: list[Event]) -> None:
    made = Watch(tmp_path / "h", wall)

    def errors(corrected: float, lost: float = 0.0) -> None:
        made.look("a", "", seen(dram_corrected=corrected, dram_lost=lost), Links())

    errors(1000.0, 3.0)  # of the card's life so far
    errors(1008.0, 3.0)
    assert told == []
    errors(1008.0, 5.0)
    (event,) = told
    assert event.kind.name == "card.ecc_uncorrected" and event.fields["count"] == "2"
    assert "card.ecc_uncorrected" in made.troubles("a")
    wall.time += 86400
    errors(1020.0, 5.0)  # 12 today, 8 the day before: no trend
    assert names(told) == ["card.ecc_uncorrected"] and made.troubles("a") == {}
    made = Watch(tmp_path / "h", wall)
    errors(1030.0, 5.0)  # 10 while ugpud did not run: 22 by 8
    errors(1031.0, 5.0)
    assert names(told)[1:] == ["card.ecc_trend"] and told[1].fields["was"] == "8"
    assert "plan to replace" in told[1].remedy
    wall.time += 2 * 86400
    errors(2.0, 5.0)  # the counter began anew: two errors
    assert made.troubles("a") == {} and len(told) == 2


def test_a_full_disk_does_not_repeat_events(tmp_path: Path, wall: Wall, told: list[Event]) -> None:
    (tmp_path / "h").mkdir()  # no file can be made
    made = Watch(tmp_path / "h", wall)
    look(made, FAST)
    look(made, SLOW, times=5)
    for value in (0.0, 2.0, 2.0, 2.0):
        made.look("a", "", seen(dram_lost=value), Links())
    kinds = names(told)
    assert kinds.count("card.link_degraded") == kinds.count("card.ecc_uncorrected") == 1
    assert made.expected() == []


def test_links_of_a_tree_are_its_narrowest_and_slowest(tmp_path: Path) -> None:
    """A card behind its own switch, whose inner link is always full: the slot's link counts."""
    tree = ThunderboltTree(PciMachine(tmp_path))
    full, slot = ("16.0 GT/s PCIe", 16), ("8.0 GT/s PCIe", 4)
    tree.add("0000:00:01.0", link=slot, most=full)
    tree.add("0000:01:00.0", "0000:00:01.0", ids=(0x1002, 0x1478), link=slot, most=full)
    tree.add("0000:02:00.0", "0000:01:00.0", ids=(0x1002, 0x1479), link=full)
    tree.add(GPU, "0000:02:00.0", ids=(0x1002, 0x744C), kind=0x030000, link=full)
    found = links(f"pci:{GPU}", seen(), tree.machine)
    assert found == Links(Link(4, 3), Link(16, 4))
    assert links("pci:0000:99:00.0", seen(), tree.machine) == Links()


def test_a_card_is_expected_for_a_week_after_it_was_last_there(tmp_path: Path, wall: Wall) -> None:
    made = Watch(tmp_path / "h", wall)
    made.expect("a")
    made.expect("b")
    wall.time += KEPT_S - 1
    made.refresh("a")
    wall.time += 2
    made.forget("c")
    assert Watch(tmp_path / "h", wall).expected() == ["a"]
    made.forget("a")
    wall.time += 3601
    made.refresh("a")  # by a look that was under way
    assert made.expected() == []


# ---- virtual devices and the daemon ------------------------------------------------------------


def test_planted_decay_of_a_virtual_gpu(
    tmp_path: Path, wall: Wall, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = [9000]
    monkeypatch.setattr(VirtualGpu, "utilisation", lambda gpu: usage[0])
    made = Watch(tmp_path / "h", wall)
    # A branch that publishes no utilisation: its control answers from the patched method.
    options = MachineOptions(driver="535.183.01")
    with powered("gh100", options) as machine, opened(machine, driver=options.driver) as device:
        gpu = machine.gpus[0]

        def looked(times: int = 1) -> None:
            for _ in range(times):
                found = Sampler(device.driver.core).take()
                made.look("gh100", "", found, links("nvrm:0", found, System(tmp_path)))

        looked()
        usage[0], gpu.link = 0, (1, 16)  # idle: the link is slow
        looked(LOOKS)
        assert told == []
        usage[0] = 9000
        looked(LOOKS)
        assert told[0].fields["link"] == "x16 generation 1"
        gpu.link, gpu.ecc_corrected, gpu.ecc_uncorrected = None, 11, 1
        looked()
        assert names(told)[1:] == ["card.link_restored", "card.ecc_uncorrected", "card.ecc_trend"]


def test_a_daemon_looks_at_its_cards_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = started(tmp_path, count=1)
    daemon = running.daemon
    try:
        owned, state = daemon.owned[0], [FAST]
        monkeypatch.setattr(owned, "telemetry", lambda: json.dumps(seen().as_json()).encode())
        monkeypatch.setattr(
            "ugpu.tools.service.daemon.cards.ward.links", lambda *_: Links(state[0])
        )
        daemon.look_at(owned)
        state[0] = NARROW
        for _ in range(LOOKS):
            daemon.look_at(owned)
        (row,) = daemon.devices()
        assert list(row["troubles"]) == ["card.link_degraded"]  # type: ignore[call-overload]
        assert cli.main(["lease", "ls", "--daemon", running.socket]) == 0
        assert "its link at work is x4 generation 4" in capsys.readouterr().out
        with running.lease() as gpu:
            assert scaled(gpu), "the card is still leased"
    finally:
        running.close()


def test_troubles_are_metrics(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra metrics")
    from ugpu.tools.service.metrics.leases import leases

    running = started(tmp_path, count=1)
    try:
        (card,) = running.daemon.devices()
        listed: dict[str, Any] = {"leases": [], "waiting": []}
        for troubles, value in (({}, 0.0), ({"card.ecc_trend": "text"}, 1.0)):
            found = leases(([card | {"troubles": troubles}], listed), 0.0)
            (family,) = [one for one in found if one.name == "ugpu_card_trouble"]
            values = {one.labels["kind"]: one.value for one in family.samples}
            assert values["ecc_trend"] == value and values["missing"] == 0.0
    finally:
        running.close()


def until_state(running: Running, name: str, state: State) -> None:
    def reached() -> bool:
        with running.daemon.lock:
            cards = {each.name: each.card.state for each in running.daemon.owned}
            return cards.get(name) is state

    until(reached, f"{name} is {state.value}")


def test_cards_that_were_adopted_are_expected_after_a_restart(
    tmp_path: Path, told: list[Event]
) -> None:
    slots, folder = Slots(tmp_path / "machine"), tmp_path / "d"
    folder.mkdir()
    settings = parse(settings_text(folder, ["cpu"], 'hotplug = ["pci:*"]'))

    def start() -> Running:
        return Running(settings, Daemon(settings, system=slots.machine, opener=slots.open))

    running = start()
    for address in (GPU, OTHER):
        slots.plug(address)
        until_state(running, f"pci:{address}", State.READY)
    running.close()
    assert "card.missing" not in names(told)
    slots.pull(OTHER)  # while ugpud does not run
    running = start()
    try:
        until_state(running, f"pci:{GPU}", State.READY)
        until_state(running, f"pci:{OTHER}", State.OFF)
        (missing,) = [event for event in told if event.kind.name == "card.missing"]
        assert missing.fields["device"] == f"pci:{OTHER}" and "slot" in missing.remedy
        rows = {str(row["name"]): row["troubles"] for row in running.daemon.devices()}
        assert rows[f"pci:{OTHER}"] == {"card.missing": "the card is not on the bus"}
        slots.plug(OTHER)
        until_state(running, f"pci:{OTHER}", State.READY)
        slots.pull(GPU)  # while ugpud watches: told now, not again after the next start
        until_state(running, f"pci:{GPU}", State.OFF)
    finally:
        running.close()
    told.clear()
    running = start()
    until_state(running, f"pci:{OTHER}", State.READY)
    assert "card.missing" not in names(told)
    running.close()
