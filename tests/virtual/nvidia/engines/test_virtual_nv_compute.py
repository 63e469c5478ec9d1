"""Launches on the virtual GPUs: methods, what comes of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia.rm_program import LOCAL_WINDOW, SHARED_WINDOW, RecordingSms, RmProgram
from tests.support.waiting import until
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.gpu import CHIPS
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome

SEMAPHORE, BANK = 0x4000, 0x32_0000
PTX = "// the model's front end does not read it"


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.bring_up()
        yield made


def sms_of(program: RmProgram) -> RecordingSms:
    sms = program.machine.gpu.multiprocessors
    assert isinstance(sms, RecordingSms)
    return sms


def run(program: RmProgram, number: int = 1, size: int = 16, **changes: int | str) -> None:
    """Launch one grid and release a semaphore behind it."""
    code = program.program(PTX, "kernel", size)
    program.windows()
    program.launch(program.put_qmd(program.qmd(code, **changes)))
    program.release(program.work_address + SEMAPHORE, number)
    program.submit()


def fails(program: RmProgram, xid: Xid, *texts: str) -> None:
    assert program.wait_error() == (xid, 0xFFFF)
    for text in texts:
        assert text in program.machine.log[-1].text, program.machine.log[-1]


@pytest.mark.parametrize("chip", CHIPS)
def test_a_launch_reaches_the_sms(chip: str) -> None:
    with RmProgram(chip) as program:
        program.bring_up()
        view = program.work_map.view
        assert view is not None
        view[BANK + 0x210 : BANK + 0x220] = bytes(range(16))
        height = "CTA_RASTER_HEIGHT" if program.facts.qmd[0] < 4 else "GRID_HEIGHT"
        run(program, CTA_THREAD_DIMENSION1=4, **{height: 7})
        program.wait(SEMAPHORE, 1)
        (launch,) = sms_of(program).launches
        assert launch.entry == "kernel"
        assert launch.ptx == PTX
        assert launch.target == program.facts.target
        assert (launch.grid, launch.block) == ((1, 7, 1), (32, 4, 1))
        assert launch.parameters == bytes(range(16))
        assert (launch.shared_window, launch.local_window) == (SHARED_WINDOW, LOCAL_WINDOW)
        assert launch.sm_count == program.facts.sm_count
        assert program.machine.log == []


@pytest.mark.parametrize("chip", ["gh100", "gb202"])
def test_a_queue_is_not_run(chip: str) -> None:
    """Nor its release, nor what depends on it; the channel goes on."""
    with RmProgram(chip) as program:
        program.bring_up()
        code = program.program(PTX, "kernel", 0)
        second = program.put_qmd(program.qmd(code, GRID_WIDTH=2), 0x2F_1000)
        where = program.work_address + SEMAPHORE + 16
        fields = {
            "QMD_TYPE": 0, "RELEASE_ENABLE": 1, "RELEASE_STRUCTURE_SIZE": 1,
            "RELEASE_SEMAPHORE0_ADDR_LOWER": where & 0xFFFF_FFFF,
            "RELEASE_SEMAPHORE0_ADDR_UPPER": where >> 32, "RELEASE_SEMAPHORE0_PAYLOAD_LOWER": 7,
            "DEPENDENT_QMD_ENABLE": 1, "DEPENDENT_QMD_ACTION": 1,
            "DEPENDENT_QMD0_POINTER": second >> 8,
        }  # fmt: skip
        program.windows()
        program.launch(program.put_qmd(program.qmd(code, **fields)))
        program.release(program.work_address + SEMAPHORE, 1)
        program.submit()
        program.wait(SEMAPHORE, 1)
        assert program.word(SEMAPHORE + 16) == 0
        assert not sms_of(program).launches and program.machine.log == []
        assert program.machine.violations == [
            "launch descriptor: QMD_TYPE is QUEUE (0): not run; expected GRID_CTA (2) or"
            " GRID_GPC_CGA (3)"
        ]
        first = program.qmd(
            code, DEPENDENT_QMD_ENABLE=1, DEPENDENT_QMD_ACTION=1,
            DEPENDENT_QMD0_POINTER=program.put_qmd(program.qmd(code, QMD_TYPE=0), 0x2F_1000) >> 8,
        )  # fmt: skip
        program.launch(program.put_qmd(first))
        program.release(program.work_address + SEMAPHORE, 2)
        program.submit()
        program.wait(SEMAPHORE, 2)
        assert len(sms_of(program).launches) == 1
        assert len(program.machine.violations) == 2


def test_a_launch_needs_its_windows(program: RmProgram) -> None:
    program.launch(program.put_qmd(program.qmd(program.program(PTX, "kernel", 0))))
    program.submit()
    fails(program, Xid.GR_EXCEPTION, "SET_SHADER_SHARED_MEMORY_WINDOW was never set")


def test_a_launch_without_an_address(program: RmProgram) -> None:
    program.windows()
    program.method(0, 0x2C0, 3)
    program.submit()
    fails(program, Xid.GR_EXCEPTION, "must follow SEND_PCAS_A")


def test_reserved_bits_of_methods(program: RmProgram) -> None:
    program.method(0, 0x2A0, 1 << 20)
    program.submit()
    fails(program, Xid.GR_EXCEPTION, "SET_SHADER_SHARED_MEMORY_WINDOW_A", "reserved bits")


def test_unknown_methods(program: RmProgram) -> None:
    program.method(0, 0x2F0, 0)
    program.submit()
    fails(program, Xid.CLASS_ERROR, "class cbc0 has no method 0x02f0")


def test_a_descriptor_that_is_not_mapped(program: RmProgram) -> None:
    program.windows()
    program.launch(0x55_0000_0000)
    program.submit()
    fails(program, Xid.MMU_FAULT, "HUB SKED")


def test_a_program_without_its_note(program: RmProgram) -> None:
    code = program.program(PTX, "kernel", 0)
    program.windows()
    program.launch(program.put_qmd(program.qmd(code + 128)))
    program.submit()
    fails(program, Xid.GR_EXCEPTION, "found none", "not machine code")


def test_parameters_past_the_bank(program: RmProgram) -> None:
    run(program, size=0x1000)
    fails(program, Xid.GR_EXCEPTION, "requires 4096 bytes at byte 528 of constant bank 0")


def test_a_bank_that_is_not_mapped(program: RmProgram) -> None:
    run(program, CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6=0x1)
    fails(program, Xid.MMU_FAULT, "GPC T1")


def test_a_bank_may_end_beyond_mapped_memory(program: RmProgram) -> None:
    """Boards read what a kernel reads of a bank: drivers that give it too large a size work."""
    last = program.gpu_map(program.system_memory(4096), 4096)  # nothing is mapped behind it
    bank = last + 4096 - 0x240  # parameters from 0x210 on are inside
    low, high = "CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6", "CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6"
    run(program, **{low: bank >> 6 & 0xFFFF_FFFF, high: bank >> 38})
    program.wait(SEMAPHORE, 1)
    assert program.machine.log == []
    run(program, size=64, **{low: bank >> 6 & 0xFFFF_FFFF, high: bank >> 38})
    fails(program, Xid.MMU_FAULT, "GPC T1")


def test_local_memory_must_be_there(program: RmProgram) -> None:
    run(program, SHADER_LOCAL_MEMORY_HIGH_SIZE=64)
    fails(program, Xid.GR_EXCEPTION, "64 bytes of local memory per thread require 262144 per TPC")


def test_local_memory_that_is_there(program: RmProgram) -> None:
    size = 262144 * 66
    base = program.gpu_map(program.video_memory(32 << 20, page=3), 32 << 20)
    assert size <= 32 << 20
    program.method(0, 0x790, base >> 32, base & 0xFFFF_FFFF)
    program.method(0, 0x2E4, 0, 262144, 0xFF)
    run(program, SHADER_LOCAL_MEMORY_HIGH_SIZE=64)
    program.wait(SEMAPHORE, 1)
    assert sms_of(program).launches[0].local_size == 64


def test_an_inline_descriptor(program: RmProgram) -> None:
    code = program.program(PTX, "kernel", 0)
    raw = bytes(program.qmd(code))
    address = program.work_address + 0x2F_0000
    program.windows()
    program.method(0, 0x318, address >> 40 | 1 << 30, address >> 8 & 0xFFFF_FFFF)
    program.method(0, 0x320, *struct.unpack("<96I", raw))
    program.launch(address)
    program.release(program.work_address + SEMAPHORE, 3)
    program.submit()
    program.wait(SEMAPHORE, 3)
    assert len(sms_of(program).launches) == 1


@pytest.mark.parametrize("chip", CHIPS)
def test_releases_of_a_descriptor(chip: str) -> None:
    with RmProgram(chip) as program:
        program.bring_up()
        code = program.program(PTX, "kernel", 0)
        major = program.facts.qmd[0]
        where = program.work_address + SEMAPHORE
        wide = {"RELEASE0_PAYLOAD64B": 1, "RELEASE0_PAYLOAD_UPPER": 5}
        changes: dict[str, int | str] = {
            "RELEASE0_ADDRESS_LOWER": where & 0xFFFF_FFFF, "RELEASE0_ADDRESS_UPPER": where >> 32,
            "RELEASE0_STRUCTURE_SIZE": "FOUR_WORDS" if major < 3 else "SEMAPHORE_FOUR_WORDS",
        }  # fmt: skip
        if major == 2:
            changes |= {"SEMAPHORE_RELEASE_ENABLE0": 1, "RELEASE0_PAYLOAD": 77}
            wide = {}
        elif major == 3:
            changes |= {"RELEASE0_ENABLE": 1, "RELEASE0_PAYLOAD_LOWER": 77, **wide}
        else:
            changes = {
                "RELEASE_ENABLE": 1, "RELEASE_STRUCTURE_SIZE": 0, "RELEASE_PAYLOAD64B": 1,
                "RELEASE_SEMAPHORE0_ADDR_LOWER": where & 0xFFFF_FFFF,
                "RELEASE_SEMAPHORE0_ADDR_UPPER": where >> 32,
                "RELEASE_SEMAPHORE0_PAYLOAD_LOWER": 77, "RELEASE_SEMAPHORE0_PAYLOAD_UPPER": 5,
            }  # fmt: skip
        program.windows()
        program.launch(program.put_qmd(program.qmd(code, **changes)))
        program.submit()
        program.wait(SEMAPHORE, 77 | (5 << 32 if wide else 0))
        assert program.word(SEMAPHORE + 8) > 0


def test_a_dependent_descriptor_runs_after(program: RmProgram) -> None:
    code = program.program(PTX, "kernel", 0)
    second = program.put_qmd(program.qmd(code, GRID_WIDTH=2), 0x2F_1000)
    first = program.qmd(
        code, DEPENDENT_QMD_ENABLE=1, DEPENDENT_QMD_ACTION="QMD_SCHEDULE",
        DEPENDENT_QMD0_POINTER=second >> 8,
    )  # fmt: skip
    program.windows()
    program.launch(program.put_qmd(first))
    program.release(program.work_address + SEMAPHORE, 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    assert [launch.grid[0] for launch in sms_of(program).launches] == [1, 2]


def grids(program: RmProgram, between: Any) -> list[int]:
    """Two launches with `between` in the middle; in which order they ran."""
    code = program.program(PTX, "kernel", 0)
    program.windows()
    for width in (1, 2):
        offset = 0x2F_0000 + width * 0x1000
        program.launch(program.put_qmd(program.qmd(code, GRID_WIDTH=width), offset))
        between()
    program.release(program.work_address + SEMAPHORE, 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    return [launch.grid[0] for launch in sms_of(program).launches]


def test_grids_that_nothing_orders_run_in_any_order(program: RmProgram) -> None:
    assert grids(program, lambda: None) == [2, 1]


def test_waiting_for_idle_orders_grids(program: RmProgram) -> None:
    assert grids(program, lambda: program.method(0, 0x78, 0)) == [1, 2]


def test_a_release_that_does_not_wait_comes_early(program: RmProgram) -> None:
    seen: list[int] = []

    def look(*_: object) -> SmOutcome:
        seen.append(program.word(SEMAPHORE))
        return SmOutcome(SmEnding.DONE)

    sms_of(program).answer = look
    code = program.program(PTX, "kernel", 0)
    program.windows()
    program.launch(program.put_qmd(program.qmd(code)))
    program.release(program.work_address + SEMAPHORE, 5, wait=False)
    program.submit()
    program.wait(SEMAPHORE, 5)
    assert program.machine.gpu.wait_idle()
    assert seen == [5], "the grid had not run when the semaphore was released"


@pytest.mark.parametrize(
    ("ending", "esr"),
    [
        (SmEnding.ILLEGAL_INSTRUCTION, 0x09),
        (SmEnding.ILLEGAL_ADDRESS, 0x0E),
        (SmEnding.MISALIGNED_ADDRESS, 0x0F),
    ],
)
def test_exceptions_of_the_sms(program: RmProgram, ending: SmEnding, esr: int) -> None:
    outcome = SmOutcome(ending, "as told", program_counter=0x40, group=(5, 0, 0), warp=2)
    sms_of(program).answer = lambda *_: outcome
    run(program, GRID_WIDTH=9)
    fails(program, Xid.GR_EXCEPTION, ending.value, "kernel", "as told")
    states = program.control(
        program.debugger, "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES", numSMsToRead=100
    )
    state = states.smErrorStateArray[5]
    assert state.hwwWarpEsr == esr
    assert state.hwwWarpEsrPc64 == program.work_address + 0x30_0100 + 0x40
    assert not any(states.smErrorStateArray[k].hwwWarpEsr for k in range(100) if k != 5)
    program.control(
        program.debugger, "NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES", numSMsToClear=100
    )
    states = program.control(
        program.debugger, "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES", numSMsToRead=100
    )
    assert not any(entry.hwwWarpEsr for entry in states.smErrorStateArray)


def test_a_bad_launch_names_what_is_bad(program: RmProgram) -> None:
    sms_of(program).answer = lambda *_: SmOutcome(SmEnding.BAD_LAUNCH, "no such entry")
    run(program)
    fails(program, Xid.GR_EXCEPTION, "kernel: no such entry")


def test_freeing_the_channel_ends_a_grid_that_hangs(program: RmProgram) -> None:
    started: list[bool] = []

    def hang(launch: object, memory: object, abort: Any) -> SmOutcome:
        started.append(True)
        until(lambda: abort.flag[0], "the abort")
        return SmOutcome(SmEnding.ABORTED)

    sms_of(program).answer = hang
    run(program)
    until(lambda: started, "the grid to start")
    program.free(program.group)
    assert program.machine.gpu.wait_idle()
    assert program.machine.log == [], "freeing a channel is no error"


@pytest.mark.parametrize(
    ("method", "field", "clean"),
    [
        (None, {}, False),
        ((0x1698, 1 << 12), {}, True),
        ((0x21C, 1 << 12), {}, True),
        ((0x1698, 1 | 1 << 4), {}, False),
        (None, {"INVALIDATE_SHADER_CONSTANT_CACHE": 1}, True),
        (None, {"CONSTANT_BUFFER_INVALIDATE": 1}, True),
        (None, {"INVALIDATE_INSTRUCTION_CACHE": 1}, False),
    ],
)
def test_constants_that_changed_under_the_cache(
    program: RmProgram, method: tuple[int, int] | None, field: dict[str, int], clean: bool
) -> None:
    view = program.work_map.view
    assert view is not None
    run(program, 1)
    program.wait(SEMAPHORE, 1)
    run(program, 2)
    program.wait(SEMAPHORE, 2)
    assert program.machine.violations == [], "nothing changed"
    view[BANK + 0x210] = 9
    if method is not None:
        program.method(0, *method)
    run(program, 3, **field)
    program.wait(SEMAPHORE, 3)
    assert (program.machine.violations == []) == clean
    assert clean or "kernel: constants at" in program.machine.violations[0]


@pytest.mark.parametrize("bits", [0, 1])
def test_code_that_changed_under_the_cache(program: RmProgram, bits: int) -> None:
    run(program, 1)
    program.wait(SEMAPHORE, 1)
    program.method(0, 0x1698, bits)
    code = program.program(PTX + " any more", "kernel", 16)
    program.launch(program.put_qmd(program.qmd(code)))
    program.release(program.work_address + SEMAPHORE, 2)
    program.submit()
    program.wait(SEMAPHORE, 2)
    assert len(program.machine.violations) == 1 - bits


def test_real_kernels_add_vectors() -> None:
    """The SMs that execute PTX, behind the same front end."""
    text = """.version 8.0
    .target sm_90
    .address_size 64
    .visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c)
    { .reg .b32 %r<8>; .reg .b64 %d<12>; .reg .f32 %f<4>;
     ld.param.u64 %d1,[a]; ld.param.u64 %d2,[b]; ld.param.u64 %d3,[c];
     mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mov.u32 %r3,%tid.x; mad.lo.s32 %r4,%r1,%r2,%r3;
     mul.wide.s32 %d4,%r4,4; add.s64 %d5,%d1,%d4; add.s64 %d6,%d2,%d4; add.s64 %d7,%d3,%d4;
     ld.global.f32 %f1,[%d5]; ld.global.f32 %f2,[%d6]; add.f32 %f3,%f1,%f2;
     st.global.f32 [%d7],%f3; ret; }
    """
    with RmProgram(multiprocessors=None) as program:
        program.bring_up()
        view, base = program.work_map.view, program.work_address
        assert view is not None
        numbers = np.arange(4096, dtype="f4")
        view[0x20_0000:0x20_4000] = numbers.tobytes()
        view[0x20_4000:0x20_8000] = (numbers * 2).tobytes()
        struct.pack_into(
            "<QQQ", view, BANK + 0x210, base + 0x20_0000, base + 0x20_4000, base + 0x20_8000
        )
        code = program.program(text, "add", 24)
        program.windows()
        program.launch(program.put_qmd(program.qmd(code, GRID_WIDTH=128)))
        program.release(base + SEMAPHORE, 1)
        program.submit()
        program.wait(SEMAPHORE, 1)
        made = np.frombuffer(view[0x20_8000:0x20_C000], "f4")
        assert np.array_equal(made, numbers * 3)
        struct.pack_into("<Q", view, BANK + 0x220, 0x77_0000_0000)
        program.launch(program.work_address + 0x2F_0000)
        program.submit()
        fails(program, Xid.MMU_FAULT, "0x770000", "WRITE", "GPC T1")
