"""Files of tensors: each format read and written, against the formats' own packages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.compiler import tensor_files
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, float8
from ugpu.compiler.files.blocks import BLOCKS, decoder
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, Closed, MissingDependency, NotSupported

device = device_fixture("cpu", "virtual:navi31")
W = tensor_files.W


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", tensor_files.ALL)
def test_a_file_of_each_format_gives_its_tensors(kind: str, device: Device, tmp_path: Path) -> None:
    tensors = ugpu.load(written(tmp_path, "file", tensor_files.ALL[kind]()), device=device)
    w = tensors if kind == "npy" else tensors["w.npy" if kind == "tar" else "w"]
    assert w.device is device
    assert np.array_equal(w.numpy(), W)
    if kind == "gguf":
        assert np.array_equal(tensors["q"].numpy(), np.arange(-16, 16) * np.float32(0.5))
    if kind in ("checkpoint", "legacy"):
        assert tensors["n"] == [1, (2, "x")]
    if kind == "tar":
        assert tensors["text"].numpy().tobytes() == b"hello"


def test_a_tensor_is_read_alone_and_a_closed_file_refuses(device: Device, tmp_path: Path) -> None:
    path = written(tmp_path, "m.safetensors", tensor_files.safetensors())
    with ugpu.TensorFile(path, device=device) as file:
        assert (file.format, list(file), file.metadata) == (
            "safetensors", ["w", "h"], {"made": "by hand"},
        )  # fmt: skip
        assert file.entries["h"].shape == (2,)
        half = file["h"]
        with pytest.raises(KeyError, match="did you mean h"):
            file["hh"]
    with pytest.raises(Closed):
        file["h"]
    assert half.numpy().tolist() == [1.5, -2]


def test_tensors_of_one_file_are_assigned_apart(device: Device, tmp_path: Path) -> None:
    path = written(tmp_path, "m.safetensors", tensor_files.safetensors())
    tensors = ugpu.load(path, device=device)
    tensors["w"][...] = 7
    assert tensors["h"].numpy().tolist() == [1.5, -2]
    assert (tensors["w"].numpy() == 7).all()
    del tensors["h"]  # the memory stays while a part of it is used
    assert (tensors["w"].numpy() == 7).all()


def test_memory_that_is_not_mapped_is_filled_in_windows(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ugpu.compiler.files.placing.STAGING", 1024)
    monkeypatch.setattr("ugpu.compiler.files.placing.BLOCK", 9000)
    random = np.random.default_rng(1)
    arrays = {f"t{n}": random.random(3 + 97 * n, np.float32) for n in range(12)}
    path = tmp_path / "m.safetensors"
    ugpu.save(path, {name: Tensor(array, device=device) for name, array in arrays.items()})
    for name, tensor in ugpu.load(path, device=device).items():
        assert np.array_equal(tensor.numpy(), arrays[name]), name


def test_all_tensors_are_read_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    ugpu.save(path, {f"t{n}": Tensor.ones(5) for n in range(300)})
    calls: list[int] = []
    preadv = os.preadv

    def counted(*given: Any) -> int:
        calls.append(1)
        return preadv(*given)

    monkeypatch.setattr(os, "preadv", counted)
    assert len(ugpu.load(path, device="cpu")) == 300
    assert len(calls) == 1


def test_a_model_in_several_files(tmp_path: Path) -> None:
    ugpu.save(tmp_path / "a.safetensors", {"x": Tensor([1.0])})
    ugpu.save(tmp_path / "b.safetensors", {"y": Tensor([2.0])})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    path = written(tmp_path, "model.safetensors.index.json", json.dumps(index).encode())
    tensors = ugpu.load(path)
    assert [tensors[name].item() for name in ("x", "y")] == [1, 2]
    index["weight_map"]["z"] = "b.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(BadFile, match="lack 1 tensors"):
        ugpu.load(path)
    path.write_text(json.dumps({"weight_map": {"x": "../a.safetensors"}}))
    with pytest.raises(BadFile, match="same folder"):
        ugpu.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    ugpu.save(path, Tensor([1.0]))
    with pytest.raises(BadArgument, match="no bfloat16"):
        ugpu.save(path, Tensor([1.0]).bfloat16())
    assert ugpu.load(path).tolist() == [1]
    assert [each.name for each in tmp_path.iterdir()] == ["m.npy"]
    for name, tensors in (("m.bin", {}), ("m.npy", {}), ("m.npz", Tensor([1.0]))):
        with pytest.raises(BadArgument, match="save: "):
            ugpu.save(tmp_path / name, tensors)


def test_a_checkpoint_that_names_a_class_is_refused(tmp_path: Path) -> None:
    data = tensor_files.legacy().replace(b"ctorch\nFloatStorage", b"cposix\nsystemStorage")
    with pytest.raises(BadFile):
        ugpu.load(written(tmp_path, "m.pt", data))
    harmful = tensor_files.legacy().replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9")
    with pytest.raises(BadFile, match=r"_rebuild_tensor_v9, which is not allowed"):
        ugpu.load(written(tmp_path, "m.pt", harmful))


# ---- judged by the formats' own packages ---------------------------------------------------------


def test_safetensors_both_ways_with_its_own_package(device: Device, tmp_path: Path) -> None:
    own = pytest.importorskip("safetensors.numpy", reason="the package safetensors is the judge")
    random = np.random.default_rng(2)
    arrays = {
        name: (random.random((3, 5)) * 100).astype(name)
        for name in ("float32", "float16", "int64", "uint8", "int16", "bool", "uint32")
    }
    arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32)}
    own.save_file(arrays, tmp_path / "a.safetensors", metadata={"k": "v"})
    tensors = ugpu.load(tmp_path / "a.safetensors", device=device)
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        found = tensors[name].numpy()
        assert found.dtype == array.dtype and np.array_equal(found, array), name
    ugpu.save(tmp_path / "b.safetensors", tensors, metadata={"k": "v"})
    back = own.load_file(tmp_path / "b.safetensors")
    assert all(np.array_equal(back[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("kind", float8.FORMATS)
def test_float8_in_files(kind: str, device: Device, tmp_path: Path) -> None:
    own = pytest.importorskip("safetensors.torch", reason="a judge that needs PyTorch too")
    torch = pytest.importorskip("torch", reason="PyTorch is the judge")
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    given = torch.from_numpy(codes).view(getattr(torch, kind))
    torch.save({"w": given}, tmp_path / "m.pt")
    own.save_file({"w": given}, tmp_path / "a.safetensors")
    for file in ("m.pt", "a.safetensors"):
        tensor = ugpu.load(tmp_path / file, device=device)["w"]
        assert tensor.dtype.name == kind
        assert np.array_equal(tensor.bitcast("uint8").numpy(), codes)
    ugpu.save(tmp_path / "b.safetensors", {"w": tensor})
    back = own.load_file(tmp_path / "b.safetensors")["w"]
    assert back.dtype == given.dtype and np.array_equal(back.view(torch.uint8).numpy(), codes)


def test_checkpoints_of_pytorch(device: Device, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the judge")
    torch.manual_seed(1)
    shared = torch.randn(10)
    state = {
        "turned": torch.randn(4, 3).t(), "strided": shared[2:8:2], "rest": shared[5:],
        "double": torch.randn(3).double(), "repeated": torch.randn(1, 3).expand(5, 3),
        "brain": torch.randn(3).bfloat16(), "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "empty": torch.zeros(0, 3), "overlap": shared.unfold(0, 3, 1), "flag": torch.tensor(True),
    }  # fmt: skip
    for zipped in (True, False):
        path = tmp_path / "m.pt"
        torch.save({"state": state, "epoch": 3}, path, _use_new_zipfile_serialization=zipped)
        tensors = ugpu.load(path, device=device)
        assert tensors["epoch"] == 3
        for name, tensor in state.items():
            wanted = tensor.detach()
            wanted = wanted.float() if wanted.is_floating_point() else wanted
            assert np.array_equal(tensors["state"][name].numpy(), wanted.numpy()), name
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(BadFile, match=r"torch.nn.modules.linear.Linear, which is not allowed"):
        ugpu.load(path, device=device)


def test_gguf_that_we_write_is_read_by_its_own_package(device: Device, tmp_path: Path) -> None:
    own = pytest.importorskip("gguf", reason="the package gguf is the judge")
    keys = {"general.architecture": "llama", "a": ["x", "yé"], "n": [1, 2], "i": 7, "f": 0.5,
            "b": True, "m": -3}  # fmt: skip
    w = Tensor(W, device=device)
    ugpu.save(tmp_path / "m.gguf", {"w": w, "half": w.half()}, metadata=keys)
    reader = own.GGUFReader(tmp_path / "m.gguf")
    found = {name: field.contents() for name, field in reader.fields.items()}
    assert {name: found[name] for name in keys} == keys
    assert [np.array_equal(tensor.data, W) for tensor in reader.tensors] == [True, True]


@pytest.mark.parametrize("kind", BLOCKS)
def test_quantised_blocks_equal_the_package_gguf(kind: int, device: Device) -> None:
    quants = pytest.importorskip("gguf.quants", reason="the package gguf is the judge")
    block = BLOCKS[kind]
    if block.name == "Q1_0":
        pytest.skip("the package gguf cannot dequantise Q1_0")
    own = quants.GGMLQuantizationType(kind)
    raw = np.random.default_rng(kind).integers(0, 256, (24, block.bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = quants.dequantize(raw, own).reshape(24, block.elements)
    usual = np.isfinite(wanted).all(1)  # random scales may be infinite or NaN
    assert usual.sum() > 10
    found = decoder(block, wanted.shape)(Tensor(raw, device=device)).numpy()
    assert np.array_equal(found[usual], wanted[usual])


def test_types_that_tensors_do_not_have(tmp_path: Path) -> None:
    header = json.dumps({"z": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    path = written(tmp_path, "m", len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(NotSupported, match="C64"):
        ugpu.load(path)


def test_lattices_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf.quants", None)
    with pytest.raises(MissingDependency, match=r"ugpu\[gguf\]"):
        BLOCKS[16].values(Tensor(np.zeros((1, 66), np.uint8)))
