"""How sensors' values are shown to people."""

from __future__ import annotations

import pytest

from tools.readings import Reading


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (24576, "B", "24 KiB"),
        (5_613_056, "B", "5.4 MiB"),
        (0, "B", "0 B"),
        (1.246e9, "Hz", "1246 MHz"),
        (33.0, "°C", "33 °C"),
        (0.125, "ratio", "0.125 ratio"),
    ],
)
def test_units(value: float, unit: str, shown: str) -> None:
    assert str(Reading("name", "", unit, value)) == shown
