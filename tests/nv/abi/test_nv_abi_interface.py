"""The tables of the resource manager's interface, against facts read off the headers by hand.

Sizes and offsets: open-gpu-kernel-modules nvos.h, alloc_channel.h, uvm_ioctl.h of the releases that
stand for the branches (docs/nv-abi.md).
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from ugpu.hcq.errors import BadArgument
from ugpu.nv import abi
from ugpu.nv.abi.interface import merge

BRANCHES = ("535", "550", "570", "580", "595", "610")

SAME_IN_ALL = {
    "NVOS00_PARAMETERS": 16,
    "NVOS02_PARAMETERS": 48,
    "NVOS21_PARAMETERS": 32,
    "NVOS33_PARAMETERS": 48,
    "NVOS34_PARAMETERS": 32,
    "NVOS54_PARAMETERS": 32,
    "NVOS55_PARAMETERS": 28,
    "NVOS64_PARAMETERS": 48,
    "nv_ioctl_nvos02_parameters_with_fd": 56,
    "nv_ioctl_nvos33_parameters_with_fd": 56,
    "nv_ioctl_card_info_t": 72,
    "NV0080_ALLOC_PARAMETERS": 56,
    "NV2080_ALLOC_PARAMETERS": 4,
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS": 20,
    "NV_CTXSHARE_ALLOCATION_PARAMETERS": 12,
    "NV_HOPPER_USERMODE_A_PARAMS": 2,
    "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS": 268,
    "UVM_INITIALIZE_PARAMS": 16,
    "UVM_REGISTER_GPU_PARAMS": 40,
}
DIFFERENT = {
    "NVOS46_PARAMETERS": (56, 56, 56, 64, 64, 64),
    "NVOS47_PARAMETERS": (40, 48, 48, 48, 48, 48),
    "NV_MEMORY_ALLOCATION_PARAMS": (120, 128, 128, 128, 128, 128),
    "NV_VASPACE_ALLOCATION_PARAMETERS": (48, 48, 48, 56, 56, 56),
    "NV_CHANNEL_ALLOC_PARAMS": (360, 360, 368, 368, 368, 376),
    "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS": (2, 2, 2, 3, 3, 3),
    "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS": (776, 776, 1032, 1032, 1032, 1032),
    "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS": (1200, 9264, 9264, 9264, 9264, 9264),
    "UVM_FREE_PARAMS": (24, 24, 24, 24, 16, 16),
}


def _table(branch: str) -> abi.Abi:
    return abi.select(f"{branch}.100")


@pytest.mark.parametrize("branch", BRANCHES)
def test_blocks_that_never_changed(branch: str) -> None:
    structs = _table(branch).structs
    assert {name: structs[name].size for name in SAME_IN_ALL} == SAME_IN_ALL


@pytest.mark.parametrize("name", DIFFERENT)
def test_blocks_that_differ_between_branches(name: str) -> None:
    assert tuple(_table(branch).structs[name].size for branch in BRANCHES) == DIFFERENT[name]


def test_offsets_move_where_the_headers_moved_them() -> None:
    old, new = abi.select("570.211.01").structs, abi.select("580.142").structs
    assert old.NVOS46_PARAMETERS.offset_of("dmaOffset") == 40
    assert new.NVOS46_PARAMETERS.offset_of("dmaOffset") == 48
    assert new.NVOS46_PARAMETERS.offset_of("kindOverride") == 40
    assert new.NVOS54_PARAMETERS.offset_of("params") == 16
    assert new.NVOS64_PARAMETERS.offset_of("pAllocParms") == 16
    assert new.NV_CHANNEL_ALLOC_PARAMS.offset_of("gpFifoEntries") == 16


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_block_of_every_branch_can_be_read_and_holds_its_members(branch: str) -> None:
    structs = _table(branch).structs
    for name in structs:
        layout = structs[name]
        for member in layout.fields.values():
            assert member.offset + member.size <= layout.size, (name, member.name)


@pytest.mark.parametrize("branch", BRANCHES)
def test_what_the_calls_name_is_there(branch: str) -> None:
    table = _table(branch)
    for ioctl in table.ioctls.values():
        assert ioctl.struct in table.structs, ioctl
        assert table.ioctl_of(table.request(ioctl.name)) is not None
    known = [block for block in table.controls.values() if block and block in table.structs]
    assert len(known) > 900
    for name in ("NV01_DEVICE_0", "KEPLER_CHANNEL_GROUP_A", "NV01_MEMORY_SYSTEM"):
        block = table.parameters_of_class(table.constants[name])
        assert block is not None
        assert block in table.structs


def test_classes_say_what_they_take_and_where_they_live() -> None:
    table = abi.select("580.142")
    hopper = table.classes[0xC86F]
    assert hopper.name == "HOPPER_CHANNEL_GPFIFO_A"
    assert (hopper.struct, hopper.how) == ("NV_CHANNEL_ALLOC_PARAMS", "REQUIRED")
    assert hopper.parents == ("Device", "KernelChannelGroupApi")
    assert table.parameters_of_class(0x90F1) == "NV_VASPACE_ALLOCATION_PARAMETERS"
    assert table.parameters_of_class(0x41) == "NvHandle"
    assert table.parameters_of_class(0x3F) is None
    assert table.parameters_of_class(0xFFFF) is None
    assert table.classes[0xCEC0].name == "BLACKWELL_COMPUTE_B"
    assert 0xCEC0 not in abi.select("550.163.01").classes


def test_controls_say_what_they_take() -> None:
    table = abi.select("580.142")
    assert table.parameters_of_control(0x2080014A) == "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS"
    assert table.parameters_of_control(0xA06C0101) == "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS"
    assert table.control_name(0x2080014A) == "NV2080_CTRL_CMD_GPU_GET_GID_INFO"
    assert table.parameters_of_control(0xDEAD0000) is None
    assert table.control_name(0xDEAD0000) is None


def test_request_numbers_are_those_of_the_driver() -> None:
    old, new = abi.select("570.211.01"), abi.select("580.142")
    assert new.request("NV_ESC_RM_CONTROL") == 0xC020462A
    assert new.request("NV_ESC_RM_ALLOC") == 0xC030462B
    assert old.request("NV_ESC_RM_MAP_MEMORY_DMA") == 0xC0384657
    assert new.request("NV_ESC_RM_MAP_MEMORY_DMA") == 0xC0404657
    assert new.request("UVM_INITIALIZE") == 0x30000001
    assert new.request("UVM_REGISTER_GPU") == 37
    with pytest.raises(BadArgument):
        new.request("NV_ESC_NO_SUCH_CALL")


def test_ioctls_are_found_by_number() -> None:
    table = abi.select("580.142")
    longer = table.ioctl_of(0xC030462B)
    older = table.ioctl_of(0xC020462B)
    assert longer is not None and longer.struct == "NVOS64_PARAMETERS"
    assert older is not None and older.struct == "NVOS21_PARAMETERS"
    uvm = table.ioctl_of(0x49)
    assert uvm is not None and uvm.name == "UVM_CREATE_EXTERNAL_RANGE"
    assert table.ioctl_of(0xC00446FF) is None
    assert table.ioctl_of(0x5401) is None


def test_constants_and_their_fields() -> None:
    names = abi.select("580.142").constants
    assert names.NV01_ROOT_CLIENT == 0x41
    assert names.HOPPER_COMPUTE_A == 0xCBC0
    assert names.NVC361_NOTIFY_CHANNEL_PENDING == 0x90
    assert names.NV_ESC_CARD_INFO == 200
    access = names.field("NVOS46_FLAGS_ACCESS")
    assert (access.lsb, access.width) == (0, 2)


def test_versions_without_a_branch_of_their_own_say_so() -> None:
    assert abi.branches() == BRANCHES
    assert abi.select("580.142").exact
    for version, near in (
        ("560.35.03", "550"),
        ("565.1", "570"),
        ("615.71.09", "610"),
        ("470.1", "535"),
        ("535.54.03", "535"),
    ):
        table = abi.select(version)
        assert (table.branch, table.exact, table.version) == (near, False, version)
        assert "not exact" in repr(table)


@pytest.mark.parametrize("text", ["", "newest", "580.", "-580", "580.142 "])
def test_no_version_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        abi.select(text)


def test_status_codes_and_xids_have_names() -> None:
    assert abi.status_name(0) == "NV_OK"
    assert abi.status_name(0x1F) == "NV_ERR_INVALID_ARGUMENT"
    assert abi.status_name(0x0F) == "NV_ERR_GPU_IS_LOST"
    assert abi.status_name(0x51) == "NV_ERR_NO_MEMORY"
    assert abi.status_name(0xABCDEF) == "NV_STATUS 0xabcdef"
    assert abi.xid_name(31) == "FIFO_ERROR_MMU_ERR_FLT"
    assert abi.xid_name(79) == "GPU_HAS_FALLEN_OFF_THE_BUS"
    assert abi.xid_name(9999) == "Xid 9999"


def test_lines_are_put_over_lines() -> None:
    assert merge("# top\na 1\nb 2\n", "b 3\nc 4\na -\n") == "b 3\nc 4"
    assert merge("k a 1\nk b 2\n", "k b -\n", words=2) == "k a 1"


def test_importing_the_package_reads_no_table() -> None:
    code = (
        "import sys; opened = []; "
        "sys.addaudithook(lambda e, a: opened.append(str(a[0])) if e == 'open' else None); "
        "import ugpu.nv.abi; assert not [p for p in opened if p.endswith('.txt')], opened; "
        "print(sorted(m for m in sys.modules if m.startswith(('llvmlite', 'numpy', 'clang'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
