"""Division on the translating core is correctly rounded, quotients that are denormal included."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.gfx_run import Machine
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending

THREADS, GROUPS = 256, 1
# Type, least and largest exponent, exponent below which quotients are denormal.
KINDS: dict[str, tuple[Any, int, int, int]] = {
    "half": (np.float16, -24, 15, -12),
    "float": (np.float32, -149, 127, -124),
    "double": (np.float64, -1074, 1023, -1020),
}


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    made = GfxCore(workers=1)
    yield made
    made.close()


def _divide(core: GfxCore, kind: str, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    machine = Machine(core)
    kernel = machine.load(compile_ir(corpus()[f"fdiv {kind}"]).image)
    places = [machine.place(array) for array in (np.zeros_like(first), first, second)]
    block = struct.pack("<QQQI", *(address for address, _ in places), 0)
    arguments = block.ljust(kernel.kernarg_size, b"\0")
    dispatch = machine.dispatch(kernel, arguments, (GROUPS, 1, 1), (THREADS, 1, 1))
    machine.memory.invalidate()
    assert core.run(dispatch, machine.memory, machine.abort).ending is Ending.DONE
    return places[0][1].copy()


@pytest.mark.parametrize("denormal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_division_is_correctly_rounded(core: GfxCore, kind: str, denormal: bool) -> None:
    number, least, most, edge = KINDS[kind]
    rng = np.random.default_rng(21)

    def numbers(exponents: NDArray[np.int64]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            found: NDArray[Any] = np.ldexp(1 + rng.random(THREADS), exponents).astype(number)
        return np.where(np.isfinite(found), found, number(1))

    for _ in range(40):
        tops = rng.integers(least, most, THREADS)
        lows = rng.integers(least, most, THREADS)
        if denormal:
            lows = np.clip(tops - rng.integers(least - 3, edge, THREADS), least, most)
        first, second = numbers(tops), numbers(lows)
        with np.errstate(all="ignore"):
            if kind == "half":  # f64 is wide enough that the second rounding changes nothing
                expected = (first.astype(np.float64) / second.astype(np.float64)).astype(number)
            else:
                expected = first / second
        found = _divide(core, kind, first, second)
        wrong = (found != expected) & ~(np.isnan(found) & np.isnan(expected))
        assert not wrong.any(), (first[wrong][:3], second[wrong][:3], found[wrong][:3])
