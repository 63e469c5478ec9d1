"""NVIDIA's tables from a small tree in a git repository: what is written, what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("clang.cindex", reason="libclang is not installed (pip install libclang)")

from ugpu.hcq.errors import HostError, UsageError
from ugpu.nv.abi.bits import BitTable
from ugpu.nv.abi.interface import Abi
from ugpu.tools.clang2py.cheaders import HeaderError
from ugpu.tools.clang2py.manifest import complaints
from ugpu.tools.clang2py.nvidia import catalogue, regen, rm, sources
from ugpu.tools.clang2py.nvidia.bindings import Bindings, tables_of
from ugpu.tools.clang2py.nvidia.sources import NvidiaSources

if shutil.which("git") is None:
    pytest.skip("git is not installed", allow_module_level=True)

NVOS = """\
#ifndef nvos_h
#define nvos_h
#include "nvtypes.h"
typedef struct { NvU32 hRoot; NvU32 hObjectParent; NvU32 hObjectNew; NvU32 hClass;
  NvU64 pAllocParms; NvU32 paramsSize; NvU32 status; } NVOS21_PARAMETERS;
typedef struct { NvU32 hRoot; NvU32 hObjectParent; NvU32 hObjectNew; NvU32 hClass;
  NvU64 pAllocParms; NvU64 pRightsRequested; NvU32 paramsSize; NvU32 flags; NvU32 status;
} NVOS64_PARAMETERS;
#define NVOS46_FLAGS_ACCESS 1:0
#define NVOS46_FLAGS_ACCESS_READ_WRITE (0x00000000)
typedef struct { NvU32 base; %s } FINN_ONLY_INSIDE;
typedef struct { NvU32 hClient; %s NvU64 dmaOffset; } NVOS46_PARAMETERS;
#endif
"""
RESOURCES = """\
RS_ENTRY(
    /* External Class         */ NV01_DEVICE_0,
    /* Internal Class         */ Device,
    /* Multi-Instance         */ NV_TRUE,
    /* Parents                */ RS_LIST(classId(RmClientResource), classId(Other)),
    /* Alloc Param Info       */ RS_OPTIONAL(NV0080_ALLOC_PARAMETERS),
    /* Resource Free Priority */ RS_FREE_PRIORITY_DEFAULT,
    /* Required Access Rights */ RS_ACCESS_NONE
)
RS_ENTRY(
    /* External Class         */ NV01_ROOT,
    /* Internal Class         */ RmClientResource,
    /* Multi-Instance         */ NV_FALSE,
    /* Parents                */ RS_ROOT_OBJECT,
    /* Alloc Param Info       */ RS_NONE,
    /* Required Access Rights */ RS_ACCESS_NONE
)
"""
DISPATCH = """\
    {
        /*flags=*/      0x30118u,
        /*accessRight=*/0x0u,
        /*methodId=*/   0x800101u,
        /*paramSize=*/  sizeof(NV0080_CTRL_TOY_PARAMS),
    },
    {
        /*flags=*/      0x1u,
        /*accessRight=*/0x0u,
        /*methodId=*/   0x800102u,
        /*paramSize=*/  0,
    },
