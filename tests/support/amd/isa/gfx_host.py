"""The corpus kernels compiled for the host: what LLVM says that each lane computes.

The same IR, one lane at a time on the CPU, is an independent statement of what a kernel's machine
code must compute. Kernels that use the GPU's own intrinsics have no such twin.

The twin is compiled for a fixed set of instructions, BASELINE, on every x86-64 host: an oracle that
used what the host happens to have (AVX512-FP16, AVX512-BF16) would differ between hosts.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tests.support.shader_memory import page_array
from ugpu.hcq.objects.jit import on_x86

# Helper functions that LLVM calls for conversions between f64 and f16; not linked into Python.
_HELPERS = "libgcc_s.so.1"
_WORKITEM = "@llvm.amdgcn.workitem.id.x()"
BASELINE = "x86-64-v3"  # AVX2, FMA, F16C; no AVX-512
# What LLVM calls to round to bfloat16: to nearest, ties to even; NaNs become quiet.
_TO_BFLOAT = """
define bfloat @__truncsfbf2(float %value) {
  %bits = bitcast float %value to i32
  %nan = fcmp uno float %value, %value
  %quiet = or i32 %bits, 4194304
  %odd = lshr i32 %bits, 16
  %tie = and i32 %odd, 1
  %half = add i32 %tie, 32767
  %nearest = add i32 %bits, %half
  %chosen = select i1 %nan, i32 %quiet, i32 %nearest
  %high = lshr i32 %chosen, 16
  %short = trunc i32 %high to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""


def has_twin(ir: str) -> bool:
    """Return whether a kernel can be compiled for the host."""
    rest = ir.replace(_WORKITEM, "").replace("declare i32 @llvm.amdgcn.workitem.id.x()", "")
    return "amdgcn" not in rest and "addrspace(3)" not in rest and "addrspace(5)" not in rest


def host_text(ir: str) -> str:
    """Turn a kernel's IR into a host function of one more argument, the lane."""
    text = ir.replace("declare i32 @llvm.amdgcn.workitem.id.x()", "@lane = global i32 0")
    text = text.replace(f"call i32 {_WORKITEM}", "load i32, ptr @lane")
    text = re.sub(r" addrspace\(\d\)", "", text)
    text = text.replace("amdgpu_kernel ", "").replace("addrspacecast ptr", "bitcast ptr")
    text = re.sub(r'syncscope\("[^"]*"\) ', "", text)
    text = re.sub(r"(?m)^attributes.*$", "attributes #0 = { nounwind }", text)
    return text + _TO_BFLOAT if "bfloat" in text else text


@dataclass
class HostKernel:
    """A kernel that runs on the host, lane after lane."""

    ir: str

    def __post_init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.load_library_permanently(_HELPERS)
        target = llvm.Target.from_default_triple()
        cpu = BASELINE if on_x86() else ""
        machine = target.create_target_machine(cpu=cpu, opt=0, jit=True)
        module = llvm.parse_assembly(host_text(self.ir))
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        self._lane = ctypes.c_uint32.from_address(self._engine.get_global_value_address("lane"))
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_uint32)
        self._run = kind(self._engine.get_function_address("k"))

    def run(
        self, out: NDArray[Any], a: NDArray[Any], b: NDArray[Any], n: int, threads: int
    ) -> None:
        """Run all lanes in order."""
        copies = [page_array(array.nbytes) for array in (out, a, b)]
        for copy, array in zip(copies, (out, a, b), strict=True):
            copy[:] = array.view(np.uint8)
        for lane in range(threads):
            self._lane.value = lane
            self._run(*(copy.ctypes.data for copy in copies), n)
        out.view(np.uint8)[:] = copies[0]


def same_floats(found: NDArray[Any], wanted: NDArray[Any], ulps: int = 0) -> bool:
    """Compare floats: equal bits, or both NaN, or at most `ulps` units in the last place apart."""
    nan = np.isnan(found) & np.isnan(wanted)
    integers = {2: np.int16, 4: np.int32, 8: np.int64}[found.dtype.itemsize]
    limit = np.iinfo(integers).max

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        bits = values.view(integers).astype(object)
        return np.where(bits < 0, -(bits & limit), bits)

    distance = np.abs(ordered(found) - ordered(wanted))
    return bool(np.all(nan | (distance <= ulps)))
