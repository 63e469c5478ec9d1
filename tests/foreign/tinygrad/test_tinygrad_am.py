"""tinygrad's AM driver boots the virtual Navi31 and Navi33 and computes on them;
docs/foreign-drivers.md. Navi32's PCI id it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.client import require, run_client
from tests.foreign.remote_card import RemoteCard
from ugpu.am.chips import facts_of
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions, Delays

require("tinygrad")
pytestmark = pytest.mark.foreign
LIMIT_S = 150


class Stand:
    """A virtual card, reachable by tinygrad for as long as the test runs."""

    def __init__(self, chip: Chip, folder: Path) -> None:
        self.chip = chip
        self._folder = folder
        self._firmware = folder / "firmware"
        self._firmware.mkdir()
        for name, image in chip.generation.firmware.files(chip.facts).items():
            (self._firmware / name).write_bytes(image)
        self.card = RemoteCard(VirtualTransport(chip))

    def run(self, scenario: str, **environment: str) -> Any:  # the client's report
        """Run a scenario of tinygrad_client in a new process."""
        where = {
            "REMOTE": f"127.0.0.1:{self.card.port}",
            "DEV": "PCI+AMD:LLVM",
            "PARALLEL": "0",  # compilers in processes of their own would not be llvmlite
        }
        return run_client(
            "tests.foreign.tinygrad.tinygrad_client",
            [scenario, str(self._firmware)],
            self._folder / "result.json",
            {**where, **environment},
            LIMIT_S,
        )


@pytest.fixture(params=["navi31"])
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    # tinygrad gives some messages of the SMU 20 ms and goes on, and its wait for the autoload never
    # waits: boards are in time, a busy host may not be.
    options = ChipOptions(vram=1 << 30, delays=Delays(smu_message=0, autoload=0))
    chip = build_chip(facts_of(request.param), options)
    try:
        made = Stand(chip, tmp_path)
        with made.card:
            yield made
    finally:
        chip.close()


def wrong(report: Any) -> dict[str, str]:
    return {name: result for name, result in report["steps"].items() if result != "ok"}


@pytest.mark.parametrize("stand", ["navi31", "navi33", "navi48", "navi44"], indirect=True)
def test_it_boots_and_copies(stand: Stand) -> None:
    report = stand.run("copies")
    assert wrong(report) == {}
    assert stand.chip.violations == []
    assert report["arch"] == stand.chip.facts.isa and not report["partial boot"]
    assert stand.card.refused == []


@pytest.mark.parametrize("stand", ["navi31", "navi48"], indirect=True)
def test_its_operators_agree_with_numpy(stand: Stand) -> None:
    """No fault and no violation: what boards take, the model takes."""
    report = stand.run("operators")
    assert wrong(report) == {} and len(report["steps"]) == 30
    assert stand.chip.violations == []


@pytest.mark.parametrize("stand", ["navi31", "navi33", "navi48"], indirect=True)
def test_it_starts_warm_takes_times_and_resets(stand: Stand) -> None:
    """A second process finds the first one's card; a third resets it by the debug mailbox."""
    begun = [stand.run("few")]
    begun += [stand.run("timed"), stand.run("few", AM_RESET="1")]
    assert [wrong(report) for report in begun] == [{}, {}, {}]
    assert [report["partial boot"] for report in begun] == [False, True, False]
    assert (2, 0) in stand.chip.smu.messages  # DEBUGSMC_MSG_Mode1Reset
    assert stand.chip.violations == []
