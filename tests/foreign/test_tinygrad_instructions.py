"""tinygrad's instruction tests of RDNA3, which its authors run on boards, on our shader core.

They are in tinygrad's repository alone, neither in its wheel nor in its sdist: TINYGRAD_SOURCE
names a checkout, without which this is skipped (docs/foreign-drivers.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.foreign.client import require, run_client

require("tinygrad")
pytestmark = pytest.mark.foreign
SOURCE = os.environ.get("TINYGRAD_SOURCE", "")
LIMIT_S = 300
LEAST = 750  # that agree; the checkout of August 2026 has 779 of RDNA3
# Tests that do not hold here, by the start of their names, with the reason.
LEFT = {}


@pytest.mark.skipif(not SOURCE, reason="TINYGRAD_SOURCE names no checkout of tinygrad")
def test_they_agree(tmp_path: Path) -> None:
    found = run_client(
        "tests.foreign.tinygrad_instructions", [SOURCE], tmp_path / "result.json", {}, LIMIT_S
    )
    wrong = {
        name: text
        for name, text in found.items()
        if text != "ok" and not text.startswith("skipped: code of ")
    }
    assert {name: text for name, text in wrong.items() if not name.startswith(tuple(LEFT))} == {}
    assert sum(text == "ok" for text in found.values()) >= LEAST
