"""The memory hubs: page tables made by hand, stale translations, faults and their interrupt.

Longer than 500 lines: one bench for one unit, whose tests share its page tables.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.amd.navi31_bench import FRAME_BUFFER, Bench, bench
from ugpu.virtual.amd.memory.gmc import Hub
from ugpu.virtual.shader.memory import DELTA, READ_TAG, WRITE_TAG, Access, tlb_set

# Tables in VRAM, each 4 KiB; addresses in entries are VRAM offsets (gfx11, amdgpu_vm.h).
ROOT, PDB1, PDB0, PTB = 0x60_0000, 0x60_1000, 0x60_2000, 0x60_3000
PAGES = 0x70_0000
V, SYSTEM, SNOOPED, X, R, W = 1, 2, 4, 0x10, 0x20, 0x40
AS_PTE = 1 << 54
VMID, CLIENT = 3, 8
VA = 0x1234_5000_0000
IH_RING = 0x68_0000


class Memory(Bench):
    """A bench with one 4-level context on a hub."""

    hub_name = "mmhub"

    def start(self, hub_name: str) -> None:
        self.hub_name = hub_name
        self.enable()
        if hub_name == "gc":
            with self.chip.lock:
                self.chip.autoload()
        self.open_hub("mmhub")
        self.open_hub(hub_name)
        self.context(VMID, ROOT)
        self.vram.write(ROOT, bytes(4 * 4096))
        self.entry(ROOT, VA >> 39, PDB1 | V)
        self.entry(PDB1, VA >> 30, PDB0 | V)
        self.entry(PDB0, VA >> 21, PTB | V)
        self.flush_hdp()

    @property
    def unit(self) -> Hub:
        return self.chip.gc if self.hub_name == "gc" else self.chip.mm

    def context(self, vmid: int, root: int, depth: int = 3, control: int = 0x7FFE00) -> None:
        at = self.hub(self.hub_name, "PAGE_TABLE_BASE") + 2 * vmid
        self.write(at, root | V)
        self.write(at + 1, 0)
        at = self.hub(self.hub_name, "PAGE_TABLE_START") + 2 * vmid
        self.write(at, 0)
        self.write(at + 1, 0)
        at = self.hub(self.hub_name, "PAGE_TABLE_END") + 2 * vmid
        self.write(at, 0xFFFF_FFFF)
        self.write(at + 1, 0xF)
        self.write(self.hub(self.hub_name, "CONTEXT0_CNTL") + vmid, 1 | depth << 1 | control)

    def entry(self, table: int, slot: int, value: int) -> None:
        self.vram.write64(table + 8 * (slot & 511), value)

    def page(self, va: int, physical: int, flags: int = V | R | W) -> None:
        self.entry(PTB, va >> 12, physical | flags)
        self.flush_hdp()

    def fill(self, physical: int, text: bytes) -> None:
        self.vram.write(physical, text.ljust(16, b"."))
        self.flush_hdp()

    def fetch(self, va: int, size: int = 4, vmid: int = VMID) -> bytes | None:
        data, fault = self.unit.read(vmid, va, size, CLIENT)
        return None if fault else data

    def status(self) -> tuple[int, int]:
        at = self.hub(self.hub_name, "FAULT_ADDR")
        page = self.read(at) | self.read(at + 1) << 32
        return self.read(self.hub(self.hub_name, "FAULT_STATUS")), page << 12


@pytest.fixture(params=["mmhub", "gc"])
def card(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with bench() as made:
        made.__class__ = Memory
        assert isinstance(made, Memory)
        made.start(request.param)
        yield made


def test_a_four_level_walk_reads_and_writes(card: Memory) -> None:
    card.page(VA, PAGES)
    card.page(VA + 0x1000, PAGES + 0x5000)
    card.fill(PAGES + 0x0FF8, b"abcdefgh")
    card.fill(PAGES + 0x5000, b"ijklmnop")
    assert card.fetch(VA + 0xFF8, 16) == b"abcdefghijklmnop"
    assert card.unit.write(VMID, VA + 0xFFE, b"WXYZ", CLIENT) is None
    assert card.vram.read(PAGES + 0xFFC, 4)[2:] == b"WX"
    assert card.vram.read(PAGES + 0x5000, 4)[:2] == b"YZ"
    assert card.chip.violations == []


def test_nothing_at_all_faults_nowhere(card: Memory) -> None:
    assert card.unit.read(VMID, VA, 0, CLIENT) == (b"", None)
    assert card.unit.write(VMID, VA, b"", CLIENT) is None
    assert card.unit.pieces(VMID, VA, 0, Access.READ, CLIENT) == ([], None)
    assert card.status() == (0, 0)


def test_the_walker_sees_only_what_was_flushed(card: Memory) -> None:
    card.entry(PTB, VA >> 12, PAGES | V | R | W)  # sits in the HDP
    assert card.fetch(VA) is None
    card.flush_hdp()
    assert card.fetch(VA) is not None


def test_a_read_through_the_bar_pushes_the_writes_before_it(card: Memory) -> None:
    card.entry(PTB, VA >> 12, PAGES | V | R | W)
    card.vram.read32(0)
    assert card.fetch(VA) is not None


def test_translations_stay_until_they_are_invalidated_on_that_hub(card: Memory) -> None:
    card.page(VA, PAGES)
    card.fill(PAGES, b"old")
    card.fill(PAGES + 0x1000, b"new")
    assert card.fetch(VA, 3) == b"old"
    card.page(VA, PAGES + 0x1000)
    assert card.fetch(VA, 3) == b"old"
    assert card.invalidate(card.hub_name, VMID + 1)  # another VMID
    assert card.fetch(VA, 3) == b"old"
    other = "gc" if card.hub_name == "mmhub" else "mmhub"
    if other == "mmhub":
        assert card.invalidate(other, VMID)
        assert card.fetch(VA, 3) == b"old"
    assert card.invalidate(card.hub_name, VMID)
    assert card.fetch(VA, 3) == b"new"
    card.page(VA, 0, 0)  # unmapped, and still there
    assert card.fetch(VA, 3) == b"new"
    assert card.invalidate(card.hub_name, VMID)
    assert card.fetch(VA, 3) is None


def test_who_does_not_wait_for_the_ack_keeps_stale_entries(card: Memory) -> None:
    card.page(VA, PAGES)
    card.fill(PAGES, b"old")
    card.fill(PAGES + 0x1000, b"new")
    assert card.fetch(VA, 3) == b"old"
    card.page(VA, PAGES + 0x1000)
    card.write(card.hub(card.hub_name, "ENG17_REQ"), 1 << VMID | 0xF80000)
    assert card.fetch(VA, 3) == b"old"


@pytest.mark.parametrize(("flag", "fresh"), [(1 << 20, True), (1 << 21, False)])
def test_directory_entries_are_cached_by_level(card: Memory, flag: int, fresh: bool) -> None:
    card.page(VA, PAGES)
    card.fill(PAGES, b"old")
    assert card.fetch(VA, 3) == b"old"
    second = 0x60_4000
    card.vram.write(second, bytes(4096))
    card.entry(second, VA >> 12, PAGES + 0x1000 | V | R)
    card.fill(PAGES + 0x1000, b"new")
    card.entry(PDB0, VA >> 21, second | V)
    card.flush_hdp()
    # PTEs of L1 and L2, and one directory level: bit 20 is PDE0, the entries of PDB0.
    assert card.invalidate(card.hub_name, VMID, 1 << 19 | 1 << 23 | flag)
    assert card.fetch(VA, 3) == (b"new" if fresh else b"old")


def test_large_pages_at_pdb0_and_pdb1(card: Memory) -> None:
    card.entry(PDB0, VA >> 21, 0x20_0000 * 4 | V | R | AS_PTE)
    card.flush_hdp()
    card.fill(0x80_0000 + 0x12340, b"two megabytes")
    assert card.fetch(VA + 0x12340, 13) == b"two megabytes"
    other = (VA >> 30) + 1 << 30
    card.entry(PDB1, other >> 30, 0 | V | R | AS_PTE)
    card.flush_hdp()
    assert card.fetch(other + 0x81_2340, 13) == b"two megabytes"


def test_a_leaf_adds_its_offset_to_memory_that_need_not_be_aligned(card: Memory) -> None:
    """A 2 MiB entry with the fragment of 16 MiB around it, over memory aligned to 4 KiB."""
    slot = (VA >> 21) + 3
    place = 0x83_4000
    card.entry(PDB0, slot, place | V | R | AS_PTE | 12 << 7)
    card.flush_hdp()
    card.fill(place + 0x1F_0010, b"high in the leaf")
    card.fill(place - 0x60_0000 + 0x10, b"before the leaf!")
    at = VA + 3 * 0x20_0000
    assert card.fetch(at + 0x1F_0010, 16) == b"high in the leaf"
    assert card.fetch(VA + 0x10, 16) == b"before the leaf!"  # the fragment claims it


def test_what_a_fragment_claims_before_memory_begins_faults(card: Memory) -> None:
    card.entry(PDB0, (VA >> 21) + 3, 0x4000 | V | R | AS_PTE | 12 << 7)
    card.flush_hdp()
    card.fill(0x4010, b"right")
    assert card.fetch(VA + 0x60_0010, 5) == b"right"
    assert card.fetch(VA + 0x10) is None


def test_a_fragment_decides_for_its_neighbours(card: Memory) -> None:
    fragment = 2 << 7  # 16 KiB
    card.page(VA, PAGES, V | R | fragment)
    card.page(VA + 0x1000, PAGES + 0x9000, V | R)  # contradicts the fragment
    for number in range(16):
        card.fill(PAGES + 0x1000 * number, b"page%02d" % number)
    assert card.fetch(VA, 6) == b"page00"
    assert card.fetch(VA + 0x1000, 6) == b"page01"
    assert card.invalidate(card.hub_name, VMID)
    assert card.fetch(VA + 0x1000, 6) == b"page09"  # looked at first this time


@pytest.mark.parametrize(
    ("flags", "write", "permission"),
    [(V | W, False, 2), (V | R, True, 4), (R | W, False, 1 | 2), (R | W, True, 1 | 4)],
)
def test_permissions(card: Memory, flags: int, write: bool, permission: int) -> None:
    card.page(VA, PAGES, flags)
    if write:
        assert card.unit.write(VMID, VA + 8, b"data", CLIENT) is not None
    else:
        assert card.fetch(VA + 8) is None
    status, address = card.status()
    assert address == VA
    assert status >> 4 & 0xF == permission
    assert (status >> 9 & 0x1FF, status >> 18 & 1, status >> 20 & 0xF) == (CLIENT, write, VMID)
    assert status & 1 == 0


def test_executable_pages(card: Memory) -> None:
    memory = card.unit.shader_memory(VMID)
    card.page(VA, PAGES, V | R)
    card.page(VA + 0x1000, PAGES, V | R | X)
    assert memory.fetch(VA, 8) is None
    assert card.status()[0] >> 4 & 0xF == 8
    card.fill(PAGES, b"s_endpgm")
    assert memory.fetch(VA + 0x1000, 8) == b"s_endpgm"
    assert memory.fetch(VA + 0x1FFC, 8) is None  # runs into nothing


def test_a_debugger_reads_to_the_end_of_what_is_mapped(card: Memory) -> None:
    memory = card.unit.shader_memory(VMID)
    card.page(VA, PAGES, V | R)
    card.page(VA + 0x1000, PAGES + 0x1000, V | R)
    for at, text in ((0xFF8, b"one page"), (0x1000, b"|two"), (0x1FF8, b"the end.")):
        card.vram.write(PAGES + at, text)
    card.flush_hdp()
    assert memory.peek(VA + 0xFF8, 12) == b"one page|two"
    assert memory.peek(VA + 0x1FF8, 8) == b"the end."
    assert memory.peek(VA + 0x1FF8, 9) is None and memory.peek(VA + 0x2000, 1) is None
    whole = memory.peek(VA, 0x2000)
    assert whole is not None and len(whole) == 0x2000
    assert card.status()[0] == 0  # a look is no access


@pytest.mark.parametrize(
    ("what", "walker", "mapping"),
    [
        ("context off", 1, 0),
        ("out of range", 1, 0),
        ("no PDB1", 2, 0),
        ("no PDB0", 3, 0),
        ("no PTB", 4, 0),
        ("reserved bit in a directory", 3, 0),
        ("reserved bit in a page", 5, 0),
        ("page beyond VRAM", 0, 1),
        ("table beyond VRAM", 5, 1),
    ],
)
def test_walks_that_fail(card: Memory, what: str, walker: int, mapping: int) -> None:
    card.page(VA, PAGES)
    if what == "context off":
        card.write(card.hub(card.hub_name, "CONTEXT0_CNTL") + VMID, 0x6)
    elif what == "out of range":
        at = card.hub(card.hub_name, "PAGE_TABLE_END") + 2 * VMID
        card.write(at, VA >> 12 & 0xFFFFFFFF)
        card.write(at + 1, 0)
    elif what == "no PDB1":
        card.entry(ROOT, VA >> 39, 0)
    elif what == "no PDB0":
        card.entry(PDB1, VA >> 30, 0)
    elif what == "no PTB":
        card.entry(PDB0, VA >> 21, 0)
    elif what == "reserved bit in a directory":
        card.entry(PDB1, VA >> 30, PDB0 | V | 1 << 52)
    elif what == "reserved bit in a page":
        card.entry(PTB, VA >> 12, PAGES | V | R | 1 << 53)
    elif what == "page beyond VRAM":
        card.entry(PTB, VA >> 12, 1 << 40 | V | R)
    else:
        card.entry(PDB0, VA >> 21, 1 << 40 | V)
    card.flush_hdp()
    assert card.fetch(VA + 0x10) is None
    status, address = card.status()
    assert address == VA
    assert (status >> 1 & 7, status >> 8 & 1) == (walker, mapping)


def test_only_the_first_fault_is_latched_until_cleared(card: Memory) -> None:
    assert card.fetch(VA + 0x3000) is None
    assert card.fetch(VA + 0x7000) is None
    status, address = card.status()
    assert address == VA + 0x3000
    assert status & 1  # MORE_FAULTS
    card.write(card.hub(card.hub_name, "FAULT_STATUS"), 0)  # read-only
    assert card.status()[0] == status
    control = card.hub(card.hub_name, "FAULT_CNTL")
    card.write(control, card.read(control) | 1)
    assert card.status() == (0, 0)
    assert card.fetch(VA + 0x7000) is None
    assert card.status()[1] == VA + 0x7000


def test_the_status_may_be_stale_at_the_first_read() -> None:
    with bench(stale_fault_status=True) as card:
        card.enable()
        card.open_hub("mmhub")
        card.chip.mm.read(4, VA, 4, CLIENT)
        assert card.read(card.hub("mmhub", "FAULT_STATUS")) == 0
        assert card.read(card.hub("mmhub", "FAULT_STATUS")) != 0


def test_a_fault_reads_zeros_and_drops_writes(card: Memory) -> None:
    card.page(VA, PAGES)
    card.fill(PAGES + 0xFF8, b"12345678")
    data, fault = card.unit.read(VMID, VA + 0xFF8, 16, CLIENT)
    assert data == b"12345678" + bytes(8)
    assert fault is not None
    assert fault.address == VA + 0x1000
    card.page(VA, PAGES, V | R)
    card.invalidate(card.hub_name, VMID)
    assert card.unit.write(VMID, VA + 0xFF8, b"abcdefgh", CLIENT) is not None
    assert card.vram.read(PAGES + 0xFF8, 8) == b"12345678"


def test_a_fault_raises_an_interrupt_with_the_page_in_it(card: Memory) -> None:
    ring = (FRAME_BUFFER + IH_RING) >> 8
    card.write(0x10A0 + 0x81, ring & 0xFFFFFFFF)
    card.write(0x10A0 + 0x82, ring >> 32)
    card.write(0x10A0 + 0x80, 1 | 10 << 1 | 1 << 17 | 4 << 28)
    assert card.unit.write(VMID, VA + 0x4321, b"data", CLIENT) is not None
    words = struct.unpack("<8I", card.vram.read(IH_RING, 32))
    client = 0x12 if card.hub_name == "mmhub" else 0x0A
    multimedia = card.hub_name == "mmhub"
    assert words[0] == client | VMID << 24 | int(multimedia) << 31
    assert (words[4] << 12 | (words[5] & 0xF) << 44) == VA + 0x4000
    assert words[5] >> 5 & 1 == 1  # a write
    assert card.transport.interrupts.wait(0)
    # Not every fault asks for one: CONTEXTn_CNTL says which kinds do.
    card.write(card.hub(card.hub_name, "FAULT_CNTL"), 0x3FFFFFFD)
    card.write(card.hub(card.hub_name, "CONTEXT0_CNTL") + VMID, 7)
    assert card.fetch(VA + 0x4321) is None
    assert card.status()[1] == VA + 0x4000
    assert not card.transport.interrupts.wait(0)


def test_system_memory_through_the_iommu(card: Memory) -> None:
    memory = card.transport.allocate_dma(3 << 20)
    assert len(memory.segments) == 2  # scattered
    memory.view[0:5] = b"hello"
    memory.view[(2 << 20) - 4 : (2 << 20) + 4] = b"scatters"
    first, second = (segment.address for segment in memory.segments)
    card.page(VA, first, V | SYSTEM | SNOOPED | R | W)
    card.page(VA + 0x1000, first + (2 << 20) - 4096, V | SYSTEM | SNOOPED | R | W)
    card.page(VA + 0x2000, second, V | SYSTEM | SNOOPED | R | W)
    assert card.fetch(VA, 5) == b"hello"
    assert card.fetch(VA + 0x1FFC, 8) == b"scatters"
    card.unit.write(VMID, VA, b"HELLO", CLIENT)
    assert bytes(memory.view[0:5]) == b"HELLO"
    assert card.chip.violations == []
    card.transport.config_write(4, 2, 2)  # bus master off
    assert card.fetch(VA, 4) == b"\xff" * 4
    card.unit.write(VMID, VA, b"lost!", CLIENT)
    assert bytes(memory.view[0:5]) == b"HELLO"
    assert "bus mastering off" in card.chip.violations[0]
    card.transport.config_write(4, 6, 2)
    memory.close()
    assert card.fetch(VA, 4) == b"\xff" * 4
    assert "IOMMU" in card.chip.violations[-1]


def test_vmid_0_takes_the_aperture_before_any_table(card: Memory) -> None:
    card.fill(0x12_3450, b"in the aperture")
    data, fault = card.unit.read(0, FRAME_BUFFER + 0x12_3450, 15, CLIENT)
    assert (data, fault) == (b"in the aperture", None)
    assert card.unit.read(VMID, FRAME_BUFFER + 0x12_3450, 15, CLIENT)[1] is not None
    # Outside of it, context 0 translates.
    card.context(0, ROOT)
    card.page(VA, PAGES)
    card.fill(PAGES, b"by the tables")
    assert card.fetch(VA, 13, vmid=0) == b"by the tables"


def test_a_flat_table_counts_from_the_start_of_its_range(card: Memory) -> None:
    card.context(5, PTB, depth=0)
    at = card.hub(card.hub_name, "PAGE_TABLE_START") + 2 * 5
    card.write(at, 0x1000)
    card.entry(PTB, 3, PAGES | V | R)
    card.fill(PAGES, b"flat")
    assert card.fetch(0x1003 << 12, 4, vmid=5) == b"flat"
    assert card.fetch(0xFFF << 12, 4, vmid=5) is None


def test_access_before_the_tlb_is_on_is_a_violation() -> None:
    with bench() as card:
        card.enable()
        card.chip.mm.read(0, FRAME_BUFFER, 4, CLIENT)
        assert "before the L1 TLB" in card.chip.violations[0]


def test_the_semaphore_of_mmhub() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        semaphore = card.hub("mmhub", "ENG17_SEM")
        assert any(card.read(semaphore) for _ in range(50))
        assert card.read(semaphore) == 0  # taken
        card.write(semaphore, 0)
        card.write(card.hub("mmhub", "ENG17_REQ"), 1 | 0xF80000)
        assert "without its semaphore" in card.chip.violations[-1]
        assert card.invalidate("mmhub", 0)
        card.chip.faults.tlb_no_ack.add("mmhub")
        assert not card.invalidate("mmhub", 0)


def test_a_range_that_is_not_all_matters_once_something_is_cached() -> None:
    """Boards forgive it before a context is enabled, where tinygrad's driver does it over USB."""
    with bench() as card:
        card.enable()
        semaphore, request = card.hub("mmhub", "ENG17_SEM"), card.hub("mmhub", "ENG17_REQ")
        for enabled in (0, 1):
            card.write(card.hub("mmhub", "CONTEXT0_CNTL") + VMID, enabled)
            assert any(card.read(semaphore) for _ in range(50))
            card.write(request, 1 | 0xF80000)
            card.write(semaphore, 0)
            assert any("range is not" in text for text in card.chip.notes)
            assert any("range is not" in text for text in card.chip.violations) is bool(enabled)


