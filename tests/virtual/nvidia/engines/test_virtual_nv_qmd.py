"""Launch descriptors of the virtual GPUs, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nvidia.rm_program import RmProgram
from ugpu.nv import abi
from ugpu.virtual.nvidia.engines.qmd import parse, qmd_size
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.gpu import CHIPS, facts_of
from ugpu.virtual.nvidia.host.errors import ChannelError


def test_bytes_of_a_descriptor_by_hand() -> None:
    """clcbc0qmd.h, version 4.0: QMD_GROUP_ID 21:16, QMD_TYPE 25:23, QMD_MINOR_VERSION 579:576,
    QMD_MAJOR_VERSION 583:580, API_VISIBLE_CALL_LIMIT 568, REGISTER_COUNT 1208:1200, GRID_WIDTH
    1055:1024, GRID_HEIGHT 1071:1056, GRID_DEPTH 1103:1088, CTA_THREAD_DIMENSION 1167:1152 ...,
    MIN/MAX/TARGET 613:608, 619:614, 625:620, PROGRAM_ADDRESS 1247:1216."""
    number = 0x3F << 16 | 2 << 23 | 4 << 580 | 1 << 568 | 32 << 1200
    number |= 3 << 1024 | 2 << 1056 | 1 << 1088
    number |= 64 << 1152 | 2 << 1168 | 1 << 1184
    number |= 9 << 608 | 58 << 614 | 58 << 620 | 0x10_0080 << 1216 | 0x1 << 1248
    number |= 1 << 416 | (0x1234_5640 >> 6) << 1536 | (0x1000 >> 4) << 1587
    facts = facts_of("gh100")
    found = parse(number.to_bytes(384, "little"), facts)
    assert found.version == (4, 0)
    assert (found.grid, found.block) == ((3, 2, 1), (64, 2, 1))
    assert found.program_address == 0x1_0010_0080
    assert found.registers == 32
    assert found.carveout == 228 << 10
    assert found.constants[0] == (0x1234_5640, 0x1000)
    assert found.constants[1:] == (None,) * 7
    with pytest.raises(ChannelError, match=r"reserved bits are set, the first at bit 26"):
        parse((number | 1 << 26).to_bytes(384, "little"), facts)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"QMD_GROUP_ID": 0}, "QMD_GROUP_ID"),
    ({"API_VISIBLE_CALL_LIMIT": 0}, "API_VISIBLE_CALL_LIMIT"),
    ({"CTA_THREAD_DIMENSION0": 0}, "0 x 1 x 1 threads"),
    ({"CTA_THREAD_DIMENSION0": 1024, "CTA_THREAD_DIMENSION1": 2}, "2048 threads"),
    ({"CTA_THREAD_DIMENSION0": 1, "CTA_THREAD_DIMENSION2": 65}, "65 deep"),
    ({"TARGET_SM_CONFIG_SHARED_MEM_SIZE": 8}, "an SM of"),
    ({"MIN_SM_CONFIG_SHARED_MEM_SIZE": "largest"}, "does not hold"),
    ({"MAX_SM_CONFIG_SHARED_MEM_SIZE": 0}, "MAX_SM_CONFIG"),
    ({"BARRIER_COUNT": 17}, "BARRIER_COUNT 17"),
    ({"CONSTANT_BUFFER_SIZE_SHIFTED4": 0}, "constant bank 0 of 0 bytes"),
]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("change", "text"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_every_field_is_checked(chip: str, change: dict[str, Any], text: str) -> None:
    facts = facts_of(chip)
    program = RmProgram.__new__(RmProgram)
    program.facts, program.work_address = facts, 0x10_0000_0000
    largest = facts.shared_carveouts[-1] // 4096 + 1
    made = {name: largest if value == "largest" else value for name, value in change.items()}
    if "MIN_SM_CONFIG_SHARED_MEM_SIZE" in made:
        made["TARGET_SM_CONFIG_SHARED_MEM_SIZE"] = facts.shared_carveouts[0] // 4096 + 1
    raw = program.qmd(0x10_0010_0100, **made)
    with pytest.raises(ChannelError, match=text) as error:
        parse(bytes(raw), facts)
    assert error.value.xid is Xid.GR_EXCEPTION
    parse(bytes(program.qmd(0x10_0010_0100)), facts)


@pytest.mark.parametrize("chip", CHIPS)
def test_limits_that_depend_on_each_other(chip: str) -> None:
    facts = facts_of(chip)
    program = RmProgram.__new__(RmProgram)
    program.facts, program.work_address = facts, 0x10_0000_0000
    registers = "REGISTER_COUNT" if facts.qmd[0] >= 4 else "REGISTER_COUNT_V"
    shared = "SHARED_MEMORY_SIZE_SHIFTED7" if facts.qmd[0] >= 5 else "SHARED_MEMORY_SIZE"
    unit = 128 if facts.qmd[0] >= 5 else 1
    parse(bytes(program.qmd(0x100, CTA_THREAD_DIMENSION0=512, **{registers: 128})), facts)
    with pytest.raises(ChannelError, match="an SM has 65536"):
        parse(bytes(program.qmd(0x100, CTA_THREAD_DIMENSION0=512, **{registers: 129})), facts)
    small = facts.shared_carveouts[0] // 4096 + 1
    with pytest.raises(ChannelError, match="of a carve-out of"):
        parse(
            bytes(program.qmd(
                0x100, TARGET_SM_CONFIG_SHARED_MEM_SIZE=small,
                **{shared: (facts.shared_carveouts[0] + 128) // unit},
            )),
            facts,
        )  # fmt: skip
    with pytest.raises(ChannelError, match="PROGRAM_ADDRESS"):
        parse(bytes(program.qmd(0)), facts)
    with pytest.raises(ChannelError, match="is not a multiple of 128"):
        parse(bytes(program.qmd(0x110)), facts)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_descriptor_of_another_generation(chip: str) -> None:
    facts = facts_of(chip)
    raw = bytearray(qmd_size(facts))
    form = abi.qmd(f"{facts.qmd[0]}.{facts.qmd[1]}")
    form.set(raw, "QMD_MAJOR_VERSION", facts.qmd[0] + 1)
    with pytest.raises(ChannelError, match=f"class {facts.compute_class:x} takes"):
        parse(bytes(raw), facts)


@pytest.mark.parametrize("chip", ["gh100", "gb202"])
def test_a_grid_of_clusters_counts_clusters(chip: str) -> None:
    """As an H200 does; without clusters the sizes count groups."""
    facts = facts_of(chip)
    program = RmProgram.__new__(RmProgram)
    program.facts, program.work_address = facts, 0x10_0000_0000
    sizes = {"GRID_WIDTH": 4, "GRID_HEIGHT": 3, "GRID_DEPTH": 2}
    clusters = {"GPC_CGA_WIDTH": 2, "GPC_CGA_HEIGHT": 3, "GPC_CGA_DEPTH": 1}
    found = parse(bytes(program.qmd(0x100, **sizes)), facts)
    assert (found.grid, found.cluster) == ((4, 3, 2), None)
    found = parse(bytes(program.qmd(0x100, QMD_TYPE=3, **sizes, **clusters)), facts)
    assert (found.grid, found.cluster) == ((8, 9, 2), (2, 3, 1))
    sizes["GRID_WIDTH"] = 1 << 30
    with pytest.raises(ChannelError, match="a grid 2147483648 wide"):
        parse(bytes(program.qmd(0x100, QMD_TYPE=3, **sizes, **clusters)), facts)
