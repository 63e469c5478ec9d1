"""A launch that a shader core has run before: what changed in memory since then is seen."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.amd.navi31_bench import bench
from tests.virtual.amd.test_model_memory import AS_PTE, PAGES, PDB0, VA, VMID, Memory, R, V, W, X
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.memory.shadermemory import HubShaderMemory
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

CODE, ARGUMENTS, DATA = VA, VA + 0x2000, VA + 0x3000
OLD, NEW = PAGES, PAGES + 0x8000  # pages of code in VRAM
# s_load_b64 s[2:3], s[0:1], null ; v_lshlrev_b32 v0, 2, v0 ; s_waitcnt ; v_mov_b32 v1, k
# global_store_b32 v0, v1, s[2:3] ; s_endpgm
HEAD = [0xF4040080, 0xF8000000, 0x30000082, 0xBF89FC07]
TAIL = [0xDC6A0000, 0x00020100, 0xBFB00000]
MOVE = 0x7E020280  # of constant 0: the constant is in the low bits


class Replay(Memory):
    """A program in VRAM behind page tables, which a core runs again and again."""

    core: GfxCore
    memory: HubShaderMemory
    abort: Abort
    dispatch: Dispatch

    def prepare(self, core: GfxCore) -> None:
        """Map code, arguments and data, and describe the launch."""
        self.core, self.abort = core, Abort()
        self.program(OLD, 1)
        self.page(CODE, OLD, V | R | X)
        self.page(ARGUMENTS, PAGES + 0x2000)
        self.page(DATA, PAGES + 0x3000)
        self.vram.write(PAGES + 0x2000, struct.pack("<Q", DATA))
        self.flush_hdp()
        self.memory = self.unit.shader_memory(VMID)
        self.dispatch = Dispatch(
            code_address=CODE, groups=(1, 1, 1), threads=(32, 1, 1), rsrc1=3 | 0xF0 << 12,
            rsrc2=2 << 1, rsrc3=0, wave32=True,
            user_data=(ARGUMENTS & 0xFFFFFFFF, ARGUMENTS >> 32, *[0] * 14),
            repeats=True,
        )  # fmt: skip

    def program(self, physical: int, constant: int) -> None:
        """Write a program that stores a constant."""
        words = [*HEAD, MOVE + constant, *TAIL]
        self.vram.write(physical, struct.pack(f"<{len(words)}I", *words))
        self.flush_hdp()

    def run(self) -> Ending:
        """Run the launch once more, always with the same object."""
        return self.core.run(self.dispatch, self.memory, self.abort).ending

    def stored(self, physical: int = PAGES + 0x3000) -> list[int]:
        """Return what the lanes have stored, as a set, and forget it."""
        values = struct.unpack("<32I", self.chip.vram.read(physical, 128))
        self.chip.vram.write(physical, bytes(128))
        return sorted(set(values))


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    core = GfxCore(1)
    yield core
    core.close()


@pytest.fixture
def card(core: GfxCore) -> Iterator[Replay]:
    with bench() as made:
        made.__class__ = Replay
        assert isinstance(made, Replay)
        made.start("gc")
        made.prepare(core)
        assert made.run() is Ending.DONE
        assert made.stored() == [1]
        yield made


def test_it_runs_each_time(card: Replay) -> None:
    for _ in range(3):
        assert card.run() is Ending.DONE
        assert card.stored() == [1]


def test_one_changed_byte_of_its_code(card: Replay) -> None:
    for constant in (2, 3, 1):
        card.vram.write(OLD + 4 * len(HEAD), struct.pack("<I", MOVE + constant))
        card.flush_hdp()
        assert card.run() is Ending.DONE
        assert card.stored() == [constant]


def test_its_code_in_another_page(card: Replay) -> None:
    card.program(NEW, 5)
    card.page(CODE, NEW, V | R | X)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [5]
    card.program(OLD, 6)  # which the launch has left
    assert card.run() is Ending.DONE
    assert card.stored() == [5]
    card.page(CODE, OLD, V | R | X)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [6]


def test_its_code_in_a_large_page(card: Replay) -> None:
    card.entry(PDB0, VA >> 21, 0x20_0000 * 3 | V | R | W | X | AS_PTE)
    card.program(0x20_0000 * 3, 7)
    place = 0x20_0000 * 3 + 0x2000
    card.vram.write(place, struct.pack("<Q", DATA))
    card.flush_hdp()
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored(place + 0x1000) == [7]


@pytest.mark.parametrize("flags", [0, V | R | W])
def test_its_code_unmapped_or_no_longer_executable(card: Replay, flags: int) -> None:
    card.page(CODE, OLD if flags else 0, flags)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.FETCH_FAULT
    assert card.status()[1] == CODE
    card.page(CODE, OLD, V | R | X)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [1]


def test_its_data_in_another_page(card: Replay) -> None:
    card.page(DATA, PAGES + 0x4000)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [0]
    assert card.stored(PAGES + 0x4000) == [1]


def test_its_data_unmapped(card: Replay) -> None:
    card.page(DATA, 0, 0)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [0]
    assert card.status()[1] == DATA


def test_changed_arguments(card: Replay) -> None:
    card.page(DATA + 0x1000, PAGES + 0x4000)
    card.vram.write(PAGES + 0x2000, struct.pack("<Q", DATA + 0x1000))
    card.flush_hdp()
    assert card.run() is Ending.DONE
    assert card.stored() == [0]
    assert card.stored(PAGES + 0x4000) == [1]


def test_other_launches_between(card: Replay) -> None:
    """A launch with more waves moves the workers' wave states."""
    large = replace(card.dispatch, threads=(1024, 1, 1), rsrc1=card.dispatch.rsrc1 | 0x3F)
    small = card.dispatch
    for dispatch in (small, large, small, replace(large), small):
        card.dispatch = dispatch
        assert card.run() is Ending.DONE
        assert card.stored() == [1]


