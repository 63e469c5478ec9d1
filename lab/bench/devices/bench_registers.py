"""Register tables: all blocks of Navi31 from a cold start, and what a lookup costs afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ugpu.am.regs import load

ROOT = Path(__file__).resolve().parents[3]
REGISTERS = {
    "gc_11_0_0": "CP_HQD_PQ_CONTROL",
    "mmhub_3_0_0": "MMVM_INVALIDATE_ENG17_REQ",
    "nbio_4_3_0": "BIF_BX_PF0_GPU_HDP_FLUSH_REQ",
    "mp_13_0_0": "MP0_SMN_C2PMSG_81",
    "osssys_6_0_0": "IH_RB_CNTL",
    "hdp_6_0_0": "HDP_MEM_POWER_CTRL",
    "smuio_13_0_6": "SMUIO_MCM_CONFIG",
    "thm_13_0_2": "CG_MULT_THERMAL_STATUS",
}

LOAD = f"""
import time, tracemalloc, sys
from ugpu.am.regs import load
registers = {REGISTERS!r}
trace = len(sys.argv) > 1
if trace:
    tracemalloc.start()
start = time.perf_counter()
for table, name in registers.items():
    load(table)[name].fields
elapsed = time.perf_counter() - start
print(tracemalloc.get_traced_memory()[0] / 1e6 if trace else elapsed * 1e3)
"""


def _fresh(*arguments: str) -> float:
    """What a fresh process prints after loading all tables with one lookup each."""
    command = [sys.executable, "-c", LOAD, *arguments]
    return float(subprocess.check_output(command, cwd=ROOT))


def _nanoseconds(count: int, begin: float) -> float:
    return (time.perf_counter() - begin) / count * 1e9


def measure() -> list[dict[str, object]]:
    gc = load("gc_11_0_0")
    names = list(gc)
    begin = time.perf_counter()
    for name in names:
        gc[name]
    first = _nanoseconds(len(names), begin)
    begin = time.perf_counter()
    for name in names:
        gc[name]
    later = _nanoseconds(len(names), begin)
    return [
        {
            "name": "register tables of Navi31: load and one lookup each",
            "value": min(_fresh() for _ in range(5)),
            "unit": "ms",
        },
        {"name": "register tables of Navi31: memory", "value": _fresh("memory"), "unit": "MB"},
        {"name": "register lookup, first of a name", "value": first, "unit": "ns"},
        {"name": "register lookup, later", "value": later, "unit": "ns"},
    ]
