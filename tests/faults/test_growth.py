"""A leak is told from a cache that fills, and found in a process that has one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from lab.campaign.growth import BLOCKS_SLACK, USED_SLACK, Sample, growth, leaks, sample

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


Leak = Callable[[ExitStack], None]  # takes something that the stack gives back


def _objects(held: ExitStack) -> None:
    made: list[object] = [{} for _ in range(2000)]
    held.callback(made.clear)


def _buffers(held: ExitStack) -> None:
    held.callback(bytearray(MIB).clear)


def _native(held: ExitStack) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for _ in range(MIB // 1000):
        held.callback(libc.free, ctypes.c_void_p(libc.malloc(1000)))


def _descriptors(held: ExitStack) -> None:
    held.callback(os.close, os.open(os.devnull, os.O_RDONLY))


@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (_objects, "blocks"),
        (_buffers, "used"),
        (_native, "used"),
        (_descriptors, "descriptors"),
    ],
)
def test_a_process_that_leaks(leak: Leak, name: str) -> None:
    found = []
    with ExitStack() as held:
        for _ in range(9):
            leak(held)
            found.append(sample())
    assert name in leaks(found, 9)


def test_a_process_that_frees_what_it_takes() -> None:
    found = []
    for _ in range(9):
        with ExitStack() as held:
            _objects(held)
            _buffers(held)
        found.append(sample())
    assert leaks(found, 9) == {} and USED_SLACK < MIB
