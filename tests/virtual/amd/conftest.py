"""A virtual Navi31, and a device opened on it, for tests that look into both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from ugpu.am.device.device import AmDevice
from ugpu.virtual.amd.chip import Chip


@pytest.fixture
def chip() -> Iterator[Chip]:
    made = build_chip()
    yield made
    made.close()


@pytest.fixture
def device(chip: Chip) -> Iterator[AmDevice]:
    with opened(chip) as made:
        yield made
