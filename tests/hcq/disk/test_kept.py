"""What compilers made is remembered by all it depends on, and only where a folder is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.hcq.disk import objects as module
from ugpu.hcq.disk.cache import CHECK_EVERY, DiskCache
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.state.config import Config, from_environment


class Compiler:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> bytes:
        self.asked += 1
        return b"object %d" % self.asked


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "compiler.py"
    found.write_text("version 1")
    return found


def use(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """As a new process would, with the setting UGPU_OBJECTS."""
    monkeypatch.setattr(module, "config", lambda: Config(objects_folder=folder))
    module._cache.cache_clear()
    module._content.cache_clear()


def test_nothing_is_kept_unless_a_folder_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, from_environment({}).objects_folder)
    make = Compiler()
    assert [kept(make, source, "text") for _ in range(2)] == [b"object 1", b"object 2"]


def test_the_same_inputs_are_compiled_once_by_all_processes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Compiler()
    for _ in range(2):
        use(monkeypatch, tmp_path / "objects")
        assert kept(make, source, "text", 2) == b"object 1"
        assert kept(make, source, "text", 2) == b"object 1"
    assert kept(make, source, "text", 3) == b"object 2"
    assert kept(make, source, "other", 2) == b"object 3"
    assert kept(make, source, "tex", "t2") == b"object 4"


def test_another_way_of_compiling_is_another_object(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Compiler()
    for text, found in (("version 1", 1), ("version 2", 2), ("version 1", 1)):
        source.write_text(text)
        use(monkeypatch, tmp_path / "objects")
        assert kept(make, source, "text") == b"object %d" % found


def test_an_error_is_not_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> bytes:
        raise RuntimeError("line 1: expected an instruction")

    use(monkeypatch, tmp_path / "objects")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="line 1"):
            kept(refuse, source, "text")
    assert kept(Compiler(), source, "text") == b"object 1"


def test_the_folder_is_bounded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 2000)
    use(monkeypatch, tmp_path / "objects")
    for number in range(600):
        kept(lambda: bytes(100), source, number)
    # One write in CHECK_EVERY looks at the size, as the keys have it: so many may lie above.
    assert len(list((tmp_path / "objects").iterdir())) < 2000 // 100 + 4 * CHECK_EVERY


def test_new_writers_do_not_look_at_a_large_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    real = DiskCache.trim

    def counted(cache: DiskCache) -> None:
        looks.append(tmp_path)
        real(cache)

    monkeypatch.setattr(DiskCache, "trim", counted)
    for number in range(2 * CHECK_EVERY):
        use(monkeypatch, tmp_path / "objects")
        kept(lambda: bytes(100), source, number)
    assert 0 < len(looks) < CHECK_EVERY // 4


def test_the_setting_is_read_from_the_environment() -> None:
    assert from_environment({"UGPU_OBJECTS": "/o"}).objects_folder == Path("/o")