# ---- the shader cores' own tables --------------------------------------------------------------


def test_native_rows_translate_and_forget() -> None:
    with bench() as made:
        made.__class__ = Memory
        assert isinstance(made, Memory)
        made.start("gc")
        for number in range(8):
            made.page(VA + 0x1000 * number, PAGES + 0x1000 * number, V | R | (W if number else 0))
        memory = made.unit.shader_memory(VMID)
        table = memory.new_tlb()
        assert not (table[:, READ_TAG] == VA >> 12).any()
        host = memory.refill(table, VA + 0x123, Access.READ)
        assert host == made.chip.vram.host_address(PAGES + 0x123)
        row = table[tlb_set(VA >> 12)]
        assert row[READ_TAG] == VA >> 12
        assert row[WRITE_TAG] != VA >> 12  # read-only page
        assert np.uint64(VA + 0x123) + row[DELTA] == np.uint64(host)
        memory.refill(table, VA + 0x1000, Access.WRITE)
        row = table[tlb_set((VA >> 12) + 1)]
        assert row[READ_TAG] == row[WRITE_TAG] == (VA >> 12) + 1
        # Stale until invalidated.
        made.page(VA + 0x1000, 0, 0)
        assert row[READ_TAG] == (VA >> 12) + 1
        assert made.invalidate("gc", VMID)
        assert row[READ_TAG] != (VA >> 12) + 1
        before = table.copy()
        host = memory.refill(table, VA + 0x1008, Access.READ)  # now a fault
        assert ctypes.string_at(host, 4096 + 64) == bytes(4096 + 64)
        assert (table == before).all()
        assert made.status()[1] == VA + 0x1000
        sink = memory.refill(table, VA + 0x1008, Access.WRITE)
        ctypes.memset(sink, 1, 8192 - 16)
        assert ctypes.string_at(host, 64) == bytes(64)


