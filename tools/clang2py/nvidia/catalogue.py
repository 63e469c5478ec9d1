"""The files read from NVIDIA's two public repositories, and the tables of nv/abi made from them.

Paths are relative to the repository's tree. open-gpu-kernel-modules is tagged by driver release;
open-gpu-doc has no tags, so a commit is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FOLDER = "nv/abi/tables"
LICENCE = "Facts (c) NVIDIA Corporation, from headers under the MIT licence."

DRIVER_REPOSITORY = "https://github.com/NVIDIA/open-gpu-kernel-modules"
DOCUMENT_REPOSITORY = "https://github.com/NVIDIA/open-gpu-doc"
DOCUMENT_COMMIT = "c8607fe576b53ff821ffcf97e7548d2de11c4eaf"

#: driver branch -> the release that represents it; within a branch the interface is stable
BRANCHES = {
    "535": "535.288.01",
    "550": "550.163.01",
    "570": "570.211.01",
    "580": "580.142",
    "595": "595.45.04",
}
BASE = "570"
#: driver branch -> the branch before it, and the release from which bindings of others were made:
#: for a branch whose headers the machine that generates these tables cannot have; the first row of
#: BRANCHES with its number replaces it
BINDINGS = {"610": ("595", "610.43.03")}
BINDINGS_REPOSITORY = "https://github.com/tinygrad/tinygrad"
BINDINGS_COMMIT = "43ad225d36168fc45394254f3eae421fd72adc2a"
BINDINGS_FOLDER = "tinygrad/runtime/autogen"
#: releases of the GSP's firmware that Linux distributions ship (linux-firmware, nvidia/*/gsp;
#: 550.163.01 is Debian's, for NVIDIA's module alone); the interface of firmware has no stable part,
#: so each has a folder of its own
FIRMWARE = ("535.113.01", "550.163.01", "570.144")
FIRMWARE_FOLDER = "nv/abi/gsp"
#: definitions that are the same for all branches are read from this release
NEWEST = BRANCHES["595"]

MANAGER = "src/nvidia"
COMMON = "src/common"
SDK = f"{COMMON}/sdk/nvidia/inc"
UNIX = "src/nvidia/arch/nvalloc/unix/include"
UVM = "kernel-open/nvidia-uvm"
KERNEL = "kernel-open/common/inc"
RESOURCES = "src/nvidia/src/kernel/rmapi/resource_list.h"
GENERATED = "src/nvidia/generated"
ALL_CLASSES = f"{GENERATED}/g_allclasses.h"
REFERENCE = "src/common/inc/swref/published"
UVM_REFERENCE = f"{UVM}/hwref"
#: folders to take out of the driver's repository
DRIVER_FOLDERS = (SDK, UNIX, UVM, KERNEL, RESOURCES, GENERATED, REFERENCE)
DOCUMENT_FOLDERS = ("classes",)
FIRMWARE_SOURCES = (MANAGER, COMMON, KERNEL, UVM)
#: NVIDIA's own assertions about the firmware's interface, in releases that have it
ABI_CHECK = f"{MANAGER}/interface/gsp_abi_check.c"
INCLUDES = (SDK, UNIX, UVM, KERNEL)

#: read in this order, each before the control headers
FIRST_HEADERS = ("nvtypes.h", "nvstatus.h", "nvlimits.h", "nvos.h", "nverror.h")
LAST_HEADERS = (
    "nv_escape.h",
    "nv-ioctl-numbers.h",
    "nv-ioctl-numa.h",
    "nv-ioctl.h",
    "nv-unix-nvos-params-wrappers.h",
    "uvm_linux_ioctl.h",
)
#: control headers of displays, virtual GPUs of a host, and others that compute programs do not use
LEFT_OUT_CONTROLS = (
    "ctrl0073", "ctrl0076", "ctrl0090", "ctrl30f1", "ctrl402c", "ctrl5070", "ctrl9010",
    "ctrl9072", "ctrl90ec", "ctrla080", "ctrla081", "ctrla084", "ctrla0bc", "ctrla0bd",
    "ctrlb069", "ctrlc365", "ctrlc369", "ctrlc370", "ctrlc372", "ctrlc763", "ctrlxxxx",
)  # fmt: skip
#: class headers with parameter blocks; the ones with methods are tables of their own
CLASS_HEADERS = (
    "cl0000", "cl0002", "cl0004", "cl0005", "cl0005_notification", "cl000f", "cl003e", "cl003f",
    "cl0040", "cl0041", "cl0050", "cl0060", "cl0070", "cl0071", "cl0080", "cl00c1", "cl00c2",
    "cl00c3", "cl00da", "cl00db", "cl00de", "cl00e0", "cl00f1", "cl00f3", "cl00f8", "cl00f9",
    "cl00fb", "cl00fd", "cl00fe", "cl2080", "cl2080_notification", "cl2081", "cl2082", "cl208f",
    "cl503b", "cl503c", "cl5080", "cl50a0", "cl83de", "cl84a0", "cl9067", "cl9096", "cl90cd",
    "cl90ce", "cl90e6", "cl90e7", "cl90f1", "cla06c", "clb0cc", "clb1cc", "clb2cc", "clb0b5sw",
    "clc361", "clc461", "clc561", "clc574", "clc637", "clc638", "clc639", "clc640", "clc661",
    "clc761", "clcb33",
)  # fmt: skip
#: fits every layout of a control, but programs never see it
LEFT_OUT_STRUCTS = ("FINN_",)

#: parts of the numbers of controls
LEFT_OUT_CONSTANTS = re.compile(r"_MESSAGE_ID$|^FINN_")

#: escape of /dev/nvidiactl and /dev/nvidiaN -> its parameter block. Source: 580.142
#: src/nvidia/arch/nvalloc/unix/src/escape.c and kernel-open/nvidia/nv.c.
ESCAPES = {
    "NV_ESC_RM_ALLOC_MEMORY": "nv_ioctl_nvos02_parameters_with_fd",
    "NV_ESC_RM_ALLOC_OBJECT": "NVOS05_PARAMETERS",
    "NV_ESC_RM_FREE": "NVOS00_PARAMETERS",
    "NV_ESC_RM_CONTROL": "NVOS54_PARAMETERS",
    "NV_ESC_RM_ALLOC": "NVOS64_PARAMETERS",
    "NV_ESC_RM_DUP_OBJECT": "NVOS55_PARAMETERS",
    "NV_ESC_RM_SHARE": "NVOS57_PARAMETERS",
    "NV_ESC_RM_I2C_ACCESS": "NVOS_I2C_ACCESS_PARAMS",
    "NV_ESC_RM_IDLE_CHANNELS": "NVOS30_PARAMETERS",
    "NV_ESC_RM_VID_HEAP_CONTROL": "NVOS32_PARAMETERS",
    "NV_ESC_RM_ACCESS_REGISTRY": "NVOS38_PARAMETERS",
    "NV_ESC_RM_MAP_MEMORY": "nv_ioctl_nvos33_parameters_with_fd",
    "NV_ESC_RM_UNMAP_MEMORY": "NVOS34_PARAMETERS",
    "NV_ESC_RM_GET_EVENT_DATA": "NVOS41_PARAMETERS",
    "NV_ESC_RM_ALLOC_CONTEXT_DMA2": "NVOS39_PARAMETERS",
    "NV_ESC_RM_MAP_MEMORY_DMA": "NVOS46_PARAMETERS",
    "NV_ESC_RM_UNMAP_MEMORY_DMA": "NVOS47_PARAMETERS",
    "NV_ESC_RM_BIND_CONTEXT_DMA": "NVOS49_PARAMETERS",
    "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO": "NVOS56_PARAMETERS",
    "NV_ESC_CARD_INFO": "nv_ioctl_card_info_t",
    "NV_ESC_REGISTER_FD": "nv_ioctl_register_fd_t",
    "NV_ESC_ALLOC_OS_EVENT": "nv_ioctl_alloc_os_event_t",
    "NV_ESC_FREE_OS_EVENT": "nv_ioctl_free_os_event_t",
    "NV_ESC_STATUS_CODE": "nv_ioctl_status_code_t",
    "NV_ESC_CHECK_VERSION_STR": "nv_ioctl_rm_api_version_t",
    "NV_ESC_IOCTL_XFER_CMD": "nv_ioctl_xfer_t",
    "NV_ESC_QUERY_DEVICE_INTR": "nv_ioctl_query_device_intr",
    "NV_ESC_SYS_PARAMS": "nv_ioctl_sys_params_t",
    "NV_ESC_NUMA_INFO": "nv_ioctl_numa_info_t",
    "NV_ESC_SET_NUMA_STATUS": "nv_ioctl_set_numa_status_t",
    "NV_ESC_EXPORT_TO_DMABUF_FD": "nv_ioctl_export_to_dma_buf_fd_t",
    "NV_ESC_WAIT_OPEN_COMPLETE": "nv_ioctl_wait_open_complete_t",
}


@dataclass(frozen=True)
class Methods:
    """The methods of one class, and the descriptors in the same header."""

    number: str
    #: a path in the documents' repository; otherwise the driver's class header
    document: str = ""
    #: the class whose methods apply where this header, an excerpt, has none
    predecessor: str = ""

    @property
    def name(self) -> str:
        """The table's name."""
        return f"methods_{self.number}"


