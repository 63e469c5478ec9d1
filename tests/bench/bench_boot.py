"""Bring-up of the virtual Navi31: from power-on, and as found by a process after another."""

from __future__ import annotations

import time
from typing import Any

import hcq
from tests.support.am_navi31 import build_chip

ROUNDS = 5


def _opened_s(**options: Any) -> tuple[float, Any]:
    """Seconds that hcq.open takes, and the open device."""
    start = time.perf_counter()
    device = hcq.open("virtual:navi31", **options)
    return time.perf_counter() - start, device


def measure() -> list[dict[str, object]]:
    cold = []
    first, device = _opened_s()
    device.close()
    for _ in range(ROUNDS):
        seconds, device = _opened_s()
        device.close()
        cold.append(seconds)
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
    return [{"name": name, "value": value, "unit": "s"} for name, value in figures.items()]
