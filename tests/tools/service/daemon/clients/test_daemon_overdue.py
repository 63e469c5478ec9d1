"""A lease whose time is up ends, whatever its kernels do and whatever its client waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernels import contract_object
from tests.support.service.daemon import Running, started
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.state.config import setting

#: far above the time that a test has: what waits for it hangs
AGES_S = 1e5
HOLDERS = [
    ("cpu", {}),
    ("virtual:navi31", {}),
    ("virtual:navi31", {"shared": True, "memory": 64 << 20}),
    ("virtual:a630", {}),
    pytest.param("virtual:gh100", {}, marks=pytest.mark.slow),
]


@pytest.fixture
def running(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[Running]:
    with setting("UGPU_WAIT_LIMIT", str(AGES_S)):
        made = started(tmp_path, f"[lease]\ndrain_s = {AGES_S}", count=1, device=request.param)
    yield made
    made.close()


def endless(gpu: Device) -> None:
    program, flag = gpu.load(contract_object(gpu.target)), gpu.alloc(64)
    gpu.queue().launch(program["spin"], grid=(1,), block=(1,), args=(flag,)).submit()
    gpu.info()  # a call: what came before it was carried out


@pytest.mark.parametrize(("running", "wanted"), HOLDERS, indirect=["running"])
@pytest.mark.parametrize("waits", [False, True], ids=["idle", "in a request"])
def test_a_lease_ends_with_its_time(running: Running, wanted: Any, waits: bool) -> None:
    with running.lease() as first:
        first.load(contract_object(first.target))  # compiled once
    gpu = running.lease(limit_s=AGES_S, **wanted)
    endless(gpu)
    errors: list[UgpuError] = []

    def request() -> None:
        """Memory, which is overwritten behind the kernel, or is read by a copy behind it."""
        try:
            with gpu.alloc(1 << 20) as large, gpu.alloc(64) as small:
                gpu.queue().copy(large[:64], small).submit()
                large.numpy()
        except UgpuError as error:
            errors.append(error)

    asking = threading.Thread(target=request)
    if waits:
        asking.start()
    (held,) = running.daemon.table.leases.values()
    with running.daemon._tick:
        running.daemon.table.extend(held, 1e-3)
        running.daemon._tick.notify_all()
    with running.lease(wait_s=AGES_S) as next_one, next_one.alloc(64) as memory:
        assert memory.numpy().tobytes() == bytes(64)
    if waits:
        asking.join()
        assert isinstance(errors[0], DeviceLost)
    with pytest.raises(DeviceLost):
        gpu.synchronize()
    gpu.close()
