"""Training over several processes, by a process group of PyTorch on the loopback interface: what
each process computes is what one process computes alone on the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.compiler.torch import training_process
from ugpu import Tensor, nn
from ugpu.hcq.errors import BadArgument

torch: Any = pytest.importorskip("torch", reason="the package torch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
LIMIT_S = 120


def started(file: Path, world: int, rank: int, device: str, *more: str) -> Any:
    command = [sys.executable, "-m", training_process.__name__, str(file), str(world), str(rank)]
    return subprocess.Popen(
        [*command, device, *more], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


def results(processes: list[Any]) -> list[dict[str, Any]]:
    texts = [each.communicate(timeout=LIMIT_S)[0] for each in processes]
    assert [each.returncode for each in processes] == [0] * len(processes)
    return [json.loads(text) if text else {} for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("cpu", "cpu"), ("cpu", "virtual:navi31")])
def test_two_processes_train_as_one(devices: tuple[str, str], tmp_path: Path) -> None:
    parts = [started(tmp_path / "meet", 2, k, name) for k, name in enumerate(devices)]
    first, second = results(parts)
    alone = training_process.train("cpu", 1, 0)
    together = np.mean([first["losses"], second["losses"]], axis=0)
    np.testing.assert_allclose(together, np.asarray(alone["losses"]), rtol=1e-4)
    np.testing.assert_allclose(first["total"], second["total"], rtol=1e-5)
    np.testing.assert_allclose(first["total"], np.asarray(alone["total"]), rtol=1e-4)


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_of_the_others_and_costs_no_gradient(
    tmp_path: Path,
) -> None:
    stays = started(tmp_path / "meet", 2, 0, "cpu")
    leaves = started(tmp_path / "meet", 2, 1, "cpu", "3")
    said, _ = results([stays, leaves])
    assert "average_gradients: the process group failed" in said["lost"]
    assert said["kept"]


def test_what_cannot_be_averaged_is_refused() -> None:
    with ugpu.open("cpu") as device:
        model = nn.Linear(2, 1).to(device)
        with pytest.raises(BadArgument, match="expected a process group"):
            ugpu.torch.distributed.average_gradients(model.parameters())

        @ugpu.jit
        def step(x: Tensor) -> Tensor:
            ugpu.torch.distributed.average_gradients(model.parameters())
            return x

        with pytest.raises(BadArgument, match="talks to other processes"):
            step(Tensor([1.0], device=device))
