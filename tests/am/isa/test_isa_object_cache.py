"""The cache of translated kernels: what a key covers, and what a damaged file does."""

from __future__ import annotations

from pathlib import Path

import am.virtual.isa
from hcq.emu.jit import ObjectCache, key_of, source_files

PACKAGE = Path(am.virtual.isa.__file__).parent


def test_a_key_covers_decoder_translator_and_runtime() -> None:
    covered = {(path.parent.name, path.name) for path in source_files(PACKAGE)}
    assert {
        ("decoder", "decode.py"),
        ("translator", "translate.py"),
        ("runtime", "calls.py"),
        ("isa", "core.py"),
        ("emu", "jit.py"),
    } <= covered
    assert not any(folder == "oracle" for folder, _ in covered)


def test_parts_are_told_apart() -> None:
    assert key_of(PACKAGE, "ab", "c") != key_of(PACKAGE, "a", "bc")
    assert key_of(PACKAGE, "a", b"\x01") == key_of(PACKAGE, "a", b"\x01")


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "made when needed")
    assert cache.get("k") is None
    cache.put("k", b"code")
    assert cache.get("k") == b"code"


def test_a_damaged_file_counts_as_absent(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("k", b"code")
    file = tmp_path / "k.o"
    file.write_bytes(file.read_bytes()[:-1] + b"X")
    assert cache.get("k") is None
    file.write_bytes(b"short")
    assert cache.get("k") is None


def test_without_a_folder_nothing_is_kept() -> None:
    cache = ObjectCache(None)
    cache.put("k", b"code")
    assert cache.get("k") is None