"""
SDK, UNIX, UVM, KERNEL = catalogue.SDK, catalogue.UNIX, catalogue.UVM, catalogue.KERNEL
COMMON = {
    f"{SDK}/nvtypes.h": "#pragma once\ntypedef unsigned int NvU32;\n"
    "typedef unsigned long long NvU64;\n",
    f"{SDK}/nverror.h": "#define ROBUST_CHANNEL_GR_EXCEPTION (13)\n",
    f"{SDK}/nvstatus.h": "enum { NV_OK = 0, NV_ERR_TOY = 3, NV_WARN_TOY = 65536 };\n",
    f"{SDK}/class/cl0080.h": "#define NV01_DEVICE_0 (0x80U)\n"
    '#include "nvos.h"\ntypedef struct { NvU32 deviceId; } NV0080_ALLOC_PARAMETERS;\n',
    f"{SDK}/ctrl/ctrl0080.h": "#define NV0080_CTRL_CMD_TOY (0x800101)\n"
    "typedef struct { NvU32 answer:3; NvU32 more:29; } NV0080_CTRL_TOY_PARAMS;\n",
    f"{SDK}/ctrl/ctrl0073.h": "#error a display's header must not be read\n",
    f"{UNIX}/nv_escape.h": "#define NV_ESC_RM_ALLOC 0x2B\n#define NV_ESC_RM_MAP_MEMORY_DMA 0x57\n",
    f"{UVM}/uvm_linux_ioctl.h": "#define UVM_TOY 7\n#define UVM_TOY_COUNT 3\n"
    "typedef struct { NvU64 base; } UVM_TOY_PARAMS;\n",
    f"{KERNEL}/other.h": "",
    catalogue.RESOURCES: RESOURCES,
    catalogue.ALL_CLASSES: "#define NV01_ROOT   (0x00000000)\n#define NV01_DEVICE_0 (0x00000080)\n"
    "#define TOY_CLASS (0x00000099)\n",
    f"{catalogue.GENERATED}/g_toy_nvoc.c": DISPATCH,
    f"{catalogue.REFERENCE}/x": "",
    f"{SDK}/class/clc46f.h": "#define NVC46F_NOP (0x00000008)\n#define NVC46F_NOP_HANDLE 31:0\n"
    "#define NVC46F_GP_ENTRY0_GET 31:2\n",
    f"{SDK}/class/clc56f.h": "#define NVC56F_NOP (0x00000008)\n#define NVC56F_NOP_MORE 3:0\n",
}
DOCUMENTS = {
    "classes/compute/clcbc0qmd.h": "#define NVCBC0_QMDV04_00_GRID_WIDTH MW(1055:1024)\n"
    "#define NVCBC0_QMDV04_00_CONSTANT_BUFFER_VALID(i) MW((416+(i)*4):(416+(i)*4))\n",
}
#: bindings of a branch without headers: a member more, a structure inside, a moved control
_MEMBERS = (
    "('hClient', NvU32, 0), ('two', c.Array[inner, Literal[2]], 8), "
    "('dmaOffset', NvU64, 24), ('last', NvU32, 32)"
)
BINDINGS = f"""\
NvU32: TypeAlias = ctypes.c_uint32
NvU64: TypeAlias = ctypes.c_uint64
class struct_inner(c.Struct):
  SIZE = 8
  low: int
struct_inner.register_fields([('low', NvU32, 0), ('high', NvU32, 4, 1, 31)])
@c.record
class struct_NVOS46_PARAMETERS(c.Struct):
  SIZE = 40
struct_NVOS46_PARAMETERS.register_fields([{_MEMBERS}])
NVOS46_PARAMETERS: TypeAlias = struct_NVOS46_PARAMETERS
NV0080_CTRL_CMD_TOY = (0x800103)
NV01_DEVICE_0 = NV_OTHER
NV_OTHER = (0x80)
ROBUST_CHANNEL_GR_EXCEPTION = lambda b: (13 + b)
"""


def _commit(repository: Path, files: dict[str, str], *tags: str) -> None:
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    who = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    _git(repository, "add", "-A")
    _git(repository, *who, "commit", "-q", "-m", "toy")
    for tag in tags:
        _git(repository, "tag", tag)


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of clones with two branches, of which the newer has one member more."""
    folder = tmp_path / "clones"
    driver, documents = folder / "open-gpu-kernel-modules", folder / "open-gpu-doc"
    bindings = folder / "tinygrad"
    for repository in (driver, documents, bindings):
        repository.mkdir(parents=True)
        _git(repository, "init", "-q")
    _commit(driver, {**COMMON, f"{SDK}/nvos.h": NVOS % ("", "")}, "570.1")
    newer = {f"{SDK}/nvos.h": NVOS % ("", "NvU32 kindOverride[3];")}
    (driver / f"{SDK}/ctrl/ctrl0080.h").write_text("#define NV0080_CTRL_CMD_TOY (0x800101)\n")
    _commit(driver, newer, "580.1")
    _commit(documents, DOCUMENTS)
    _commit(bindings, {f"{catalogue.BINDINGS_FOLDER}/nv_590.py": BINDINGS})
    monkeypatch.setattr(sources, "DOCUMENT_COMMIT", _git(documents, "rev-parse", "HEAD"))
    monkeypatch.setattr(sources, "BINDINGS_COMMIT", _git(bindings, "rev-parse", "HEAD"))
    monkeypatch.setattr(regen, "BINDINGS", {"590": ("580", "590.1")})
    monkeypatch.setattr(regen, "BRANCHES", {"570": "570.1", "580": "580.1"})
    monkeypatch.setattr(regen, "NEWEST", "580.1")
    monkeypatch.setattr(regen, "FIRMWARE", ())
    methods = (catalogue.Methods("c46f"), catalogue.Methods("c56f", predecessor="c46f"))
    monkeypatch.setattr(regen, "METHODS", methods)
    (table,) = (each for each in catalogue.DESCRIPTORS if each.name == "qmd_4_0")
    monkeypatch.setattr(regen, "DESCRIPTORS", (table,))
    return folder


