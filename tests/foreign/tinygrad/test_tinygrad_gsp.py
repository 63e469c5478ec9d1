"""tinygrad's NV driver in PCI mode boots the GSP of the register-level NVIDIA cards, copies, and
computes; docs/foreign-drivers.md. It supports no Turing, GA100, Hopper or GB10x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.foreign.client import require, run_client
from tests.foreign.remote_card import RemoteCard
from ugpu.nv.code.assemble import find_library
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.firmware.images import synthetic_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

require("tinygrad")
pytestmark = pytest.mark.foreign
LIMIT_S = 900  # our choice: 200 s were too few on a host that other work kept busy
MEMORY_BAR = 1


def run(chip: str, scenario: str, folder: Path) -> Any:  # the client's report
    """Run a scenario of tinygrad_gsp_client on a new card; the card objects to nothing."""
    for name, image in synthetic_set(chip, "570.144").items():
        place = folder / "firmware" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(image)
    library = find_library()
    assert library is not None, "the tier installs nvidia-nvjitlink"
    card = build_card(chip, CardOptions(memory=2 << 30, coherence=scenario == "operators"))
    try:
        with RemoteCard(VirtualTransport(card), memory_bar=MEMORY_BAR) as remote:
            report = run_client(
                "tests.foreign.tinygrad.tinygrad_gsp_client",
                [scenario, str(folder / "firmware")],
                folder / "result.json",
                {
                    "REMOTE": f"127.0.0.1:{remote.port}",
                    "DEV": "PCI+NV:PTX",
                    "NVJITLINK_PATH": str(library),
                    "PARALLEL": "0",  # compilers in processes of their own would add no note
                },
                LIMIT_S,
            )
        assert remote.refused == []
        assert (card.violations, card.machine.refused, dict(card.registers.unknown)) == ([], [], {})
        return report
    finally:
        card.close()


@pytest.mark.parametrize("chip", ["ad102", "ga102", "gb202"])
def test_it_boots_and_computes(chip: str, tmp_path: Path) -> None:
    report = run(chip, "few", tmp_path)
    assert report["interface"] == "PCIIface"
    assert {name: result for name, result in report["steps"].items() if result != "ok"} == {}


def test_its_operators_agree_with_numpy(tmp_path: Path) -> None:
    report = run("ad102", "operators", tmp_path)
    assert {name: result for name, result in report["steps"].items() if result != "ok"} == {}
    assert len(report["steps"]) == 30
