"""Some places of registers, packets and calls, written by hand from the documents."""

from __future__ import annotations

import subprocess
import sys

from ugpu.hcq.uapi import constants as uapi_constants
from ugpu.hcq.uapi import structs as uapi_structs
from ugpu.qcom.regs import constants, load, structs


def test_registers_of_both_generations() -> None:
    # Mesa's a6xx.xml: the same register lies elsewhere in generation 7.
    assert load("a6xx").HLSQ_CS_NDRANGE_0.offset == 0xB990
    assert load("a7xx").HLSQ_CS_NDRANGE_0.offset == 0xA9D4
    assert load("a6xx").HLSQ_INVALIDATE_CMD.offset == 0xBB08
    assert load("a7xx").HLSQ_INVALIDATE_CMD.offset == 0xAB1F
    assert load("a6xx").SP_CS_CTRL_REG0.offset == load("a7xx").SP_CS_CTRL_REG0.offset == 0xA9B0
    assert load("a6xx").SP_CS_CTRL_REG0.encode(THREADSIZE=1, MERGEDREGS=1) == 0x80100000
    assert "HLSQ_CS_CNTL_0" not in load("a7xx")
    assert constants("a6xx").SP_CS_PVT_MEM_PARAM__MEMSIZEPERITEM__SHR == 9


def test_registers_have_a_place_of_their_own() -> None:
    """Except those with two names. The images of compute are beside the descriptor sets, of which
    generation 7 has more."""
    aliases = {"HLSQ_CONTEXT_SWITCH_GFX_PREEMPTION_SAFE_MODE", "RBBM_CGC_P2S_STATUS"}
    for name in ("a6xx", "a7xx"):
        registers = load(name)
        places = [registers[each].offset for each in registers if each not in aliases]
        assert len(set(places)) == len(places), name
    assert load("a6xx").SP_CS_IBO_LO.offset == 0xA9F2
    assert load("a7xx").SP_CS_IBO_LO.offset == 0xA9F8
    assert load("a7xx").SP_CS_BINDLESS_BASE_7_DESCRIPTOR_HI.offset == 0xA9F7


def test_packets() -> None:
    for name in ("a6xx", "a7xx"):
        codes = constants(name)
        assert codes.CP_EXEC_CS == 0x33
        assert codes["CP_EVENT_WRITE" if name == "a6xx" else "CP_EVENT_WRITE7"] == 0x46
        assert codes.CP_LOAD_STATE6_FRAG == 0x34
        assert codes.RM6_COMPUTE == 8
        assert load(f"{name}_packets").CP_LOAD_STATE6_0.encode(NUM_UNIT=2, STATE_BLOCK=13) == (
            2 << 22 | 13 << 18
        )


def test_calls_of_the_two_kernel_interfaces() -> None:
    # The numbers hold direction, size and code: as measured of a client on the same header.
    kgsl = constants("msm_kgsl")
    assert kgsl.IOCTL_KGSL_GPU_COMMAND == 0xC040094A
    assert kgsl.IOCTL_KGSL_DRAWCTXT_CREATE == 0xC0080913
    assert structs("msm_kgsl").kgsl_gpu_command.size == 64
    assert uapi_constants("msm_drm").DRM_MSM_GEM_SUBMIT == 6
    assert uapi_structs("msm_drm").drm_msm_gem_submit.size == 72


def test_importing_the_package_reads_no_table() -> None:
    code = (
        "import sys, ugpu.qcom.regs; print(any(name.startswith('numpy') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
