"""What a reset of NVIDIA's channels is proven by: copies and a kernel with known results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support import holdings
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError, MissingDependency, OutOfMemory
from ugpu.nv.code import source
from ugpu.nv.work import proof

CHIPS = ("tu102", "gh100", "gb202")
RAN = "compute, copy 0, copy 1"


@pytest.fixture(params=CHIPS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as opened:
        yield opened


def fill(device: Device, value: int) -> None:
    with device.alloc(64) as buffer:
        buffer.fill(value)
        assert (buffer.numpy(np.uint32) == value).all()


def _held(device: Device) -> holdings.Holdings:
    return replace(holdings.settled(device), kinds=Counter())


def test_all_channels_are_proven(device: Device) -> None:
    device.reset("block")  # what stays, stays from here on
    before = _held(device)
    found = device.reset("block").attempts[-1].proof
    right = {"ran": RAN, "copy": "right on copy 0, copy 1", "kernel": "right on compute"}
    assert found == right
    assert _held(device) == before
    fill(device, 1)


def test_a_kernel_with_a_wrong_result_is_no_proof(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(proof, "_PTX", proof._PTX.replace(b"%r2, 3", b"%r2, 4"))
        with pytest.raises(ChipError, match="stored 0x5eed0004 in thread 1, expected 0x5eed0003"):
            device.reset("block")
    device.reset("block")
    fill(device, 2)


def test_without_an_assembler_copies_are_the_proof(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> bytes:
        raise MissingDependency("no assembler of PTX is installed")

    monkeypatch.setattr(source, "assemble", missing)
    found = device.reset("block").attempts[-1].proof
    assert found["copy"] == "right on copy 0, copy 1"
    assert "no assembler" in str(found["kernel"])


def test_without_memory_the_channels_signals_are_the_proof(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise OutOfMemory("no memory is left")

    monkeypatch.setattr(proof, "allocate", full)
    found = device.reset("block").attempts[-1].proof
    assert found["ran"] == RAN and "no memory is left" in str(found["kernel"])
