"""Devices that a test file of the compiler runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ugpu import hcq
from ugpu.compiler.runtime.runtime import Runtime, use_cache
from ugpu.hcq.device.device import Device

NAN = 0xFFFF_FFFF  # in every type of floats, and -1 in every type of integers


def poisoned(device: Device, folder: Path | None) -> Runtime:
    """A fresh runtime (see `use_cache`) whose memory is not zero where nobody has written."""
    made = use_cache(device, folder)
    made.pool.clear()
    made.pool.poison = NAN
    return made


def device_fixture(*names: str, poison: bool = True) -> Callable[..., Iterator[Device]]:
    """Return a fixture: each of these devices, open for one file of tests, with kernels of its own.

    To be assigned to the name the tests ask for: `device = device_fixture("cpu")`. poison: whether
    unwritten memory holds NaN; not where memory of a graph is taken before the graph is recorded.
    """

    @pytest.fixture(scope="module", params=names)
    def device(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Device]:
        with hcq.open(request.param) as opened:
            folder = tmp_path_factory.mktemp("kernels")
            poisoned(opened, folder) if poison else use_cache(opened, folder)
            yield opened

    return device