def test_an_aborted_launch_runs_again(card: Replay) -> None:
    card.abort.set()
    assert card.run() is Ending.ABORTED
    assert card.stored() == [0]
    card.abort.clear()
    assert card.run() is Ending.DONE
    assert card.stored() == [1]


def test_another_address_space(card: Replay) -> None:
    """The same launch in a space whose page of data is another one."""
    other_tables = 0x60_8000
    card.context(VMID + 1, other_tables)
    card.vram.write(other_tables, bytes(4 * 4096))
    for level, shift in enumerate((39, 30, 21)):
        table = other_tables + 0x1000 * level
        card.entry(table, VA >> shift, table + 0x1000 | V)
    for page, physical in ((CODE, OLD), (ARGUMENTS, PAGES + 0x2000), (DATA, PAGES + 0x4000)):
        card.entry(other_tables + 0x3000, page >> 12, physical | V | R | W | X)
    card.flush_hdp()
    other = card.unit.shader_memory(VMID + 1)
    assert card.core.run(card.dispatch, other, card.abort).ending is Ending.DONE
    assert card.stored() == [0]
    assert card.stored(PAGES + 0x4000) == [1]
    assert card.core.run(card.dispatch, card.memory, Abort()).ending is Ending.DONE
    assert card.stored() == [1]


def test_another_abort(card: Replay) -> None:
    abort = Abort()
    abort.set()
    assert card.core.run(card.dispatch, card.memory, abort).ending is Ending.ABORTED
    assert card.run() is Ending.DONE
    assert card.stored() == [1]


def test_an_address_space_that_is_cut(card: Replay) -> None:
    with card.chip.lock:
        card.memory.cut = True
    assert card.run() is Ending.FETCH_FAULT
    with card.chip.lock:
        card.memory.cut = False
    assert card.run() is Ending.DONE
    assert card.stored() == [1]


def test_code_in_the_hosts_memory_that_was_given_back(card: Replay) -> None:
    lent = card.transport.allocate_dma(4096)
    card.page(CODE, lent.segments[0].address, V | 2 | R | X)
    words = [*HEAD, MOVE + 9, *TAIL]
    lent.view[: 4 * len(words)] = struct.pack(f"<{len(words)}I", *words)
    assert card.invalidate("gc", VMID)
    assert card.run() is Ending.DONE
    assert card.stored() == [9]
    card.transport.config_write(4, 0x2, 2)  # bus mastering off
    assert card.run() is Ending.ILLEGAL_INSTRUCTION  # nothing answers: all ones
    card.transport.config_write(4, 0x6, 2)
    assert card.run() is Ending.DONE
    assert card.stored() == [9]
    lent.close()
    assert card.run() is Ending.ILLEGAL_INSTRUCTION
    assert card.stored() == [0]


def test_a_card_that_was_unplugged(card: Replay) -> None:
    card.chip.unplug()
    assert card.run() is Ending.FETCH_FAULT
