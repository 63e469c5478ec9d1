"""The operation corpus on virtual Adreno GPUs; `make test-adreno` runs all of it on each chip."""

from __future__ import annotations

import pytest

from tests.support.adreno.adreno_corpus import CHIPS, run
from tests.support.adreno.mesa import needs_mesa
from tests.support.corpus.operation_corpus import corpus

TURNS = 88  # the fast suite runs every so manieth case, another one on each chip


@needs_mesa
@pytest.mark.parametrize(("chip", "turn"), list(zip(CHIPS, (3, 25, 47, 69), strict=True)))
def test_a_share_of_the_corpus_runs(chip: str, turn: int) -> None:
    run(chip, list(corpus())[turn::TURNS])


@needs_mesa
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("chip", CHIPS)
def test_every_case_runs_on_one_chip(chip: str, part: int) -> None:
    run(chip, list(corpus())[CHIPS.index(chip) + len(CHIPS) * part :: 2 * len(CHIPS)])