@pytest.fixture
def written(clones: Path, tmp_path: Path) -> Path:
    """The tables of that."""
    regen.write(NvidiaSources(tmp_path / "cache", clones), tmp_path)
    return tmp_path / catalogue.FOLDER


def test_a_branch_is_whole_and_the_other_is_what_differs(written: Path) -> None:
    base = Abi(written, "570.1", "570", exact=True)
    other = Abi(written, "580.1", "580", exact=True)
    assert base.structs.NVOS46_PARAMETERS.size == 16
    assert other.structs.NVOS46_PARAMETERS.size == 24
    assert other.structs.NVOS46_PARAMETERS.offset_of("dmaOffset") == 16
    assert "NV0080_CTRL_TOY_PARAMS" in base.structs
    assert "NV0080_CTRL_TOY_PARAMS" not in other.structs
    assert "FINN_ONLY_INSIDE" not in base.structs
    text = (written / "rm_580.structs.txt").read_text(encoding="ascii")
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert [row.split()[0] for row in rows] == ["NV0080_CTRL_TOY_PARAMS", "NVOS46_PARAMETERS"]
    assert rows[0] == "NV0080_CTRL_TOY_PARAMS -"


def test_a_branch_without_headers_is_the_one_before_with_what_bindings_change(
    written: Path,
) -> None:
    before = Abi(written, "580.1", "580", exact=True)
    table = Abi(written, "590.1", "590", exact=True)
    block = table.structs.NVOS46_PARAMETERS
    assert (block.size, block.offset_of("dmaOffset"), block.offset_of("last")) == (40, 24, 32)
    assert (block.fields["two"].offset, table.structs.inner.size) == (8, 8)
    high = table.structs.inner.fields["high"]
    assert (high.offset, high.bit, high.width) == (4, 31, 1)
    assert table.structs.NVOS64_PARAMETERS.size == before.structs.NVOS64_PARAMETERS.size
    assert table.controls == {0x800103: "NV0080_CTRL_TOY_PARAMS", 0x800102: None}
    assert table.constants.NV01_DEVICE_0 == 0x80
    assert "590.1" in (written / "rm_590.structs.txt").read_text(encoding="ascii")


def test_bindings_with_a_type_that_no_table_has_are_refused() -> None:
    text = BINDINGS.replace("'last', NvU32", "'last', NvUnheardOf")
    base = {"structs": "NVOS46_PARAMETERS 8 hClient:u32:0\n", "constants": "", "calls": ""}
    with pytest.raises(HeaderError, match="NvUnheardOf"):
        tables_of(base, Bindings(text))


