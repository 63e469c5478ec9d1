"""Page tables of the virtual GPUs: entries as the manuals have them, walks, stale translations."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.memory.formats import (
    ATOMIC,
    KIND_GENERIC,
    PEER,
    READ,
    SIZE_2M,
    SIZE_4K,
    SIZE_64K,
    SYSTEM,
    VIDEO,
    WRITE,
    Pte,
    Version2,
    Version3,
    format_of,
)
from ugpu.virtual.nvidia.memory.physical import SystemPages, VideoMemory
from ugpu.virtual.nvidia.memory.space import AddressSpace, FaultError, GridMemory, Translation
from ugpu.virtual.shader.memory import DELTA, INVALID_TAG, READ_TAG, WRITE_TAG, Access, tlb_set

ALL = READ | WRITE | ATOMIC


def video(address: int, permissions: int = ALL) -> Pte:
    return Pte(VIDEO, address, permissions, True, False, KIND_GENERIC, 0)


@pytest.fixture(params=[2, 3])
def space(request: pytest.FixtureRequest) -> Iterator[AddressSpace]:
    memory = VideoMemory(64 << 20)
    yield AddressSpace(memory, format_of(request.param), threading.RLock(), lambda peer: None)
    memory.close()


def memory_of(space: AddressSpace) -> VideoMemory:
    return space._memory


def look(space: AddressSpace, address: int, access: FaultAccess = FaultAccess.READ) -> object:
    return space.translate(address, access, Client.SM)


def test_entries_of_version_2_by_hand() -> None:
    """dev_mmu.h of TU102: VALID 0, APERTURE 2:1, VOL 3, PRIVILEGE 5, READ_ONLY 6,
    ATOMIC_DISABLE 7, ADDRESS 53:8 (system) or 32:8 (video), KIND 63:56."""
    form = Version2()
    assert form.leaf(video(0x12345000)) == 0x0600_0000_0123_4501
    read_only = form.leaf(video(0x1000, READ))
    assert read_only == 0x06 << 56 | 1 << 8 | 1 << 7 | 1 << 6 | 1
    system = form.leaf(Pte(SYSTEM, 0x7F12_3456_7000, ALL, False, False, 0, 0))
    assert system == 0x7_F123_4567 << 8 | 1 << 3 | 2 << 1 | 1
    peer = form.leaf(Pte(PEER, 0x20_0000, ALL, True, False, KIND_GENERIC, 3))
    assert peer == 0x06 << 56 | 3 << 33 | 0x200 << 8 | 1 << 1 | 1
    assert form.directory(0x3000) == 3 << 8 | 1 << 3 | 1 << 1
    assert form.big_half(0x100) == 1 << 4 | 1 << 3 | 1 << 1


def test_entries_of_version_3_by_hand() -> None:
    """dev_mmu.h of GH100: VALID 0, APERTURE 2:1, PCF 7:3, KIND 11:8, ADDRESS 51:12, PEER_ID 63:61.
    PCF_REGULAR_RW_ATOMIC_CACHED_ACD 0x10, _RO_NO_ATOMIC_UNCACHED_ACD 0x1D."""
    form = Version3()
    assert form.leaf(video(0x1234_5000)) == 0x1234_5000 | 6 << 8 | 0x10 << 3 | 1
    entry = form.leaf(Pte(SYSTEM, 0x7000, READ, False, False, KIND_GENERIC, 0))
    assert entry == 0x7000 | 6 << 8 | 0x1D << 3 | 2 << 1 | 1
    assert form.leaf(Pte(PEER, 0x1000, ALL, True, False, 6, 5)) >> 61 == 5
    assert form.directory(0x3000) == 0x3000 | 2 << 3 | 1 << 1


@pytest.mark.parametrize("version", [2, 3])
@given(
    page=st.integers(0, (1 << 20) - 1),
    aperture=st.sampled_from([VIDEO, PEER, SYSTEM]),
    permissions=st.sampled_from([READ, READ | WRITE, ALL]),
    cached=st.booleans(),
    privileged=st.booleans(),
    kind=st.integers(0, 15),
    peer=st.integers(0, 7),
)
def test_entries_read_back(
    version: int, page: int, aperture: int, permissions: int, cached: bool, privileged: bool,
    kind: int, peer: int,
) -> None:  # fmt: skip
    form = format_of(version)
    pte = Pte(
        aperture, page << 12, permissions, cached, privileged, kind, peer * (aperture == PEER)
    )
    assert form.parse(form.leaf(pte)) == pte
    advanced = form.advance(form.leaf(pte), 4096, 3)
    assert form.parse(int(advanced[2])) == pte._replace(address=pte.address + 8192)


@pytest.mark.parametrize("page", [SIZE_4K, SIZE_64K, SIZE_2M])
def test_a_mapping_is_found_by_a_walk(space: AddressSpace, page: int) -> None:
    base = 0x7F_FFE0_0000
    space.tables.map(base, 2 * page, page, video(4 * SIZE_2M))
    found = look(space, base + page + 0x123)
    assert isinstance(found, Translation)
    assert found.size == page
    assert found.host == memory_of(space).base + 4 * SIZE_2M + page
    assert isinstance(look(space, base - 1), MmuFault)
    assert isinstance(look(space, base + 2 * page), MmuFault)


def test_directories_lie_where_the_hardware_looks(space: AddressSpace) -> None:
    """The walk by hand, from the root that the instance block names."""
    base = 0x12_3456_7000
    space.tables.map(base, 4096, 4096, video(0x5000))
    words, table, form = memory_of(space).words, space.tables.root, space.form
    indices = {2: ((47, 2), (38, 9), (29, 9)), 3: ((56, 1), (47, 9), (38, 9), (29, 9))}
    for shift, bits in indices[form.version]:
        entry = int(words[table // 8 + (base >> shift & (1 << bits) - 1)])
        assert entry >> 1 & 3 == 1  # video memory
        table = (entry >> 8 << 12) & 0xFFFF_FFFF_F000 if form.version == 2 else entry & ~0xFFF
    small = int(words[table // 8 + (base >> 21 & 0xFF) * 2 + 1])
    table = (small >> 8 << 12) if form.version == 2 else small & ~0xFFF
    leaf = int(words[table // 8 + (base >> 12 & 0x1FF)])
    assert form.parse(leaf) == video(0x5000)


def test_pages_of_two_sizes_share_two_megabytes(space: AddressSpace) -> None:
    base = 64 << 21
    space.tables.map(base, SIZE_64K, SIZE_64K, video(SIZE_2M))
    space.tables.map(base + SIZE_64K, 8 * SIZE_4K, SIZE_4K, video(2 * SIZE_2M))
    assert isinstance(big := look(space, base + 5), Translation)
    assert isinstance(small := look(space, base + SIZE_64K + 0x1005), Translation)
    assert (big.size, small.size) == (SIZE_64K, SIZE_4K)
    assert isinstance(look(space, base + 2 * SIZE_64K), MmuFault)


def test_tables_come_back_when_they_are_empty(space: AddressSpace) -> None:
    before = memory_of(space).table_bytes
    for page in (SIZE_4K, SIZE_64K, SIZE_2M):
        space.tables.map(1 << 40, 4 * SIZE_2M, page, video(0))
        assert memory_of(space).table_bytes > before
        space.tables.unmap(1 << 40, 4 * SIZE_2M, page)
        assert memory_of(space).table_bytes == before
    space.close()
    assert memory_of(space).table_bytes == 0


def test_translations_stay_until_they_are_invalidated(space: AddressSpace) -> None:
    base = 1 << 30
    space.tables.map(base, 4096, 4096, video(0x10000))
    first = look(space, base)
    space.tables.unmap(base, 4096, 4096)
    assert look(space, base) == first, "a stale translation must still be used"
    space.invalidate()
    assert isinstance(look(space, base), MmuFault)


def test_a_fault_is_not_cached(space: AddressSpace) -> None:
    assert isinstance(look(space, 1 << 30), MmuFault)
    space.tables.map(1 << 30, 4096, 4096, video(0))
    assert isinstance(look(space, 1 << 30), Translation)


def test_faults_say_what_went_wrong(space: AddressSpace) -> None:
    base = 1 << 32
    space.tables.map(base, 4096, 4096, video(0, READ))
    space.tables.map(base + 4096, 4096, 4096, video(0)._replace(kind=1))
    space.tables.map(base + 8192, 4096, 4096, video(0)._replace(privileged=True))
    space.tables.map(base + 12288, 4096, 4096, video(1 << 31))
    space.tables.map(base + 16384, 4096, 4096, video(0)._replace(aperture=PEER, peer=1))
    kinds = {}
    for name, address, access in (
        ("unmapped", base + (1 << 21), FaultAccess.READ),
        ("no leaf", base + 20480, FaultAccess.WRITE),
        ("read-only", base, FaultAccess.WRITE),
        ("kind", base + 4096, FaultAccess.READ),
        ("privileged", base + 8192, FaultAccess.READ),
        ("no memory there", base + 12288, FaultAccess.READ),
        ("no such peer", base + 16384, FaultAccess.READ),
        ("too high", 1 << space.form.address_bits, FaultAccess.READ),
    ):
        fault = look(space, address, access)
        assert isinstance(fault, MmuFault), name
        assert (fault.address, fault.access) == (address, access)
        kinds[name] = fault.kind
    assert kinds == {
        "unmapped": FaultType.PDE,
        "no leaf": FaultType.PTE,
        "read-only": FaultType.RO_VIOLATION,
        "kind": FaultType.UNSUPPORTED_KIND,
        "privileged": FaultType.PRIV_VIOLATION,
        "no memory there": FaultType.REGION_VIOLATION,
        "no such peer": FaultType.UNSUPPORTED_APERTURE,
        "too high": FaultType.VA_LIMIT_VIOLATION,
    }


def test_an_engine_reads_and_writes_across_pages(space: AddressSpace) -> None:
    pages = SystemPages(3 * 4096)
    base = 5 << 30
    for index, place in enumerate((2, 0, 1)):
        pte = Pte(SYSTEM, pages.address + place * 4096, ALL, True, False, 0, 0)
        space.tables.map(base + index * 4096, 4096, 4096, pte)
    data = bytes(range(256)) * 32
    space.write(base + 100, data, Client.COPY)
    assert space.read(base + 100, len(data), Client.COPY) == data
    assert bytes(pages.view[2 * 4096 + 100 : 2 * 4096 + 110]) == data[:10]
    with pytest.raises(FaultError):
        space.write(base + 3 * 4096 - 4, bytes(8), Client.COPY)


def test_shader_cores_have_tables_of_their_own(space: AddressSpace) -> None:
    base = 3 << 32
    space.tables.map(base, SIZE_2M, SIZE_2M, video(SIZE_2M))
    space.tables.map(base + SIZE_2M, 4096, 4096, video(0, READ))
    stopped: list[bool] = []
    lanes = GridMemory(space, lambda: stopped.append(True))
    tlb = lanes.new_tlb()
    host = lanes.refill(tlb, base + 0x5008, Access.READ)
    assert host == memory_of(space).base + SIZE_2M + 0x5008
    page = base + 0x5000 >> 12
    row = tlb[tlb_set(page)]
    assert (int(row[READ_TAG]), int(row[WRITE_TAG])) == (page, page)
    assert (base + 0x5008 + int(row[DELTA])) % (1 << 64) == host
    lanes.refill(tlb, base + SIZE_2M, Access.READ)
    row = tlb[tlb_set(base + SIZE_2M >> 12)]
    assert int(row[WRITE_TAG]) == INVALID_TAG, "read-only"
    assert not stopped
    lanes.refill(tlb, base + SIZE_2M + 8, Access.WRITE)
    assert stopped == [True]
    assert lanes.fault is not None
    assert lanes.fault.kind is FaultType.RO_VIOLATION
    space.invalidate()
    filled = tlb[tlb[:, READ_TAG] != 0, READ_TAG]
    assert len(filled) and (filled == INVALID_TAG).all()
    lanes.close()


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 24), st.sampled_from([12, 16, 21])),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_maps_and_unmaps_against_a_dictionary(pieces: list[tuple[int, int, int]]) -> None:
    memory = VideoMemory(64 << 20)
    space = AddressSpace(memory, format_of(3), threading.RLock(), lambda peer: None)
    empty = memory.table_bytes
    origin = 1 << 40
    model: dict[int, tuple[int, int]] = {}  # page of 4 KiB: where it lies, of which size
    live: list[tuple[int, int, int]] = []
    for number, (start, count, shift) in enumerate(pieces):
        # Each kind of page has its own 2 MiB, as UVM gives a range one page size.
        base = origin + (shift << 32) + (start << shift)
        size = count << shift
        if any(base < b + s and b < base + size for b, s, _ in live):
            b, s, sh = next(p for p in live if base < p[0] + p[1] and p[0] < base + size)
            space.tables.unmap(b, s, 1 << sh)
            live.remove((b, s, sh))
            for page in range(b >> 12, b + s >> 12):
                del model[page]
            space.invalidate()
            continue
        physical = (number % 4) * SIZE_2M
        space.tables.map(base, size, 1 << shift, video(physical))
        live.append((base, size, shift))
        for page in range(base >> 12, base + size >> 12):
            model[page] = (physical + (page << 12) - base, shift)
    for page, (physical, shift) in model.items():
        found = look(space, page << 12)
        if physical + (1 << shift) > memory.size:
            continue
        if isinstance(found, Translation):
            assert found.host + (page << 12) - found.virtual == memory.base + physical
    for base, size, shift in live:
        assert isinstance(look(space, base + size), MmuFault | Translation)
        space.tables.unmap(base, size, 1 << shift)
    assert memory.table_bytes == empty
    memory.close()
