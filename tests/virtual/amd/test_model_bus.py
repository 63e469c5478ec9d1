"""The card as a PCI function: configuration, BARs, doorbells, HDP, unplugging, attachments."""

from __future__ import annotations

import threading

import pytest

from tests.support.amd.am_navi31 import attach
from tests.support.amd.navi31_bench import SMALL, Bench, bench, options
from tests.support.waiting import until
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.hcq.errors import BadArgument, Closed, DeviceBusy, OutOfMemory
from ugpu.hcq.transport.base import ResetKind
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.objections import Level
from ugpu.virtual.amd.options import Delays, FaultPlan

FLUSH = 0x385C  # byte offset of the HDP flush location after reset
SCRATCH = 0x1260 + 0x0F00  # some register that no table may name


def test_identity_and_capabilities() -> None:
    with bench() as card:
        assert str(card.transport.identity) == "1002:744c"
        assert card.transport.config_read(0) == 0x744C1002
        assert card.transport.config_read(8) >> 8 == 0x030000
        seen = set()
        at = card.transport.config_read(0x34, 1)
        while at:
            seen.add(card.transport.config_read(at, 1))
            at = card.transport.config_read(at + 1, 1)
        assert {0x01, 0x10, 0x05} <= seen
        assert card.transport.config_read(0x100) == 0x000B | 1 << 16 | 0x150 << 20
        assert card.transport.config_read(0x150) & 0xFFFF == 0x0001
        assert card.transport.config_read(0x200) & 0xFFFF == 0x0015


@pytest.mark.parametrize(("offset", "width"), [(1, 4), (3, 2), (4096, 4), (-4, 4), (0, 3)])
def test_configuration_accesses_that_cannot_be(offset: int, width: int) -> None:
    with bench() as card, pytest.raises(BadArgument):
        card.transport.config_read(offset, width)


def test_nothing_answers_before_memory_space_is_on() -> None:
    with bench() as card:
        card.pass_time()
        assert card.read(0xDE3) == 0xFFFFFFFF
        assert card.vram.read32(0) == 0xFFFFFFFF
        card.vram.write32(0, 0x11111111)
        card.transport.config_write(4, 2, 2)
        assert card.read(0xDE3) == SMALL >> 20
        assert card.vram.read32(0) != 0x11111111


def test_sizing_a_bar_moves_it_away_until_it_is_put_back() -> None:
    with bench() as card:
        card.enable()
        old = card.transport.config_read(0x24)
        card.transport.config_write(0x24, 0xFFFFFFFF)
        assert card.transport.config_read(0x24) & ~0xF == -(1 << 20) & 0xFFFFFFFF
        assert card.read(0xDE3) == 0xFFFFFFFF
        card.transport.config_write(0x24, old)
        assert card.read(0xDE3) == SMALL >> 20


def test_the_vram_bar_can_be_resized_while_decoding_is_off() -> None:
    with bench(vram=1 << 30, visible_vram=256 << 20) as card:
        assert card.transport.config_read(0x204) >> 4 == 0b111 << 8  # 256 MB to 1 GB
        assert card.transport.config_read(0x208) >> 8 & 0x3F == 8
        card.transport.config_write(0x208, 10 << 8)
        assert card.vram.size == 1 << 30
        card.enable()
        card.transport.config_write(0x208, 8 << 8)
        assert card.vram.size == 1 << 30
        assert "while memory decoding is on" in card.chip.violations[-1]


@pytest.mark.parametrize("bar", [0, 2, 5])
def test_accesses_outside_a_window_are_refused(bar: int) -> None:
    with bench() as card:
        card.enable()
        window = card.transport.window(bar)
        for offset in (2, -4, window.size, window.size - 2):
            with pytest.raises(BadArgument):
                window.read32(offset)
            with pytest.raises(BadArgument):
                window.write32(offset, 0)
        with pytest.raises(BadArgument):
            window.read64(4)
        with pytest.raises(BadArgument):
            card.transport.window(1)


