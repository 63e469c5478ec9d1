"""A leak is told from a cache that fills, and found in a process that has one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import pytest

from tests.campaign.growth import BLOCKS_SLACK, USED_SLACK, Sample, growth, leaks, sample

MIB = 1 << 20
CASES = 400


def series(name: str, values: list[int]) -> list[Sample]:
    base = {"descriptors": 6, "mappings": 330, "threads": 4, "used": 24 * MIB, "blocks": 580_000,
            "memory": 120 * MIB}  # fmt: skip
    return [base | {name: base[name] + value} for value in values]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("descriptors", [0, 0, 0, 0, 0, 0, 1, 1, 1]),
        ("mappings", [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("threads", [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ("used", [n * 256 << 10 for n in range(9)]),
        ("blocks", [n * BLOCKS_SLACK // 2 for n in range(9)]),
        ("memory", [n * 5 * MIB for n in range(9)]),
    ],
)
def test_growth_that_goes_on_is_a_leak(name: str, values: list[int]) -> None:
    assert list(leaks(series(name, values), CASES)) == [name]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("used", [0, MIB, 3 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB]),
        ("used", [0, 2 * MIB] * 5),  # one case holds a buffer for a while
        ("used", [0, 0, 0, 0, 0, 0, 3 * MIB, 3 * MIB, 3 * MIB]),  # a module that came late
        ("blocks", [0, 0, 20_000, 21_000, 21_100, 21_110, 21_115, 21_120, 21_120]),
        ("memory", [0, 8 * MIB, 12 * MIB, 14 * MIB, 15 * MIB, 14 * MIB, 15 * MIB, 15 * MIB]),
        ("descriptors", [0, 3, 0, 5, 0, 0, 2, 0, 0]),
    ],
)
def test_what_fills_and_stays_is_none(name: str, values: list[int]) -> None:
    assert leaks(series(name, values), CASES) == {}


def test_a_run_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="at least 6 samples, got 5"):
        growth(series("used", [0] * 5))


def _objects(kept: list[object]) -> None:
    kept += [{} for _ in range(2000)]


def _buffers(kept: list[object]) -> None:
    kept.append(bytearray(MIB))


def _native(kept: list[object]) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    kept.append([libc.malloc(1000) for _ in range(MIB // 1000)])


def _descriptors(kept: list[object]) -> None:
    kept.append(open(os.devnull, "rb"))  # noqa: SIM115


@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (_objects, "blocks"),
        (_buffers, "used"),
        (_native, "used"),
        (_descriptors, "descriptors"),
    ],
)
def test_a_process_that_leaks(leak: Callable[[list[object]], None], name: str) -> None:
    kept: list[object] = []
    found = []
    for _ in range(9):
        leak(kept)
        found.append(sample())
    told = leaks(found, 9)
    for one in kept:
        if hasattr(one, "close"):
            one.close()
        elif leak is _native:
            libc = ctypes.CDLL(None)
            for place in one:  # type: ignore[attr-defined]
                libc.free(ctypes.c_void_p(place))
    assert name in told


def test_a_process_that_frees_what_it_takes() -> None:
    found = []
    for _ in range(9):
        kept: list[object] = []
        _objects(kept)
        _buffers(kept)
        del kept
        found.append(sample())
    assert leaks(found, 9) == {} and USED_SLACK < MIB
