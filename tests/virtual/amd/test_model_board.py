"""Blocks stand on the board: they know neither the chip that is made of them nor each other."""

from __future__ import annotations

from pathlib import Path

from ugpu.tools.house.layers import imports_of

ROOT = Path(__file__).resolve().parents[3]
# What builds a chip, and what plugs into a whole one from outside.
ABOVE = {"gpu.py", "bus/endpoint.py", "bus/pci.py", "bus/served.py", "engines/install.py",
         "planting.py"}  # fmt: skip


def test_only_what_is_above_knows_the_chip() -> None:
    folder = ROOT / "virtual/amd"
    knowing = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for item in imports_of(path, ROOT)
        if item.module.startswith("ugpu.virtual.amd.chip")
    }
    assert knowing == ABOVE


def test_the_board_knows_no_block() -> None:
    named = {item.module for item in imports_of(ROOT / "virtual/amd/board.py", ROOT)}
    blocks = {"block", "chip", "engines", "gpu", "firmware.psp", "firmware.smu", "memory.gmc"}
    assert not [name for name in named for block in blocks if f"ugpu.virtual.amd.{block}" in name]
