"""MQD, page table entries and interrupt entries against values written by hand."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pytest

from ugpu.am.chips import gfx11_evidence as lists
from ugpu.am.packets.mqd import QueueMemory, build, mirrored
from ugpu.am.packets.page_table import (
    EXECUTABLE,
    READABLE,
    SNOOPED,
    SYSTEM,
    UNCACHED,
    WRITABLE,
    Gfx11Format,
)
from ugpu.am.regs import load
from ugpu.am.units import faults
from ugpu.am.units.faults import HubFault, SqWord, command_processor_error, sdma_error
from ugpu.am.units.ih import Interrupt
from ugpu.hcq.errors import (
    BadArgument,
    BadPacket,
    ChipError,
    DeviceHang,
    IllegalInstruction,
    PageFault,
)
from ugpu.hcq.paging.page_table import PageFormat


def test_mqd_words() -> None:
    """Dword numbers and values from Linux 6.12 v11_structs.h and kfd_mqd_manager_v11.c."""
    memory = QueueMemory(
        mqd=0x80_0020_4000, ring=0x2000_0010_0000, ring_size=0x10000,
        read_pointer=0x2000_0020_0000, write_pointer=0x2000_0020_0040,
        eop=0x2000_0030_0000, eop_size=4096, doorbell=6, vmid=8,
    )  # fmt: skip
    words = struct.unpack("<512I", bytes(build(memory, load("gc_11_0_0"))))
    expected = {
        0: 0xC0310800,
        11: 1,  # compute_pipelinestat_enable
        23: 0xFFFFFFFF,
        26: 0xFFFFFFFF,
        47: 0xFFFFFFFF,  # static thread management of engines 0, 2, 7
        128: 0x00204000,
        129: 0x80,
        130: 0,  # cp_hqd_active: the last register written says it
        131: 8,
        132: 0x5501,
        133: 2,
        134: 15,
        135: 0x111,
        136: 0x00001000,
        137: 0x20,  # ring >> 8
        139: 0x00200000,
        140: 0x2000,
        141: 0x00200040,
        142: 0x2000,
        143: 0x40000018,
        145: 0x50D,  # 2^(13+1) dwords, block size 5
        149: 0x300000,
        160: 0x20004000,
        162: 0x100,
        165: 0x00003000,
        166: 0x20,
        167: 9,
        182: 0,
    }
    assert {number: words[number] for number in expected} == expected
    assert tuple(mirrored(build(memory, load("gc_11_0_0")))) == words[128:184]


FORMAT: PageFormat = Gfx11Format()


def leaf(level: int, physical: int, flags: int, fragment: int) -> int:
    found = FORMAT.leaf(
        level, np.array([physical], np.uint64), flags, np.array([fragment], np.uint64)
    )
    return int(found[0])


def test_leaf_entries() -> None:
    assert leaf(3, 0x1234000, READABLE | WRITABLE, 0) == 0x1234061
    assert leaf(3, 0x1234000, READABLE | EXECUTABLE, 4) == 0x1234000 | 4 << 7 | 0x31
    host = leaf(3, 0x100_0022_6000, READABLE | WRITABLE | SYSTEM | SNOOPED | UNCACHED, 0)
    assert host == 3 << 48 | 0x100_0022_6067
    assert leaf(2, 0x4000_0000, READABLE | WRITABLE, 9) == 1 << 54 | 0x4000_0000 | 9 << 7 | 0x61


def test_what_the_driver_maps() -> None:
    """Host memory is snooped and never cached by the GPU: it is not told when the host writes."""
    assert leaf(3, 0x1000, FORMAT.host_flags, 0) == 3 << 48 | 0x1007
    assert leaf(3, 0x1000, FORMAT.data_flags, 0) == 0x1061
    assert leaf(3, 0x1000, FORMAT.code_flags, 0) == 0x1031


def test_table_entries() -> None:
    assert FORMAT.table(0, 0x5000) == 0x5001
    assert FORMAT.physical(3, leaf(3, 0xFFF_FFFF_F000, READABLE, 3)) == 0xFFF_FFFF_F000


def test_foreign_flags_are_refused() -> None:
    with pytest.raises(BadArgument):
        leaf(3, 0, 1 << 63, 0)


def entry(
    client: int, source: int, *, ring: int = 0, vmid: int = 8, data: tuple[int, ...] = (0, 0, 0, 0)
) -> Interrupt:
    """An interrupt as it lies in the ring."""
    raw = struct.pack(
        "<8I", client | source << 8 | ring << 16 | vmid << 24, 0x11, 0x22, 0x33, *data
    )
    return Interrupt.decode(raw)


page_fault = partial(faults.page_fault, device="card", kernels=(), null=(), regions=())


def test_interrupt_entry() -> None:
    found = entry(0x14, 181, ring=0b0110110)
    assert (found.client, found.source, found.vmid) == (0x14, 181, 8)
    assert found.queue == (1, 2, 3)
    assert found.timestamp == 0x22_0000_0011
    assert found.pasid == 0x33


@pytest.mark.parametrize(
    ("status", "access", "client", "refused"),
    [
        (1 << 4 | 1 << 5 | 8 << 9 | 8 << 20, "read", "TCP", "valid+read"),
        (1 << 6 | 8 << 9 | 1 << 18 | 8 << 20, "write", "TCP", "write"),
        (1 << 7 | 9 << 9 | 8 << 20, "execute", "SQC (inst)", "execute"),
        (1 << 4 | 5 << 9 | 8 << 20, "read", "CPC", "valid"),
    ],
)
def test_page_fault(status: int, access: str, client: str, refused: str) -> None:
    address = 0x1234_5678_9000
    data = (address >> 12 & 0xFFFFFFFF, address >> 44 | (0x20 if access == "write" else 0), 0, 0)
    error = page_fault(
        entry(0x0A, 0, data=data), HubFault("GFXHUB", address, status, lists.GFX_CLIENTS)
    )
    facts = error.facts
    assert (facts["address"], facts["access"], facts["client"]) == (address, access, client)
    assert (facts["refused"], facts["hub"], facts["vmid"]) == (refused, "GFXHUB", 8)


def test_a_latch_of_another_fault_tells_nothing() -> None:
    error = page_fault(
        entry(0x12, 0, data=(5, 0x20, 0, 0)),
        HubFault("MMHUB", 0x9000, 8 << 9, lists.MEMORY_CLIENTS),
    )
    assert error.facts["client"] == "unknown"
    assert (error.facts["address"], error.facts["access"]) == (0x5000, "write")
    assert error.facts["hub"] == "MMHUB"


def test_a_latch_alone() -> None:
    error = page_fault(
        None, HubFault("MMHUB", 0x9000, 15 << 9 | 1 << 18 | 1 << 4, lists.MEMORY_CLIENTS)
    )
    assert (error.facts["access"], error.facts["client"]) == ("write", "OSSSYS")


def test_illegal_instruction_word() -> None:
    word = SqWord.decode((1 << 21 | 1 << 25 | 3 << 27 | 0x77, 2 << 6 | 5 << 2 | 1))
    assert word.is_error
    error = word.to_error(8, {"pc": 0x2000_0000_0010})
    assert isinstance(error, IllegalInstruction)
    assert error.facts["pc"] == 0x2000_0000_0010
    assert (error.facts["wave"], error.facts["wgp"], error.facts["simd"]) == (3, 5, 1)
    assert error.facts["array"] == 1
    violation = SqWord.decode((2 << 21, 2 << 6)).to_error(8, {})
    assert type(violation) is ChipError and "memory violation" in str(violation)
    assert not SqWord.decode((0, 1 << 6)).is_error  # a wave's own message


@pytest.mark.parametrize("source", [180, 183, 184, 185])
def test_packet_errors(source: int) -> None:
    error = command_processor_error(entry(0x14, source, ring=0b0010100), {"rptr": 5})
    assert isinstance(error, BadPacket)
    assert (error.facts["engine"], error.facts["pipe"], error.facts["queue"]) == (1, 0, 1)
    assert error.facts["rptr"] == 5
    assert entry(0x14, source, ring=0b1100111).queue == (1, 3, 6)  # of engine, pipe and queue


def test_what_is_no_failure() -> None:
    assert command_processor_error(entry(0x14, faults.SOURCE_CP_EOP), {}) is None
    assert sdma_error(entry(0x0A, faults.SOURCE_SDMA_TRAP), {}) is None


def test_copy_engine_errors() -> None:
    assert isinstance(sdma_error(entry(0x0A, 57, ring=0x10), {}), DeviceHang)
    assert isinstance(sdma_error(entry(0x0A, 62), {}), ChipError)
    assert isinstance(sdma_error(entry(0x0A, 50), {}), BadPacket)
    fault = sdma_error(entry(0x0A, 60, ring=0x10, data=(0x45, 0x2, 0, 0)), {})
    assert isinstance(fault, PageFault)
    assert fault.facts["address"] == 2 << 44 | 0x45000
    assert fault.facts["engine"] == "SDMA1"
