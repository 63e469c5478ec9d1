"""GFX 12: formats against numbers from the kernel's headers and packets, and what only these cards
do: recognition by discovery, a TMR of the board's own, another version of the SMU's interface."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.am.chips.test_am_chips import check_works
from tests.support.amd.am_navi31 import build_chip, opened
from ugpu import hcq
from ugpu.am.chip.remedies import PACKAGE
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.generations.gfx12.units import Sdma7
from ugpu.am.generations.record import generation_of
from ugpu.am.packets import mqd
from ugpu.am.packets.page_table import Gfx12Format
from ugpu.am.regs import constants, load
from ugpu.am.units.faults import HubFault
from ugpu.am.units.psp.images import load_firmware
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.errors import (
    BadArgument,
    DeviceNotFound,
    DiscoveryError,
    FirmwareInvalid,
    FirmwareNotFound,
)
from ugpu.hcq.find import catalogue
from ugpu.hcq.transport.base import PciIdentity
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.virtual.amd.gpu import attach, endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

NAVI48, NAVI44 = facts_of("navi48"), facts_of("navi44")


def test_page_table_entries() -> None:
    """amdgpu_vm.h: AMDGPU_PTE_IS_PTE and AMDGPU_PDE_PTE_GFX12 are bit 63, AMDGPU_PTE_MTYPE_GFX12 at
    bit 54 with MTYPE_UC 3, AMDGPU_PTE_FRAG at bit 7."""
    form, one = Gfx12Format(), np.array([0x1_2345_6000], np.uint64)
    fragment = np.array([9], np.uint64)
    none = np.zeros(1, np.uint64)
    page = int(form.leaf(3, one, form.data_flags, none)[0])
    assert page == 1 << 63 | 0x1_2345_6000 | 0x60 | 1
    large = int(form.leaf(2, np.array([2 << 20], np.uint64), form.code_flags, fragment)[0])
    assert large == 1 << 63 | 2 << 20 | 9 << 7 | 0x30 | 1
    host = int(form.leaf(3, one, form.host_flags | form.data_flags, none)[0])
    assert host == 1 << 63 | 3 << 54 | 0x1_2345_6000 | 0x67
    vm = constants("amdgpu_vm")
    assert vm.AMDGPU_PTE_IS_PTE == vm.AMDGPU_PDE_PTE_GFX12 == 1 << 63
    table = form.table(1, 0x8000)
    assert table == 0x8001 and form.is_table(1, table) and not form.is_table(2, large)
    assert [form.physical(3, entry) for entry in (page, host)] == [0x1_2345_6000] * 2
    with pytest.raises(BadArgument):
        form.leaf(3, one, 3 << 48, none)  # MTYPE of gfx11


def test_copy_packets() -> None:
    """sdma_v7_0.c: an eighth word of a copy and CPV, bit 19 of its header; COMPRESS, bit 16 of a
    fill's."""
    image = Sdma7()
    image.copy(Symbol.constant(0x22_0000_1000), Symbol.constant(0x11_0000_2000), 4096)
    cpv = constants("sdma_v6_0_0_pkt_open").field("SDMA_PKT_COPY_LINEAR_HEADER_CPV").insert(0, 1)
    assert image.words == [1 | cpv, 4095, 0, 0x2000, 0x11, 0x1000, 0x22, 0]
    image = Sdma7()
    image.fill(Symbol.constant(0x1000), 7, 64)
    assert image.words == [11 | 1 << 16 | 2 << 30, 0x1000, 0, 7, 63]


def test_queue_descriptors_are_those_of_gfx11_but_for_reserved_words() -> None:
    memory = mqd.QueueMemory(0x1000, 0x2000, 0x4000, 0x9000, 0xA000, 0xB000, 4096, 6, 8)
    describe = generation_of(NAVI48.generation).describe_queue
    new = bytes(describe(memory, load(NAVI48.table("GC"))))
    old = bytes(mqd.build(memory, load("gc_11_0_0")))
    assert len(new) == 2048 and new == old


def test_both_readings_of_the_mailboxes_of_mp1() -> None:
    """Linux: segment 1 + 0x82 (mp_14_0_2_offset.h). tinygrad: segment 0 + 0x282 (MP 11)."""
    register, bases = load("mp_14_0_2")["MP1_SMN_C2PMSG_66"], NAVI48.generation.typical_bases["MP1"]
    assert bases[register.segment] + register.offset == bases[0] + 0x282


def test_faults_name_the_clients_of_these_hubs() -> None:
    evidence = NAVI48.generation.evidence
    fault = HubFault("GFXHUB", 0x1000, 18 << 9 | 8 << 20, evidence.gfx_clients)
    assert (fault.client, fault.vmid) == ("WGS", 8)
    assert HubFault("MMHUB", 0, 23 << 9, evidence.memory_clients).client == "HDP"


