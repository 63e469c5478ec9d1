"""A queue that does not begin its work: the error says where it stands, from the engine's pointers.

A kernel or a wait that does not end has begun, so its error names neither doorbell nor IOMMU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened as nv_opened
from tests.support.nvidia.nv_machine import powered
from tests.support.waiting import until
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.nvidia.faults import Fault

LIMIT_S = 0.2
DOORBELL = "write pointer never moved: the doorbell did not arrive"
IOMMU = "the engine fetches and gets no answer; see the IOMMU's log"


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip()
    yield made
    made.close()


@pytest.fixture
def device(chip: Any) -> Iterator[AmDevice]:
    with opened(chip) as made:
        yield made


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", list(QueueKind))
@pytest.mark.parametrize(("fault", "cause"), [("doorbells_lost", DOORBELL), ("dma_refused", IOMMU)])
def test_navi31(
    chip: Any, device: AmDevice, kind: QueueKind, fault: str, cause: str, count: int
) -> None:
    with device.alloc(4096) as buffer:
        for _ in range(2):  # work that ends
            queue = device.queue(kind).fill(buffer, 1)
            queue.timeline.wait(queue.submit())
        ring: Any = queue.hardware
        until(lambda: ring.done == ring.count, "the fence of the last slot, behind its signal")
        setattr(chip.faults, fault, True)
        values = [device.queue(kind).fill(buffer, 2).submit() for _ in range(count)]
        with pytest.raises(DeviceHang, match=cause) as caught:
            queue.timeline.wait(values[-1], limit_s=LIMIT_S)
        what = f"{count} submission{'s' if count > 1 else ''}, "
        assert what in str(caught.value)
        setattr(chip.faults, fault, False)
        device.reset()


def test_work_that_has_begun(device: AmDevice) -> None:
    gate = device.timeline("gate")
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(64, placement=Placement.HOST) as flag,
    ):
        flag.fill(0)
        spin = device.queue()
        spin.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
        waiting = [spin, *(device.queue(kind).wait(gate, 1) for kind in QueueKind)]
        for queue in waiting:
            with pytest.raises(DeviceHang) as caught:
                queue.timeline.wait(queue.submit(), limit_s=LIMIT_S)
            assert "doorbell" not in str(caught.value) and "IOMMU" not in str(caught.value)
            device.reset()
    gate.close()


@pytest.mark.parametrize("kind", list(QueueKind))
def test_gh100(kind: QueueKind) -> None:
    with (
        powered("gh100") as machine,
        nv_opened(machine) as device,
        device.alloc(4096) as buffer,
    ):
        queue = device.queue(kind).fill(buffer, 1)
        queue.timeline.wait(queue.submit())
        machine.faults.plant(Fault.LOST_DOORBELL)
        value = device.queue(kind).fill(buffer, 2).submit()
        with pytest.raises(
            DeviceHang, match="1 submission, GP_GET never moved: the doorbell did not arrive, or"
        ):
            queue.timeline.wait(value, limit_s=LIMIT_S)
        device.reset()