@dataclass(frozen=True)
class Descriptors:
    """Descriptors of one header: name -> (prefix of its macros, size in bytes)."""

    name: str
    header: str
    entries: dict[str, tuple[str, int]]
    document: bool = False
    #: start of an array's name -> number of its elements
    counts: dict[str, int] = field(default_factory=dict)


#: descriptors in host class headers; each is one word
HOST_DESCRIPTORS = {"GP_ENTRY0": 4, "GP_ENTRY1": 4, "DMA": 4}

METHODS = (
    Methods("c46f"),
    Methods("c56f"),
    # The headers of Hopper's and Blackwell's channels are excerpts. UNSURE: that the rest is as
    # before; a whole header, or a recording on a board, would settle it.
    Methods("c86f", predecessor="c56f"),
    Methods("c96f", predecessor="c86f"),
    Methods("ca6f", predecessor="c96f"),
    *(
        Methods(number, f"classes/compute/cl{number}.h")
        for number in ("c5c0", "c6c0", "c7c0", "c9c0", "cbc0", "cdc0", "cec0")
    ),
    # The header of Ada's 3D class, c997, has the methods of c797.
    *(Methods(number, f"classes/3d/cl{number}.h") for number in ("c597", "c697", "c797")),
    *(
        Methods(number, f"classes/dma-copy/cl{number}.h")
        for number in ("c5b5", "c6b5", "c7b5", "c8b5", "c9b5", "cab5")
    ),
)

