"""The link's low-power states: off while a device is open, and back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.amd.am_navi31 import build_chip, opened, plug_in
from ugpu.am.boot import boot
from ugpu.hcq.errors import ChipError, DiscoveryError
from ugpu.virtual.amd.options import ChipOptions

LINK_CONTROL = 0x74  # of this card: the PCI Express capability at 0x64, and 0x10 in it


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(aspm=0x43))  # both states, and the common clock, which stays
    yield made
    made.close()


def control(chip: Any) -> int:
    return int(chip.config.read(LINK_CONTROL, 2))


def test_off_while_open(chip: Any) -> None:
    for _ in ("cold", "warm"):
        with opened(chip):
            assert control(chip) == 0x40
        assert control(chip) == 0x43


def test_off_after_resets(chip: Any) -> None:
    untold = pytest.raises(ChipError, match="reset by another program")  # at the block's end
    with untold, opened(chip) as device:
        chip.config.write(LINK_CONTROL, 0x43, 2)
        boot.mode1_reset(device.driver.units)
        assert control(chip) & 3 == 0
        chip.power_cycle()
        boot.after_power_loss(device.driver.units)
        assert control(chip) == 0x40
        device.driver.card.leave_warm = False
    assert control(chip) == 0x43


@pytest.mark.parametrize("flaw", ["discovery", "units", "boot"])
def test_back_after_a_boot_that_fails(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = build_chip(
        ChipOptions(aspm=2, discovery_flaw="checksum" if flaw == "discovery" else None)
    )
    if flaw == "boot":
        chip.faults.tlb_no_ack = {"gc"}
    if flaw == "units":
        monkeypatch.setattr(boot, "make_units", lambda *_: 1 // 0)
    expected = {"discovery": DiscoveryError, "units": ZeroDivisionError, "boot": ChipError}[flaw]
    with pytest.raises(expected):
        plug_in(chip)
    assert control(chip) == 2
    chip.close()


def test_a_card_that_was_pulled_out_closes(chip: Any) -> None:
    device = plug_in(chip)
    chip.unplug()
    device.close()
