"""Devices for the compiler's tests; their kernel caches are not the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ugpu import hcq
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """The host, open for the whole session."""
    with hcq.open("cpu", threads=2) as device:
        use_cache(device, tmp_path_factory.mktemp("kernels"))
        yield device
