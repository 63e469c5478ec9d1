"""What NVIDIA's own kernel module needs of the virtual card, beside what Linux's nouveau does; the
module itself runs in the laboratory (tier nvidia_open)."""

from __future__ import annotations

import pytest

from ugpu import hcq
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.falcon.core import RETRIGGER, SWGEN0
from ugpu.virtual.nvidia.gsp.firmware import module
from ugpu.virtual.nvidia.gsp.firmware.programs import Program
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.rpc.controls import GSP_VECTOR, MEMORY_VECTORS
from ugpu.virtual.nvidia.status import Status

IRQSCLR, IRQSTAT = 0x110004, 0x110008
# dev_riscv_pri.h: NV_PRISCV_RISCV_IRQMASK and IRQDEST, of GA102 and of TU102
MASKS = {"ad102": (0x111528, 0x11152C), "tu102": (0x1112B4, 0x1112B8)}


@pytest.mark.parametrize("chip", MASKS)
def test_the_firmware_directs_its_interrupts_to_the_host(chip: str) -> None:
    card = build_card(chip, CardOptions(memory=256 << 20))
    card.config.write(4, 6, 2)
    read = card.read32
    assert [read(at) for at in MASKS[chip]] == [0, 0], "no firmware runs"
    card.gsp.active = True
    assert all(read(at) & SWGEN0 for at in MASKS[chip])
    other = next(name for name in MASKS if name != chip)
    assert all(read(at) >> 16 == 0xBADF for at in MASKS[other])
    card.close()


@pytest.mark.parametrize(("chip", "fuse"), [("tu102", 0x02174C), ("ga100", 0x82074C)])
def test_no_part_is_one_for_development(chip: str, fuse: int) -> None:
    """NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS: the module would look for FWSEC's other signatures."""
    card = build_card(chip, CardOptions(memory=256 << 20))
    card.config.write(4, 6, 2)
    assert card.read32(fuse) == 1
    card.close()


def test_turing_has_the_older_enables_of_interrupts_too() -> None:
    for chip in ("tu102", "ga102"):
        card = build_card(chip, CardOptions(memory=256 << 20))
        card.config.write(4, 6, 2)
        for offset, value in ((0x164, 0x70), (0x184, 0x21), (0x160, 1)):
            card.write32(offset, value)
        values = [card.read32(at) for at in (0x100, 0x140, 0x144)]
        if chip == "tu102":
            assert values == [0, 1, 0x50] and not card.registers.unknown
        else:
            assert all(value >> 16 == 0xBADF for value in values), values
        card.close()


def test_the_vectors_are_where_the_module_looks() -> None:
    """intrGetLeafStatus_TU102 reads even leaves alone, of the stall subtrees; UVM's own interrupts
    share a leaf; the faults that it asks for lie in the subtree that it shares."""
    for vector in (GSP_VECTOR, *MEMORY_VECTORS.values()):
        assert vector // 32 % 2 == 0
        assert vector // 64 in (1, 2, 3)
    assert MEMORY_VECTORS["REPLAYABLE_FAULT"] // 32 == MEMORY_VECTORS["ACCESS_CNTR"] // 32 == 2
    assert MEMORY_VECTORS["NON_REPLAYABLE_FAULT"] // 32 == 4


def test_a_message_interrupts_once_until_it_is_cleared() -> None:
    card = build_card("ad102", CardOptions(memory=256 << 20))
    card.config.write(4, 6, 2)
    leaf, bit = 0xB81000 + 4 * (GSP_VECTOR // 32), 1 << GSP_VECTOR % 32
    card.gsp.interrupt(SWGEN0)
    assert card.read32(leaf) & bit and card.read32(IRQSTAT) & SWGEN0
    card.write32(leaf, bit)
    card.gsp.interrupt(SWGEN0)
    assert not card.read32(leaf) & bit, "it is pending already"
    card.write32(0x110000 + RETRIGGER, 1)
    assert card.read32(leaf) & bit, "asked to send it again"
    card.write32(leaf, bit)
    card.write32(IRQSCLR, SWGEN0)
    card.write32(0x110000 + RETRIGGER, 1)
    assert not card.read32(leaf) & bit, "nothing is pending"
    card.gsp.interrupt(SWGEN0)
    assert card.read32(leaf) & bit
    card.close()


def test_only_the_programs_inside_the_module_are_known() -> None:
    code = b"\x5a" * 0x100
    assert module.parse(code) is None and module.boot_loader_parts(code) is None
    assert module.problem(bytes(SIZE), Terms(1, 1, 3), code, code) is None, "the model's own rule"
    rows = [row for row in module.built_in().values() if row.program is not Program.LOADER]
    assert len(rows) == len(module.built_in()) - 1 == 10
    assert sorted((row.number, len(row.signatures)) for row in rows) == (
        [(3, 1)] * 2 + [(3, 2)] * 4 + [(13, 1)] * 4
    ), "GA100; AD102 and GA102, of two fuse versions; TU102 and TU116"
    for row in rows:
        assert all(len(bytes.fromhex(text)) == 32 for text in (row.content, *row.signatures))


@pytest.mark.parametrize(("chip", "name"), [("ad102", "gsp_ga10x"), ("tu102", "gsp_tu10x")])
def test_the_module_finds_its_image_by_name(chip: str, name: str) -> None:
    (found,) = module.module_files(chip).items()
    assert found[0] == f"nvidia/550.163.01/{name}.bin"
    assert f".fwsignature_{boot_facts(chip).signature}".encode() in found[1]


def test_partitionable_memory_lies_between_what_is_reserved() -> None:
    """memmgrSetPartitionableMem: GA100 could be divided, and the module asks although it is not."""
    with hcq.open("virtual:ga100+gsp") as device:
        assert isinstance(device, NvDevice)
        gpu = device.driver.gpu
        assert isinstance(gpu, GspGpu)
        name = "NV2080_CTRL_INTERNAL_MEMSYS_SET_PARTITIONABLE_MEM_PARAMS"
        layout = abi.select("570.144").structs[name]
        size = 1 << 30
        block = layout.new(bottomRsvdSize=0x1234, partitionableMemSize=size, topRsvdSize=size)
        assert gpu.client._control(gpu.subdevice, 0x20800A51, block, "partitionable") == 0
        assert (block.partitionableStartAddr, block.partitionableEndAddr) == (0x10000, size - 1)
        for bottom, middle in ((0, 0), (3 * size, size + 1)):
            block = layout.new(bottomRsvdSize=bottom, partitionableMemSize=middle, topRsvdSize=size)
            status = gpu.client._control(gpu.subdevice, 0x20800A51, block, "partitionable")
            assert status == Status.INVALID_ARGUMENT
