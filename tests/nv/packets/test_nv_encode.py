"""Commands as words, against words written by hand from open-gpu-doc: clc86f.h, clc46f.h, clc8b5.h,
clcbc0.h, clc5c0.h and the headers of launch descriptors."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered
from tests.support.nvidia.nv_ptx import full
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.encode import Classes, Encoder
from ugpu.nv.packets.families import facts_of
from ugpu.nv.rm.session import Region

HOPPER = Classes(0xC86F, 0xCBC0, 0xC8B5)
HOPPER_COPY = Classes(0xC86F, 0, 0xC8B5)
START = [0x2001_25A6, 0x1011]  # INVALIDATE_SHADER_CACHES_NO_WFI: instruction, data, constant
IDLE = [0x2001_001E, 1]  # WFI, all engines of the channel
SOURCE, DESTINATION = 0x12_3456_7000, 0xAB_CDEF_0100


def words(commands: list[Command], classes: Classes = HOPPER_COPY) -> list[int]:
    """The commands' words with symbols of buffers at zero."""
    encoded = Encoder(classes).encode(commands)
    values = np.zeros(len(encoded.symbols), np.uint64)
    for position, symbol in enumerate(encoded.symbols):
        if symbol.buffer is not None:
            values[position] = int(symbol.buffer.address)
    out = np.zeros(len(encoded.words), np.uint32)
    encoded.patch(out, values)
    return [int(word) for word in out[: encoded.command_words]]


def test_a_copy() -> None:
    copy = Copy(Symbol.constant(DESTINATION), Symbol.constant(SOURCE), 4096)
    plain = [
        0x2004_8100,
        0x12,
        0x3456_7000,
        0xAB,
        0xCDEF_0100,
        0x2001_8106,
        4096,
        0x2001_80C0,
        0x186,
    ]
    assert words([copy]) == plain
    assert words([copy], HOPPER) == START + IDLE + plain


def test_a_long_copy_is_cut() -> None:
    copy = Copy(Symbol.constant(1 << 40), Symbol.constant(1 << 41), (1 << 31) + 512)
    assert words([copy]) == [
        0x2004_8100, 0x200, 0, 0x100, 0, 0x2001_8106, 1 << 31, 0x2001_80C0, 0x186,
        0x2004_8100, 0x200, 1 << 31, 0x100, 1 << 31, 0x2001_8106, 512, 0x2001_80C0, 0x186,
    ]  # fmt: skip


def test_a_fill() -> None:
    fill = Fill(Symbol.constant(DESTINATION), 0xDEAD_BEEF, 64)
    assert words([fill]) == [
        0x2003_81C0, 0xDEAD_BEEF, 0, 0x0003_0004,
        0x2002_8102, 0xAB, 0xCDEF_0100, 0x2001_8106, 16, 0x2001_80C0, 0x586,
    ]  # fmt: skip


def test_semaphores(gh100: NvDevice) -> None:
    timeline = gh100.driver.compute_queue.timeline
    address = int(timeline.memory.address)
    value = 0x1_2345_6789
    signal = Signal(timeline, Symbol.constant(value))
    place = [address & 0xFFFF_FFFF, address >> 32, value & 0xFFFF_FFFF, value >> 32]
    assert words([signal]) == [0x2005_0017, *place, 0x0110_0001]
    wait = Wait(timeline, Symbol.constant(value))
    assert words([wait]) == [0x2005_0017, *place, 0x0100_1002]
    assert words([Barrier()]) == IDLE
    assert words([Barrier()], HOPPER) == START + IDLE + START


def test_a_timestamp_touches_eight_bytes_of_its_destination() -> None:
    stamp = Timestamp(Symbol.constant(DESTINATION))
    found = words([stamp])
    block = 256  # data lies behind the words, at a multiple of 256 bytes; the image at address 0
    assert found[:6] == [0x2005_0017, block, 0, 1, 0, 0x0310_0001]  # release with the clock
    assert found[6:12] == [0x2005_0017, block, 0, 1, 0, 0x0100_1002]  # has it arrived
    assert found[12:17] == [0x2004_8100, 0, block + 8, 0xAB, 0xCDEF_0100]
    assert found[17:21] == [0x2001_8106, 8, 0x2001_80C0, 0x186]
    assert found[21:] == [0x2005_0017, block, 0, 0, 0, 0x0110_0001]


