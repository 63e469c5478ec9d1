"""Structures and constants of AMD headers against facts written down by hand (Linux 6.12)."""

from __future__ import annotations

import pytest

from ugpu.am.regs import constants, structs
from ugpu.hcq.uapi import constants as uapi_constants
from ugpu.hcq.uapi import structs as uapi_structs


@pytest.mark.parametrize(
    ("table", "name", "size"),
    [
        ("v11_structs", "v11_compute_mqd", 2048),
        ("v11_structs", "v11_sdma_mqd", 512),
        ("discovery", "ip_v4", 8),
        ("discovery", "binary_header", 60),
        ("discovery", "ip_discovery_header", 80),
        ("psp_gfx_if", "psp_gfx_cmd_resp", 1024),
        ("psp_gfx_if", "psp_gfx_rb_frame", 64),
        ("amdgpu_ucode", "common_firmware_header", 32),
        ("amdgpu_ucode", "rlc_firmware_header_v2_3", 204),
        ("sdma_v6_0_0_pkt_open", "SDMA_PKT_COPY_LINEAR", 28),
        ("smu13_driver_if_v13_0_0", "SmuMetricsExternal_t", 392),
        ("smu14_driver_if_v14_0", "SmuMetrics_t", 0x104),
        ("v12_structs", "v12_compute_mqd", 2048),
    ],
)
def test_sizes(table: str, name: str, size: int) -> None:
    assert structs(table)[name].size == size


@pytest.mark.parametrize(
    ("table", "name", "path", "offset"),
    [
        # v11_structs.h numbers its members in the remarks: dword 128 is cp_mqd_base_addr_lo.
        ("v11_structs", "v11_compute_mqd", "cp_mqd_base_addr_lo", 128 * 4),
        ("v11_structs", "v11_compute_mqd", "cp_hqd_pq_control", 145 * 4),
        ("discovery", "ip_v4", "base_address", 8),
        ("discovery", "ip_v4", "base_address_64", 8),
        ("discovery", "binary_header", "table_list[1].offset", 20),
        ("discovery", "ip_discovery_header", "die_info[2].die_offset", 24),
        ("psp_gfx_if", "psp_gfx_cmd_resp", "cmd.cmd_load_ip_fw.fw_type", 40),
        ("psp_gfx_if", "psp_gfx_cmd_resp", "resp.status", 864),
        ("amdgpu_ucode", "sdma_firmware_header_v2_0", "ctl_ucode_offset", 48),
        ("amdgpu_ucode", "psp_firmware_header_v2_0", "psp_fw_bin", 36),
    ],
)
def test_offsets(table: str, name: str, path: str, offset: int) -> None:
    assert structs(table)[name].offset_of(path) == offset


def test_bitfields_of_the_discovery_table() -> None:
    """The bytes of one IP entry, written by hand: GC (hardware id 11) 11.0.0, six bases."""
    entry = structs("discovery").ip_v4.view(bytes.fromhex("0b00 00 06 0b 00 00 25"))
    assert (entry.hw_id, entry.num_base_address, entry.major) == (11, 6, 11)
    assert (entry.sub_revision, entry.variant) == (5, 2)


def test_an_sdma_copy_packet() -> None:
    """COPY is operation 1; COUNT holds bytes less one; addresses follow, low word first."""
    packet = structs("sdma_v6_0_0_pkt_open").SDMA_PKT_COPY_LINEAR.new(
        HEADER_op=constants("sdma_v6_0_0_pkt_open").SDMA_OP_COPY,
        COUNT_count=4096 - 1,
        SRC_ADDR_LO_src_addr_31_0=0x1000,
        DST_ADDR_HI_dst_addr_63_32=0x7F,
    )
    assert bytes(packet).hex(" ", 4) == (
        "01000000 ff0f0000 00000000 00100000 00000000 00000000 7f000000"
    )


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("nvd", "PACKET3_DISPATCH_DIRECT", 0x15),
        ("nvd", "PACKET3_RELEASE_MEM", 0x49),
        ("nvd", "PACKET3_SET_SH_REG_START", 0x2C00),
        ("sdma_v6_0_0_pkt_open", "SDMA_OP_FENCE", 5),
        ("psp_gfx_if", "GFX_CMD_ID_LOAD_IP_FW", 6),
        ("soc15_hw_ip", "GC_HWID", 11),
        ("soc15_hw_ip", "MP0_HWID", 255),
        ("soc15_ih_clientid", "SOC21_IH_CLIENTID_GFX", 0x0A),
        ("irqsrcs_gfx_11_0_0", "GFX_11_0_0__SRCID__CP_EOP_INTERRUPT", 181),
        ("smu_v13_0_0_ppsmc", "PPSMC_MSG_GetSmuVersion", 2),
        ("smu_v14_0_2_ppsmc", "PPSMC_MSG_SetPptLimit", 0x32),
        ("smu14_driver_if_v14_0", "TABLE_COMBO_PPTABLE", 1),
        ("amdgpu_vm", "AMDGPU_PTE_EXECUTABLE", 0x10),
        ("amdgpu_vm", "AMDGPU_PDE_PTE", 1 << 54),
        ("soc21_enum", "CACHE_FLUSH_AND_INV_TS_EVENT", 0x14),
        ("discovery", "DISCOVERY_TABLE_SIGNATURE", 0x53445049),
    ],
)
def test_constants(table: str, name: str, value: int) -> None:
    assert constants(table)[name] == value


def test_pm4_placements() -> None:
    assert constants("nvd").field("PACKET3_RELEASE_MEM_EVENT_INDEX").insert(0, 5) == 0x500
    poll = constants("sdma_v6_0_0_pkt_open").field("SDMA_PKT_POLL_REGMEM_HEADER_MEM_POLL")
    assert poll.insert(0, 1) == 1 << 31
    assert constants("amdgpu_vm").field("AMDGPU_PTE_FRAG").insert(0, 9) == 9 << 7


def test_linux_interface() -> None:
    """`VFIO_DEVICE_GET_INFO` is _IO(';', 107); vfio.h of Linux, include/uapi/linux."""
    vfio = uapi_constants("vfio")
    assert vfio.VFIO_DEVICE_GET_INFO == 0x3B6B
    assert vfio.VFIO_TYPE1_IOMMU == 1
    assert uapi_structs("vfio").vfio_region_info.offset_of("offset") == 24
    assert uapi_structs("vfio").vfio_iommu_type1_dma_map.size == 32
    assert uapi_constants("pci_regs").PCI_COMMAND == 4
    assert uapi_constants("pci_regs").PCI_EXT_CAP_ID_REBAR == 0x15
