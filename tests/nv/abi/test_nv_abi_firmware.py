"""Tables of the GSP's firmware: one folder for each release, complete and exact."""

from __future__ import annotations

import pytest

from ugpu.hcq.errors import NotSupported
from ugpu.nv.abi.firmware import firmware, firmware_versions

# Measured with gdb on objects that the releases' own Makefiles compile, not with our generator; for
# 550.163.01 the messages' sizes are those that NVIDIA's module of that release sends.
SIZES = {
    "GSP_ARGUMENTS_CACHED": (0x50, 0x50, 0x48),
    "MESSAGE_QUEUE_INIT_ARGUMENTS": (0x30, 0x30, 0x20),
    "GspSystemInfo": (0x298, 0x370, 0x3A0),
    "GspStaticConfigInfo": (0x878, 0x888, 0x678),
    "GspFwWprMeta": (0x100, 0x100, 0x100),
    "GspFwSRMeta": (0x100, 0x100, 0x100),
    "GSP_FMC_BOOT_PARAMS": (0x38, 0x50, 0x50),
    "NV_CHANNEL_ALLOC_PARAMS": (0x168, 0x168, 0x170),
    "NV0000_ALLOC_PARAMETERS": (0x6C, 0x6C, 0x78),
    "NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS": (0x814, 0x814, 0x814),
    "NV2080_CTRL_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO_PARAMS": (0x640, 0x680, 0x680),
    "NV2080_CTRL_INTERNAL_MEMSYS_GET_STATIC_CONFIG_PARAMS": (0x38, 0x28, 0x28),
    "rpc_gsp_rm_alloc_v03_00": (0x20, 0x20, 0x20),
    "rpc_gsp_rm_control_v03_00": (0x18, 0x18, 0x18),
    "rpc_rc_triggered_v17_02": (0x14, 0x1C, 0x30),
    "RM_RISCV_UCODE_DESC": (0x54, 0x54, 0x54),
}
OFFSETS = {
    ("GSP_ARGUMENTS_CACHED", "srInitArguments"): (0x30, 0x30, 0x20),
    ("GspSystemInfo", "pciConfigMirrorBase"): (0x40, 0x48, 0x50),
    ("GspStaticConfigInfo", "bar1PdeBase"): (0x828, 0x838, 0x600),
    ("GspStaticConfigInfo", "fbRegionInfoParams.fbRegion"): (0x350, 0x360, 0x160),
    ("GspStaticConfigInfo", "gpuNameString"): (0x71C, 0x72C, 0x4EC),
    ("rpc_os_error_log_v17_00", "errString"): (0xC, 0xC, 0xC),
}


def test_releases_are_listed_oldest_first() -> None:
    assert firmware_versions() == ("535.113.01", "550.163.01", "570.144")


@pytest.mark.parametrize(
    ("column", "version"), [(0, "535.113.01"), (1, "550.163.01"), (2, "570.144")]
)
def test_layouts_are_those_of_the_release(column: int, version: str) -> None:
    structs = firmware(version).structs
    assert {name: structs[name].size for name in SIZES} == {
        name: sizes[column] for name, sizes in SIZES.items()
    }
    assert {key: structs[key[0]].offset_of(key[1]) for key in OFFSETS} == {
        key: places[column] for key, places in OFFSETS.items()
    }


def test_numbers_differ_between_releases() -> None:
    old, new = firmware("535.113.01").constants, firmware("570.144").constants
    for constants in (old, new):
        assert constants.NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC == 103
        assert constants.NV_VGPU_MSG_EVENT_GSP_INIT_DONE == 0x1001
        assert constants.NV_VGPU_MSG_SIGNATURE_VALID == 0x43505256
    assert old.NV_VGPU_MSG_EVENT_GSP_LOCKDOWN_NOTICE == 0x101D
    assert new.NV_VGPU_MSG_EVENT_GSP_LOCKDOWN_NOTICE == 0x101C
    assert (old.MC_ENGINE_IDX_GSP, new.MC_ENGINE_IDX_GSP) == (49, 50)


def test_another_release_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"must be one of 535\.113\.01, 550\.163\.01, 570\.144"):
        firmware("570.133.07")


def test_controls_and_classes_of_the_stock_interface_are_there() -> None:
    table = firmware("570.144")
    assert table.parameters_of_control(0x2080012B) == "NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS"
    assert table.parameters_of_class(0xC56F) == "NV_CHANNEL_ALLOC_PARAMS"
    assert table.exact
