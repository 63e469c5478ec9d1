"""The operation corpus on the devices the compiler knows: everything must equal NumPy."""

from __future__ import annotations

import pytest

import hcq
from am import chips
from tests.support.compiler_devices import poisoned
from tests.support.operation_corpus import corpus

NVIDIA = [f"virtual:{chip}" for chip in ("tu102", "ga102", "ad102", "gh100", "gb202")]
AMD = [f"virtual:{chip}" for chip in chips.names()]
DEVICES = ["cpu", *AMD, *NVIDIA]
TURNS = 12  # the fast suite runs every twelfth case, another one on each device


def run(device: str, names: list[str]) -> None:
    with hcq.open(device) as opened:
        poisoned(opened, None)
        for name in names:
            corpus()[name].check(opened)


@pytest.mark.parametrize(
    ("device", "turn"), [("cpu", 0), ("virtual:navi31", 5), ("virtual:gh100", 9)]
)
def test_a_share_of_the_corpus_runs(device: str, turn: int) -> None:
    run(device, list(corpus())[turn::TURNS])


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_the_whole_corpus_runs(device: str) -> None:
    run(device, list(corpus()))
