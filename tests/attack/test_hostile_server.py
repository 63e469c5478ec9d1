"""A client of a ugpud that replies with anything: each error is one of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.service.hostile_server import Hostile
from ugpu import hcq
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.target import TargetSpec


@pytest.fixture(scope="module")
def target() -> TargetSpec:
    with hcq.open("cpu", threads=1) as gpu:
        return gpu.target


def use(path: str, image: bytes) -> None:
    """All that a client asks a server."""
    with hcq.lease("*", daemon=path) as gpu:
        gpu.extend(5.0)
        for sensor in gpu.sensors():
            sensor.read()
        gpu.info()
        gpu.load(image)
        buffer = gpu.alloc(64)
        buffer.copy_from(np.zeros(64, np.uint8))
        buffer.numpy()
        gpu.driver.recovery_plan()
        gpu.reset()


def campaign(folder: Path, target: TargetSpec, seeds: range) -> int:
    """Return in how many runs an error was found."""
    image, found = contract_object(target), 0
    for seed in seeds:
        with Hostile(folder / f"s{seed}", target, seed, 0.25) as server:
            try:
                use(server.path, image)
            except UgpuError as error:
                assert "\x1b" not in str(error), seed
                found += 1
    return found


def test_an_honest_server_is_used_without_an_error(tmp_path: Path, target: TargetSpec) -> None:
    with Hostile(tmp_path / "s", target, 0, 0.0) as server:
        use(server.path, contract_object(target))


def test_a_hostile_server_causes_errors_of_ours_only(tmp_path: Path, target: TargetSpec) -> None:
    assert campaign(tmp_path, target, range(40)) > 20


@pytest.mark.slow
def test_a_hostile_server_many_times(tmp_path: Path, target: TargetSpec) -> None:
    assert campaign(tmp_path, target, range(1000, 1600)) > 300
