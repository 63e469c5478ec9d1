"""The cache of translated kernels: what a key covers, and what a damaged file does."""

from __future__ import annotations

import os
from pathlib import Path

from ugpu.hcq.objects.jit import ObjectCache, key_of, source_files
from ugpu.virtual import shader as emu
from ugpu.virtual.amd import isa

SOURCES = (Path(isa.__file__).parent, emu.PACKAGE)
KEY, *KEYS = (key_of(SOURCES, number) for number in range(21))


def test_a_key_covers_decoder_translator_and_runtime() -> None:
    covered = {(path.parent.name, path.name) for path in source_files(*SOURCES)}
    assert {
        ("decoder", "decode.py"),
        ("translator", "translate.py"),
        ("runtime", "flat.py"),
        ("lanes", "every.py"),
        ("isa", "core.py"),
        ("objects", "jit.py"),
    } <= covered


def test_parts_are_told_apart() -> None:
    assert key_of(SOURCES, "ab", "c") != key_of(SOURCES, "a", "bc")
    assert key_of(SOURCES, "a", b"\x01") == key_of(SOURCES, "a", b"\x01")


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "made when needed")
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"


def test_a_damaged_file_counts_as_absent(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, b"code")
    file = tmp_path / KEY
    for damaged in (file.read_bytes()[:-1] + b"X", b"short"):
        file.write_bytes(damaged)
        assert cache.get(KEY) is None
        assert not file.exists()


def test_the_folder_stays_within_its_limit(tmp_path: Path) -> None:
    for number in range(20):  # each by a process of its own, that writes once
        cache = ObjectCache(tmp_path, limit=1000)
        cache.put(KEYS[number], bytes(100))
        os.utime(tmp_path / KEYS[number], (number, number))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1200
    assert (tmp_path / KEYS[19]).exists() and not (tmp_path / KEYS[0]).exists()


def test_what_is_used_stays(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit=500)
    for number in range(8):
        cache.put(KEYS[number], bytes(50))
        os.utime(tmp_path / KEYS[number], (number, number))
    assert cache.get(KEYS[0]) is not None
    cache.trim()
    assert (tmp_path / KEYS[0]).exists() and not (tmp_path / KEYS[1]).exists()


def test_without_a_folder_nothing_is_kept() -> None:
    cache = ObjectCache(None)
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None
