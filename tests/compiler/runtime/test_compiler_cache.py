"""The kernel cache on disk, the memory pool, and the log of kernels."""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, dtypes
from ugpu.compiler.plan.sizes import round_up
from ugpu.compiler.runtime.memory_pool import MemoryPool
from ugpu.compiler.runtime.runtime import (
    device_of,
    kernel_log,
    runtime_of,
    set_default_device,
    use_cache,
)
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import BadArgument, Closed, DeviceNotFound
from ugpu.hcq.work.buffer import Buffer

KEY = DiskCache.key("text", "target")


def test_keys_tell_their_parts_apart() -> None:
    assert DiskCache.key("ab", "c") != DiskCache.key("a", "bc") != DiskCache.key("a", "b", "c")


def test_round_trip(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new" / "folder")
    assert cache.get(KEY) is None
    cache.put(KEY, b"object")
    assert cache.get(KEY) == b"object"
    assert DiskCache(None).get(KEY) is None
    DiskCache(None).put(KEY, b"object")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_damaged_entries_are_discarded(tmp_path: Path, damage: str) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, bytes(range(200)))
    path = tmp_path / KEY
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[100] ^= 1
    elif damage == "cut":
        del content[-1:]
    elif damage == "empty":
        content.clear()
    else:
        content[0] ^= 0xFF
    path.write_bytes(content)
    assert cache.get(KEY) is None
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    cache = DiskCache(blocker)
    cache.put(KEY, b"object")
    assert cache.get(KEY) is None


def test_the_folder_stays_within_its_limit(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=1000)
    for number in range(20):
        cache.put(DiskCache.key(str(number)), bytes(100))
    cache.trim()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_writers_and_readers_at_once_see_whole_entries(tmp_path: Path) -> None:
    cache, wrong = DiskCache(tmp_path), []

    def work(seed: int) -> None:
        for turn in range(50):
            cache.put(KEY, bytes([seed]) * 5000)
            found = cache.get(KEY)
            if found is None or len(set(found)) != 1:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_objects_are_compiled_once_over_processes(tmp_path: Path) -> None:
    """Two devices stand for two processes: they share nothing but the folder."""
    for expected in (False, True):
        with hcq.open("cpu", threads=1) as device:
            use_cache(device, tmp_path)
            with kernel_log() as kernels:
                assert (Tensor([1.0, 2.0], device=device) * 3).tolist() == [3.0, 6.0]
                assert (Tensor([2.0, 4.0], device=device) * 3).tolist() == [6.0, 12.0]
        (record,) = kernels
        assert record.from_disk is expected
        assert record.device == "cpu" and record.origin == "mul" and record.code_bytes > 0
        assert record.name.startswith("mul_2_") and record.seconds > 0


def test_buffers_are_used_again(cpu: Device) -> None:
    pool = MemoryPool(cpu)
    first = pool.take(1000)
    address = first.buffer.address
    assert pool.take(1000).buffer.address != address
    del first
    both = pool.kept  # two of one class
    again = pool.take(900), pool.take(900)
    assert address in [storage.buffer.address for storage in again] and pool.kept == 0
    del again
    assert pool.kept == both > 0
    pool.clear()
    assert pool.kept == 0


def test_a_poisoned_pool_gives_no_memory_that_was_written(cpu: Device) -> None:
    pool = MemoryPool(cpu)
    pool.poison = 0xFFFF_FFFF
    for _ in range(2):
        taken = pool.take(1000)
        assert np.isnan(taken.buffer.numpy(np.float32)).all()
        taken.buffer.fill(0)
        del taken
        assert pool.kept == 0


def test_the_pool_is_touched_under_its_lock(cpu: Device) -> None:
    """Storages die in any thread, wherever the collector runs."""
    pool = MemoryPool(cpu)
    touched, unlocked = [], []  # what a finaliser raises is not seen

    class Guarded(OrderedDict[int, list[Buffer]]):
        def __getattribute__(self, name: str) -> object:
            if not name.startswith("__"):
                touched.append(name)
                if not pool._lock._is_owned():
                    unlocked.append(name)
            return super().__getattribute__(name)

    pool._free = Guarded()
    touched.clear()
    for _ in range(2):
        held = [pool.take(1000), pool.take(5000)]
        del held
    assert pool.kept > 0
    pool.clear()
    assert {"move_to_end", "setdefault", "values", "clear"} <= set(touched)
    assert unlocked == []


