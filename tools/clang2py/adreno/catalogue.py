"""The files read from Mesa, and the tables of qcom/regs made from them.

Paths are relative to Mesa's tree. The tables use the names of one release of Mesa; later releases
call some registers otherwise (HLSQ_CS_NDRANGE_0 became SP_CS_NDRANGE_0).
"""

from __future__ import annotations

import re
from pathlib import Path

from ugpu.tools.clang2py.catalogue import KERNEL_SIZE, TYPES, UAPI_LICENCE, HeaderTable

FOLDER = "qcom/regs/tables"
LICENCE = "Facts (c) the authors of Mesa, from files under the MIT licence."

REPOSITORY = "https://gitlab.freedesktop.org/mesa/mesa"
RELEASE = "25.0.7"
TAG = f"mesa-{RELEASE}"

XML = "src/freedreno/registers/adreno"
#: read in this order; a later file uses the enumerations and bit sets of an earlier one
DATABASES = (f"{XML}/adreno_common.xml", f"{XML}/adreno_pm4.xml", f"{XML}/a6xx.xml")
KGSL = HeaderTable(
    "msm_kgsl",
    "src/freedreno/vulkan/msm_kgsl.h",
    folder=FOLDER,
    licence=UAPI_LICENCE,
    before=TYPES + KERNEL_SIZE,
    # Mesa's tree lacks <linux/ioctl.h>; joining a path with an absolute folder gives that folder.
    include_folder=str(Path(__file__).parent / "stubs"),
    sizes=(
        ("kgsl_device_getproperty", 24),
        ("kgsl_drawctxt_create", 8),
        ("kgsl_gpuobj_alloc", 48),
        ("kgsl_gpuobj_import", 32),
        ("kgsl_gpumem_alloc_id", 48),
        ("kgsl_gpu_command", 64),
        ("kgsl_command_object", 32),
        ("kgsl_devinfo", 40),
    ),
)
INPUTS = (*DATABASES, KGSL.header)
#: folders to take out of the repository
FOLDERS = (XML, "src/freedreno/vulkan")

#: generation -> the table's stem
GENERATIONS = {6: "a6xx", 7: "a7xx"}
REGISTERS = "A6XX"
#: Registers that the release places wrongly: generation and name -> offset in dwords. From
#: generation 7 on, 0xa9f2 is SP_CS_BINDLESS_BASE 5; later releases have SP_CS_UAV_BASE, as they
#: call it, at 0xa9f8 there (a6xx.xml).
MOVED = {(7, "SP_CS_IBO_LO"): 0xA9F8, (7, "SP_CS_IBO_HI"): 0xA9F9}
DESCRIPTORS = ("A6XX_TEX_SAMP", "A6XX_TEX_CONST", "A6XX_UBO")
#: all packets except those of drawing, of binning and of older generations
PACKETS = re.compile(
    r"CP_(?!LOAD_STATE4?$|DRAW|SET_BIN|COND_WRITE$|COMPUTE_CHECK|DISPATCH_COMPUTE|FIXED_STRIDE)"
)

#: The registers that a compute driver and its model use: those of the command processor, the shader
#: processors, textures, caches, the 2D engine. The rest of the graphics pipeline is omitted.
CHOSEN = re.compile(r"(CP|RBBM|UCHE|SP|HLSQ|TPL1|TP|GRAS_2D|RB_2D|RB_CCU|RB_DBG|RB_BLIT|RB_CMP)_")
#: performance counters and the shader stages of graphics
LEFT_OUT = re.compile(
    r".*PERFCTR(?!_ENABLE)|SP_(?!FS_INSTRLEN)([VHDGF]S|PS(?!_2D))_|HLSQ_(?!FS_CNTL_0)[VHDGF]S_|.*_DBGBUS_"
)
LEFT_OUT_ENUMERATIONS = re.compile(
    r".*perfcounter|.*perfcntr|.*_debugbus|a[2345]xx_|adreno_(rb|pa|a3xx)|(pc|vgt)_(?!event)|.*_sel$"
)
