"""The compiler keeps nothing of a device that has been closed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import known_runtime, runtime_of, use_cache
from ugpu.hcq.errors import Closed


def test_a_closed_device_keeps_no_runtime(tmp_path: Path) -> None:
    device = hcq.open("cpu")
    use_cache(device, tmp_path)
    runtime = use_cache(device, tmp_path)
    assert (Tensor(np.arange(6.0), device=device) * 2).numpy()[5] == 10
    kept = [weakref.ref(each) for each in (device, runtime, runtime.pool, runtime.programs)]
    device.close()
    device.close()
    assert known_runtime(device) is None
    with pytest.raises(Closed):
        runtime_of(device)
    del device, runtime
    gc.collect()
    assert [each() for each in kept] == [None] * 4


def test_the_peak_of_memory_is_that_of_living_tensors() -> None:
    with hcq.open("cpu") as device:
        assert device.memory_peak() == 0
        x = Tensor.zeros(1 << 18, device=device).contiguous().realize()  # 1 MiB
        before = device.memory_peak(restart=True)
        assert 1 << 20 <= before < 5 << 18
        for _ in range(3):  # the pool's memory is used again
            (x + 1).realize()
        assert 2 << 20 <= device.memory_peak() < 5 << 19
        del x
        gc.collect()
        assert device.memory_peak(restart=True) >= 2 << 20
        assert device.memory_peak() < 1 << 20
