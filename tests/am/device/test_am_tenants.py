"""Several holders of one AMD card in one process: what each reaches, and whose work a failure
ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_tenants import (
    FAR,
    SECRET,
    VRAM,
    card,
    computes,
    driver_of,
    opened,
    peek,
    run,
    shared,
    tenant,
    work,
)
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.am import chips
from ugpu.am.chips import facts_of
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    ChipError,
    DeviceHang,
    DeviceLost,
    IllegalInstruction,
    NotSupported,
    OutOfMemory,
    OverTemperature,
    PageFault,
    UgpuError,
)
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions


@pytest.fixture(params=chips.virtual_names())
def every_chip(request: pytest.FixtureRequest) -> Iterator[Any]:
    with card(request.param) as made:
        yield made


@pytest.fixture
def chip() -> Iterator[Any]:
    with card("navi31", psp_mode1=True) as made:
        yield made


def test_a_tenant_reaches_no_memory_of_another(every_chip: Any) -> None:
    with shared(every_chip) as (device, (one, other)):
        secret = one.alloc(FAR)[FAR - 4096 :]  # beyond all that the other has
        secret.fill(SECRET)
        address = int(secret.address)
        assert peek(one, address) == SECRET
        for kernel in ("read_at", "write_at"):
            with pytest.raises(PageFault, match=kernel) as caught:
                run(other, kernel, np.uint64(address))
            found = caught.value.facts["address"]
            assert isinstance(found, int) and found // 4096 == address // 4096
            assert caught.value.facts["vmid"] == driver_of(other).seat.vmid
            assert one.failure is None and device.failure is None
            assert (secret.numpy(np.uint32) == SECRET).all()
            other.reset()
        for each in (one, other, device):
            work(each)
    assert every_chip.violations == []


def test_tenants_of_every_chip(every_chip: Any) -> None:
    with shared(every_chip) as (device, tenants):
        for number, each in enumerate((*tenants, device, *tenants)):
            work(each, number + 3)
        mine, theirs = (each.alloc(4 << 20) for each in tenants)
        assert mine.address == theirs.address
        mine.fill(1)
        theirs.fill(2)
        assert (mine.numpy(np.uint32) == 1).all() and (theirs.numpy(np.uint32) == 2).all()
    assert every_chip.violations == []


def test_a_copy_that_faults_ends_the_offenders_work_alone(chip: Any) -> None:
    with shared(chip) as (_, (one, other)):
        secret, near = one.alloc(FAR)[FAR - 4096 :], other.alloc(4096)
        secret.fill(SECRET)
        for source, destination in ((secret, near), (near, secret)):
            pair = [
                Buffer(other.driver.core, each.address, 4096, Placement.DEVICE)
                for each in (source, destination)
            ]
            queue = other.queue(QueueKind.COPY).copy(pair[1], pair[0])
            with pytest.raises(PageFault):
                queue.timeline.wait(queue.submit())
            assert (secret.numpy(np.uint32) == SECRET).all()
            work(one)
            other.reset()
            work(other)
    assert chip.violations == []


@pytest.mark.parametrize("kernel", ["forever", "illegal"])
def test_work_of_others_goes_on_while_a_tenant_stands_still(chip: Any, kernel: str) -> None:
    """Its queues are reset, and theirs are not: what was in flight ends as it should."""
    with shared(chip) as (device, (one, other)):
        gate, held = one.timeline("gate"), one.alloc(4096)
        held.fill(0)
        good, place = one.load(faulty_object()), one.alloc(64, placement=Placement.HOST)
        copies = one.queue(QueueKind.COPY, 1)
        value = copies.wait(gate, 1).fill(held, 9).submit()
        with other.load(faulty_object()) as program, other.alloc(64) as out:
            out.fill(0)
            with other.queue() as queue:
                queue.launch(program[kernel], grid=(1,), block=(32,), args=(out,))
                end = queue.submit()
            with pytest.raises((DeviceHang, IllegalInstruction)):
                queue.timeline.wait(end, limit_s=0.2)
            computes(one, good, place, 5)
            recovery = other.reset()
            assert recovery.level.label == "queue"
            assert copies.timeline.value < value
            gate.reach(1)
            copies.timeline.wait(value)
            assert (held.numpy(np.uint32) == 9).all()
            gate.close()
        for each in (one, other, device):
            work(each)
    assert chip.violations == []


def test_the_first_holder_fails_and_tenants_go_on(chip: Any) -> None:
    with shared(chip) as (device, (one, other)):
        gate, held = one.timeline("gate"), one.alloc(4096)
        held.fill(0)
        copies = one.queue(QueueKind.COPY, 1)
        value = copies.wait(gate, 1).fill(held, 9).submit()
        with pytest.raises(PageFault):
            peek(device, FAR)
        device.reset()
        near = device.alloc(64)
        forged = Buffer(device.driver.core, VirtAddr(near.address + FAR), 64, Placement.DEVICE)
        queue = device.queue(QueueKind.COPY).copy(near, forged)
        with pytest.raises(PageFault):
            queue.timeline.wait(queue.submit())
        device.reset()
        assert copies.timeline.value < value and one.failure is None
        gate.reach(1)
        copies.timeline.wait(value)
        assert (held.numpy(np.uint32) == 9).all()
        gate.close()
        for each in (one, other, device):
            work(each)
    assert chip.violations == []


@pytest.mark.parametrize("level", ["block", "warm", "mode1"])
def test_a_reset_of_the_card_is_a_failure_of_all(chip: Any, level: str) -> None:
    with shared(chip) as (device, tenants):
        with pytest.raises(NotSupported, match="ends the work of other holders"):
            tenants[0].reset(level)
        tenants[0].reset()
        loaded = [each.load(contract_object(each.target)) for each in tenants]
        device.reset(level)
        work(device)
        for each in tenants:
            with pytest.raises(ChipError, match="the card was reset, since"):
                each.synchronize()
            assert each.reset().level.label == "queue"
            work(each)
            work(device)
        for program in loaded:
            program.close()
    assert chip.violations == []


def test_a_mode2_reset_keeps_what_all_have_in_memory() -> None:
    chip = build_chip(facts_of("navi32"), ChipOptions(vram=VRAM, noise=0))
    try:
        with shared(chip) as (device, tenants):
            kept = [each.alloc(4096) for each in tenants]
            for number, buffer in enumerate(kept):
                buffer.fill(number + 1)
            device.reset("mode2")
            work(device)
            for number, (each, buffer) in enumerate(zip(tenants, kept, strict=True)):
                assert each.reset().lost == ()
                work(each)
                assert (buffer.numpy(np.uint32) == number + 1).all()
        assert chip.violations == []
    finally:
        chip.close()


def test_heat_is_a_failure_of_all_and_throttling_counts_once(chip: Any) -> None:
    with shared(chip) as (device, tenants):
        chip.announcements.throttle("TEMP_HOTSPOT")
        for each in (*tenants, device):
            work(each)
        assert device.driver.units.thermal.announcements.throttlings == 1
        chip.thermal.heat(150)
        for each in (*tenants, device):
            with pytest.raises(OverTemperature, match="150 degrees"):
                each.synchronize()
        chip.thermal.cool()
        for each in (*tenants, device):
            assert each.reset().level.label == "queue"
            work(each)
    assert chip.violations == []


def test_a_queue_that_stays_on_the_hardware_costs_a_reset_of_the_card(chip: Any) -> None:
    with opened(chip) as device:
        used = device.driver.memory.used
        one, other = tenant(device, "one"), tenant(device, "other")
        program, out = other.load(faulty_object()), other.alloc(64)
        out.fill(0)
        with other.queue() as queue:
            queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
            end = queue.submit()
        with pytest.raises(DeviceHang):
            queue.timeline.wait(end, limit_s=0.2)
        chip.faults.dequeue_never = True
        vmid = driver_of(other).seat.vmid
        other.close()
        chip.faults.dequeue_never = False
        with pytest.raises(ChipError, match="do not leave the hardware"):
            device.synchronize()
        assert device.reset().level.label == "block"
        with pytest.raises(ChipError, match="the card was reset"):
            one.synchronize()
        one.close()
        work(device)
        assert device.driver.memory.used == used
        with tenant(device, "next") as again, tenant(device, "after") as after:
            assert vmid in {driver_of(each).seat.vmid for each in (again, after)}
            work(again)
            work(after)
    assert chip.violations == []


def test_seats_are_limited_and_given_back(chip: Any) -> None:
    with opened(chip) as device:
        used = device.driver.memory.used
        tenants = [tenant(device, f"{n}") for n in range(device.driver.most_tenants or 0)]
        assert sorted(driver_of(each).seat.vmid for each in tenants) == [*range(9, 16)]
        with pytest.raises(OutOfMemory, match="7 further holders"):
            tenant(device, "one more")
        for each in tenants:
            work(each)
        tenants.pop(3).close()
        tenants.append(tenant(device, "again"))
        random.Random(5).shuffle(tenants)
        for each in tenants:
            work(each)
            each.close()
        assert device.driver.memory.used == used
        work(device)
    assert chip.violations == []


def test_tenants_close_in_any_order(chip: Any) -> None:
    with opened(chip) as device:
        one, other = tenant(device, "one"), tenant(device, "other")
        work(one)
        one.close()
        work(other)
        work(device)
    work(other)
    with tenant_of_tenant(other) as third:
        work(third)
    other.close()
    with opened(chip) as device:
        assert device.warm
        work(device)
    assert chip.violations == []


@contextmanager
def tenant_of_tenant(device: Device) -> Iterator[Device]:
    with Device(device.driver.open_tenant("third")) as made:
        yield made


def test_the_last_page_of_a_tenants_address_space_is_translated(chip: Any) -> None:
    """47 bits of addresses (Linux gmc_v11_0.c: 4 levels, and max_pfn - 1 in gfxhub_v3_0.c)."""
    with shared(chip) as (device, tenants):
        gc = device.driver.chip.gc
        for vmid in [driver_of(each).seat.vmid for each in tenants]:
            low = int(getattr(gc, f"GCVM_CONTEXT{vmid}_PAGE_TABLE_END_ADDR_LO32").read())
            high = int(getattr(gc, f"GCVM_CONTEXT{vmid}_PAGE_TABLE_END_ADDR_HI32").read())
            assert low | high << 32 == (1 << 47 >> 12) - 1, vmid


def test_what_was_anothers_reads_as_zeros(chip: Any) -> None:
    """Scratch and the last page of code: the driver's own memory, which kernels can read."""
    with opened(chip) as device:
        with tenant(device, "one") as one:
            one.alloc(FAR).fill(SECRET)
        with tenant(device, "other") as other:
            driver = driver_of(other)
            scratch = driver.programs.scratch(64)
            assert scratch is not None
            program = other.load(faulty_object())
            assert program.memory is not None
            for start, size in ((scratch.address, 1 << 16), (int(program.memory.address), 4096)):
                memory = Buffer(driver.core, VirtAddr(start), size, Placement.DEVICE)
                assert SECRET not in memory.numpy(np.uint32)
    assert chip.violations == []


