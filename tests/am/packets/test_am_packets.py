"""PM4 and SDMA packets against words written by hand from Linux 6.12 nvd.h and
sdma_v6_0_0_pkt_open.h."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.am.packets import pm4, sdma
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command_buffer import Symbol

ADDRESS = Symbol.constant(0x2000_0000_1000)
OTHER = Symbol.constant(0x2000_8000_0040)


def test_acquire() -> None:
    packet = pm4.Pm4()
    packet.acquire()
    # COHER_CNTL, SIZE, SIZE_HI, BASE, BASE_HI, interval, GCR_CNTL: GLI GLM GLK GLV GL1 GL2
    assert packet.words == [
        0xC0065800, 0, 0xFFFFFFFF, 0x00FFFFFF, 0, 0, 0xA, 0x0000C3F1,
    ]  # fmt: skip


def test_release_that_signals() -> None:
    packet = pm4.Pm4()
    packet.release(ADDRESS, Symbol.constant(0x1_0000_0005), interrupt=True, flush=True)
    # event 0x14, index 5, GLM_WB GLM_INV GLV_INV GL1_INV GL2_INV GL2_WB SEQ; 64 bits, interrupt
    assert packet.words == [
        0xC0064900, 0x0070F514, 0x42000000, 0x00001000, 0x2000, 5, 1, 0,
    ]  # fmt: skip


def test_release_that_takes_the_time() -> None:
    packet = pm4.Pm4()
    packet.release(ADDRESS, None, interrupt=False, flush=False)
    assert packet.words == [0xC0064900, 0x528, 0x60000000, 0x1000, 0x2000, 0, 0, 0]


def test_wait_for_memory() -> None:
    packet = pm4.Pm4()
    packet.wait_memory(ADDRESS, Symbol.constant(0x1_0000_0009))
    assert packet.words == [0xC0053C00, 0x15, 0x1000, 0x2000, 9, 0xFFFFFFFF, 0x20]


def test_wait_for_idle_and_dispatch() -> None:
    packet = pm4.Pm4()
    packet.wait_idle()
    packet.dispatch((3, 2, 1), 0x8005)
    assert packet.words == [0xC0004600, 0x407, 0xC0031500, 3, 2, 1, 0x8005]


def test_shader_registers() -> None:
    packet = pm4.Pm4()
    packet.set_sh(0x20C, 0x11, 0x22)
    assert packet.words == [0xC0027600, 0x20C, 0x11, 0x22]


def test_indirect_buffer_and_filler() -> None:
    assert pm4.indirect_buffer() == (0xC0023F00, 0x40800000)
    assert pm4.filler(4) == [0xC0021000, 0, 0, 0]
    assert pm4.fence(0x2000_0000_1000) == [0xC0064900, 0x528, 0x40000000, 0x1000, 0x2000, 0, 0, 0]


def test_registers_in_lists() -> None:
    packets = pm4.Pm4()
    packets.write_register(0x2E60, 0x12345678)
    packets.wait_register(0x1A2B, 0x8000, 0x8000)
    packets.store_register(Symbol.constant(0x1_2345_6780), 0x1A2B)
    packets.copy_word(Symbol.constant(0x1_2345_6784), 0x80_0000_0010)
    packets.store(Symbol.constant(0x1_2345_6788), 7)
    assert packets.words == [
        0xC0033700, 0x00110000, 0x2E60, 0, 0x12345678,
        0xC0053C00, 0x00000003, 0x1A2B, 0, 0x8000, 0x8000, 0x20,
        0xC0044000, 0x00100500, 0x1A2B, 0, 0x23456780, 1,
        0xC0044000, 0x00100501, 0x10, 0x80, 0x23456784, 1,
        0xC0033700, 0x00100500, 0x23456788, 1, 7,
    ]  # fmt: skip


def test_dma_copy_in_pieces() -> None:
    packet = pm4.Pm4()
    packet.copy(ADDRESS, OTHER, pm4.DMA_MOST + 0x100)
    # SRC_SEL and DST_SEL L2, CP_SYNC; source, destination, bytes
    first = [0xC0055000, 0xE0300000, 0x80000040, 0x2000, 0x1000, 0x2000, 0x03FFFFC0]
    assert packet.words[:7] == first
    assert packet.words[7:] == [
        0xC0055000, 0xE0300000, 0x84000000, 0x2000, 0x04000FC0, 0x2000, 0x100,
    ]  # fmt: skip


def test_dma_fill() -> None:
    packet = pm4.Pm4()
    packet.fill(ADDRESS, 0xABCD, 64)
    assert packet.words == [0xC0055000, 0xC0300000, 0xABCD, 0, 0x1000, 0x2000, 64]


def test_dma_fill_in_pieces() -> None:
    packet = pm4.Pm4()
    packet.fill(ADDRESS, 0xABCD, 2 * pm4.DMA_MOST + 0x100)
    assert packet.words[6::7] == [0x03FFFFC0, 0x03FFFFC0, 0x100]
    assert packet.words[18:20] == [0x07FFFF80 + 0x1000, 0x2000]


def test_sdma_copy() -> None:
    packet = sdma.Sdma()
    packet.copy(ADDRESS, OTHER, 0x100)
    assert packet.words == [0x00000001, 0xFF, 0, 0x80000040, 0x2000, 0x1000, 0x2000]


def test_sdma_copies_in_pieces() -> None:
    packet = sdma.Sdma()
    packet.copy(ADDRESS, OTHER, 2 * sdma.MOST + 4)
    assert len(packet.words) == 21
    assert packet.words[1::7] == [0x3FFFFF, 0x3FFFFF, 3]
    assert packet.words[17:19] == [0x80800040, 0x2000]
    assert packet.words[19:21] == [0x00801000, 0x2000]


def test_sdma_fill() -> None:
    packet = sdma.Sdma()
    packet.fill(ADDRESS, 0x12345678, 0x40)
    assert packet.words == [0x8000000B, 0x1000, 0x2000, 0x12345678, 0x3F]


def test_sdma_fills_in_pieces() -> None:
    packet = sdma.Sdma()
    packet.fill(ADDRESS, 1, 2 * sdma.MOST + 4)
    assert packet.words[4::5] == [sdma.MOST - 1, sdma.MOST - 1, 3]


def test_sdma_signal() -> None:
    packet = sdma.Sdma()
    packet.signal(ADDRESS, Symbol.constant(0x7_0000_0003))
    assert packet.words == [
        0x00030005, 0x1000, 0x2000, 3, 0x00030005, 0x1004, 0x2000, 7, 0x6, 0,
    ]  # fmt: skip


def test_sdma_wait() -> None:
    packet = sdma.Sdma()
    packet.wait_memory(ADDRESS, Symbol.constant(9))
    assert packet.words == [0xD0000008, 0x1000, 0x2000, 9, 0xFFFFFFFF, 0x0FFF000A]


def test_sdma_timestamp_and_indirect() -> None:
    packet = sdma.Sdma()
    packet.timestamp(ADDRESS)
    assert packet.words == [0x0000020D, 0x1000, 0x2000]
    assert sdma.Sdma.indirect_header(8) == 0x00080004


def test_image_layout_and_relocations() -> None:
    packet = pm4.Pm4()
    packet.emit(1, 2, 3)
    block = packet.add_data(bytes(range(1, 9)))
    later = packet.add_data(bytes(12))
    packet.data_address(later)
    packet.data_points_to(later, block)
    packet.data_symbol(block, Symbol("parameter", slot=1), 4)
    image = packet.finish(align_words=8, filler=0x99)
    assert image.command_words == 8
    assert list(image.words[:8]) == [1, 2, 3, 0, 0, 0x99, 0x99, 0x99]
    kinds = [(symbol.kind, symbol.slot) for symbol in image.symbols]
    values = np.zeros(len(kinds), np.uint64)
    values[kinds.index(("image", 0))] = 0x2000_0000_0000
    values[kinds.index(("parameter", 1))] = 77
    out = np.zeros(len(image.words), np.uint32)
    image.patch(out, values)
    assert list(out[3:5]) == [0x80, 0x2000]  # the second block, 64 bytes behind the first
    assert list(out[16:18]) == [77, 0x08070605]
    assert list(out[32:35]) == [0x40, 0x2000, 0]


def test_small_holes_are_refused() -> None:
    packet = pm4.Pm4()
    offset = packet.add_data(bytes(8))
    with pytest.raises(BadArgument):
        packet.data_symbol(offset + 2, Symbol.constant(1), 4)
    with pytest.raises(BadArgument):
        packet.data_symbol(offset, Symbol.constant(1), 3)