def test_switching_between_engines_waits() -> None:
    copy = Copy(Symbol.constant(DESTINATION), Symbol.constant(SOURCE), 16)
    found = words([copy, copy, Barrier()], HOPPER)
    assert found.count(0x2001_001E) == 3  # before the copies, after them, and the barrier


# (chip, QMD size, word of the first size of the grid, words of the group's sizes)
DESCRIPTORS = {
    "tu102": (256, 12, (18, 0x0040_0023), 0x2001_20AF),
    "ga102": (256, 12, (18, 0x0040_0030), 0x2001_20B0),
    "gh100": (384, 32, (36, 0x0001_0040), 0x2001_20B0),
    "gb202": (384, 39, (34, 0x0001_0040), 0x2001_20B0),
}


@pytest.mark.parametrize("chip", DESCRIPTORS)
def test_a_launch(chip: str) -> None:
    size, grid_at, (block_at, block_word), send = DESCRIPTORS[chip]
    with powered(chip) as machine, opened(machine) as device:
        program = device.load(full(device.target.cpu))
        kernel = program["full"]
        block = bytes(range(kernel.kernarg_size))
        launch = Launch(kernel, (5, 6, 7), (64, 1, 1), block)
        encoded = device.driver.compute_queue.encoder.encode([launch])
        values = np.full(len(encoded.symbols), Region.COMMANDS.value[0], np.uint64)
        out = np.zeros(len(encoded.words), np.uint32)
        encoded.patch(out, values)
        assert list(out[:2]) == START
        bank_at, qmd_at = 256, 256 + -(-len(kernel.details.bank) // 256) * 256
        base = Region.COMMANDS.value[0]
        assert list(out[2:6]) == [0x2001_20AD, base + qmd_at >> 8, send, 3]
        assert encoded.command_words == 6
        assert len(out) * 4 == qmd_at + -(-size // 256) * 256
        qmd = out[qmd_at // 4 :]
        assert qmd[grid_at] == 5 and qmd[grid_at + 1] & 0xFFFF == 6
        assert qmd[block_at] == block_word
        bank = out.tobytes()[bank_at:qmd_at]
        at = kernel.details.code.parameters_at
        assert bank[at : at + len(block)] == block
        blocks, grids = (0x360, 0x370) if chip == "gb202" else (0, 12)
        assert struct.unpack_from("<3I", bank, blocks) == (64, 1, 1)
        assert struct.unpack_from("<3I", bank, grids) == (5, 6, 7)
        low = {"tu102": 32, "ga102": 32, "gh100": 48, "gb202": 42}[chip]
        address = base + bank_at
        if chip in ("tu102", "ga102"):
            assert qmd[low] == address & 0xFFFF_FFFF
            assert qmd[low + 1] & 0x1_FFFF == address >> 32
            assert qmd[low + 1] >> 19 == len(kernel.details.bank) // 16
        else:
            assert qmd[low] == address >> 6
            assert qmd[low + 1] >> 19 == len(kernel.details.bank) // 16


def test_a_copy_queue_launches_nothing(gh100: NvDevice) -> None:
    kernel = gh100.load(full("sm_90"))["small"]
    with pytest.raises(BadArgument):
        words([Launch(kernel, (1, 1, 1), (64, 1, 1), bytes(8))])


def test_the_carveout_holds_what_can_run(gh100: NvDevice) -> None:
    details = gh100.load(full("sm_90"))["full"].details
    for threads in range(1, 1025):
        carveout = details.carveout(threads)
        assert carveout in facts_of((9, 0)).shared_carveouts
        assert carveout >= details.shared_size
        groups = max(1, 64 // -(-threads // 32))
        if groups * details.shared_size <= 228 << 10:
            assert carveout >= groups * details.shared_size
