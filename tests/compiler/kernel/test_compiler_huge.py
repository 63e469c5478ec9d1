"""Tensors beyond 2^31 elements: computed where few of them are asked for, and once whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

SIDE = 1 << 17  # squared, 2^34 elements


@pytest.fixture(scope="module", params=["cpu", "virtual:navi31"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(request.param) as opened:
        use_cache(opened, None)
        yield opened


def repeated(device: Device) -> Tensor:
    """[SIDE, SIDE], row i full of i: 2^34 elements of 512 KiB."""
    return Tensor(np.arange(SIDE, dtype=np.float32), device=device).unsqueeze(1).expand(SIDE, SIDE)


def test_positions_beyond_2_31(device: Device) -> None:
    flat = repeated(device).reshape(SIDE * SIDE)
    assert flat[-1].item() == SIDE - 1
    assert flat[SIDE * SIDE - SIDE - 1 : SIDE * SIDE - SIDE + 1].tolist() == [SIDE - 2, SIDE - 1]
    step = (1 << 31) - 5
    places = range(SIDE * SIDE - 1, -1, -step)
    assert flat[::-step].tolist() == [place // SIDE for place in places]
    rows = repeated(device).reshape(1 << 10, 1 << 24)
    assert rows[:, -1].tolist() == [((row + 1 << 24) - 1) // SIDE for row in range(1 << 10)]


def test_numbers_beyond_2_31(device: Device) -> None:
    counted = Tensor.arange(1 << 40, device=device)
    assert (counted * 3 + 1)[-2:].tolist() == [3 * ((1 << 40) - 2) + 1, 3 * ((1 << 40) - 1) + 1]
    assert counted[:: 1 << 38].tolist() == [n << 38 for n in range(4)]
    one = Tensor(np.array([1]), device=device)
    assert (counted[5 << 33 : (5 << 33) + 2] + one).tolist() == [(5 << 33) + 1, (5 << 33) + 2]


def test_pads_and_joints_beyond_2_31(device: Device) -> None:
    far = 1 << 33
    padded = Tensor(np.array([7.0, 8.0], np.float32), device=device).pad(((far, far),), 1.0)
    assert padded[far - 1 : far + 3].tolist() == [1, 7, 8, 1] and padded[-1].item() == 1
    joined = Tensor.cat([repeated(device), repeated(device) * 2], 0).reshape(2 * SIDE * SIDE)
    start = SIDE * SIDE
    assert joined[start - 1 : start + 1].tolist() == [SIDE - 1, 0]
    assert joined[-2:].tolist() == [2 * SIDE - 2] * 2


def test_indices_from_memory_beyond_2_31(device: Device) -> None:
    """Also what lies outside: it reads nothing, and gives zero."""
    flat, count = repeated(device).reshape(SIDE * SIDE), SIDE * SIDE
    where = np.array([count - 1, -1, count, -count - 1, 1 << 33, -(1 << 63), (1 << 63) - 1])
    found = flat[Tensor(where, device=device)].tolist()
    assert found == [SIDE - 1, SIDE - 1, 0, 0, (1 << 33) // SIDE, 0, 0]


def _flipped(size: int, place: int) -> int:
    return size - 1 - place


def _stepped(start: int, step: int, place: int) -> int:
    return start + place * step


def _turned(rows: int, columns: int, place: int) -> int:
    return place % rows * columns + place // rows


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_movement_of_a_counted_tensor(cpu: Device, data: st.DataObject) -> None:
    """Each element of a counted array is its position: followed through any movement."""
    bits = data.draw(st.integers(32, 44))
    tensor = Tensor.arange(1 << bits, device=cpu)
    maps: list[Callable[[int], int]] = []  # each from positions after a step to positions before it
    for _ in range(data.draw(st.integers(1, 4))):
        size = tensor.numel()
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            tensor = tensor[::-1]
            maps.append(partial(_flipped, size))
        elif kind == 1:
            start, step = data.draw(st.integers(0, size // 3)), data.draw(st.integers(1, 7))
            tensor = tensor[start::step]
            maps.append(partial(_stepped, start, step))
        elif kind == 2:
            low = data.draw(st.integers(1, 1 << 20))
            columns = size // low
            tensor = tensor[: low * columns].reshape(low, columns).transpose()
            tensor = tensor.reshape(low * columns)
            maps.append(partial(_turned, low, columns))
        else:
            before = data.draw(st.integers(0, 1 << 33))
            tensor = tensor.pad(((before, 3),), 0)[before : before + size]
    size = tensor.numel()
    for place in {0, size - 1, data.draw(st.integers(0, size - 1))}:
        wanted = place
        for back in reversed(maps):
            wanted = back(wanted)
        assert tensor[place].item() == wanted


@pytest.mark.parametrize("pieces", [2, 16, 64])
def test_pieces_are_not_added_up(cpu: Device, pieces: int) -> None:
    """cat and stack are one kernel that chooses, however many pieces."""
    parts = [Tensor(np.full((4, 3), n, np.float32), device=cpu) for n in range(pieces)]
    for joined in (Tensor.cat(parts, 0), Tensor.stack(parts, 1)):
        (group,) = schedule([joined.node])
        assert "add" not in format_kernel(lower(express(group), cpu.target))
        arrays = [part.numpy() for part in parts]
        whole = np.concatenate(arrays, 0) if joined.ndim == 2 else np.stack(arrays, 1)
        assert np.array_equal(joined.numpy(), whole)


def free_memory() -> int:
    """Bytes that programs may still take: /proc/meminfo (proc_meminfo(5)), MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.slow
@pytest.mark.skipif(free_memory() < 8 << 30, reason="takes 5 GiB of memory")
def test_a_whole_array_beyond_2_31(cpu: Device) -> None:
    count = (1 << 31) + 1000
    with hcq.open("cpu") as device:
        use_cache(device, None)
        numbers = (Tensor.arange(count, device=device) % 251).cast("uint8").realize()
        assert numbers[-3:].tolist() == [(count - left) % 251 for left in (3, 2, 1)]
        whole, rest = divmod(count, 251)
        total = whole * (250 * 251 // 2) + sum(range(rest))
        assert numbers.cast("int64").sum().item() == total
        numbers[1 << 31 :: 7] = 255
        turned = numbers[::-1].contiguous()
        del numbers
        assert turned[count - (1 << 31) - 1].item() == 255
        assert turned[count - (1 << 31)].item() == ((1 << 31) - 1) % 251
