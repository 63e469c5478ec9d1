"""Devices that a test file of the compiler runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import hcq
from compiler.runtime.runtime import use_cache
from hcq.device import Device


def device_fixture(*names: str) -> Callable[..., Iterator[Device]]:
    """Return a fixture: each of these devices, open for one file of tests, with kernels of its own.

    To be assigned to the name the tests ask for: `device = device_fixture("cpu")`.
    """

    @pytest.fixture(scope="module", params=names)
    def device(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Device]:
        with hcq.open(request.param) as opened:
            use_cache(opened, tmp_path_factory.mktemp("kernels"))
            yield opened

    return device