def test_calls_are_read_from_the_sources(written: Path) -> None:
    table = Abi(written, "570.1", "570", exact=True)
    device, root = table.classes[0x80], table.classes[0]
    assert (device.struct, device.how) == ("NV0080_ALLOC_PARAMETERS", "OPTIONAL")
    assert device.parents == ("RmClientResource", "Other")
    assert (root.struct, root.how, root.parents) == (None, "NONE", ("ROOT_OBJECT",))
    assert table.classes[0x99].how == "-"
    assert table.controls == {0x800101: "NV0080_CTRL_TOY_PARAMS", 0x800102: None}
    assert table.control_name(0x800101) == "NV0080_CTRL_CMD_TOY"
    assert {name: each.struct for name, each in table.ioctls.items()} == {
        "NV_ESC_RM_ALLOC": "NVOS64_PARAMETERS",
        "NV_ESC_RM_MAP_MEMORY_DMA": "NVOS46_PARAMETERS",
        "UVM_TOY": "UVM_TOY_PARAMS",
    }
    assert table.constants.field("NVOS46_FLAGS_ACCESS").width == 2


def test_codes_methods_and_descriptors_are_written(written: Path) -> None:
    assert "NV_ERR_TOY 3" in (written / "status.constants.txt").read_text(encoding="ascii")
    assert "GR_EXCEPTION 0xd" in (written / "xid.constants.txt").read_text(encoding="ascii")
    text = (written / "methods_c56f.txt").read_text(encoding="ascii")
    assert "an excerpt" in text
    assert list(BitTable(text, "x").NOP.fields) == ["HANDLE", "MORE"]
    qmd = BitTable((written / "qmd_4_0.txt").read_text(encoding="ascii"), "x").descriptor("QMD")
    assert (qmd.size, qmd.field("CONSTANT_BUFFER_VALID").count) == (384, 8)


def test_the_manifest_proves_the_tables(clones: Path, written: Path, tmp_path: Path) -> None:
    assert complaints(written) == []
    assert regen.write(NvidiaSources(tmp_path / "cache", clones), tmp_path) == []
    manifest = (written / "MANIFEST.txt").read_text(encoding="ascii")
    assert "package open-gpu-kernel-modules" in manifest
    assert " 570.1 (" in manifest and "open-gpu-doc classes/compute/clcbc0qmd.h" in manifest
    (written / "xid.constants.txt").write_text("ROBUST_CHANNEL_TOY 1\n", encoding="ascii")
    assert "edited by hand" in complaints(written)[0]


def test_clones_are_made_where_none_are_given(
    clones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"file://{clones}/open-gpu-kernel-modules"
    monkeypatch.setattr(sources, "DRIVER_REPOSITORY", address)
    found = NvidiaSources(tmp_path / "fresh")
    tree = found.release("570.1")
    assert (tree / f"{SDK}/nvos.h").is_file()
    assert found.release("570.1") == tree
    assert (tmp_path / "fresh/open-gpu-kernel-modules/HEAD").is_file()
    with pytest.raises(HostError, match="--nvidia-src"):
        found.release("999.1")


def test_a_folder_without_the_clones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="open-gpu-kernel-modules"):
        NvidiaSources(tmp_path / "cache", tmp_path).release("570.1")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (catalogue.RESOURCES, RESOURCES.replace("RS_OPTIONAL(", "SOMETHING_ELSE(")),
        (f"{catalogue.GENERATED}/g_more_nvoc.c", DISPATCH.replace("CTRL_TOY", "CTRL_OTHER")),
        (f"{SDK}/nverror.h", "this is no C\n"),
    ],
)
def test_sources_that_contradict_are_refused(
    clones: Path, tmp_path: Path, path: str, text: str
) -> None:
    tree = NvidiaSources(tmp_path / "cache", clones).release("570.1")
    (tree / path).write_text(text, encoding="ascii")
    with pytest.raises(HeaderError):
        rm.read_interface(tree)


def test_lines_that_differ() -> None:
    assert regen.difference("a 1\nb 2\nc 3\n", "a 1\nb 5\nd 4\n") == "b 5\nc -\nd 4\n"
    assert regen.difference("k a 1\n", "k b 1\n", words=2) == "k a -\nk b 1\n"
