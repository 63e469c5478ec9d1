"""How sensors' values are shown to people."""

from __future__ import annotations

import pytest

from ugpu.tools.base.readings import Reading


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (24576, "B", "24 KiB"),
        (5_613_056, "B", "5.4 MiB"),
        (0, "B", "0 B"),
        (1.246e9, "Hz", "1246 MHz"),
        (33.0, "°C", "33 °C"),
        (0.125, "ratio", "12.5 %"),
        (1.0, "flag", "yes"),
    ],
)
def test_units(value: float, unit: str, shown: str) -> None:
    assert str(Reading("name", "", unit, value)) == shown


def test_units_leave_the_name() -> None:
    assert Reading("temperature_celsius", "edge", "°C", 33.0).words == "temperature edge"
    assert Reading("memory_used_bytes", "", "B", 0.0).words == "memory used"
    assert Reading("ecc_errors", "dram lost", "errors", 0.0).words == "ecc dram lost"
    assert Reading("clock_throttled", "heat", "flag", 0.0).words == "clock throttled heat"
    assert Reading("link_generation", "", "generation", 5.0).words == "link generation"
    assert str(Reading("link_generation", "pcie", "generation", 5.0)) == "5"
