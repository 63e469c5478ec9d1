"""Sizes of caches, from trees like Linux' and from a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu import hcq
from ugpu.hcq.cpu import caches
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.config import from_environment
from ugpu.hcq.state.target import Caches

DEFAULT = Caches()


def _tree(root: Path, *entries: tuple[str, str, str, str]) -> Path:
    """entries: level, type, size, which processors share it."""
    for number, entry in enumerate(entries):
        folder = root / "cpu3" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        names = ("level", "type", "size", "shared_cpu_list")
        for name, text in zip(names, entry, strict=True):
            (folder / name).write_text(text + "\n")
    return root


def test_a_core_of_sapphire_rapids(tmp_path: Path) -> None:
    tree = _tree(
        tmp_path, ("1", "Data", "48K", "3,35"), ("1", "Instruction", "32K", "3,35"),
        ("2", "Unified", "2048K", "3,35"), ("3", "Unified", "107520K", "0-31,32-63"),
    )  # fmt: skip
    assert caches.found(tree, 3) == Caches(48 << 10, 2 << 20)


def test_a_second_level_that_four_cores_share(tmp_path: Path) -> None:
    tree = _tree(tmp_path, ("1", "Data", "64K", "3"), ("2", "Unified", "2M", "0-3"))
    assert caches.found(tree, 3) == Caches(64 << 10, 1 << 20)


@pytest.mark.parametrize(
    "entry",
    [
        ("2", "Unified", "", "3"), ("2", "Unified", "lots", "3"), ("2", "Unified", "0K", "3"),
        ("2", "Unified", "999999999M", "3"), ("2", "Unified", "-4K", "3"),
        ("9", "Unified", "1024K", "3"), ("2", "", "512K", "3"), ("2", "Unified", "8K", "0-99999"),
    ],
)  # fmt: skip
def test_what_is_no_size_is_the_default(tmp_path: Path, entry: tuple[str, str, str, str]) -> None:
    assert caches.found(_tree(tmp_path, entry), 3) == DEFAULT


def test_lists_that_are_none_count_one(tmp_path: Path) -> None:
    tree = _tree(tmp_path, ("2", "Unified", "512K", "all of them"))
    assert caches.found(tree, 3).second == 512 << 10


def test_no_tree_and_binary_files(tmp_path: Path) -> None:
    assert caches.found(tmp_path, 3) == DEFAULT
    tree = _tree(tmp_path, ("2", "Unified", "512K", "3"))
    (tree / "cpu3" / "cache" / "index0" / "size").write_bytes(b"\xff\xfe")
    assert caches.found(tree, 3) == DEFAULT


def test_the_setting_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = from_environment({"UGPU_HOST_CACHES": "49152,2097152"})
    monkeypatch.setattr(caches, "config", lambda: chosen)
    with hcq.open("cpu", threads=1) as device:
        assert device.target.caches == Caches(49152, 2097152)


@pytest.mark.parametrize("text", ["1", "48K,2M", "49152", "49152,1024", "0,0", "1,2,3", "-1,5"])
def test_settings_that_are_no_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="UGPU_HOST_CACHES"):
        from_environment({"UGPU_HOST_CACHES": text})
