"""Caches of code on disk: what an entry is bound to, and whose folders and files are trusted."""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.disk import cache as disk_cache
from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.disk.cache import HEAD, DiskCache
from ugpu.hcq.errors import BadArgument

KEY, OTHER = DiskCache.key("a kernel"), DiskCache.key("another")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DiskCache(tmp_path).put(KEY, b"object")
    return tmp_path


def test_an_entry_under_the_name_of_another_is_made_again(folder: Path) -> None:
    cache = DiskCache(folder)
    cache.put(OTHER, b"other object")
    (folder / KEY).replace(folder / OTHER)
    assert cache.get(OTHER) is None and not (folder / OTHER).exists()
    cache.put(OTHER, b"other object")
    assert cache.get(OTHER) == b"other object"


def test_folders_are_made_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DiskCache(tmp_path / "cache" / "kernels").put(KEY, b"object")
    finally:
        os.umask(before)
    made = tmp_path / "cache" / "kernels"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / KEY).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(mode)
    cache = DiskCache(folder)
    with caplog.at_level(logging.WARNING):
        assert cache.get(KEY) is None and cache.get(KEY) is None
    assert [r.message for r in caplog.records] == [
        f"not used: {folder} can be written by others (mode {mode:04o}); chmod go-w {folder}"
    ]  # once
    cache.put(OTHER, b"object")
    cache.forget(KEY)
    cache.trim()
    assert [path.name for path in folder.iterdir()] == [KEY]
    folder.chmod(0o755)
    assert cache.get(KEY) == b"object"


def test_a_folder_has_a_limited_number_of_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "MOST", 3)
    cache = DiskCache(folder)
    keys = [DiskCache.key(str(number)) for number in range(6)]
    for age, key in enumerate(keys):
        cache.put(key, b"object")
        os.utime(folder / key, (1000 - age, 1000 - age))
    cache.trim()
    assert {path.name for path in folder.iterdir()} == {KEY, *keys[:2]}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_write_is_made_again(folder: Path, mode: int) -> None:
    (folder / KEY).chmod(mode)
    assert DiskCache(folder).get(KEY) is None and not (folder / KEY).exists()


def test_another_user_s_folder_and_files_are_not_used(tmp_path: Path) -> None:
    """By the numbers alone: only the superuser can make such files."""
    ours = os.geteuid()
    theirs = os.stat_result((stat.S_IFDIR | 0o700, 1, 1, 1, ours + 1, 0, 0, 0, 0, 0))
    said = ownfolder.distrust(theirs, tmp_path)
    assert f"belongs to user {ours + 1}, expected {ours}" in said and "UGPU_CACHE" in said
    assert not ownfolder.distrust(tmp_path.stat(), tmp_path)


def test_the_owner_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, ours = DiskCache(folder), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    assert cache.get(KEY) is None
    cache.put(OTHER, b"object")
    monkeypatch.undo()
    assert [path.name for path in folder.iterdir()] == [KEY] and cache.get(KEY) == b"object"


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling", "folder", "socket", "sparse"])
def test_what_is_no_regular_file_is_neither_read_nor_waited_for(folder: Path, kind: str) -> None:
    path, cache = folder / KEY, DiskCache(folder, limit=1 << 20)
    elsewhere = path.replace(folder.parent / f"{folder.name}-entry")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("link", "dangling"):
        path.symlink_to(elsewhere)
        if kind == "dangling":
            elsewhere.unlink()
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.touch(0o600)
        os.truncate(path, 1 << 40)
    assert cache.get(KEY) is None
    if kind != "folder":
        assert not os.path.lexists(path)
        cache.put(KEY, b"object")
        assert cache.get(KEY) == b"object"
    if kind == "link":
        assert elsewhere.exists()


def test_an_entry_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    DiskCache(tmp_path).put(KEY, bytes(100))
    size = (tmp_path / KEY).stat().st_size
    assert DiskCache(tmp_path, limit=size).get(KEY) == bytes(100)
    assert DiskCache(tmp_path, limit=size - 1).get(KEY) is None


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("text")
    os.utime(tmp_path / "thesis.tex", (1, 1))
    (tmp_path / "new-0_a").write_bytes(bytes(1000))  # of a writer that was killed
    os.utime(tmp_path / "new-0_a", (2, 2))
    DiskCache(tmp_path, limit=500).put(KEY, bytes(100))
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", KEY}


@pytest.mark.parametrize("key", ["", "k", "../" + KEY, KEY.upper(), KEY + "0"])
def test_keys_are_hashes(tmp_path: Path, key: str) -> None:
    for use in (DiskCache(tmp_path).get, DiskCache(None).forget):
        with pytest.raises(BadArgument, match=r"a key of DiskCache\.key"):
            use(key)


def test_a_writer_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    DiskCache(tmp_path).put(KEY, b"object")
    assert list(tmp_path.iterdir()) == []


@given(data=st.binary(max_size=200), damage=st.data())
def test_only_what_was_kept_comes_back(data: bytes, damage: st.DataObject) -> None:
    """Entries cut, lengthened, changed anywhere, mixed with another, or of no meaning at all."""
    with tempfile.TemporaryDirectory() as name:
        cache, path = DiskCache(Path(name)), Path(name) / KEY
        cache.put(OTHER, data + b"x")
        cache.put(KEY, data)
        whole, other = path.read_bytes(), (Path(name) / OTHER).read_bytes()
        place = damage.draw(st.integers(0, len(whole) - 1))
        changed = damage.draw(
            st.one_of(
                st.binary(max_size=300),
                st.just(whole[:place]),
                st.binary(min_size=1, max_size=8).map(lambda more: whole + more),
                st.integers(1, 255).map(
                    lambda bits: whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :]
                ),
                st.just(other),
                st.just(whole[:HEAD] + other[HEAD:]),
                st.just(other[:HEAD] + whole[HEAD:]),
            )
        )
        path.write_bytes(changed)
        assert cache.get(KEY) is None and not path.exists()
        cache.put(KEY, data)
        assert cache.get(KEY) == data