def test_the_pool_keeps_no_more_than_it_may(cpu: Device) -> None:
    pool = MemoryPool(cpu, keep=4096)
    held = [pool.take(2048) for _ in range(5)]
    del held
    assert pool.kept <= 4096
    pool.clear()


def test_memory_of_sizes_no_longer_used_makes_room(cpu: Device) -> None:
    pool = MemoryPool(cpu, keep=8 << 12)
    early = [pool.take(1 << 12) for _ in range(8)]
    del early
    buffers = []
    for _ in range(4):  # what a program does in every step
        held = pool.take(3 << 12)
        buffers.append(held.buffer)
        del held
    assert all(each is buffers[0] for each in buffers) and 3 << 12 <= pool.kept <= 8 << 12
    too_large = pool.take(9 << 12)
    del too_large  # it does not push out what fits
    assert pool.take(3 << 12).buffer is buffers[0]
    pool.clear()


def test_a_size_that_was_taken_last_is_kept_longest(cpu: Device) -> None:
    pool = MemoryPool(cpu, keep=6 << 12)
    large = pool.take(3 << 12)
    small, medium = ([pool.take(size << 12) for _ in range(2)] for size in (1, 2))
    known = {storage.buffer for storage in small}
    del small
    del medium
    held = pool.take(1 << 12)
    del large  # one of the others makes room
    assert pool.take(1 << 12).buffer in known
    assert held.buffer in known and pool.kept <= 6 << 12
    pool.clear()


def test_size_classes_waste_little() -> None:
    sizes = [1, 255, 256, 257, 5000, 1 << 20, (1 << 20) + 1, 10**9]
    for size in sizes:
        assert size <= round_up(size) <= max(256, size * 1.125 + 256)
        assert round_up(round_up(size)) == round_up(size)


def test_devices_by_name_are_shared_and_checked() -> None:
    outside = contextvars.Context()  # no device is entered there
    assert device_of("cpu") is device_of("cpu") is outside.run(Tensor, 1).device
    set_default_device("nonsense")
    try:
        with pytest.raises(DeviceNotFound):
            Tensor(1)
    finally:
        set_default_device("")
    with pytest.raises(BadArgument, match="device must be a Device or a name"):
        device_of(cast(Device, 3))


def test_closed_devices_are_refused() -> None:
    with hcq.open("cpu", threads=1) as device:
        tensor = Tensor([1.0], device=device)
    with pytest.raises(Closed):
        (tensor + 1).realize()
    with pytest.raises(Closed):
        runtime_of(device)


def test_tensors_of_two_devices_do_not_mix(cpu: Device) -> None:
    with hcq.open("cpu", threads=1) as other:
        left, right = Tensor([1.0], device=cpu), Tensor([2.0], device=other)
        with pytest.raises(BadArgument, match="add: tensors on cpu and cpu"):
            left + right
        assert (left + right.to(cpu)).item() == 3.0


def test_construction_and_conversion(cpu: Device) -> None:
    array = np.arange(6.0).reshape(2, 3)
    tensor = Tensor(array, device=cpu)
    assert tensor.dtype is dtypes.float32 and tensor.shape == (2, 3) and tensor.ndim == 2
    array[:] = -1
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]  # it copied
    assert np.asarray(tensor).sum() == 15
    assert Tensor(7, device=cpu).dtype is dtypes.int64 and Tensor(True, device=cpu).item() is True
    assert Tensor([1, 2], device=cpu, dtype="uint8").dtype is dtypes.uint8
    assert int(Tensor(7, device=cpu)) == 7 and float(Tensor(2.5, device=cpu)) == 2.5
    assert Tensor(tensor, device=cpu).tolist() == tensor.tolist()
    assert "float32[2, 3] on cpu" in repr(tensor)
    with pytest.raises(BadArgument, match="exactly one element"):
        tensor.item()
    with pytest.raises(BadArgument, match="Tensor:"):
        Tensor([[1], [1, 2]], device=cpu)
    with pytest.raises(BadArgument, match="a Tensor is real"):
        Tensor(np.array([1j]), device=cpu)
    with pytest.raises(BadArgument, match="expected an array of numbers"):
        Tensor("text", device=cpu)
