"""The campaign of large odd sizes (lab.sizes) in short form; it finds planted mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lab.sizes.case import AFTER, VIEWS, Case, Operation, draw
from lab.sizes.check import failure, smallest
from lab.sizes.operations import operations
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

TABLE = operations()
RANDOM = np.random.default_rng(2026)
CASES = [draw(RANDOM, TABLE, 1e5, 1e6) for _ in range(25)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_large_odd_sizes(cpu: Device, case: Case) -> None:
    assert failure(case, TABLE, cpu) is None, case


@pytest.mark.parametrize("name", sorted(TABLE))
def test_each_operation_is_right_when_small(cpu: Device, name: str) -> None:
    """The table's references are: what fails above is the compiler."""
    operation = TABLE[name]
    number = sorted(TABLE).index(name)
    case = replace(
        draw(np.random.default_rng(number), {name: operation}, 40, 200),
        view=VIEWS[number % len(VIEWS)], after=AFTER[number % len(AFTER)],
    )  # fmt: skip
    assert failure(case, TABLE, cpu) is None, case


def test_a_rule_that_fails_above_a_size_is_found_at_that_size(cpu: Device) -> None:
    """Everything that the failure does not need is taken away."""

    def work(_: Case, x: Sequence[Tensor]) -> Tensor:
        if x[0].shape[0] > 100 and x[0].shape[1] > 16:
            return Tensor(x[0].numpy() + 1, device=cpu)
        return x[0]

    table = {"same": Operation(work, lambda _, x: x[0])}
    case = Case("same", (700, 300, 3), "int32", "sliced", "shifted", 1)
    least, reason = smallest(case, table, cpu, tries=120)
    assert least == Case("same", (101, 17, 1), "float32", "plain", "nothing", 1)
    assert reason.startswith("wrong: 1717 of 1717 elements; at (0, 0, 0)")
    assert failure(replace(least, sizes=(101, 16, 1)), table, cpu) is None


def test_an_error_of_any_kind_is_a_failure(cpu: Device) -> None:
    def fails(case: Case, _: object) -> Tensor:
        raise ValueError(f"no kernel for {case.sizes}")

    table = {"broken": Operation(fails, lambda _, x: x[0])}
    case = Case("broken", (5,), "float32", "plain", "nothing", 1)
    assert failure(case, table, cpu) == "ValueError: no kernel for (5,)"
