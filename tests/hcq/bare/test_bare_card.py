"""A toy card on the kit: opened, left, taken over after a death, shared, faulted, reset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.died import died
from tests.support.toy import toy_card as toy
from tests.support.toy.toy_card import ToyTransport
from tests.support.toy.toy_chip import IN_USE, LEFT_CLEAN
from tests.support.toy.toy_driver import ToyHolder, open_toy
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    ChipError,
    DeviceHang,
    DeviceLost,
    FirmwareRejected,
    FirmwareSilent,
    NotSupported,
    OutOfMemory,
    PageFault,
)
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Fill, Signal
from ugpu.hcq.work.command_buffer import Symbol, values_of
from ugpu.hcq.work.queue import QueueKind

DATA = bytes(range(256)) * 64


@pytest.fixture
def hardware() -> Iterator[toy.ToyCard]:
    card = toy.ToyCard()
    yield card
    assert card.violations == []


def copies(device: Device, data: bytes = DATA) -> bool:
    """Whether data survives the way into VRAM and back."""
    with device.alloc(len(data)) as buffer:
        buffer.copy_from(data)
        return content(buffer) == data


def content(buffer: Buffer) -> bytes:
    out = np.empty(buffer.size, np.uint8)
    buffer.copy_to(out)
    return out.tobytes()


def mapping(buffer: Buffer) -> Mapping:
    assert isinstance(buffer.handle, Mapping)
    return buffer.handle


def test_opened_cold_used_and_left_warm(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device:
        stages = [name for name, _ in holder.card.stages.done]
        assert stages == ["config space", "registers", "firmware images", "firmware", "memory"]
        assert hardware.registers[toy.NOTE] == IN_USE
        assert copies(device) and copies(device, DATA * 300)  # 4.9 MB: leaves of 2 MiB too
        assert holder.card.beats == b"beat"
    assert hardware.registers[toy.NOTE] == LEFT_CLEAN
    assert not hardware.config[4] & toy.MASTER and not any(ring.on for ring in hardware.rings)
    assert hardware.memory == {}
    with open_toy(ToyTransport(hardware))[0] as again:
        assert again.info()["start"] == "warm" and copies(again)
    assert hardware.resets.count("bus") == 0


def test_memory_beyond_the_window_is_used(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device, device.alloc(8 * toy.MIB) as low, device.alloc(3 * toy.MIB) as high:
        high.copy_from(DATA)
        start, _ = mapping(high).pieces[0]
        assert start >= toy.VISIBLE
        assert holder.chip.vram.read(start, len(DATA)) == DATA
        holder.chip.vram.write(start, b"toys")
        assert content(high)[:8] == b"toys" + DATA[4:8]
        with pytest.raises(OutOfMemory):
            device.alloc(8 * toy.MIB)
        assert low.size == 8 * toy.MIB


def test_a_card_whose_process_died_is_reset_and_booted(hardware: toy.ToyCard) -> None:
    first = ToyTransport(hardware)
    device, _ = open_toy(first)
    assert copies(device) and hardware.config[4] & toy.MASTER
    died(device)
    following = first.die()  # it leaves bus mastering on, and the firmware writing to its page
    with open_toy(following)[0] as again:
        assert again.info()["start"] == "cold" and hardware.resets[-1] == "bus"
        assert copies(again)


def test_a_start_is_forced_to_be_cold(hardware: toy.ToyCard) -> None:
    open_toy(ToyTransport(hardware))[0].close()
    with open_toy(ToyTransport(hardware), force_cold=True)[0] as again:
        assert again.info()["start"] == "cold" and copies(again)


def test_a_warm_card_that_does_not_attach_is_booted(hardware: toy.ToyCard) -> None:
    open_toy(ToyTransport(hardware))[0].close()
    transport = ToyTransport(hardware)
    hardware.deaf = True

    def hear() -> None:
        hardware.deaf = False

    transport.on_reset = hear
    with open_toy(transport)[0] as again:
        assert again.info()["start"] == "cold" and copies(again)


def test_firmware_that_is_refused_silent_or_missing(hardware: toy.ToyCard) -> None:
    transport = ToyTransport(hardware)
    with pytest.raises(FirmwareRejected, match="answered 2") as raised:
        open_toy(transport, b"\1\2\3\4" * 8)
    assert raised.value.facts["stage"] == "firmware" and transport.closed
    hardware.deaf = True
    with pytest.raises(FirmwareSilent, match="does not answer") as silent:
        open_toy(ToyTransport(hardware))
    assert silent.value.facts["message_number"] == toy.LOAD
    assert silent.value.facts["limit_s"] == 0.5 and silent.value.facts["stage"] == "firmware"
    hardware.deaf = False
    with open_toy(ToyTransport(hardware))[0] as device:
        assert copies(device)
    assert not hardware.memory


def test_a_fault_is_reported_and_its_rings_restarted(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device, device.alloc(4096) as buffer:
        buffer.copy_from(DATA[:4096])
        beyond = buffer.address + mapping(buffer).size  # the guard page
        with pytest.raises(PageFault) as raised:
            _fill(device, holder, beyond)
        assert raised.value.facts == raised.value.facts | {"address": beyond, "access": "write"}
        recovery = device.reset()
        assert [attempt.name for attempt in recovery.attempts] == ["restart rings"]
        assert content(buffer) == DATA[:4096] and copies(device)


def test_a_stuck_ring_climbs_to_the_slot_and_memory_is_lost(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device:
        buffer = device.alloc(4096)
        hardware.hang = True
        with pytest.raises(DeviceHang):
            _fill(device, holder, int(buffer.address))
        plan = holder.recovery_plan()[1]
        assert [step.name for step in plan if step.taken] == ["reset rings", "bus reset"]
        assert "no function reset" in next(step.refusal for step in plan if step.level == 7)
        with pytest.raises(NotSupported, match="no function reset"):
            device.reset("flr")
        recovery = device.reset("bus")
        assert holder.vram_lost and recovery.lost_placements == {Placement.DEVICE}
        assert recovery.lost == (buffer,) and holder.unfinished is None
        assert copies(device)
        buffer.close()


def test_two_holders_share_the_card(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device:
        tenant = holder.open_tenant("other")
        assert isinstance(tenant, ToyHolder) and tenant.is_tenant and not holder.alone
        with Device(tenant) as other:
            assert copies(other) and copies(device)
            with pytest.raises(OutOfMemory, match="1 further holders"):
                holder.open_tenant("third")
            with device.alloc(4096) as mine, pytest.raises(PageFault):
                _fill(other, tenant, int(mine.address) + (64 << 20))
            assert copies(device), "a tenant's fault ends no work of others"
            with pytest.raises(NotSupported, match="opened first"):
                other.reset("bus")
            other.reset()
            assert copies(other) and copies(device)
            device.reset("bus")
            with pytest.raises(ChipError, match="the card was reset"):
                other.alloc(16)
            other.reset()
            assert copies(other)
        assert holder.alone and copies(device)
        used = holder.card.memory.heap.used
        with Device(holder.open_tenant("again")) as again:
            assert copies(again)
        assert holder.card.memory.heap.used == used


def test_a_closed_holder_whose_ring_hangs_keeps_its_seat_until_a_reset(
    hardware: toy.ToyCard,
) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device:
        used = holder.card.memory.heap.used
        tenant = holder.open_tenant("other")
        assert isinstance(tenant, ToyHolder)
        with Device(tenant) as other, other.alloc(4096) as buffer:
            hardware.hang = True
            with pytest.raises(DeviceHang):
                _fill(other, tenant, int(buffer.address))
        assert holder.card.stuck == [tenant] and holder.card.memory.heap.used > used
        with pytest.raises(ChipError, match="do not leave the hardware"):
            device.alloc(16)
        assert [attempt.name for attempt in device.reset().attempts] == ["reset rings"]
        assert holder.card.stuck == [] and holder.card.memory.heap.used == used
        with Device(holder.open_tenant("again")) as again:
            assert copies(again) and copies(device)


def test_a_card_at_rest_is_woken_by_the_next_access(hardware: toy.ToyCard) -> None:
    device, holder = open_toy(ToyTransport(hardware))
    with device:
        assert copies(device) and holder.begin_rest() and hardware.asleep and holder.at_rest
        assert holder.chip.vram.read(0, 4) and not holder.chip.lost() and hardware.asleep
        assert copies(device) and not hardware.asleep and not holder.at_rest
        assert holder.begin_rest() and holder.begin_rest()
        holder.end_rest()
        assert not hardware.asleep and hardware.registers[toy.NOTE] == IN_USE
        assert holder.begin_rest()
    assert hardware.registers[toy.NOTE] == LEFT_CLEAN


@pytest.mark.parametrize("deaf", [False, True])
def test_a_card_whose_process_died_at_rest(hardware: toy.ToyCard, deaf: bool) -> None:
    first = ToyTransport(hardware)
    device, holder = open_toy(first)
    assert copies(device) and holder.begin_rest()
    hardware.deaf = deaf  # then its cores are left alone, until the reset
    died(device)
    following = first.die()

    def hear() -> None:
        hardware.deaf = False

    following.on_reset = hear
    with open_toy(following)[0] as again:
        assert again.info()["start"] == ("cold" if deaf else "warm")
        assert copies(again)


def test_a_card_that_does_not_wake_fails_and_is_reset(hardware: toy.ToyCard) -> None:
    transport = ToyTransport(hardware)
    device, holder = open_toy(transport)
    with device:
        assert holder.begin_rest()
        hardware.deaf = True
        with pytest.raises(FirmwareSilent):
            copies(device)
        assert device.failure is not None and holder.chip.dark

        def hear() -> None:
            hardware.deaf = False

        transport.on_reset = hear
        device.reset("bus")
        assert copies(device)


def test_a_card_that_left_the_bus(hardware: toy.ToyCard) -> None:
    device, _ = open_toy(ToyTransport(hardware))
    hardware.removed = True
    with pytest.raises(DeviceLost):
        copies(device)
    with pytest.raises(DeviceLost, match="cannot be reset"):
        device.reset()
    device.close()
    assert hardware.memory == {}
    hardware.violations.clear()  # a card that is gone takes no writes


def test_nothing_is_written_before_the_card_is_fresh(hardware: toy.ToyCard) -> None:
    """Another driver's card: firmware runs, no note of ours. Its memory stays as it is until the
    reset."""
    first = ToyTransport(hardware)
    owner, _ = open_toy(first)
    hardware.registers[toy.NOTE] = 0xBEEF
    died(owner)
    following = first.die()
    before, seen = bytes(hardware.vram), list[bool]()
    following.on_reset = lambda: seen.append(bytes(hardware.vram) == before)
    open_toy(following)[0].close()
    assert seen == [True]


@pytest.mark.parametrize("image", [b"", b"\0" * 70_000])
def test_a_firmware_file_out_of_bounds(hardware: toy.ToyCard, image: bytes) -> None:
    with pytest.raises(FirmwareRejected):
        open_toy(ToyTransport(hardware), image)


def _fill(device: Device, holder: ToyHolder, address: int) -> None:
    """Have a ring write to an address, and wait."""
    (queue,) = holder.hardware_queues(QueueKind.COPY)
    with holder.core.lock:
        value = queue.timeline.last + 1
        commands: list[Command] = [
            Fill(Symbol.constant(address), 7, 64),
            Signal(queue.timeline, Symbol.constant(value)),
        ]
        buffer = queue.encode(commands)
        queue.submit(buffer, values_of(buffer, value))
    queue.timeline.wait(value, limit_s=0.2)
