"""Measurement controls: utilisation, performance state, ECC, the PCIe link.

The open headers do not name the driver's controls for temperatures, clocks and power; the model
refuses those with NOT_SUPPORTED. Source: open-gpu-kernel-modules 580.142 src/common/sdk/
nvidia/inc/ctrl/ctrl2080/ctrl2080perf.h, ctrl2080gpu.h, ctrl2080bus.h, ctrl2080ecc.h,
ctrl2080rc.h.
"""

from __future__ import annotations

from typing import Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.rm.controls.control_gpu import list_inside
from ugpu.virtual.nvidia.rm.resources import Subdevice, need_gpu
from ugpu.virtual.nvidia.status import Status, require

_P0, _P8 = 1 << 0, 1 << 8  # NV2080_CTRL_PERF_PSTATES
_LINK_GENERATION = {"turing": 3, "ampere": 4, "ada": 4, "hopper": 5, "blackwell": 5}


def _pstate(sub: Subdevice, params: Struct) -> None:
    busy = any(runlist.busy for runlist in need_gpu(sub).runlists)
    params.currPstate = _P0 if busy else _P8


def _utilisation(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    sample = params.samples[0]
    sample.base.timeStamp = gpu.time_ns() // 1000
    sample.gr.util = gpu.utilisation()
    sample.fb.util = 0
    # The newest sample is the one before the tracker. Source: ctrl2080gpumon.h, pSamples
    params.count, params.tracker = 1, 1


def _has_ecc(gpu: VirtualGpu) -> bool:
    """Return whether ECC is supported and enabled, as on data centre boards."""
    return gpu.facts.name == "gh100"


def _ecc(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    supported = _has_ecc(gpu)
    unit = params.units[1] if len(params.units) > 1 else params.units[0]  # FBPA
    unit.enabled = unit.supported = unit.scrubComplete = int(supported)
    unit.dbe.count = unit.dbeNonResettable.count = gpu.ecc_uncorrected
    params.bFatalPoisonError = 0
    params.uncorrectableError = int(gpu.ecc_uncorrected > 0)


def _ecc_configuration(sub: Subdevice, params: Struct) -> None:
    enabled = int(_has_ecc(need_gpu(sub)))
    params.currentConfiguration = params.defaultConfiguration = enabled


def _ecc_counters(sub: Subdevice, params: Struct) -> None:
    """Report the errors as errors of DRAM."""
    gpu = need_gpu(sub)
    require(_has_ecc(gpu), Status.NOT_SUPPORTED, "the board has no ECC")
    params.dramUncorrectedTotal = gpu.ecc_uncorrected
    params.dramCorrectedTotal = gpu.ecc_corrected


def _errors(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    params.errorCount = sum(report.gpu == gpu.index for report in gpu.machine.log)


def _bus(gpu: VirtualGpu, name: str) -> int | None:
    generation = _LINK_GENERATION[gpu.facts.family]
    # LINK_CAP: MAX_SPEED 3:0, MAX_WIDTH 9:4, GEN 15:12 and CURR_LEVEL 19:16, both counted from 0;
    # LINK_CTRL_STATUS: speed 19:16, width 25:20
    level = generation - 1
    speed, lanes = gpu.link or (generation, 16)
    return {
        "TYPE": 3,  # PCI Express
        "INTLINE": 0,
        "PCIE_GPU_LINK_CAPS": generation | 16 << 4 | level << 12 | level << 16,
        "PCIE_GPU_LINK_CTRL_STATUS": speed << 16 | lanes << 20,
        "PCIE_GEN_INFO": level << 12 | level << 16,
        "BUS_NUMBER": gpu.bus,
        "DEVICE_NUMBER": 0,
        "DOMAIN_NUMBER": 0,
        "SYSMEM_CONNECTION_TYPE": 0,
        "PCIE_GPU_LINK_ERRORS": 0,
        "PCIE_GPU_LINK_AER": 0,
    }.get(name)


# Any: controls differ in the class of the object that they apply to
HANDLERS: dict[str, Any] = {
    "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE": _pstate,
    "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2": _utilisation,
    "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS": _ecc,
    "NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION": _ecc_configuration,
    "NV2080_CTRL_CMD_ECC_GET_CLIENT_EXPOSED_COUNTERS": _ecc_counters,
    "NV2080_CTRL_CMD_RC_GET_ERROR_COUNT": _errors,
    "NV2080_CTRL_CMD_BUS_GET_INFO_V2": list_inside(
        "NV2080_CTRL_BUS_INFO_INDEX_", "busInfoListSize", "busInfoList", _bus
    ),
}
