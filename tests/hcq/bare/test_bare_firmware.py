"""Firmware files: folders in order, plain and packed, within their limit, named in errors."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.hcq.bare.firmware import FirmwarePackage, FirmwareSource
from ugpu.hcq.errors import FirmwareInvalid, FirmwareNotFound, MissingDependency

PACKAGE = FirmwarePackage("toy", ("firmware-toy", "toy-blobs"), 1000)


def source(*folders: Path) -> FirmwareSource:
    return FirmwareSource(PACKAGE, None, folders)


def zstd(data: bytes, *, stated: bool = True) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs the extra ugpu[firmware]")
    return bytes(zstandard.ZstdCompressor(write_content_size=stated).compress(data))


def test_folders_in_order_plain_and_packed(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "plain.bin").write_bytes(b"plain")
    (tmp_path / "packed.bin.xz").write_bytes(lzma.compress(b"packed"))
    (tmp_path / "toy" / "plain.bin").write_bytes(b"below")
    found = source(tmp_path / "nothing here", tmp_path)
    assert found.read("plain.bin") == b"below"
    assert found.read("packed.bin") == b"packed"
    with pytest.raises(FirmwareNotFound, match=r"other\.bin.*firmware-toy or toy-blobs") as raised:
        found.read("other.bin")
    assert str(tmp_path / "toy") in str(raised.value.facts["searched"])


@pytest.mark.parametrize("stated", [True, False])
def test_zstd(tmp_path: Path, stated: bool) -> None:
    (tmp_path / "packed.bin.zst").write_bytes(zstd(b"packed", stated=stated))
    assert source(tmp_path).read("packed.bin") == b"packed"


def test_each_image_is_told_once(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []
    images = {"toy/a.bin": b"a"}
    given_set = FirmwareSource(PACKAGE, images, (), lambda *what: seen.append(what))
    assert given_set.read("a.bin") == b"a" and seen == [("a.bin", b"a")]
    with pytest.raises(FirmwareNotFound, match=r"b\.bin in the given set"):
        given_set.read("b.bin")


@pytest.mark.parametrize("size", [1000, 1001, 100_000])
@pytest.mark.parametrize("kind", ["", ".xz", ".zst", ".zst unstated"])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, size: int, kind: str) -> None:
    data = bytes(size)
    suffix = kind.split()[0] if kind else ""
    if suffix == ".zst":
        packed = zstd(data, stated="unstated" not in kind)
    else:
        packed = lzma.compress(data) if suffix else data
    (tmp_path / f"image.bin{suffix}").write_bytes(packed)
    if size <= PACKAGE.most_bytes:
        assert source(tmp_path).read("image.bin") == data
        return
    with pytest.raises(FirmwareInvalid) as raised:
        source(tmp_path).read("image.bin")
    assert raised.value.facts["file"] == str(tmp_path / f"image.bin{suffix}")
    assert "firmware-toy" in str(raised.value.facts["remedy"])


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_archives_are_refused(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("firmware")
    content = bytes(range(256))
    packed = bytearray(lzma.compress(content) if suffix == ".xz" else zstd(content))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / f"image.bin{suffix}").write_bytes(packed)
    try:
        found = source(folder).read("image.bin")
    except (FirmwareInvalid, MissingDependency) as error:
        assert error.facts
        return
    assert len(found) <= PACKAGE.most_bytes
