"""Work on a card without a kernel driver: the same queues, launches and programs as everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import LIMIT_S, work
from ugpu import hcq
from ugpu.hcq.errors import IllegalInstruction, PageFault, UgpuError
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.rm.session import GspSession
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions


@contextlib.contextmanager
def powered(chip: str = "ad102") -> Iterator[Card]:
    card = build_card(chip, CardOptions(memory=1 << 30))
    try:
        yield card
    finally:
        card.close()


def opened(card: Card) -> NvDevice:
    device = hcq.open(f"virtual:{card.facts.name}+gsp", chip=card)
    assert isinstance(device, NvDevice)
    device.limit_s = LIMIT_S
    return device


@pytest.mark.parametrize("chip", ["ad102", "ga102", "tu102", "tu116", "ga100", "gh100", "gb202"])
def test_work_and_again_after_the_card_was_handed_back(chip: str) -> None:
    with powered(chip) as card:
        for _ in range(2):
            with opened(card) as device:
                work(device)
                facts = device.info()
                assert facts["firmware"] == "570.144" and facts["copy_queues"] == 2
        assert card.violations == []


def test_memory_comes_back() -> None:
    with powered() as card, opened(card) as device:
        session = device.driver.session
        assert isinstance(session, GspSession)
        work(device)
        heap = session.card.heap.used
        for _ in range(3):
            work(device)
            for size in (1, 4096, 1 << 20, 5 << 20):
                device.alloc(size).close()
        assert session.card.heap.used == heap


@pytest.mark.parametrize(
    ("fault", "kind", "xid"),
    [
        (Fault.UNMAPPED, PageFault, 31),
        (Fault.ILLEGAL_INSTRUCTION, IllegalInstruction, 13),
        (Fault.COPY_FAULT, PageFault, 31),
    ],
)
def test_a_fault_is_named_and_work_goes_on(fault: Fault, kind: type[UgpuError], xid: int) -> None:
    with powered() as card, opened(card) as device:
        work(device)
        card.machine.inject(fault, count=1)
        with pytest.raises(kind) as caught:
            work(device)
        assert caught.value.facts["xid"] == xid
        device.reset()
        work(device)


STORE = """
.visible .entry store(.param .u64 place)
{
  .reg .b64 %place;
  ld.param.u64 %place, [place];
  st.global.u32 [%place], 1;
  ret;
}
"""


def test_a_stray_access_has_its_address() -> None:
    with powered() as card, opened(card) as device:
        program = device.load(ptx_kernels.text(STORE, device.target.cpu))
        with device.queue() as queue:
            arguments = (np.uint64(0x12_3456_7000),)
            queue.launch(program["store"], grid=(1,), block=(1,), args=arguments)
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        assert caught.value.facts["address"] == 0x12_3456_7000
        device.reset()
        program.close()


def test_evidence_and_memory_of_a_running_device() -> None:
    with powered() as card, opened(card) as device:
        work(device)
        found = device.driver.evidence(UgpuError("a test"))
        assert {"accesses.txt", "calls.txt", "firmware.json", "state.json"} <= set(found.parts)
        assert "registers.json" not in found.missing
        read = {sensor.name: sensor.read for sensor in device.sensors()}
        before = read["memory_used_bytes"]()
        with device.alloc(5 << 20):
            assert read["memory_used_bytes"]() >= before + (5 << 20)
        assert read["memory_used_bytes"]() == before
        assert 0 < before < read["memory_total_bytes"]() < 1 << 30
        info = device.info()
        assert info["driver"] == "ugpu" and info["firmware"] == "570.144"
