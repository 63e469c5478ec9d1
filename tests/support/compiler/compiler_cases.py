"""What the compiler's tests share: targets, lowering without a device, disassembly, arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile
from hypothesis import strategies as st
from numpy.typing import NDArray

from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process import objects as codegen
from ugpu.compiler.dtype import DType, bool_, from_numpy
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.state.target import TargetSpec

GFX1100 = TargetSpec(
    name="gfx1100",
    abi="amdhsa",
    triple="amdgcn-amd-amdhsa",
    cpu="gfx1100",
    features="",
    wave_size=32,
    max_threads_per_group=1024,
    local_memory=65536,
    compute_units=96,
    matrix="gfx11",
)
HOST = TargetSpec(
    name="host",
    abi="host",
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    features="+avx2,+fma",
    compute_units=2,
    vector_bytes=32,
)


def buffer(*shape: int, dtype: DType) -> Node:
    """A stored tensor without memory: enough to schedule and lower, whatever its size."""
    node = Node("buffer", dtype, shape)
    node.storage = object()
    return node


def kernels_of(root: Node, target: TargetSpec) -> list[Kernel]:
    """The kernels that compute a node, in order."""
    return [lower(express(group), target) for group in schedule([root])]


def disassembly(kernel: Kernel, target: TargetSpec = GFX1100) -> str:
    """The instructions of a kernel for an AMD target, as LLVM prints them."""
    image = codegen.compile_text(
        emit(kernel, target),
        TargetSpec(**{**target.__dict__, "features": "+dumpcode"}),
    )
    section = ELFFile(io.BytesIO(image)).get_section_by_name(".AMDGPU.disasm")
    assert section is not None
    text: str = section.data().decode()
    return text


NUMPY_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32",
)  # fmt: skip


@st.composite
def arrays(
    draw: st.DrawFn,
    shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
    most_axes: int = 4,
    longest: int = 6,
    nonzero: bool = False,
) -> NDArray[Any]:
    """A random array, often not contiguous, sometimes empty or 0-d. Integers use their whole range
    now and then; floats are moderate, now and then special."""
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(0, longest), max_size=most_axes)))
    name = dtype or draw(st.sampled_from(NUMPY_TYPES))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    padded = tuple(2 * size for size in shape) if draw(st.booleans()) else shape
    kind = np.dtype(name)
    if kind == np.bool_:
        array = random.integers(0, 2, padded).astype(bool)
    elif kind.kind == "f":
        array = np.asarray(random.normal(0, 3, padded)).astype(kind)
    else:
        limits = np.iinfo(kind)
        wide = draw(st.booleans())
        low, high = (limits.min, limits.max) if wide else (max(limits.min, -9), 9)
        array = np.asarray(random.integers(low, high, padded, dtype=kind, endpoint=True))
    if padded != shape:
        array = array[tuple(slice(None, 2 * size, 2) for size in shape)]
    if draw(st.booleans()):
        array = array.T if shape == shape[::-1] else array
    if nonzero:
        array = np.where(array == 0, kind.type(1), array)
    return array


def expected_type(array: NDArray[Any]) -> DType:
    return from_numpy(array.dtype) if array.dtype != bool else bool_
