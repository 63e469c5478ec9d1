"""A virtual GH100 that tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nvidia.nv_machine import opened, powered
from ugpu.nv.device.device import NvDevice


@pytest.fixture(scope="module")
def gh100() -> Iterator[NvDevice]:
    with powered() as machine, opened(machine) as device:
        device.limit_s = 10.0
        yield device
