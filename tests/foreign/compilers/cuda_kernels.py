"""Kernels in CUDA C++, and a process that compiles them to PTX by NVIDIA's NVRTC, without a GPU.

    python -m tests.foreign.compilers.cuda_kernels ARCHITECTURE [SOURCE] RESULT

ARCHITECTURE is "compute_90" or the like. SOURCE is a file to compile in place of these kernels.
RESULT, a JSON file, holds the PTX of all kernels. The packages are nvidia-cuda-nvrtc,
nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path

_ROW, _COLUMN = "row_major", "col_major"
_HALF, _BRAIN = "half", "__nv_bfloat16"
# name: m, n, k, type of A and B, of sums, layouts of A and B.
PRODUCTS = {
    "h16": (16, 16, 16, _HALF, "float", _ROW, _COLUMN),
    "h8": (8, 32, 16, _HALF, _HALF, _COLUMN, _ROW),
    "h32": (32, 8, 16, _HALF, "float", _ROW, _ROW),
    "b16": (16, 16, 16, _BRAIN, "float", _COLUMN, _COLUMN),
    "b8": (8, 32, 16, _BRAIN, "float", _ROW, _COLUMN),
    "b32": (32, 8, 16, _BRAIN, "float", _COLUMN, _ROW),
    "s16": (16, 16, 16, "signed char", "int", _ROW, _COLUMN),
    "u8": (8, 32, 16, "unsigned char", "int", _COLUMN, _ROW),
    "s32": (32, 8, 16, "signed char", "int", _ROW, _ROW),
    "t16": (16, 16, 8, "precision::tf32", "float", _ROW, _COLUMN),
    "d8": (8, 8, 4, "double", "double", _COLUMN, _ROW),
    "four": (8, 8, 32, "experimental::precision::s4", "int", _ROW, _COLUMN),
    "bits": (8, 8, 128, "experimental::precision::b1", "int", _ROW, _COLUMN),
}
_STORED = {"precision::tf32": "float", "experimental::precision::s4": "int",
           "experimental::precision::b1": "unsigned"}  # fmt: skip
# Fragments are doubled element by element, as programs scale and clip them.
_PRODUCT = """
extern "C" __global__ void {name}(const {stored} *a, const {stored} *b, const {sums} *c, {sums} *d,
                                  unsigned lda, unsigned ldb, unsigned ldc) {{
  fragment<matrix_a, {m}, {n}, {k}, {kind}, {first}> fa;
  fragment<matrix_b, {m}, {n}, {k}, {kind}, {second}> fb;
  fragment<accumulator, {m}, {n}, {k}, {sums}> fc;
  load_matrix_sync(fa, a, lda);
  load_matrix_sync(fb, b, ldb);
  load_matrix_sync(fc, c, ldc, mem_row_major);
  {change}
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] + fc.x[i];
  {multiply}
  store_matrix_sync(d, fc, ldc, mem_col_major);
}}
"""
_DOUBLED = "for (int i = 0; i < fa.num_elements; i++) fa.x[i] = fa.x[i] + fa.x[i];"
_OTHERS = """
#define EDGE 64
#define PAD 8
// Four warps, each 16 rows of a tile of 64 columns; tiles in padded shared memory; relu.
extern "C" __global__ void gemm(const half *a, const half *b, const float *bias, float *out,
                                unsigned k) {
  __shared__ half sa[EDGE][16 + PAD], sb[16][EDGE + PAD];
  unsigned warp = threadIdx.x / 32, row = blockIdx.y * EDGE, column = blockIdx.x * EDGE;
  unsigned n = gridDim.x * EDGE;
  fragment<accumulator, 16, 16, 16, float> sums[4];
  for (int i = 0; i < 4; i++) load_matrix_sync(sums[i], bias + column + 16 * i, n, mem_row_major);
  for (unsigned at = 0; at < k; at += 16) {
    for (unsigned i = threadIdx.x; i < EDGE * 16; i += blockDim.x) {
      sa[i / 16][i % 16] = a[(row + i / 16) * k + at + i % 16];
      sb[i / EDGE][i % EDGE] = b[(at + i / EDGE) * n + column + i % EDGE];
    }
    __syncthreads();
    fragment<matrix_a, 16, 16, 16, half, row_major> fa;
    load_matrix_sync(fa, &sa[16 * warp][0], 16 + PAD);
    for (int i = 0; i < 4; i++) {
      fragment<matrix_b, 16, 16, 16, half, row_major> fb;
      load_matrix_sync(fb, &sb[0][16 * i], EDGE + PAD);
      mma_sync(sums[i], fa, fb, sums[i]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) {
    for (int e = 0; e < sums[i].num_elements; e++) sums[i].x[e] = fmaxf(sums[i].x[e], 0.0f);
    store_matrix_sync(out + (row + 16 * warp) * n + column + 16 * i, sums[i], n, mem_row_major);
  }
}

struct alignas(16) Pair { unsigned long long low, high; };
extern "C" __global__ void pairs(Pair *total) {
#if __CUDA_ARCH__ >= 900
  Pair seen = *total, wanted;
  do {
    wanted = seen;
    seen = atomicCAS(total, wanted, Pair{wanted.low + threadIdx.x, wanted.high - 1});
  } while (seen.low != wanted.low || seen.high != wanted.high);
#endif
}

extern "C" __global__ void video(const unsigned *a, const unsigned *b, unsigned *out) {
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x, x = a[at], y = b[at];
  unsigned found[] = {
    __vadd4(x, y), __vaddss4(x, y), __vabsdiffu4(x, y), __vavgs4(x, y), __vavgu2(x, y),
    __vsads4(x, y), __vsadu2(x, y), __vcmpgts4(x, y), __vsetleu2(x, y), __vmaxs2(x, y),
    __vminu4(x, y), __vsubus2(x, y),
  };
  for (int i = 0; i < 12; i++) out[12 * at + i] = found[i];
}

// The conversions of CUDA's headers: by instructions on chips that have them, else by integers.
extern "C" __global__ void small(const float2 *in, unsigned *out) {
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  float2 x = in[at];
  unsigned found[] = {
    __nv_cvt_float2_to_fp4x2(x, __NV_E2M1, cudaRoundNearest),
    __nv_cvt_float2_to_fp6x2(x, __NV_E3M2, cudaRoundNearest),
    __nv_cvt_float2_to_fp6x2(x, __NV_E2M3, cudaRoundNearest),
    __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3),
    __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E5M2),
    __nv_cvt_float2_to_e8m0x2(x, __NV_SATFINITE, cudaRoundPosInf),
    __nv_cvt_float2_to_e8m0x2(x, __NV_SATFINITE, cudaRoundZero),
  };
  for (int i = 0; i < 7; i++) out[7 * at + i] = found[i];
}
"""
_HEAD = """#include <mma.h>
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
using namespace nvcuda::wmma;
"""


def source() -> str:
    """Return the text of all kernels."""
    text = _HEAD + _OTHERS
    for name, (m, n, k, kind, sums, first, second) in PRODUCTS.items():
        multiply = "mma_sync(fc, fa, fb, fc);"
        if "b1" in kind:
            multiply = "bmma_sync(fc, fa, fb, fc, experimental::bmmaBitOpXOR);"
        text += _PRODUCT.format(
            name=name, m=m, n=n, k=k, kind=kind, sums=sums, first=first, second=second,
            stored=_STORED.get(kind, kind), multiply=multiply,
            change="" if "experimental" in kind else _DOUBLED,
        )  # fmt: skip
    return text


def places() -> tuple[Path, Path] | None:
    """Return NVRTC's library and the folder of its headers; None where they are not installed."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else [Path(at) for at in found.submodule_search_locations or ()]
    libraries = [at for folder in folders for at in sorted(folder.glob("*/lib/libnvrtc.so*"))]
    headers = [at.parent for folder in folders for at in folder.glob("*/include/mma.h")]
    return (libraries[0], headers[0]) if libraries and headers else None


def compiled(architecture: str, kernels: str) -> str:
    """Return the PTX of all kernels of a text; ValueError with the compiler's words."""
    found = places()
    assert found is not None
    path, include = found
    library = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    text = kernels.encode()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    options = [f"--gpu-architecture={architecture}".encode(), f"-I{include}".encode(),
               f"-I{include / 'cccl'}".encode(), b"--std=c++17"]  # fmt: skip
    status = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    what = "ProgramLog" if status else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, data)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    found_text = data.value.decode()
    if status:
        raise ValueError(found_text)
    return found_text


def main(arguments: list[str]) -> None:
    """See the module."""
    architecture, *files, result = arguments
    text = Path(files[0]).read_text(encoding="utf-8") if files else source()
    Path(result).write_text(json.dumps(compiled(architecture, text)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
