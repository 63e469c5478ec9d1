"""A process dies after it has asked for mode1: the chip goes dark under the next one's boot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, plug_in, shared_facts
from tests.support.died import died
from ugpu.hcq.errors import FirmwareSilent
from ugpu.virtual.amd.options import ChipOptions


class Struck:
    """Has the chip reset itself at a read of a register, counted from 1, unless it was reset by
    then."""

    def __init__(self, chip: Any, at: int) -> None:
        self.reads, self.struck, self._at = 0, False, at
        self._read, self._reset, self._done = chip.read_register, chip.mode1_reset, False
        chip.read_register, chip.mode1_reset = self.read, self.reset

    def reset(self) -> None:
        self._done = True
        self._reset()

    def read(self, index: int) -> int:
        self.reads += 1
        if self.reads == self._at and not self._done:
            self.struck = True
            self.reset()
        return int(self._read(index))


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(vram=256 << 20, noise=0))
    device = plug_in(made)
    died(device)  # with the chip in use
    device.transport.close()
    yield made
    made.close()


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 7, 10, 12, 14, 16, 17])
def test_the_next_open_waits_for_its_end(chip: Any, at: int) -> None:
    strike = Struck(chip, at)
    with opened(chip) as device, device.load(faulty_object()) as program:
        assert not device.warm
        check_runs(device, program, device.alloc(64), at)
    assert strike.struck
    assert chip.violations == []


def test_a_card_that_stays_dark_says_so(chip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_facts(monkeypatch, ifwi_limit_s=0.2)
    strike = Struck(chip, 14)
    chip.faults.ifwi_never = True
    with pytest.raises(FirmwareSilent, match="boot firmware"), opened(chip):
        pass
    assert strike.struck