def test_registers_are_not_memory_and_undefined_ones_are_noted() -> None:
    with bench() as card:
        card.enable()
        card.registers.read(0xDE3 * 4, 8)
        assert "block read of BAR5" in card.chip.violations[-1]
        card.read(0x3FFF0)
        assert "no block has one there" in card.chip.violations[-1]
        card.write(0x1A000 + 0x740, 1 << 31)  # MMVM_CONTEXT0_CNTL has no bit 31
        assert "MMVM_CONTEXT0_CNTL: undefined bits 0x80000000" in card.chip.notes[-1]
        assert card.registers.read64(0xDE2 * 4) >> 32 == SMALL >> 20


def test_graphics_registers_are_dead_before_autoload() -> None:
    with bench() as card:
        card.enable()
        card.write(0x1260 + 0x167D, 5)
        assert card.read(0x1260 + 0x167D) == 0
        (text,) = card.chip.objections.of(Level.FAULT)
        assert "before gc is up" in text and card.chip.violations == [text]


def test_graphics_registers_hold_from_the_answer_to_autoload_on() -> None:
    with bench(delays=Delays(autoload=1.0)) as card:
        card.enable()
        card.boot()
        card.write(0x1260 + 0x167D, 5)
        assert card.read(0x1260 + 0x167D) == 5
        assert card.chip.violations == []


def test_objections_are_counted_by_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with bench() as card:
        card.enable()
        for _ in range(3):
            card.registers.read(0xDE3 * 4, 4)
            card.write(0x1A000 + 0x740, 1 << 31)
            card.write(0x1260 + 0x167D, 5)
        objections = card.chip.objections
        assert [list(objections.of(level).values()) for level in Level] == [[3], [3], [3]]
        assert objections.summary().startswith("3 faults of 1 kinds (first: GCMC_VM_SYSTEM_AP")
        card.chip.violations.clear()
        card.write(0x1260 + 0x167D, 5)
        assert len(card.chip.violations) == 1 and len(card.chip.notes) == 1
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said[:2]] == ["violation", "fault"], "once each"
    assert said[2:] == [f"the virtual card recorded {objections.summary()}"]


def test_far_registers_through_both_indirect_pairs() -> None:
    with bench() as card:
        card.enable()
        strap = 0x10134408  # byte address of RCC_DEV0_EPF2_STRAP2
        card.write(0x14, strap)
        assert card.read(0x15) == 0x80  # STRAP_NO_SOFT_RESET_DEV0_F2
        card.write(0x15, 0)
        card.write(0x0E, strap)
        assert card.read(0x0E) == strap
        assert card.read(0x0F) == 0
        assert card.chip.violations == []


def test_posted_index_writes_need_a_read_back() -> None:
    with bench(index_latch=True) as card:
        card.enable()
        card.write(0x0E, 0xDE3 * 4)
        assert card.read(0x0F) != SMALL >> 20
        card.write(0x0E, 0xDE3 * 4)
        card.read(0x0E)
        assert card.read(0x0F) == SMALL >> 20


def test_cpu_writes_wait_in_the_hdp_until_flushed() -> None:
    with bench() as card:
        card.enable()
        card.vram.write(0x1000, b"0123456789abcdef")
        assert card.chip.vram.read(0x1000, 16) != b"0123456789abcdef"
        assert card.read(0xD20 + 0x12D) == FLUSH
        card.registers.write32(FLUSH, 0)
        assert card.chip.vram.read(0x1000, 16) == b"0123456789abcdef"
        # The driver may move the flush location.
        card.write(0xD20 + 0x12D, 0x7F000)
        card.write(0xD20 + 0x12D, 0x7F008)
        card.vram.write32(0x1000, 1)
        card.registers.write32(0x7F000, 0)
        assert card.chip.vram.read(0x1000, 4) == b"0123"
        card.registers.write32(0x7F008, 0)
        assert card.chip.vram.read(0x1000, 4) == b"\x01\0\0\0"


def test_the_flush_location_cannot_hide_a_register() -> None:
    with bench() as card:
        card.enable()
        card.write(0xD20 + 0x12D, 4 * 0x1A740)  # MMVM_CONTEXT0_CNTL
        assert "MMVM_CONTEXT0_CNTL" in card.chip.violations[-1]
        card.write(0x1A740, 0x6)
        assert card.read(0x1A740) == 0x6


