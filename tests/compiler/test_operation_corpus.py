"""The operation corpus on the devices the compiler knows: everything must equal NumPy."""

from __future__ import annotations

import pytest

from tests.support.compiler.compiler_devices import poisoned
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.am import chips

# Devices whose kernels are the same but for the products, whose instructions a chip may lack. The
# first of a family runs the whole corpus, each of the others another sixth.
NVIDIA = [f"virtual:{chip}" for chip in ("gh100", "tu102", "ga102", "ad102", "gb202")]
AMD = [
    f"virtual:{chip}" for chip in sorted(chips.virtual_names(), key=lambda name: name != "navi31")
]
BARE = [f"virtual:{chip}+gsp" for chip in ("ad102", "ga102", "gb202", "gh100", "tu102", "ga100")]
FAMILIES = (["cpu"], AMD, NVIDIA, BARE)
PRODUCTS = ("matmul", "attention", "conv2d")
SHARES = 6
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
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("device", [family[0] for family in FAMILIES])
def test_the_whole_corpus_runs(device: str, half: int) -> None:
    run(device, list(corpus())[half::2])


@pytest.mark.slow
@pytest.mark.parametrize("device", [device for family in FAMILIES for device in family[1:]])
def test_other_chips_of_a_family_run_what_differs_and_a_share(device: str) -> None:
    (family,) = (family for family in FAMILIES if device in family)
    place = family.index(device)
    names = dict.fromkeys(list(corpus())[place::SHARES])
    if matrix_units(device) not in map(matrix_units, family[:place]):
        names |= dict.fromkeys(name for name in corpus() if name.startswith(PRODUCTS))
    run(device, list(names))


def matrix_units(device: str) -> str:
    with hcq.open(device) as opened:
        return opened.target.matrix
