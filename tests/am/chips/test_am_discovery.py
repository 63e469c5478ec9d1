"""The discovery parser: what it reads, what it tolerates, and that nothing else gets through."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.amd.am_discovery import GC, Block, binary, byte_sum, gc_table, harvest_table
from ugpu.am.chip.discovery import HEADER_SIZE, IpInstance, checksum, parse, stated_size
from ugpu.hcq.errors import DiscoveryError

BLOCKS = [
    (11, 0, (11, 0, 0), (0x1260, 0xA000, 0x1C000, 0x2402C00)),
    (42, 0, (6, 0, 0), ()),
    (42, 1, (6, 0, 0), (7,)),
    (9999, 3, (1, 2, 3), (1, 2)),
]
GOOD = binary([BLOCKS], gc=gc_table(), harvest=harvest_table([]))

versions = st.tuples(*[st.integers(0, 255)] * 3)
blocks = st.lists(
    st.tuples(
        st.integers(0, 65535),
        st.integers(0, 255),
        versions,
        st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple),
    ),
    max_size=12,
)


def with_sum(data: bytes) -> bytes:
    """Mend the binary's own checksum after a change, so that the change itself is looked at."""
    return data[:8] + struct.pack("<H", byte_sum(data[10:])) + data[10:]


def test_blocks_and_geometry() -> None:
    found = parse(GOOD)
    gc = found.find(11)
    assert gc == IpInstance(11, 0, (11, 0, 0), (0x1260, 0xA000, 0x1C000, 0x2402C00))
    assert found.find(42, 1) == IpInstance(42, 1, (6, 0, 0), (7,))
    assert found.find(42, 2) is None
    assert found.gc is not None and found.gc.compute_units == 96
    assert found.gc.lds_kib == 64


def test_the_size_that_a_binary_states_is_all_that_is_needed() -> None:
    size = stated_size(GOOD[:HEADER_SIZE])
    assert size % 4 == 0 and len(GOOD) <= size < len(GOOD) + 4
    assert parse(GOOD.ljust(size, b"\xee")) == parse(GOOD)
    for other in (b"\xff" * HEADER_SIZE, bytes(HEADER_SIZE), GOOD[4 : 4 + HEADER_SIZE]):
        assert stated_size(other) == HEADER_SIZE


def test_harvested_instances_are_not_there() -> None:
    found = parse(binary([BLOCKS], harvest=harvest_table([(42, 1), (9999, 3)])))
    assert found.find(42, 0) is not None
    assert found.find(42, 1) is None and found.find(9999, 3) is None
    assert found.gc is None


def test_addresses_of_64_bits() -> None:
    """The kernel takes their low 30 bits."""
    wide = [(34, 0, (4, 1, 0), (1 << 40 | 0x240_8800, 0xC000_0005))]
    found = parse(binary([wide], version=4, wide=True)).find(34)
    assert found is not None and found.bases == (0x240_8800, 5)


@pytest.mark.parametrize("listed", [1, 2, 3, 6, 9])
def test_a_counted_list_of_tables(listed: int) -> None:
    """binary_header_v2: what the list lacks is not there, what it has beyond is not looked at."""
    tables = {"gc": gc_table(), "harvest": harvest_table([(42, 1)])}
    found = parse(binary([BLOCKS], major=2, listed=listed, **tables))
    assert found.find(11) is not None
    assert (found.gc is not None, found.find(42, 1) is None) == (listed >= 2, listed >= 3)


@given(st.binary(max_size=80), st.integers(0, 0xFFFF))
def test_a_counted_list_of_anything(rest: bytes, count: int) -> None:
    data = struct.pack("<HHH", 16 + len(rest), count, 0) + rest
    image = struct.pack("<IHHH", 0x28211407, 2, 0, byte_sum(data)) + data
    with pytest.raises(DiscoveryError):
        parse(image)


@given(st.lists(blocks, min_size=1, max_size=4), st.sampled_from([1, 2, 3, 4]))
def test_whatever_is_well_formed_is_read_back(dies: list[list[Block]], version: int) -> None:
    found = parse(binary(dies, version=version))
    expected = [IpInstance(*block) for die in dies for block in die]
    assert list(found.blocks) == expected


@given(st.binary(max_size=300))
def test_checksum_is_a_byte_sum(data: bytes) -> None:
    assert checksum(data) == byte_sum(data)


def with_ip_header(**fields: int) -> bytes:
    """A binary whose IP table says another size, or number of dies, of itself."""
    image = bytearray(GOOD)
    at = image.index(b"IPDS")
    for name, value in fields.items():
        struct.pack_into("<H", image, at + {"size": 6, "dies": 12}[name], value)
    return with_sum(bytes(image))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "outside"),
        (bytes(0x2800), "unexpected signature or version"),
        (b"\xff" * 0x2800, "unexpected signature or version"),
        (GOOD[:100], "states a size outside the data"),
        (GOOD[:-1] + b"\x55", "checksum"),
        (with_sum(GOOD.replace(b"IPDS", b"IPDT")), "IP table has an unexpected signature"),
        (binary([BLOCKS], gc=gc_table((0, *GC[1:]))), "number of compute units"),
        (binary([BLOCKS], gc=gc_table(GC[:5])), "outside"),
        (binary([BLOCKS], gc=gc_table().replace(b"GC", b"XX")), "GC table has an unexpected"),
        (binary([BLOCKS], harvest=b"HARW" + bytes(132)), "harvest table has an unexpected"),
        (binary([BLOCKS], version=9), "version"),
        (binary([BLOCKS], major=3), "version of the discovery binary is not supported"),
        (binary([BLOCKS], major=2, listed=0), "no IP discovery table"),
        (with_ip_header(size=13), "invalid size or number of dies"),
        (with_ip_header(dies=17), "invalid size or number of dies"),
        (with_ip_header(size=len(GOOD)), "ends outside"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, what: str) -> None:
    with pytest.raises(DiscoveryError, match=what):
        parse(data)


@given(st.sampled_from([*range(4), *range(8, len(GOOD))]), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position: int, change: int) -> None:
    """But for the version, bytes 4 to 7, which no checksum covers."""
    data = bytearray(GOOD)
    data[position] ^= change
    with pytest.raises(DiscoveryError):
        parse(bytes(data))


@given(st.data())
def test_damage_behind_a_right_checksum_is_a_discovery_error_or_read(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(10, len(GOOD) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse(with_sum(bytes(damaged)))
    except DiscoveryError as error:
        assert error.facts or "no IP discovery table" in str(error)


@given(st.binary(max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(DiscoveryError):
        parse(data)
    with pytest.raises(DiscoveryError):
        parse(with_sum(struct.pack("<IHHHH", 0x28211407, 1, 0, 0, 12 + len(data)) + data))
