"""From COMPUTE_* registers to a launch: what is passed on, what cannot launch, how waves end."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.virtual_engines import DATA, Bench, high, low, spin_until_aborted
from ugpu.virtual.amd.chip import FRAME_BUFFER_BASE
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, ShaderMemory, ShaderWave, place_of
from ugpu.virtual.shader.memory import Abort, Access

# Offsets from 0x2C00: 0x200 is COMPUTE_DISPATCH_INITIATOR (0x2E00), by the register header.
INITIATOR, START_X, NUM_THREAD_X, PGM_LO, SCRATCH_LO = 0x200, 0x204, 0x207, 0x20C, 0x210
RSRC1, RSRC2, TMPRING, RSRC3, USER_DATA, STATIC_SE0 = 0x212, 0x213, 0x218, 0x228, 0x240, 0x216
RESTART_X = 0x21B
EN, FORCE_START, DIMENSIONS, WAVE32 = 1, 1 << 2, 1 << 5, 1 << 15
ACQUIRE = [0xC0065800, 0, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA, 1 << 7 | 1 << 8 | 1 << 9]
WRITE = [0xC0033700, 0x00100500, low(DATA), high(DATA)]
FLUSH = [0xC0004600, 7 | 4 << 8]
RELEASE = [0xC0064900, 0x14 | 5 << 8, 2 << 29, low(DATA + 8), high(DATA), 1, 0, 0]
CODE = 0x8000_1234_5600


def sh(offset: int, *values: int) -> list[int]:
    return [0xC0007600 | len(values) << 16, offset, *values]


def dispatch(
    x: int = 1, y: int = 1, z: int = 1, initiator: int = EN | FORCE_START | WAVE32
) -> list[int]:
    return [0xC0031500, x, y, z, initiator]


NO_UNITS = [*sh(STATIC_SE0, 0, 0), *sh(STATIC_SE0 + 3, 0, 0), *sh(0x22B, 0, 0)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.start_mec()
    for vmid in range(16):
        bench.select(me=0, vmid=vmid)
        bench.set("SH_MEM_BASES", 1 << 16 | 2)
    bench.activate()
    bench.submit(
        sh(PGM_LO, low(CODE >> 8), high(CODE >> 8)),
        sh(RSRC1, 1 << 29 | 3, 2 << 1 | 1 << 7),
        sh(NUM_THREAD_X, 64, 1, 1),
    )
    yield bench
    bench.close()


def test_registers_become_a_launch(bench: Bench) -> None:
    bench.submit(
        sh(USER_DATA, *range(100, 116)),
        sh(SCRATCH_LO, 0x10, 0x2),
        sh(TMPRING, 32 | 5 << 12),
        sh(RSRC3, 0x10),
        ACQUIRE,
        dispatch(3, 4, 5),
    )
    (launch,) = bench.core.launches
    assert launch.code_address == CODE
    assert launch.groups == (3, 4, 5)
    assert launch.threads == (64, 1, 1)
    assert (launch.rsrc1, launch.rsrc2, launch.rsrc3) == (1 << 29 | 3, 2 << 1 | 1 << 7, 0x10)
    assert list(launch.user_data) == list(range(100, 116))
    assert launch.wave32
    assert launch.scratch_base == 0x2_0000_0010 << 8
    assert launch.scratch_wave_size == 5 * 256
    assert launch.scratch_waves == 32
    assert (launch.shared_aperture, launch.private_aperture) == (1 << 48, 2 << 48)
    assert bench.chip.violations == []


def test_thread_dimensions_and_wave64(bench: Bench) -> None:
    bench.submit(dispatch(256, 2, 1, EN | DIMENSIONS))
    assert bench.core.launches[0].groups == (4, 2, 1)
    assert not bench.core.launches[0].wave32


def test_a_grid_of_nothing_completes(bench: Bench) -> None:
    bench.submit(dispatch(0, 1, 1), RELEASE)
    assert bench.core.launches == []
    assert bench.qword(DATA + 8) == 1


def test_dispatch_indirect_reads_its_grid(bench: Bench) -> None:
    bench.store(DATA, struct.pack("<3I", 7, 8, 9))
    bench.submit([0xC0021600, low(DATA), high(DATA), EN | FORCE_START | WAVE32])
    assert bench.core.launches[0].groups == (7, 8, 9)


def test_waves_run_beside_the_packets_until_one_waits(bench: Bench) -> None:
    """A write after a dispatch without a flush is not ordered after it; RELEASE_MEM is."""
    seen: list[tuple[int, int]] = []

    def body(launch: Dispatch, memory: ShaderMemory, abort: Abort) -> None:
        seen.append((bench.dword(DATA), bench.qword(DATA + 8)))

    bench.core.body = body
    bench.submit(dispatch(), [*WRITE, 1], FLUSH, [*WRITE, 2], dispatch(), RELEASE)
    assert seen == [(1, 0), (2, 0)]
    assert bench.qword(DATA + 8) == 1


@pytest.mark.parametrize(
    ("packets", "since"),
    [
        ([dispatch()], "the host's doorbell"),
        ([[*ACQUIRE[:7], 1 << 8], dispatch()], "the host's doorbell"),
        ([ACQUIRE, [0xC0053C00, 0x10, low(DATA), high(DATA), 0, 0, 4], dispatch()], "a wait"),
        ([ACQUIRE, dispatch(), FLUSH, dispatch()], "earlier launches"),
        ([ACQUIRE, dispatch(), RELEASE, dispatch()], "earlier launches"),
        ([ACQUIRE, dispatch(), dispatch(), FLUSH, ACQUIRE, dispatch(), RELEASE], ""),
    ],
)
def test_launches_need_an_acquire(bench: Bench, packets: list[list[int]], since: str) -> None:
    bench.submit(*packets)
    found = [text for text in bench.chip.violations if "without ACQUIRE_MEM" in text]
    assert len(found) == bool(since)
    assert since in "".join(found)


def test_nothing_but_a_wait_orders_launches(bench: Bench) -> None:
    bench.submit(dispatch(1), dispatch(2), FLUSH, dispatch(3), dispatch(4), RELEASE)
    assert [launch.groups[0] for launch in bench.core.launches] == [2, 1, 4, 3]


@pytest.mark.parametrize(
    ("reason", "setup", "packet"),
    [
        ("COMPUTE_SHADER_EN", [], dispatch(initiator=WAVE32)),
        ("PARTIAL_TG_EN", [], dispatch(initiator=EN | 2)),
        ("1025 threads", sh(NUM_THREAD_X, 1025, 1, 1), dispatch()),
        ("0 threads", sh(NUM_THREAD_X, 0, 1, 1), dispatch()),
        ("partial workgroup", [], dispatch(100, initiator=EN | DIMENSIONS)),
        ("COMPUTE_START", sh(START_X, 1, 0, 0), dispatch(initiator=EN | WAVE32)),
        ("COMPUTE_RESTART", sh(RESTART_X, 1, 0, 0), dispatch()),
        ("at most 16, got 17", sh(RSRC2, 17 << 1), dispatch()),
        ("LDS", sh(RSRC2, 129 << 15), dispatch()),
        ("requested 512 VGPRs", sh(RSRC1, 63), dispatch()),
        ("more registers", [*sh(RSRC1, 31), *sh(NUM_THREAD_X, 1024, 1, 1)], dispatch()),
        ("SCRATCH_EN", sh(RSRC2, 1), dispatch()),
        ("no compute unit", NO_UNITS, dispatch()),
    ],
)  # fmt: skip
def test_what_cannot_launch_hangs(
    bench: Bench, reason: str, setup: list[int], packet: list[int]
) -> None:
    bench.submit(setup, packet, RELEASE, wait=False)
    assert reason in bench.hung()
    assert bench.core.launches == []
    assert bench.qword(DATA + 8) == 0
    assert any(reason in text for text in bench.chip.violations)


def test_illegal_instruction(bench: Bench) -> None:
    bad = Outcome(Ending.ILLEGAL_INSTRUCTION, pc=CODE + 8, words=(0xFFFF1234,), wave=3)
    bench.core.outcomes.append(bad)
    bench.submit(dispatch(), RELEASE, wait=False)
    assert "illegal instruction at pc 0x800012345608" in bench.hung()
    # SQ interrupt: data 0 is detail [20:0], type [24:21] = 1, wave [31:27]; data 1 encoding [7:6] =
    # 2
    assert bench.interrupts() == [(0x14, 239, 4, 0, (0x1F1234 | 1 << 21 | 3 << 27, 0x80, 0, 0))]
    assert bench.qword(DATA + 8) == 0
    bench.set("GRBM_GFX_INDEX", 0)
    values = {}
    for index in (0x102, 0x103, 0x108, 0x109):
        bench.set("SQ_IND_INDEX", 3 | index << 16)
        values[index] = bench.get("SQ_IND_DATA")
    assert values[0x108] | values[0x109] << 32 == CODE + 8
    assert values[0x103] == 1 << 11  # ILLEGAL_INST
    assert values[0x102] >> 13 & 1  # HALT
    bench.select()
    bench.set("CP_HQD_DEQUEUE_REQUEST", 2)
    bench.wait(bench.gone)
    bench.activate()
    bench.submit(dispatch(), RELEASE)
    assert bench.qword(DATA + 8) == 1


@pytest.mark.parametrize("ending", [Ending.FETCH_FAULT, Ending.BAD_DISPATCH])
def test_other_bad_endings_hang_without_an_interrupt_of_the_queue(
    bench: Bench, ending: Ending
) -> None:
    bench.core.outcomes.append(Outcome(ending, pc=CODE, detail="why"))
    bench.submit(dispatch(), RELEASE, wait=False)
    assert ending.value in bench.hung()
    assert bench.interrupts() == []


def test_a_wave_that_halts_itself_hangs_the_queue_and_shows_halt_alone(bench: Bench) -> None:
    bench.core.outcomes.append(Outcome(Ending.HALTED, pc=CODE + 4, detail="by s_sethalt", wave=2))
    bench.submit(dispatch(), RELEASE, wait=False)
    assert "wave halted at pc 0x800012345604 by s_sethalt" in bench.hung()
    assert bench.interrupts() == []
    bench.set("GRBM_GFX_INDEX", 0)
    values = {}
    for index in (0x102, 0x103, 0x108):
        bench.set("SQ_IND_INDEX", index << 16 | 2)
        values[index] = bench.get("SQ_IND_DATA")
    assert values[0x102] == 1 << 13 | 1 << 16  # HALT, VALID; not FATAL_HALT
    assert values[0x103] == 0 and values[0x108] == (CODE + 4) & 0xFFFFFFFF


def test_a_wave_says_where_it_is_and_how_many_lanes_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HW_ID1, IB_STS2, GPR_ALLOC and LDS_ALLOC (fields: gc_11_0_0_sh_mask.h), by which umr reads
    registers; units: cwsr_trap_handler_gfx10.asm."""
    bench.core.body = spin_until_aborted
    bench.submit(dispatch(2048, 1, 1, EN | DIMENSIONS), RELEASE, wait=False)
    bench.wait(lambda: bench.core.launches)
    launch = bench.core.launches[0]
    wave = ShaderWave(launch, CODE, (31, 0, 0), 2, [0] * 128, False, vgprs=24, lds_bytes=1000)
    waves = [wave, wave]
    monkeypatch.setattr(bench.core, "look", lambda abort, limit_s: waves)
    assert place_of((31, 0, 0), launch.groups, (6, 2, 4)) == (1, 1, 2, 0)
    bench.set("GRBM_GFX_INDEX", 1 << 16 | 1 << 8 | 2 << 2)
    for slot in (2, 3):  # the second one takes the next that is free
        bench.set("SQ_IND_INDEX", slot | 0x117 << 16)
        assert bench.get("SQ_IND_DATA") == slot | 2 << 10 | 1 << 16 | 1 << 18
        bench.set("SQ_IND_INDEX", slot | 0x11C << 16)
        assert bench.get("SQ_IND_DATA") == 1 << 11  # WAVE64
        for index, size in ((0x105, 24 // 4 - 1), (0x106, 4)):
            bench.set("SQ_IND_INDEX", slot | index << 16)
            assert bench.get("SQ_IND_DATA") == size << 12
    bench.set("SQ_IND_INDEX", 4 | 0x117 << 16)
    assert bench.get("SQ_IND_DATA") == 0  # no wave
    bench.select()
    bench.set("CP_HQD_DEQUEUE_REQUEST", 2)
    bench.set("SPI_COMPUTE_QUEUE_RESET", 1)
    bench.wait(bench.gone)


def test_an_infinite_loop_ends_with_the_reset_of_its_waves(bench: Bench) -> None:
    bench.core.body = spin_until_aborted
    bench.submit(dispatch(), RELEASE, wait=False)
    bench.wait(lambda: bench.core.launches)
    assert bench.get("GRBM_STATUS") >> 31 & 1
    bench.select()
    bench.set("CP_HQD_DEQUEUE_REQUEST", 1)
    bench.advance(10)
    assert bench.active() == 1
    bench.set("CP_HQD_DEQUEUE_REQUEST", 2)
    bench.set("SPI_COMPUTE_QUEUE_RESET", 1)
    bench.wait(bench.gone)
    assert bench.qword(DATA + 8) == 0
    bench.core.body = None
    bench.activate()
    bench.submit(dispatch(), RELEASE)
    assert bench.qword(DATA + 8) == 1


def test_killed_waves_are_parted_from_memory(bench: Bench) -> None:
    seen: list[int] = []

    def body(launch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
        tlb = memory.new_tlb()
        seen.append(memory.refill(tlb, DATA, Access.WRITE))
        spin_until_aborted(launch, memory, abort)
        seen.append(memory.refill(tlb, DATA, Access.WRITE))
        return Outcome(Ending.ABORTED)

    bench.core.body = body
    bench.submit(dispatch(), wait=False)
    bench.wait(lambda: seen)
    queue = bench.queue()
    bench.set("GRBM_SOFT_RESET", 1)
    bench.wait(lambda: not queue.worker.alive)
    home = bench.chip.vram.host_address(DATA - FRAME_BUFFER_BASE)
    assert seen[0] == home
    assert seen[1] != home


def test_spi_reset_alone_frees_the_queue(bench: Bench) -> None:
    bench.core.body = spin_until_aborted
    bench.submit(dispatch(), RELEASE, wait=False)
    bench.wait(lambda: bench.core.launches)
    bench.select()
    bench.set("SPI_COMPUTE_QUEUE_RESET", 1)
    bench.wait(lambda: bench.qword(DATA + 8) == 1)


def test_writes_to_what_is_no_compute_register(bench: Bench) -> None:
    bench.submit(sh(0x8, 5))  # SPI_SHADER_*: graphics
    assert "no compute register" in bench.chip.violations[0]
    bench.submit(sh(PGM_LO + 1, 0x100))
    assert "COMPUTE_PGM_HI: undefined bits 0x100" in bench.chip.notes[-1]
