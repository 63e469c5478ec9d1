"""Read the interface of one firmware release of the GPU system processor (GSP).

The interface consists of the resource manager's own (controls and classes, nvidia.rm) of exactly
that release, and of what passes between driver and firmware: boot arguments, queues,
messages and events. The latter lies in the manager's internal headers. These include most
of its sources, so only the structures named here, and what they contain, are kept.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from ugpu.tools.clang2py.cheaders import Header, HeaderError, Reader, Row
from ugpu.tools.clang2py.crosscheck import crosscheck, gcc
from ugpu.tools.clang2py.nvidia.catalogue import COMMON, MANAGER

#: as in src/nvidia/Makefile
_INCLUDES = (
    *(f"{MANAGER}/{name}" for name in (
        "kernel/inc", "interface", "arch/nvalloc/common/inc", "arch/nvalloc/common/inc/gsp",
        "arch/nvalloc/common/inc/deprecated", "arch/nvalloc/unix/include", "inc", "inc/os",
        "generated", "src/mm/uvm/interface", "inc/libraries", "src/libraries", "inc/kernel",
    )),
    *(f"{COMMON}/{name}" for name in (
        "sdk/nvidia/inc", "sdk/nvidia/inc/hw", "shared/inc", "shared/msgq/inc", "inc",
        "uproc/os/common/include", "inc/swref", "inc/swref/published", "nvswitch/kernel/inc",
        "nvswitch/interface", "nvswitch/common/inc", "inc/displayport", "nvlink/interface",
        "nvlink/inband/interface",
    )),
)  # fmt: skip
_HEADERS = (
    "vgpu/rpc_headers.h", "vgpu/rpc_global_enums.h", "g_rpc-structures.h",
    "g_rpc-message-header.h", "g_os_nvoc.h", "gpu/gsp/gsp_static_config.h",
    "gpu/gsp/message_queue.h", "gpu/intr/engine_idx.h", "gpu/gsp/message_queue_priv.h",
    "gsp/gsp_fw_wpr_meta.h", "gsp/gsp_fw_sr_meta.h", "gpu/gsp/gsp_fw_heap.h",
    "gpu/gsp/gsp_init_args.h", "rmgspseq.h", "libos_init_args.h", "rmRiscvUcode.h",
    "msgq/msgq_priv.h", "gspifpub.h", "nv-crashcat.h", "gpu/fsp/kern_fsp_cot_payload.h",
)  # fmt: skip
_MODULES = ("atomic", "core", "cpu", "crypto", "debug", "memory", "safe", "string", "sync",
            "thread", "util")  # fmt: skip
_DEFINES = {
    "_LANGUAGE_C": "", "__NO_CTYPE": "", "NVRM": "", "NULL": "((void *)0)",
    "LOCK_VAL_ENABLED": "0", "PORT_ATOMIC_64_BIT_SUPPORTED": "1", "PORT_IS_KERNEL_BUILD": "1",
    "PORT_IS_CHECKED_BUILD": "0", **{f"PORT_MODULE_{name}": "1" for name in _MODULES},
    "PORT_MODULE_example": "0", "PORT_MODULE_mmio": "0", "PORT_MODULE_time": "0",
    "RS_STANDALONE": "0", "RS_STANDALONE_TEST": "0", "RS_COMPATABILITY_MODE": "1",
    "RS_PROVIDES_API_STATE": "0", "NV_CONTAINERS_NO_TEMPLATES": "1", "INCLUDE_NVLINK_LIB": "1",
    "INCLUDE_NVSWITCH_LIB": "1", "NV_PRINTF_STRINGS_ALLOWED": "1",
    "NV_ASSERT_FAILED_USES_STRINGS": "1", "PORT_ASSERT_FAILED_USES_STRINGS": "1",
    "RPC_STRUCTURES": "", "RPC_GENERIC_UNION": "", "RPC_MESSAGE_STRUCTURES": "",
}  # fmt: skip
#: messages whose structures are kept; each has a version of its own in its name
_MESSAGES = (
    "alloc_memory", "free", "dup_object", "unloading_guest_driver", "set_page_directory",
    "unset_page_directory", "update_bar_pde", "gsp_rm_alloc", "gsp_rm_control",
    "run_cpu_sequencer", "post_event", "rc_triggered", "os_error_log", "ucode_libos_print",
    "gsp_lockdown_notice", "gsp_post_nocat_record", "ecc_notifier_write_ack", "invalidate_tlb",
    "set_guest_system_info", "recovery_action", "message_header",
)  # fmt: skip
_STRUCTS = re.compile(
    rf"rpc_({'|'.join(_MESSAGES)})_v\w+_\w+|GSP_MSG_QUEUE_ELEMENT|msgq[TR]xHeader"
    r"|LibosMemoryRegionInitArgument|GSP_ARGUMENTS_CACHED|GspSystemInfo|GspStaticConfigInfo(_t)?"
    r"|GspFw(Wpr|SR)Meta|GSP_FMC_BOOT_PARAMS|RM_RISCV_UCODE_DESC|PACKED_REGISTRY_(TABLE|ENTRY)"
    r"|NVDM_PAYLOAD_COT|MCTP_HEADER|GSP_SEQUENCER_BUFFER_CMD"
)
_CONSTANTS = re.compile(
    r"NV_VGPU_MSG_(FUNCTION|EVENT|SIGNATURE|RESULT)_\w+|GSP_FW_\w+|LIBOS_MEMORY_REGION_\w+"
    r"|GSP_SEQ_\w+|MSGQ_VERSION|REGISTRY_TABLE_ENTRY_TYPE_\w+|MC_ENGINE_IDX_\w+"
    r"|RM_ENGINE_TYPE_\w+|ENGINE_INFO_TYPE_\w+|NV_GSP_MSG_\w+|GSP_DMA_TARGET_\w+"
    r"|NV_CRASHCAT_\w+|GSP_LOG_\w+|GSP_MSG_QUEUE_\w+"
)


def _closure(rows: dict[str, Row], aliases: dict[str, str], roots: set[str]) -> set[str]:
    """Return the names of `roots` and of all structures in them."""
    kept: set[str] = set()
    pending = [aliases.get(name, name) for name in roots]
    while pending:
        name = pending.pop()
        if name in kept:
            continue
        kept.add(name)
        for _, kind, *_ in rows[name].members:
            if kind.startswith("@"):
                pending.append(kind[1:].partition("[")[0])
    return kept


def _bounded(row: Row) -> Row:
    """Return a row without the member that stands for the message after a header: a union of all
    messages, of which there are several hundred."""
    members = tuple(member for member in row.members if "rpc_generic_union" not in member[1])
    return row if len(members) == len(row.members) else replace(row, members=members)


def _text(headers: tuple[str, ...]) -> str:
    lines = [f"#define {name} {value}".rstrip() for name, value in _DEFINES.items()]
    lines.append('#include "cpuopsys.h"')
    lines += [f"#include <{header}>" for header in headers]
    return "\n".join(lines) + "\n"


def read_firmware(tree: Path) -> tuple[Header, list[str]]:
    """Read the structures and numbers that driver and firmware share; return them and the headers
    that were included, relative to the tree. HeaderError if the compilers disagree."""
    include = [tree / folder for folder in _INCLUDES if (tree / folder).is_dir()]
    places = {}
    for name in _HEADERS:
        folders = (folder for folder in _INCLUDES if (tree / folder / name).exists())
        places[name] = next((f"{folder}/{name}" for folder in folders), "")
    headers = tuple(name for name in _HEADERS if places[name])
    if not headers:
        raise HeaderError(f"{tree} contains none of the firmware's headers")
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.h"
        everything.write_text(_text(headers), encoding="ascii")
        header = Reader(everything, include=include, below=tree).read()
        header.rows = {name: _bounded(row) for name, row in header.rows.items()}
        names = {**header.rows, **header.aliases}
        roots = {name for name in names if _STRUCTS.fullmatch(name)}
        kept = _closure(header.rows, header.aliases, roots)
        header.rows = {name: row for name, row in header.rows.items() if name in kept}
        header.aliases = {a: name for a, name in header.aliases.items() if a in roots}
        compiler = gcc()
        if compiler:
            crosscheck(compiler, everything, header.rows, include=include)
    header.constants = {n: v for n, v in header.constants.items() if _CONSTANTS.fullmatch(n)}
    header.placements = {n: v for n, v in header.placements.items() if _CONSTANTS.fullmatch(n)}
    return header, [places[name] for name in headers]
