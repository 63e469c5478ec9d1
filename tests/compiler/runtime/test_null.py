"""`null:<chip>`: compiles, plans and counts as a card of the chip does, and runs nothing.

Judged by the virtual cards: the same program has the same peak of memory, the same kernels and the
same target there. Counts of work are computed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import nn, optim
from ugpu.compiler.files.tensor_file import load, save
from ugpu.compiler.front.jit import jit
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, BadCodeObject, DeviceNotFound, NotSupported, OutOfMemory
from ugpu.hcq.null.device import NullDevice

slow = pytest.mark.slow
CARDS = [
    ("gfx1100", "navi31"),
    pytest.param("sm_90", "gh100", marks=slow),
    pytest.param("gfx1201", "navi48", marks=slow),
    pytest.param("a740", "a740", marks=slow),
]


def training(device: Device) -> None:
    Tensor.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 10)).to(device)
    optimizer = optim.AdamW(model.parameters())
    x = Tensor(np.ones((16, 24), np.float32), device=device)
    y = Tensor(np.arange(16) % 10, device=device)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(4):
        step(x, y).realize()
    device.synchronize()


def blocks(device: Device) -> None:
    x = Tensor.rand(70, 300, device=device)
    held = [(x @ x.T).softmax(-1).realize() for _ in range(3)]
    (held[0] @ held[1]).sum(0).sort()[0].realize()
    del held
    x.cast("float16").reshape(7, 10, 300).max((0, 2)).realize()


@pytest.fixture(params=["gfx1100", "sm_90", "a740"])
def null(request: pytest.FixtureRequest) -> Iterator[NullDevice]:
    with hcq.open(f"null:{request.param}") as device:
        assert isinstance(device, NullDevice)
        yield device


@pytest.mark.parametrize("program", [training, blocks])
@pytest.mark.parametrize(("isa", "chip"), CARDS)
def test_memory_and_kernels_are_those_of_the_card(
    isa: str, chip: str, program: Callable[[Device], None]
) -> None:
    figures = []
    for name in (f"null:{isa}", f"null:{chip}", f"virtual:{chip}"):
        with hcq.open(name) as device:
            program(device)
            figures.append((device.memory_peak(), core_of(device).launches, device.target))
    assert figures[0] == figures[1] == figures[2]
    assert figures[0][0] > 4 * 70 * 70


def test_work_is_counted(null: NullDevice) -> None:
    x = Tensor(np.ones((64, 32), np.float32), device=null)
    assert null.counts(restart=True).uploaded_bytes == 64 * 32 * 4
    (x + 1).realize()
    counts = null.counts(restart=True)
    assert (counts.kernels, counts.flops, counts.moved_bytes) == (1, 64 * 32, 2 * 64 * 32 * 4)
    (x @ x.T).realize()
    counts = null.counts(restart=True)
    assert counts.kernels == 1
    assert counts.flops == 2 * 64 * 32 * 64
    assert counts.code_bytes > 200
    assert null.counts().kernels == 0
    twice = jit(lambda x: (x * 2).sum())
    for _ in range(4):
        twice(x)
    assert null.counts().kernels == 4
    assert null.counts().programs == 3
    with null.queue() as queue:
        queue.copy(x.node.storage.buffer[:512], x.node.storage.buffer[512:1024])
    assert null.counts().copied_bytes == 512


def test_nothing_is_read(null: NullDevice, tmp_path: Path) -> None:
    pending = Tensor.arange(5, device=null) * 2
    readers: list[Callable[[Tensor], Any]] = [
        Tensor.numpy, Tensor.tolist, lambda x: x.sum().item(), lambda x: x.to("cpu"),
        lambda x: bool(x[0]), np.from_dlpack, lambda x: save(tmp_path / "x.npz", {"x": x}),
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(NotSupported, match="runs nothing and stores no elements"):
            read(pending)
    assert "not readable" in repr(pending.realize())
    buffer = null.alloc(64)
    with pytest.raises(NotSupported, match="runs nothing"):
        buffer.copy_to(np.empty(4, np.uint8))


def test_what_does_not_fit_is_out_of_memory() -> None:
    with hcq.open("null:navi31") as device:
        with pytest.raises(OutOfMemory, match="null:navi31"):
            Tensor.zeros(7 << 30, device=device).contiguous().realize()
        assert device.memory_peak() == 0
        half = Tensor.zeros(3 << 30, device=device).contiguous().realize()
        with pytest.raises(OutOfMemory):
            (half + 1).realize()
        del half
        Tensor.ones(3 << 30, device=device).contiguous().realize()
        assert 0 <= device.memory_peak() - (12 << 30) < 4096  # numbers read from memory
    with hcq.open("null:navi31", memory_bytes=1 << 20) as device, pytest.raises(OutOfMemory):
        Tensor.zeros(1 << 20, device=device).contiguous().realize()


def test_two_null_devices_are_planned_together() -> None:
    with hcq.open("null:gfx1100") as one, hcq.open("null:gfx1100") as two:
        x = Tensor(np.ones((6, 4), np.float32), device=one).shard([one, two], 0)
        (x @ x.T).sum(0).reduced().realize()
        assert one.memory_peak() > 0 < two.memory_peak()
        assert two.counts().copied_bytes > 0
        with pytest.raises(NotSupported, match="runs nothing"):
            x.numpy()
        step = jit(lambda x: (x @ x.T).sum(0).reduced())
        for _ in range(3):
            step(x)
        one.counts(restart=True)
        step(x)
        assert 0 < one.counts().kernels < step.kernels


def test_a_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save(path, {"w": Tensor(np.ones((256, 256), np.float32), device="cpu")})
    with hcq.open("null:gfx1100") as device:
        weight = load(path, device=device)["w"]
        (weight @ weight).realize()
        assert device.memory_peak() == 2 * 256 * 256 * 4
        assert device.counts().uploaded_bytes == 0


def test_names_and_objects_are_checked() -> None:
    with pytest.raises(DeviceNotFound, match=r"did you mean .*null:gfx1100.*\?.*null:sm_90"):
        hcq.open("null:gfx110")
    with pytest.raises(DeviceNotFound, match=r"did you mean .*null:gfx1100.*\?"):
        hcq.open("gfx1100")
    with pytest.raises(BadArgument, match="memory_bytes"):
        hcq.open("null:gfx1100", memory_bytes=0)
    with pytest.raises(BadArgument, match="threads"):
        hcq.open("null:gfx1100", threads=1)
    for name in ("gfx1100", "sm_90", "a740"):
        with hcq.open(f"null:{name}") as device, pytest.raises(BadCodeObject):
            device.load(b"\x7fELF" + bytes(60))
