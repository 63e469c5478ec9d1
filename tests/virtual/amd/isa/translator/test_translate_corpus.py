"""Every corpus kernel with a twin on the host computes what LLVM's host code computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.gfx_host import HostKernel, has_twin, same_floats
from tests.support.amd.isa.gfx_run import FIRST, SECOND, Machine, version_alone
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending

THREADS = 96
BYTES = 1 << 12
FLOATS = {"half": np.float16, "float": np.float32, "double": np.float64}
INTEGERS = {
    "i1": np.uint8, "i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64,
    "bfloat": np.uint16,
}  # fmt: skip
SPECIAL = {
    "half": (0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00, 0x0400, 0x7BFF, 0x03FF),
    "float": (
        0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0xBF800000,
        0x00800000, 0x7F7FFFFF, 0x007FFFFF,
    ),
    "double": (
        0, 1 << 63, 1, (1 << 63) + 1, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 0x3FF << 52,
        0xBFF << 52, 1 << 52, (0x7FF << 52) - 1, (1 << 52) - 1,
    ),
    "i32": (0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 31, 32, 33, 0xFFFF, 0x8000, 0x10000, 7),
}  # fmt: skip
# LLVM leaves these to the target: the last bit of logarithms and exponentials, the reduction of a
# sine's argument, the sign of min(-0, 0), whether fmuladd is fused.
LOOSE = {"exp": 2, "exp2": 2, "exp10": 2, "log": 2, "log2": 2, "log10": 2}
OTHERWISE = ("sin ", "cos ", "minnum", "maxnum", "fmuladd")


def _kind(pattern: str, ir: str) -> str:
    found = re.search(pattern, ir)
    assert found is not None
    return re.sub(r"volatile |<\d x |>", "", found[1])


def _inputs(kind: str, mode: str, rng: np.random.Generator) -> list[NDArray[Any]]:
    if mode == "special":
        values = np.array(SPECIAL[kind], np.uint64)
        dtype = {"half": np.uint16, "float": np.uint32, "i32": np.uint32}.get(kind, np.uint64)
        index = np.arange(BYTES // np.dtype(dtype).itemsize)
        count = len(values)
        pair = (values[index % count], values[index // count % count])
        return [part.astype(dtype).view(np.uint8) for part in pair]
    if mode == "moderate" and kind in FLOATS:
        size = BYTES // np.dtype(FLOATS[kind]).itemsize
        return [(rng.standard_normal(size) * 10).astype(FLOATS[kind]).view(np.uint8) for _ in "ab"]
    return [rng.integers(0, 256, BYTES).astype(np.uint8) for _ in "ab"]


def _tame(name: str, kind: str, a: NDArray[Any], b: NDArray[Any]) -> None:
    """Keep out what LLVM leaves undefined: division by zero, long shifts, conversions too large."""
    operation = name.split()[0]
    if operation in ("udiv", "sdiv", "urem", "srem"):
        divisors = b.view(INTEGERS[kind])
        divisors[(divisors == 0) | (divisors == np.iinfo(divisors.dtype).max)] = 3
    if operation in ("shl", "lshr", "ashr"):
        counts = b.view(INTEGERS[kind])
        counts %= np.array(8 * counts.itemsize, counts.dtype)
    if name == "scalar arithmetic":  # divides by the first elements
        a.view(np.uint32)[0], b.view(np.uint64)[0] = 12345, 1234567
    if operation in ("fptosi", "fptoui"):
        values = a.view(FLOATS[kind])
        with np.errstate(invalid="ignore"):
            values[:] = np.where(np.abs(values) < 127, np.abs(values), 5)


def _twins() -> list[str]:
    misaligned = ("uniform loads",)  # its IR promises an alignment that the host would trap on
    return [name for name, ir in corpus().items() if has_twin(ir) and name not in misaligned]


@pytest.fixture(scope="module", params=[FIRST, SECOND])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with version_alone(request.param):
        yield Machine(GfxCore(1))


@pytest.mark.parametrize("group", range(8))
def test_corpus_computes_what_the_host_does(machine: Machine, group: int) -> None:
    rng = np.random.default_rng(group)
    for name in _twins()[group::8]:
        ir = corpus()[name]
        twin = HostKernel(ir)
        kind = _kind(r"%x = load (.*?), ptr", ir)
        for mode in ("random", "moderate", "special"):
            if mode == "special" and kind not in SPECIAL:
                continue
            if kind == "bfloat" and mode != "random":
                continue
            a, b = _inputs(kind, mode, rng)
            _tame(name, kind, a, b)
            _compare(machine, twin, name, mode, a, b)


def _compare(
    machine: Machine, twin: HostKernel, name: str, mode: str, a: NDArray[Any], b: NDArray[Any]
) -> None:
    ir = twin.ir
    found = np.zeros(BYTES, np.uint8)
    wanted = found.copy()
    outcome, views = machine.run(compile_ir(ir).image, [found, a, b, 7], 1, THREADS)
    assert outcome.ending is Ending.DONE, f"{name}: {outcome}"
    twin.run(wanted, a.copy(), b.copy(), 7, THREADS)
    kind = _kind(r"store (.*?) %r, ptr", ir)
    if kind not in FLOATS and kind not in INTEGERS:
        return
    if kind == "bfloat":
        values = [view.view(np.uint16).copy() for view in (views[0], wanted)]
        for value in values:
            value[(value & 0x7FFF) > 0x7F80] = 0x7FC0  # any NaN
        assert np.array_equal(*values), f"{name} {mode}"
    elif kind in FLOATS:
        same = same_floats(
            views[0].view(FLOATS[kind]), wanted.view(FLOATS[kind]), LOOSE.get(name.split()[0], 0)
        )
        assert same or name.startswith(OTHERWISE), f"{name} {mode}"
    else:
        assert np.array_equal(views[0], wanted), f"{name} {mode}"


def test_the_oracle_is_compiled_alike_on_every_host() -> None:
    """LLVM's code for ldexp of a NaN with AVX512-FP16 gives infinity: IEEE 754 wants a NaN."""
    twin = HostKernel(corpus()["ldexp.f16.i32 half %h, i32 %y"])
    a, b = np.full(BYTES, 0, np.uint8), np.full(BYTES, 0, np.uint8)
    a.view(np.uint16)[:] = 0x7E00
    b.view(np.int32)[:] = 0x7FFF_FFFF
    out = np.zeros(BYTES, np.uint8)
    twin.run(out, a, b, 0, THREADS)
    assert np.isnan(out.view(np.float16)[:THREADS]).all()
