"""The system management unit, driven by hand: protocol, messages, metrics, mode1."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.navi31_bench import FRAME_BUFFER, Bench, bench
from ugpu.virtual.amd.options import Delays

TABLE = 0x40_0000


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench() as made:
        made.boot()
        yield made


def test_versions_and_unknown_messages(card: Bench) -> None:
    assert card.message(1, 41) == (1, 42)
    assert card.message(2) == (1, 0x004E7500)
    assert card.message(3) == (1, 0x3D)
    assert card.message(0x52)[0] == 0xFE
    assert card.message(0x51)[0] == 0xFE  # known to the header, not to this model
    assert card.chip.violations == []


def test_no_answer_before_its_firmware_is_loaded() -> None:
    with bench() as card:
        card.enable()
        card.write(card.smu(90), 0)
        card.write(card.smu(66), 1)
        card.pass_time()
        assert card.read(card.smu(90)) == 0


def test_the_response_has_to_be_cleared_first(card: Bench) -> None:
    card.write(card.smu(82), 0)
    card.write(card.smu(66), 2)
    assert card.read(card.smu(90)) == 1  # the old one: who polls now reads the wrong argument
    assert "not cleared" in card.chip.violations[-1]


def test_a_message_on_top_of_another_is_lost(card: Bench) -> None:
    card.write(card.smu(90), 0)
    card.write(card.smu(66), 2)
    card.write(card.smu(82), 5)
    card.write(card.smu(66), 1)
    card.pass_time()
    assert card.read(card.smu(82)) == 0x004E7500
    assert "it is lost" in card.chip.violations[-1]


def test_features_come_before_clock_bounds(card: Bench) -> None:
    assert card.message(0x19, 1000)[0] == 0xFD
    assert card.message(6)[0] == 1
    low, high = card.message(0xC)[1], card.message(0xD)[1]
    assert low | high << 32 == (1 << 64) - 1
    assert card.message(0x19, 1000)[0] == 1
    assert card.message(0x1A, 1000)[0] == 1
    assert card.chip.smu.clocks.current(0, 0.3) == 1000
    assert card.message(0x19, 30 << 16 | 1)[0] == 0xFF


def test_clock_levels(card: Bench) -> None:
    assert card.message(0x1F, 2 << 16 | 0xFF) == (1, 4 | 1 << 31)
    levels = [card.message(0x1F, 2 << 16 | index)[1] & 0x7FFFFFFF for index in range(4)]
    assert levels == sorted(levels)
    assert levels[-1] == card.message(0x1E, 2 << 16)[1]
    assert card.message(0x1F, 2 << 16 | 4)[0] == 0xFF


def test_metrics_change_and_follow_the_load(card: Bench) -> None:
    assert card.message(0x12, 5)[0] == 0xFD  # no address yet
    card.message(0xE, (FRAME_BUFFER + TABLE) >> 32)
    card.message(0xF, (FRAME_BUFFER + TABLE) & 0xFFFFFFFF)
    assert card.message(0x12, 3)[0] == 0xFF  # a table this model does not make
    seen = []
    for busy in (False, True, True, True):
        with card.chip.smu.metrics.load.working() if busy else contextlib.nullcontext():
            card.pass_time(2.0)
            assert card.message(0x12, 5)[0] == 1
        table = card.vram.read(TABLE, 392)
        # Offsets counted by hand in SmuMetrics_t: 13 clocks, 14 halves, the counter at 80.
        (clock,), (counter,) = struct.unpack_from("<I", table), struct.unpack_from("<I", table, 80)
        watts, _, edge = struct.unpack_from("<HHH", table, 116)
        seen.append((clock, counter, watts, edge))
    assert [row[1] for row in seen] == [1, 2, 3, 4]
    assert seen[0][0] == 500
    assert seen[1][0] == 2526
    assert 10 < seen[0][2] < 30 < 250 < seen[1][2] < 340
    assert 30 <= seen[0][3] < seen[3][3] < 90
    assert len(set(seen)) == 4


def test_the_table_address_has_to_be_reachable(card: Bench) -> None:
    card.message(0xE, 0)
    card.message(0xF, 0x1000)
    assert card.message(0x12, 5)[0] == 0xFF
    card.message(0xF, 0x1004)
    assert card.message(0x12, 5)[0] == 0xFD


def test_the_debug_mailbox_answers_on_its_own_registers(card: Bench) -> None:
    card.write(card.smu(54), 0)
    card.write(card.smu(53), 6)
    card.write(card.smu(75), 1)
    card.pass_time()
    assert (card.read(card.smu(54)), card.read(card.smu(53))) == (1, 7)


@pytest.mark.parametrize("knows", [True, False])
def test_mode1_by_the_debug_mailbox(knows: bool) -> None:
    """Firmware that is stuck obeys; older firmware takes message 2 for GetDebugData."""
    with bench(debug_mode1=knows) as card:
        card.boot()
        card.chip.faults.smu_silent = True
        card.write(card.smu(54), 0)
        card.write(card.smu(75), 2)
        card.pass_time(0.1)  # unread, the answer stays
        assert card.read(card.smu(54)) == 1
        card.pass_time(0.001)
        assert (card.read(0xDE3) == 0xFFFFFFFF) is knows


def test_a_mode1_reset_whose_answer_nobody_reads_comes_all_the_same(card: Bench) -> None:
    card.write(card.smu(90), 0)
    card.write(card.smu(66), 0x2F)
    card.pass_time(1)
    assert card.read(card.psp(81)) == 0


def test_configuration_space_may_be_lost_with_a_mode1_reset() -> None:
    with bench(config_lost_on_mode1=True) as card:
        card.enable()
        card.boot()
        card.message(0x2F, 0)
        card.pass_time()
        assert card.transport.config_read(4, 2) & 6 == 0
        assert card.read(0xDE3) == 0xFFFFFFFF
        card.transport.config_write(4, 6, 2)
        assert card.read(0xDE3) == 256


def test_without_a_delay_the_answer_is_there_at_once() -> None:
    with bench(delays=Delays(smu_message=0)) as card:
        card.boot()
        card.write(card.smu(90), 0)
        card.write(card.smu(82), 41)
        card.write(card.smu(66), 1)
        assert (card.read(card.smu(90)), card.read(card.smu(82))) == (1, 42)


def test_silence_and_forced_answers(card: Bench) -> None:
    card.chip.faults.smu_responses[0x32] = 0xFC
    assert card.message(0x32, 300)[0] == 0xFC
    del card.chip.faults.smu_responses[0x32]
    assert card.message(0x32, 300)[0] == 1
    assert card.message(0x33) == (1, 300)
    card.chip.faults.smu_silent = True
    card.write(card.smu(90), 0)
    card.write(card.smu(66), 1)
    card.pass_time(100)
    assert card.read(card.smu(90)) == 0


def test_mode1_darkens_the_card_and_forgets_everything(card: Bench) -> None:
    card.vram.write32(0x50_0000, 0x600D600D)
    card.flush_hdp()
    card.write(card.hub("gc", "APERTURE_LOW"), 7)
    card.write(card.smu(90), 0)
    card.write(card.smu(66), 0x2F)
    card.pass_time(0.0001)
    assert card.read(card.smu(90)) == 1
    card.pass_time(0.001)
    assert card.read(0xDE3) == 0xFFFFFFFF  # dark
    assert card.transport.present()
    assert card.transport.config_read(4, 2) & 6 == 6  # BARs and decoding survive
    card.pass_time()
    assert card.read(0xDE3) == 256
    assert card.vram.read32(0x50_0000) != 0x600D600D
    assert card.read(card.hub("gc", "APERTURE_LOW")) == 0
    assert card.read(card.hub("mmhub", "L1_TLB")) == 0
    card.boot()  # and everything works again
