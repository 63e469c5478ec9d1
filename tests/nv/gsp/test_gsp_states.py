"""Named states of a card's processors, and registers, without a boot, of a device, and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nv.gsp.test_gsp_boot import booted
from tests.nv.gsp.test_gsp_work import opened, powered
from ugpu import hcq
from ugpu.hcq.errors import DeviceNotFound, NotSupported, UgpuError
from ugpu.hcq.find import offline
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.find.stages import stages_of
from ugpu.hcq.state.ladder import Level
from ugpu.nv.device.bare import BareDevice
from ugpu.nv.gsp.rm.states import as_json, states
from ugpu.nv.offline import chip as window
from ugpu.tools.base.console import Output
from ugpu.tools.inspect import internals
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.faults import CardFault


def named(card: Card) -> dict[str, tuple[str, object]]:
    found = window.named_states(Attachment(VirtualTransport(card)))
    return {str(state["unit"]): (str(state["name"]), state["ok"]) for state in found}


@pytest.mark.parametrize("chip", ["ad102", "tu102", "gh100"])
def test_a_card_before_while_and_after_it_is_driven(chip: str) -> None:
    with powered(chip) as card:
        before = named(card)
        assert before["WPR2"] == ("unset", True)
        assert all(ok is not False for _, ok in before.values())
        assert not card.config.memory_enabled, "the command register is as it was"
        with opened(card) as device:
            assert isinstance(device, BareDevice)
            found = {state.unit: state for state in states(device.chip)}
            assert found["WPR2"].name == "set" and found["GSP"].name == "running"
            assert "0x" in found["GSP LOGINIT"].meaning
            values = window.look(device.chip, "registers")
            assert isinstance(values, dict) and values["nv.NV_PMC_BOOT_42"]
        after = named(card)
        assert after["WPR2"] == ("unset", True) and after["GSP"][1] is not False
        assert card.violations == []


def test_a_boot_that_was_cut_off_needs_a_reset() -> None:
    with powered() as card:
        card.inject_card(CardFault.WPR2_LEFT)
        assert named(card)["GSP"] == ("boot cut off", False)
        with window.open_window(Attachment(VirtualTransport(card))) as chip:
            assert window.diagnose(chip).first is Level.FLR


def test_a_crash_is_named() -> None:
    with powered() as card:
        running = booted(card)
        card.inject_card(CardFault.GSP_CRASHES)
        with pytest.raises(UgpuError):
            running.calls.call(65, b"")
        assert {"GSP": "crashed"}.items() <= {
            state["unit"]: state["name"] for state in as_json(running.chip)
        }.items()
        running.end(clean=False)


def test_a_card_that_left() -> None:
    with powered() as card:
        card.unplug()
        assert named(card) == {"link": ("no answer", False)}


def test_states_of_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "boot.txt"
    options = {"record": path, "record_states": True}
    with hcq.open("virtual:ad102+gsp", memory=1 << 30, **options):
        pass
    assert internals.states(f"{path}@riscv", Output()) == 0
    assert "RISC-V core runs" in capsys.readouterr().out


def test_what_is_not_shown_is_refused() -> None:
    with offline.open_window("virtual:ad102+gsp") as chip:
        assert set(offline.blocks_of(chip)) >= {"nv", "gsp", "sec2", "pmu", "fsp"}
        module = offline.module_of_chip("ad102")
        for part in ("queues", "waves"):
            with pytest.raises(NotSupported):
                module.look(chip, part)
        with pytest.raises(NotSupported):
            module.walk(chip, 0, None, "gc")
    with pytest.raises(DeviceNotFound):
        window.usual_blocks("none")


@pytest.mark.parametrize("chip", ["ad102", "gb202"])
def test_the_stages_of_a_bare_card_are_known(chip: str) -> None:
    with powered(chip) as card, opened(card) as device:
        assert {stage for stage, _ in device.boot_stages} <= set(stages_of(f"virtual:{chip}+gsp"))