def test_a_reading_of_a_former_holder_is_nobodys(chip: Any) -> None:
    """An entry in the interrupt ring outlives its tenant; the next one has another PASID."""
    with opened(chip) as device:
        one = tenant(device, "one")
        vmid, pasid = driver_of(one).seat.vmid, driver_of(one).seat.pasid
        with pytest.raises(PageFault):
            peek(one, FAR)
        one.close()
        with chip.lock:
            ring = device.driver.units.ih
            ring.name(vmid, pasid)
            chip.ih.raise_interrupt(0x0A, 0, vmid=vmid, data=(1, 0, 0, 0))
            ring.name(vmid, 0)
        with tenant(device, "other") as other:
            assert driver_of(other).seat.vmid == vmid and driver_of(other).seat.pasid != pasid
            work(other)
        assert device.failure is None


def test_a_fault_whose_entry_was_lost_is_its_tenants(chip: Any) -> None:
    """Another holder's look finds it in the hub, and hands it over."""
    with shared(chip) as (device, (one, other)):
        program, out = other.load(faulty_object()), other.alloc(64)
        other.synchronize()
        with other.queue() as queue:
            queue.launch(program["read_at"], grid=(1,), block=(32,), args=(out, np.uint64(FAR)))
        chip.clock.wait_until(
            lambda: bool(chip.gc.get("GCVM_L2_PROTECTION_FAULT_STATUS")),
            unit="GFXHUB", waiting_for="the fault", limit_s=60,
        )  # fmt: skip
        for _ in range(3000):
            chip.ih.raise_interrupt(1, 1)
        one.synchronize()
        assert device.driver.units.ih.overflows
        with pytest.raises(PageFault) as caught:
            other.synchronize()
        assert caught.value.facts["vmid"] == driver_of(other).seat.vmid
        assert one.failure is None and device.failure is None
        other.reset()
        for each in (one, other, device):
            work(each)
    assert chip.violations == []