@pytest.mark.parametrize("device", [0x75FF, 0x7590])
def test_an_unknown_id_is_recognised_by_its_blocks(
    device: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A card with Navi44's blocks: of a new id, which it tells, and of its own."""
    chip = build_chip(facts=replace(NAVI44, pci_ids=(device,)))
    with caplog.at_level(logging.WARNING), opened(chip) as card:
        assert card.info()["chip"] == "navi44"
        check_works(card)
    told = [record for record in caplog.messages if "is not known" in record]
    assert len(told) == int(device == 0x75FF)
    assert chip.violations == []
    chip.close()


def test_unknown_blocks_of_an_unknown_id_are_named() -> None:
    facts = replace(NAVI44, pci_ids=(0x75FF,), versions={**NAVI44.versions, "GC": (12, 0, 7)})
    tables = {**facts.generation.register_tables, "GC": {(12, 0, 7): "gc_12_0_0"}}
    chip = build_chip(
        facts=replace(facts, generation=replace(facts.generation, register_tables=tables))
    )
    with pytest.raises(DeviceNotFound, match=r"1002:75ff: no supported chip has .*GC 12\.0\.7"):
        open_device("card", attach("navi44", chip))
    chip.close()


@pytest.mark.parametrize(
    ("vendor", "class_code", "drives"),
    [
        (0x1002, 0x030000, True), (0x1002, 0x038000, True), (0x1002, 0x120000, True),
        (0x1002, 0x040300, False), (0x8086, 0x030000, False),
    ],
)  # fmt: skip
def test_which_unknown_ids_are_looked_at(vendor: int, class_code: int, drives: bool) -> None:
    identity = PciIdentity(vendor, 0x75FF, class_code=class_code)
    assert (catalogue.driver_of(identity) is not None) == drives


def test_a_small_window_into_memory_is_enough() -> None:
    chip = build_chip(ChipOptions(visible_vram=256 << 20), NAVI48)
    values = np.arange(1024, dtype=np.uint32)
    with opened(chip) as device:
        assert device.info()["vram_visible_bytes"] == 256 << 20
        with device.alloc(512 << 20), device.alloc(values.nbytes) as high:
            high.copy_from(values)
            assert np.array_equal(high.numpy(np.uint32), values)
        check_works(device)
    assert chip.violations == []
    chip.close()


@pytest.mark.parametrize("level", ["queue", "block", "warm", "mode1"])
def test_each_rung_that_a_working_card_has(level: str) -> None:
    chip: Any = build_chip(facts=NAVI48)
    with opened(chip) as device:
        attempt = device.reset(level).attempts[-1]
        assert attempt.worked and attempt.proof["kernel"] == "right on compute 0.0"
        assert attempt.proof["copy"] == "right on SDMA0, SDMA1"
        check_works(device)
    assert chip.violations == []
    chip.close()


def test_another_version_of_the_interface_of_the_smu_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Released firmware reports 0x32, Linux 6.12 knows 0x2E."""
    with caplog.at_level(logging.WARNING), hcq.open("virtual:navi48") as device:
        assert isinstance(device, AmDevice)
        smu = device.driver.units.smu
        assert not [text for text in caplog.messages if "interface version" in text]
        smu._take_versions(smu.version, 0x32)
        assert min(one.read() for one in device.sensors() if one.name.startswith("temp")) > 0
    assert [text for text in caplog.messages if "interface version 0x32, expected 0x2e" in text]


def test_firmware_of_the_generation_before_is_refused_by_name() -> None:
    chip = build_chip(facts=NAVI48)
    attachment = attach("navi48", chip)
    older = attach("navi31")
    assert attachment.firmware is not None and older.firmware is not None
    images = {**attachment.firmware, "sdma_7_0_1.bin": older.firmware["sdma_6_0_0.bin"]}
    older.transport.close()
    with pytest.raises(FirmwareInvalid, match=r"sdma_7_0_1\.bin: the version of the header"):
        open_device("card", replace(attachment, firmware=images))
    chip.close()


def test_a_discovery_table_that_lies_elsewhere() -> None:
    """At the place that the board's firmware states, and nowhere."""
    chip: Any = build_chip(facts=NAVI48)
    with opened(chip):
        pass  # its own firmware has written the table
    usual = NAVI48.board.vram - NAVI48.generation.discovery_offset
    table = bytes(chip.vram.read(usual, NAVI48.generation.discovery_size))
    place = NAVI48.board.vram - (1 << 20)
    with chip.lock:
        chip.vram.write(usual, bytes(len(table)))
    with pytest.raises(DiscoveryError, match="unexpected signature"):
        open_device("card", attach("navi48", chip))
    with chip.lock:
        chip.vram.write(place, table)
        for register, value in zip(
            (0x94, 0x95, 0x96), (place & 0xFFFF_FFFF, place >> 32, len(table)), strict=True
        ):
            chip.space.on_read_at(register, lambda value=value: value)
    with opened(chip) as device:
        check_works(device)
    chip.close()


def test_a_board_with_firmware_of_its_own() -> None:
    """amdgpu_ucode.c, kicker_device_list: device 0x7551, revision 0xC8."""
    attachment = attach("navi48")
    assert attachment.firmware is not None
    marked = {"gc_12_0_1_imu", "gc_12_0_1_rlc", "psp_14_0_3_sos", "smu_14_0_3"}
    images = {
        name.replace(".bin", "_kicker.bin") if name.removesuffix(".bin") in marked else name: data
        for name, data in attachment.firmware.items()
    }
    attachment.transport.close()
    found = load_firmware(FirmwareSource(PACKAGE, images), NAVI48, kicker=True)
    assert {f"{name}_kicker.bin" for name in marked} <= set(found.versions)
    assert (0x7551, 0xC8) in NAVI48.kickers and not NAVI44.kickers
    with pytest.raises(FirmwareNotFound, match=r"psp_14_0_3_sos\.bin"):
        load_firmware(FirmwareSource(PACKAGE, images), NAVI48)


def test_behind_a_bridge() -> None:
    card = endpoint("navi48", options=ChipOptions(vram=256 << 20))
    box = Enclosure(card, EnclosureOptions())
    for start in ("cold", "warm"):
        with hcq.open("virtual:navi48+usb", enclosure=box) as device:
            assert device.info()["start"] == start
            assert isinstance(device, AmDevice)
            check_works(device)
    box.close()
    card.chip.close()
    assert box.objections == [] and card.chip.violations == []