#: version of the QMD -> (class whose header describes it, bytes)
QMD_VERSIONS = {
    "2.2": ("c4c0", 256),
    "2.3": ("c5c0", 256),
    "2.4": ("c9c0", 256),
    "3.0": ("cbc0", 256),
    "4.0": ("cbc0", 384),
    "4.1": ("cec0", 384),
    "5.0": ("cec0", 384),
    "5.1": ("cec0", 384),
}
#: the size of TPC_DISABLE_MASK is not stated; it has as many elements as fit
QMD_COUNTS = {"CONSTANT_BUFFER": 8, "RELEASE": 3, "DEPENDENT_QMD": 2}


def _qmd(version: str, number: str, size: int) -> Descriptors:
    major, minor = version.split(".")
    prefix = f"NV{number.upper()}_QMDV{int(major):02}_{int(minor):02}_"
    return Descriptors(
        f"qmd_{major}_{minor}",
        f"classes/compute/cl{number}qmd.h",
        {"QMD": (prefix, size)},
        document=True,
        counts=QMD_COUNTS,
    )


DESCRIPTORS = (
    *(_qmd(version, number, size) for version, (number, size) in QMD_VERSIONS.items()),
    Descriptors(
        "mmu",
        f"{UVM_REFERENCE}/hopper/gh100/dev_mmu.h",
        {
            "VER2_PDE": ("NV_MMU_VER2_PDE_", 8),
            "VER2_DUAL_PDE": ("NV_MMU_VER2_DUAL_PDE_", 16),
            "VER2_PTE": ("NV_MMU_VER2_PTE_", 8),
            "VER3_PDE": ("NV_MMU_VER3_PDE_", 8),
            "VER3_DUAL_PDE": ("NV_MMU_VER3_DUAL_PDE_", 16),
            "VER3_PTE": ("NV_MMU_VER3_PTE_", 8),
            # Only its kinds are used: versions 2 (from Turing) and 3 number them this way.
            "PTE": ("NV_MMU_PTE_", 8),
        },
    ),
    Descriptors("fault_entry", f"{SDK}/class/clc369.h", {"BUF_ENTRY": ("NVC369_BUF_ENTRY_", 32)}),
    *(
        Descriptors(
            f"fault_{chip}",
            f"{UVM_REFERENCE}/{family}/{chip}/dev_fault.h",
            {"PFAULT": ("NV_PFAULT_", 4)},
        )
        for family, chip in (
            ("turing", "tu102"),
            ("ampere", "ga100"),
            ("hopper", "gh100"),
            ("blackwell", "gb100"),
        )
    ),
    Descriptors(
        "userd", f"{REFERENCE}/ampere/ga100/dev_ram.h", {"RAMUSERD": ("NV_RAMUSERD_", 512)}
    ),
)
