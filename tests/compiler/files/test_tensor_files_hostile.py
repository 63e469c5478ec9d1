"""Damaged and malicious files of tensors end in one clear error."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ugpu
from tests.support.compiler import tensor_files
from ugpu.compiler.files.pickles import unpickle
from ugpu.compiler.files.tensor_file import TensorFile
from ugpu.hcq.errors import BadFile, NotSupported, UgpuError

FILES = {kind: make() for kind, make in tensor_files.ALL.items()}
Change = tuple[str, int, int]
changes = st.lists(
    st.tuples(
        st.sampled_from(("set", "cut", "add", "word", "drop")),
        st.integers(0, 4000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)


def changed(data: bytes, steps: list[Change]) -> bytes:
    """Return data with bytes set, inserted, dropped, cut off, or replaced by a huge number."""
    for what, place, value in steps:
        at = place % max(1, len(data))
        if what == "set":
            data = data[:at] + bytes([value]) + data[at + 1 :]
        elif what == "cut":
            data = data[:at]
        elif what == "add":
            data = data[:at] + bytes([value]) * (1 + value % 9) + data[at:]
        elif what == "drop":
            data = data[:at] + data[at + 1 + value % 9 :]
        else:
            data = data[:at] + struct.pack("<Q", (1 << value % 64) - 1) + data[at + 8 :]
    return data


@pytest.mark.parametrize("kind", FILES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=changes)
def test_a_damaged_file_loads_or_is_refused(kind: str, tmp_path: Path, steps: list[Change]) -> None:
    path = tmp_path / "file"
    path.write_bytes(changed(FILES[kind], steps))
    try:
        ugpu.load(path, device="cpu")
    except UgpuError as error:
        assert str(error)


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind not in ("tar",)])
def test_every_truncation_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = FILES[kind]
    for size in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:size])
        with pytest.raises(BadFile):
            ugpu.load(path, device="cpu")


def _safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _f32(shape: Any, begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "a hole": _safetensors({"a": _f32([1], 4, 8)}, bytes(8)),
    "an overlap": _safetensors({"a": _f32([1], 0, 4), "b": _f32([1], 2, 6)}, bytes(6)),
    "bytes behind": _safetensors({"a": _f32([1], 0, 4)}, bytes(5)),
    "a negative size": _safetensors({"a": _f32([-1, -1], 0, 4)}, bytes(4)),
    "a float": _safetensors({"a": _f32([1.0], 0, 4)}, bytes(4)),
    "a bool": _safetensors({"a": _f32([True], 0, 4)}, bytes(4)),
    "an overflow": _safetensors({"a": _f32([1 << 32, 1 << 32], 0, 4)}, bytes(4)),
    "an unknown type": _safetensors({"a": _f32([1], 0, 4, "f32")}, bytes(4)),
    "an end before the begin": _safetensors({"a": _f32([0], 4, 0)}, bytes(4)),
    "metadata of numbers": _safetensors({"__metadata__": {"a": 1}}),
    "a list": _safetensors(b"{}".replace(b"{}", b"{[]}")),
    "deep nesting": _safetensors(b'{"a":' + b"[" * 100_000),
    "a size beyond the file": (1 << 20).to_bytes(8, "little") + b"{}",
}


@pytest.mark.parametrize("what", HEADERS)
def test_invalid_safetensors(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(HEADERS[what])
    with pytest.raises(BadFile):
        TensorFile(path, device="cpu")


def _gguf(keys: bytes = b"", count: int = 0, tensors: bytes = b"", number: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, number, count) + keys + tensors


def _key(kind: int, value: bytes, name: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


GGUF = {
    "an array without end": _gguf(_key(9, struct.pack("<IQ", 4, 1 << 40)), 1),
    "strings without end": _gguf(_key(9, struct.pack("<IQ", 8, 1 << 40)), 1),
    "nested arrays": _gguf(_key(9, struct.pack("<IQ", 9, 1) * 10_000), 1),
    "a text without end": _gguf(_key(8, struct.pack("<Q", 1 << 62)), 1),
    "keys without end": _gguf(b"", 1 << 60),
    "tensors without end": _gguf(number=1 << 60),
    "an alignment of 0": _gguf(_key(4, bytes(4), b"general.alignment"), 1),
    "an odd alignment": _gguf(_key(4, struct.pack("<I", 24), b"general.alignment"), 1),
    "a bool of 7": _gguf(_key(7, b"\7"), 1),
    "an unknown type": _gguf(_key(77, bytes(8)), 1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "a key twice": _gguf(_key(7, b"\1") * 2, 2),
    "text not UTF-8": _gguf(_key(8, struct.pack("<Q", 1) + b"\xff"), 1),
    "a huge tensor": _gguf(
        tensors=struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0),
        number=1,
    ),
    "a row that is no multiple of its block": _gguf(
        tensors=struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 33, 8, 0), number=1
    ),
}


@pytest.mark.parametrize("what", GGUF)
def test_invalid_gguf(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF[what])
    with pytest.raises(BadFile):
        TensorFile(path, device="cpu")


def refuse(problem: str) -> Any:
    raise BadFile(problem)


PICKLES = {
    "a huge memo index": b"\x80\x02}r\xff\xff\xff\x0f.",
    "a function": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00lsR.",
    "a function by its protocol 4 name": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
    "an instance": b"\x80\x02(cos\nsystem\no.",
    "an extension": b"\x80\x02\x82\x01.",
    "attributes of a list": b"\x80\x02]}b.",
    "a storage of no size": b"\x80\x02(X\x07\x00\x00\x00storageNNNNtQ.",
    "a text without end": b"\x80\x02X\xff\xff\xff\x7f",
    "an empty stack": b"\x80\x02.",
    "no end": b"\x80\x02N",
}


@pytest.mark.parametrize("what", PICKLES)
def test_pickles_execute_nothing(what: str) -> None:
    if what == "a huge memo index":
        assert unpickle(io.BytesIO(PICKLES[what]), refuse) == {}  # a dict, not an array
        return
    with pytest.raises(BadFile):
        unpickle(io.BytesIO(PICKLES[what]), refuse)


def _with_object(pickled: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/data/0", bytes(8))
    return file.getvalue()


NESTED = {
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "100,000 lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
}


@pytest.mark.parametrize("what", NESTED)
def test_nested_objects_of_a_checkpoint(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(_with_object(NESTED[what]))
    with pytest.raises(BadFile, match="nested"):
        ugpu.load(path, device="cpu")


def test_a_shared_part_is_visited_once(tmp_path: Path) -> None:
    pickled = b"\x80\x02]q\x00" + b"".join(
        b"(" + b"h" + bytes([n]) + b"h" + bytes([n]) + b"tq" + bytes([n + 1]) for n in range(60)
    )
    path = tmp_path / "m.pt"
    path.write_bytes(_with_object(pickled + b"."))
    item = ugpu.load(path, device="cpu")  # 2 ** 60 paths
    assert item[0] is item[1]


def test_what_is_not_a_file_of_tensors(tmp_path: Path) -> None:
    for data in (b"", b"hello world", bytes(600), b"PK\3\4" + bytes(40)):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(BadFile):
            ugpu.load(tmp_path / "m", device="cpu")
    with pytest.raises(BadFile, match="regular file"):
        ugpu.load(tmp_path, device="cpu")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadFile, match="regular file"):
        ugpu.load(tmp_path / "fifo", device="cpu")
    with pytest.raises(FileNotFoundError):
        ugpu.load(tmp_path / "none", device="cpu")


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(FILES["safetensors"])
    with TensorFile(path, device="cpu") as file:
        os.truncate(path, len(FILES["safetensors"]) - 3)
        with pytest.raises(BadFile, match="became shorter"):
            file.load()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [["w.npy", ""], [""]])
def test_members_without_a_name(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), tensor_files.npy())
    with pytest.raises(BadFile, match="a member has no name"):
        ugpu.load(path, device="cpu")


def test_members_compressed_in_other_ways(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("w.npy", tensor_files.npy())
    with pytest.raises(NotSupported, match="compression"):
        ugpu.load(path, device="cpu")
