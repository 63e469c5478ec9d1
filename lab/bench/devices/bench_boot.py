"""Bring-up of the virtual Navi31: from power-on, and as found by a process after another."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.amd.am_navi31 import build_chip
from ugpu import hcq

ROUNDS = 5


def _opened_s(**options: Any) -> tuple[float, Any]:
    """Seconds that hcq.open takes, and the open device."""
    start = time.perf_counter()
    device = hcq.open("virtual:navi31", **options)
    return time.perf_counter() - start, device


def _recording() -> tuple[float, float]:
    """Median seconds from open to closed, with a recording and without."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2 * ROUNDS):
            for recorded, found in taken.items():
                options = {"record": Path(folder) / "boot.txt"} if recorded else {}
                start = time.perf_counter()
                _opened_s(**options)[1].close()
                found.append(time.perf_counter() - start)
    return sorted(taken[True])[ROUNDS], sorted(taken[False])[ROUNDS]


def measure() -> list[dict[str, object]]:
    cold = []
    first, device = _opened_s()
    device.close()
    for _ in range(ROUNDS):
        seconds, device = _opened_s()
        device.close()
        cold.append(seconds)
    recorded_s, plain_s = _recording()
    warm = []
    chip = build_chip()
    for _ in range(ROUNDS + 1):
        seconds, device = _opened_s(chip=chip)
        warm.append((device.info()["start"], seconds))
        device.close()
    chip.close()
    if [start for start, _ in warm] != ["cold"] + ["warm"] * ROUNDS:
        raise SystemExit(f"expected one cold start and then warm ones: {warm}")
    taken = sorted(seconds for _, seconds in warm[1:])
    figures = {
        "cold boot of virtual:navi31, first, imports included": first,
        "cold boot of virtual:navi31, median": sorted(cold)[ROUNDS // 2],
        "warm attach of virtual:navi31, median": taken[ROUNDS // 2],
    }
    recording = {
        "name": "cold boot of virtual:navi31, recorded and written",
        "value": recorded_s, "unit": "s",
        "peer": "not recorded", "peer_value": plain_s, "ratio": recorded_s / plain_s,
    }  # fmt: skip
    each = ({"name": name, "value": value, "unit": "s"} for name, value in figures.items())
    return [*each, recording]