def test_native_rows_of_a_fragment_are_filled_together() -> None:
    with bench() as made:
        made.__class__ = Memory
        assert isinstance(made, Memory)
        made.start("gc")
        made.entry(PDB0, VA >> 21, 0x20_0000 * 2 | V | R | W | AS_PTE)
        made.flush_hdp()
        memory = made.unit.shader_memory(VMID)
        table = memory.new_tlb()
        memory.refill(table, VA + 0x5000, Access.READ)
        base = made.chip.vram.host_address(0x40_0000)
        filled = 0
        for page in range(VA >> 12, (VA >> 12) + 512):
            row = table[tlb_set(page)]
            if row[READ_TAG] == page:
                filled += 1
                address = (page << 12) + int(row[DELTA]) & (1 << 64) - 1
                assert address == base + (page << 12) - VA
        assert filled == 64


def test_native_rows_forget_memory_that_was_given_back() -> None:
    with bench() as made:
        made.__class__ = Memory
        assert isinstance(made, Memory)
        made.start("gc")
        lent = made.transport.allocate_dma(4096)
        made.page(VA, lent.segments[0].address, V | SYSTEM | R | W)
        memory = made.unit.shader_memory(VMID)
        table = memory.new_tlb()
        memory.refill(table, VA, Access.READ)
        assert table[tlb_set(VA >> 12), READ_TAG] == VA >> 12
        lent.close()
        assert table[tlb_set(VA >> 12), READ_TAG] != VA >> 12
        host = memory.refill(table, VA, Access.READ)
        assert ctypes.string_at(host, 64) == b"\xff" * 64