def test_an_engines_flush_request_is_answered_bit_by_bit() -> None:
    with bench() as card:
        card.enable()
        card.vram.write32(0x1000, 77)
        card.write(0xD20 + 0x106, 1 << 10)
        assert card.read(0xD20 + 0x107) == 1 << 10
        assert card.chip.vram.read(0x1000, 4) == b"\x4d\0\0\0"


def test_vram_is_noise_at_power_on_and_differs_each_time() -> None:
    with bench() as card:
        card.enable()
        first = card.vram.read(0x10_0000, 4096)
        assert len(set(first)) > 200
        card.chip.power_cycle()
        card.enable()
        assert card.vram.read(0x10_0000, 4096) != first


def test_more_vram_than_the_machine_can_reserve_is_a_clear_error() -> None:
    with pytest.raises(OutOfMemory, match="vram="):
        Chip(NAVI31, options(vram=1 << 62))


class Listener:
    """Stands for an engine."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []

    def doorbell(self, dword: int, value: int) -> bool:
        self.heard.append((dword, value))
        return True


def test_doorbells_go_where_the_router_sends_them() -> None:
    with bench() as card:
        card.enable()
        compute, copy = Listener(), Listener()
        card.chip.gfx, card.chip.sdma = compute, [copy]
        doorbells = card.transport.window(2)
        doorbells.write64(8 * 3, 1)
        assert "the aperture is closed" in card.chip.violations[-1]
        card.write(0xD20 + 0xC0, 1)
        doorbells.write64(8 * 3, 2)
        assert "no engine listens" in card.chip.violations[-1]

        def route(entry: int, value: int) -> None:
            card.write(0x14, 0x141E900 + 4 * entry)
            card.write(0x15, value)

        # SDMA first: enable, AWID 0xe, offset 0x200 dwords, size 40, AWADDR 3.
        route(2, 1 | 0xE << 1 | 0x200 << 7 | 40 << 17 | 3 << 28)
        doorbells.write64(8 * 0x100, 0x1_2345_6789)
        doorbells.write64(8 * 0x10A, 7)
        doorbells.write64(8 * 0x114, 9)  # past the range
        assert copy.heard == [(0x200, 0x1_2345_6789), (0x214, 7)]
        route(0, 0x30000007)
        doorbells.write64(8 * 3, 0xAAAA_BBBB_CCCC)
        doorbells.write32(8 * 4, 5)
        doorbells.write32(8 * 4 + 4, 6)
        assert compute.heard == [(6, 0xAAAA_BBBB_CCCC), (8, 5), (8, 5 | 6 << 32)]
        assert doorbells.read32(0) == 0


def test_unplugging_leaves_all_ones() -> None:
    with bench() as card:
        card.boot()
        card.chip.unplug()
        assert card.read(0xDE3) == 0xFFFFFFFF
        assert card.vram.read32(0) == 0xFFFFFFFF
        assert card.vram.read(0, 64) == b"\xff" * 64
        assert card.transport.window(2).read32(0) == 0xFFFFFFFF
        assert card.transport.config_read(0, 2) == 0xFFFF
        assert not card.transport.present()
        card.write(0x1A000 + 0x740, 1)
        card.vram.write32(0, 1)
        card.chip.power_cycle()
        assert card.transport.present()
        card.boot()


def test_a_planned_loss_at_the_nth_access() -> None:
    with bench(faults=FaultPlan(lost_at_access=4)) as card:
        card.enable()
        assert [card.read(0xDE3) for _ in range(5)] == [256, 256, 256, 0xFFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize("kind", [ResetKind.FUNCTION, ResetKind.BUS, ResetKind.POWER])
def test_resets_take_the_firmware_away(kind: ResetKind) -> None:
    with bench() as card:
        card.boot()
        card.transport.reset(kind)
        # The system restores BARs and command around a reset, not after a loss of power.
        assert card.transport.config_read(4, 2) & 6 == (0 if kind is ResetKind.POWER else 6)
        card.enable()
        assert card.read(card.psp(81)) == 0
        card.boot()


def test_a_function_level_reset_by_hand_loses_the_bars() -> None:
    with bench(function_reset=True) as card:
        card.enable()
        saved = [card.transport.config_read(at) for at in range(0x10, 0x28, 4)]
        card.transport.config_write(0x64 + 8, 1 << 15, 2)
        assert card.transport.config_read(4, 2) & 6 == 0
        assert card.transport.config_read(0x24) & ~0xF == 0
        card.transport.config_write(4, 6, 2)
        assert card.read(0xDE3) == 0xFFFFFFFF
        for number, value in enumerate(saved):
            card.transport.config_write(0x10 + 4 * number, value)
        card.pass_time()
        assert card.read(0xDE3) == SMALL >> 20


def test_one_attachment_at_a_time_and_the_chip_stays_up_between() -> None:
    with bench() as card:
        card.boot()
        with pytest.raises(DeviceBusy):
            VirtualTransport(card.chip)
        memory = card.transport.allocate_dma(8192)
        card.transport.close()
        card.transport.close()
        with pytest.raises(Closed):
            card.transport.config_read(0)
        assert memory.closed
        second = attach(card.chip).transport
        assert second.config_read(4, 2) & 4 == 0  # bus mastering went with the first
        second.config_write(4, 6, 2)
        assert second.window(5).read32(4 * card.psp(81)) != 0
        second.close()


def test_dma_memory_is_zero_scattered_and_never_at_the_same_place() -> None:
    with bench() as card:
        addresses: set[int] = set()
        for _ in range(20):
            memory = card.transport.allocate_dma(5 << 20)
            assert [segment.size for segment in memory.segments] == [2 << 20, 2 << 20, 1 << 20]
            ends = [segment.address + segment.size for segment in memory.segments]
            assert all(a != b.address for a, b in zip(ends, memory.segments[1:], strict=False))
            assert not bytes(memory.view[::4096]).strip(b"\0")
            memory.view[:] = b"\xaa" * memory.size
            new = {segment.address for segment in memory.segments}
            assert not new & addresses
            assert max(new) < 1 << 44
            addresses |= new
            memory.close()
            memory.close()
        one = card.transport.allocate_dma(5_000_000, contiguous=True)
        assert len(one.segments) == 1
        assert one.segments[0].size == one.size == -(-5_000_000 // 4096) * 4096
        card.chip.config.bus_master = True
        card.chip.dma_write(one.segments[0].address + 3_000_000, b"far in")
        assert bytes(one.view[3_000_000:3_000_006]) == b"far in"


def test_arrays_that_outlive_their_memory_are_not_lent_again() -> None:
    with bench() as card:
        memory = card.transport.allocate_dma(4096)
        cast = memory.view.cast("I")
        kept = memoryview(cast)
        memory.close()
        other = card.transport.allocate_dma(4096)
        other.view[0:4] = b"\xff" * 4
        assert kept[0] == 0
        kept.release()
        cast.release()
        memory.view.release()
        card.transport.allocate_dma(4096)  # takes the first one again
        assert len(card.chip.dma._returned) == 0


def test_interrupts_need_bus_mastering_and_wake_a_waiter() -> None:
    with bench() as card:
        card.enable()
        interrupts = card.transport.interrupts
        assert not interrupts.wait(0)
        late = threading.Thread(target=card.chip.signal_msi)
        late.start()
        assert interrupts.wait(60)
        late.join()
        assert not interrupts.wait(0)
        card.transport.config_write(4, 2, 2)
        card.chip.signal_msi()
        assert not interrupts.wait(0)
        assert "MSI with bus mastering off" in card.chip.violations


def test_a_chip_of_its_own_ends_with_its_transport() -> None:
    before = set(threading.enumerate())
    attachment = attach(vram=SMALL, seed=5)
    transport = attachment.transport
    transport.config_write(4, 6, 2)
    until(lambda: transport.window(5).read32(0xDE3 * 4) == SMALL >> 20, "the memory's size")
    assert attachment.firmware is not None
    assert "psp_13_0_0_sos.bin" in attachment.firmware
    transport.close()
    assert set(threading.enumerate()) <= before
    chip = Chip(NAVI31, options())
    with pytest.raises(BadArgument):
        attach(chip, seed=4)
    chip.close()
    chip.close()


def test_boot_on_the_chips_own_clock_takes_milliseconds() -> None:
    chip = Chip(NAVI31, options(manual_time=False))
    card = Bench(chip)
    try:
        card.boot()
        assert chip.violations == []
    finally:
        card.close()