def test_a_card_that_leaves_fails_all(chip: Any) -> None:
    with opened(chip) as device:
        tenants = [tenant(device, "one"), tenant(device, "other")]
        chip.unplug()
        for each in (*tenants, device):
            with pytest.raises(DeviceLost):
                work(each)
        for each in tenants:
            each.close()


def test_what_cannot_be_shared_says_why(chip: Any) -> None:
    with opened(chip, vmid=0) as device:
        assert "VMID 0" in device.driver.sole_holder()
        with pytest.raises(NotSupported, match="VMID 0"):
            tenant(device, "second")
    with hcq.open("virtual:navi31+usb") as device:
        assert "memory that is not divided" in device.driver.sole_holder()
        with pytest.raises(NotSupported, match="cannot have a second holder: behind this bridge"):
            device.driver.open_tenant("second")
    with opened(chip) as device:
        with pytest.raises(PageFault):
            peek(device, FAR)
        with pytest.raises(UgpuError):
            tenant(device, "while it has failed")
        device.reset()
        with tenant(device, "one") as one:
            work(one)


def test_a_hundred_tenants_leave_nothing(chip: Any) -> None:
    with opened(chip) as device:
        used, maps = device.driver.memory.used, len(device.driver.transport._memory)
        for number in range(100):
            with tenant(device, f"{number}") as one:
                one.alloc(4096).fill(number)
        assert device.driver.memory.used == used
        assert len(device.driver.transport._memory) == maps
        work(device)
    assert chip.violations == []
