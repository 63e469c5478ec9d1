"""Products on tile registers (AMX): their code, and what it computes on tiles that are played here.

The instructions are checked in the text that LLVM gets and in the object it makes; what they mean
is written down below from Intel's manual, and the kernel runs with these functions in place of the
instructions. Where the processor has them the kernel runs as it is too; elsewhere that is skipped,
and the skip says what is missing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
from collections.abc import Callable
from math import prod
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import dtype as dtypes
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import DType, bfloat16, float16, float32, int8, int32, uint8
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.value import Memory, load, value
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import TILE_PRODUCTS, Kernel, Loop, Store
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.hcq.cpu import tiles
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.state import host

FEATURES = ("+avx512f,+avx512bw,+avx512vl,+avx512bf16,+avx512vnni,+amx-tile,+amx-bf16,+amx-int8,"
            "+fma,+f16c,+sse4.1")  # fmt: skip
AMX = dataclasses.replace(HOST, cpu="sapphirerapids", features=FEATURES, vector_bytes=64)


def product(
    rows: int, depth: int, columns: int, turned: bool,
    types: tuple[DType, DType] = (bfloat16, bfloat16), batch: int = 1,
) -> Node:  # fmt: skip
    """[batch, rows, depth] by [batch, columns, depth], or by [batch, depth, columns] with the left
    one turned too."""
    total, shape = float32 if types[0].is_float else int32, (batch, rows, columns, depth)

    def factor(count: int, dtype: DType, place: int) -> Node:
        given = buffer(batch, depth, count, dtype=dtype) if turned else buffer(
            batch, count, depth, dtype=dtype
        )  # fmt: skip
        given = graph.permute(given, (0, 2, 1)) if turned else given
        alone = (batch, rows, 1, depth) if place == 1 else (batch, 1, columns, depth)
        return graph.expand(graph.reshape(graph.cast(given, total), alone), shape)

    left, right = factor(rows, types[0], 1), factor(columns, types[1], 2)
    summed = graph.reduce("sum", graph.elementwise("mul", total, left, right), (3,))
    return graph.reshape(summed, shape[:3])


class Tiles:
    """Eight registers of rows of bytes. Intel 64 and IA-32 Architectures Software Developer's
    Manual, volume 2: LDTILECFG, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS, TDPBSSD
    and its like, TILERELEASE."""

    def __init__(self) -> None:
        self.registers: dict[int, np.ndarray] = {}
        self.multiplied = 0

    def ldtilecfg(self, address: int) -> None:
        memory = ctypes.string_at(address, 64)
        assert address % 64 == 0 and memory[0] == 1 and memory[1] == 0
        widths, rows = struct.unpack_from("<8H", memory, 16), memory[48:56]
        assert not any(memory[2:16]) and not any(memory[32:48]) and not any(memory[56:])
        assert all(row <= 16 for row in rows) and all(width <= 64 for width in widths)
        self.registers = {n: np.zeros((rows[n], widths[n]), np.uint8) for n in range(8) if rows[n]}

    def tilezero(self, tile: int) -> None:
        self.registers[tile][:] = 0

    def tileloadd64(self, tile: int, address: int, apart: int) -> None:
        register = self.registers[tile]
        for row in range(len(register)):
            text = ctypes.string_at(address + row * apart, register.shape[1])
            register[row] = np.frombuffer(text, np.uint8)

    def tileloaddt164(self, tile: int, address: int, apart: int) -> None:
        self.tileloadd64(tile, address, apart)

    def tilestored64(self, tile: int, address: int, apart: int) -> None:
        register = self.registers[tile]
        for row in range(len(register)):
            ctypes.memmove(address + row * apart, register[row].ctypes.data, register.shape[1])

    def tdpbf16ps(self, total: int, left: int, right: int) -> None:
        """For each row m, pair k and column n: total[m][n] += left[m][2k] * right[k][2n], then
        += left[m][2k + 1] * right[k][2n + 1]; denormal numbers count as zero."""
        self.multiplied += 1
        a, b = (_flushed(_widened(self.registers[n])) for n in (left, right))
        sums = self.registers[total].view(np.float32)
        for k in range(a.shape[1] // 2):
            for half in range(2):
                with np.errstate(all="ignore"):  # beyond the edges there may be any bits
                    step = np.outer(a[:, 2 * k + half], b[k, half::2])
                    sums[:] = _flushed((sums.astype(np.float64) + step).astype(np.float32))

    def tdpbssd(self, total: int, left: int, right: int) -> None:
        self.bytes(total, (left, np.dtype(np.int8)), (right, np.dtype(np.int8)))

    def tdpbsud(self, total: int, left: int, right: int) -> None:
        self.bytes(total, (left, np.dtype(np.int8)), (right, np.dtype(np.uint8)))

    def tdpbusd(self, total: int, left: int, right: int) -> None:
        self.bytes(total, (left, np.dtype(np.uint8)), (right, np.dtype(np.int8)))

    def tdpbuud(self, total: int, left: int, right: int) -> None:
        self.bytes(total, (left, np.dtype(np.uint8)), (right, np.dtype(np.uint8)))

    def bytes(self, total: int, *factors: tuple[int, np.dtype[Any]]) -> None:
        """For each row m, quad k and column n: total[m][n] += the four products of left[m][4k ..]
        and right[k][4n ..], in 32 bits."""
        self.multiplied += 1
        a, b = (self.registers[tile].view(dtype).astype(np.int64) for tile, dtype in factors)
        right = b.reshape(b.shape[0], -1, 4).transpose(0, 2, 1).reshape(a.shape[1], -1)
        sums = self.registers[total].view(np.int32)
        sums[:] = (sums + a @ right).astype(np.int32)

    def tilerelease(self) -> None:
        self.registers = {}


def _widened(register: np.ndarray) -> np.ndarray:
    return (register.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _flushed(numbers: np.ndarray) -> np.ndarray:
    return np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.float32(0), numbers)


SIGNATURES: dict[str, list[Any]] = {
    "ldtilecfg": [ctypes.c_void_p],
    "tilezero": [ctypes.c_uint8],
    "tileloadd64": [ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64],
    "tilestored64": [ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64],
    "tileloaddt164": [ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64],
    **{f"tdp{kind}": [ctypes.c_uint8] * 3 for kind in TILE_PRODUCTS},
    "tilerelease": [],
}
_played = Tiles()


@functools.cache
def _symbols() -> list[Callable[..., None]]:
    """The played instructions as functions that code can call; kept for good."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    kept = []
    for name, kinds in SIGNATURES.items():
        function = ctypes.CFUNCTYPE(None, *kinds)(getattr(_played, name))
        llvm.add_symbol(f"played_{name}", ctypes.cast(function, ctypes.c_void_p).value or 0)
        kept.append(function)
    return kept


def run(kernel: Kernel, arrays: list[np.ndarray], *, played: bool = True) -> int:
    """Run all groups of a kernel on this machine, with played tiles or with the processor's own;
    how often the played ones multiplied."""
    assert _symbols()
    text = emit(kernel, AMX)
    if played:
        text = text.replace("@llvm.x86.ld", "@played_ld").replace("@llvm.x86.t", "@played_t")
        assert "llvm.x86" not in text
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features="" if played else AMX.features, opt=1
    )
    before = _played.multiplied
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        entry = engine.get_function_address(kernel.name)
        given = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        launch = (ctypes.c_uint64 * 2)(0, prod(kernel.grid))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(entry)(
            ctypes.addressof(given), ctypes.addressof(launch)
        )
    return _played.multiplied - before


@functools.cache
def _missing() -> list[str]:
    """What this machine lacks to run the instructions."""
    usable = tiles.usable(host.features())
    needed = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")
    return [name for name in needed if not usable.get(name)]


def _skip_without(tiles_of: str) -> bool:
    """Whether tiles are played; skip the test if they are to be the processor's, and it lacks
    them."""
    if tiles_of == "the processor" and _missing():
        pytest.skip(f"this machine's processor or kernel has no {', '.join(_missing())}")
    return tiles_of == "played"


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (32, 32, 32),
        (40, 64, 50),
        (17, 1120, 33),
        (70, 96, 8),
        (40, 2048, 17),
        (33, 2080, 40),
        (40, 33, 50),
        (33, 63, 17),
        (17, 65, 40),
        (64, 31, 33),
        (20, 2081, 40),
    ],
)
def test_what_the_code_computes(shape: tuple[int, int, int], turned: bool, tiles_of: str) -> None:
    played = _skip_without(tiles_of)
    rows, depth, columns = shape
    (kernel,) = kernels_of(product(rows, depth, columns, turned), AMX)
    random = np.random.default_rng(1)
    left = random.standard_normal((rows, depth)).astype(np.float32)
    right = random.standard_normal((columns, depth)).astype(np.float32)
    encoded = [dtypes.encode_bfloat16(each) for each in (left, right)]
    left, right = (dtypes.decode_bfloat16(each).astype(np.float64) for each in encoded)
    given = [np.ascontiguousarray(each.T if turned else each) for each in encoded]
    out = np.full((rows, columns), np.nan, np.float32)
    block = np.zeros(out.nbytes + 64, np.uint8)  # kernels may take arrays to be aligned
    aligned = block[-block.ctypes.data % 64 :][: out.nbytes].view(np.float32)
    multiplied = run(kernel, [aligned, *(_aligned(each) for each in given)], played=played)
    scale = np.abs(left) @ np.abs(right).T
    assert (np.abs(aligned.reshape(rows, columns) - left @ right.T) <= 1e-5 * scale).all()
    (tile,) = (memory.count for memory in kernel.locals if memory.name == "tile")
    assert depth > 2048 or tile == 32 * 32, "the totals of a panel, finished at once"
    panels = -(-rows // 32) * -(-columns // 32)
    if played:
        assert multiplied == 4 * panels * -(-depth // 32), "each panel once, and nothing else"


HALVES = float16, float16


def _halves(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors of all magnitudes of float16: the largest, the least, and none above 1 in 8 rows."""
    random = np.random.default_rng(3)
    left, right = (
        np.ldexp(random.uniform(-1, 1, (count, depth)), random.integers(-24, 17, (count, depth)))
        for count in (rows, columns)
    )
    left[::8] *= 2.0**-16
    left, right = (each.clip(-65504, 65504).astype(np.float16) for each in (left, right))
    left[1, :3], right[2, :3] = (65504, -65504, 2.0**-24), (65504, 65504, -(2.0**-24))
    return left, right


def _product_of_halves(
    left: np.ndarray, right: np.ndarray, turned: bool, played: bool
) -> tuple[np.ndarray, int]:
    """The product by the right factor's transpose, and how often played tiles multiplied."""
    (rows, depth), columns = left.shape, len(right)
    (kernel,) = kernels_of(product(rows, depth, columns, turned, HALVES), AMX)
    given = [np.ascontiguousarray(each.T if turned else each) for each in (left, right)]
    out = _aligned(np.full((rows, columns), 7, np.float32))
    multiplied = run(kernel, [out, *map(_aligned, given)], played=played)
    return out.reshape(rows, columns), multiplied


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(64, 128, 32), (65, 1120, 17), (64, 129, 33), (72, 191, 50), (65, 2081, 40)],
)
def test_float16(shape: tuple[int, int, int], turned: bool, tiles_of: str) -> None:
    """Four products of halves are as exact as one of float32 with 4 times the depth."""
    played, (rows, depth, columns) = _skip_without(tiles_of), shape
    left, right = _halves(rows, depth, columns)
    out, multiplied = _product_of_halves(left, right, turned, played)
    left, right = left.astype(np.float64), right.astype(np.float64)
    scale = np.abs(left) @ np.abs(right).T
    assert (np.abs(out - left @ right.T) <= 3e-6 * scale).all()
    if played:
        panels = -(-rows // 32) * -(-columns // 32)
        assert multiplied == 16 * panels * -(-depth // 32), "each panel once, and nothing else"


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(72, 133, 50), (64, 128, 64), (65, 2081, 40)])
def test_infinite_float16(shape: tuple[int, int, int], turned: bool, tiles_of: str) -> None:
    """Rows and columns with infinities and NaN have the totals of float32, all others their own."""
    played, (rows, depth, columns) = _skip_without(tiles_of), shape
    left, right = _halves(rows, depth, columns)
    left[3, 5], left[rows - 1, depth - 1], left[9, 2], left[9, 3] = np.inf, -np.inf, np.nan, np.inf
    left[12, 4], right[6, 5], right[7, 4] = np.inf, np.inf, 0
    right[columns - 1, 0] = -np.inf
    out, _ = _product_of_halves(left, right, turned, played)
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = left @ right.T
    assert np.isinf(expected).any() and np.isnan(expected[12, 7]) and np.isinf(expected[12, 8])
    left, right = (np.abs(np.where(np.isfinite(each), each, 0)) for each in (left, right))
    finite, scale = np.isfinite(expected), left @ right.T
    np.testing.assert_array_equal(out[~finite], expected[~finite])
    assert (np.abs(out[finite] - expected[finite]) <= 3e-6 * scale[finite]).all()


@pytest.mark.parametrize(("rows", "depth"), [(63, 128), (64, 127)])
def test_short_float16_are_computed_in_float32(rows: int, depth: int) -> None:
    """A panel of few rows, or few steps, costs more than it saves."""
    short, enough = (
        emit(kernels_of(product(*sides, 64, False, HALVES), AMX)[0], AMX)
        for sides in ((rows, depth), (64, 128))
    )
    assert "tdpbf16ps" in enough and "tdpbf16ps" not in short


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("types", "shape"),
    [((int8, int8), (1, 40, 64, 50)), ((int8, uint8), (1, 33, 65, 40)),
     ((uint8, int8), (3, 40, 63, 17)), ((uint8, uint8), (1, 17, 31, 33)),
     ((int8, int8), (2, 32, 1, 33)), ((uint8, uint8), (1, 33, 4097, 40)),
     ((int8, int8), (1, 20, 4224, 33))],
)  # fmt: skip
def test_bytes(
    types: tuple[DType, DType], shape: tuple[int, int, int, int], turned: bool, tiles_of: str
) -> None:
    """Sums of the largest products of unsigned bytes are exact in 32 bits up to 2^31; beyond they
    wrap (test_sums_wrap)."""
    played, (batch, rows, depth, columns) = _skip_without(tiles_of), shape
    (kernel,) = kernels_of(product(rows, depth, columns, turned, types, batch), AMX)
    random = np.random.default_rng(2)
    given = []
    for dtype, count in zip(types, (rows, columns), strict=True):
        limits = np.iinfo(dtype.name)
        of = limits.min, limits.max + 1, (batch, count, depth)
        given.append(random.integers(*of).astype(dtype.name))
    expected = given[0].astype(np.int32) @ given[1].astype(np.int32).transpose(0, 2, 1)
    out = _aligned(np.zeros(expected.size, np.int32))
    turns = [np.ascontiguousarray(each.transpose(0, 2, 1) if turned else each) for each in given]
    multiplied = run(kernel, [out, *map(_aligned, turns)], played=played)
    assert (out.reshape(expected.shape) == expected).all()
    if played and depth >= 31:
        panels = batch * -(-rows // 32) * -(-columns // 32)
        assert multiplied == 4 * panels * -(-depth // 64), "each panel once, and nothing else"


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
def test_sums_wrap(tiles_of: str) -> None:
    played, depth = _skip_without(tiles_of), 40000
    (kernel,) = kernels_of(product(17, depth, 18, False, (uint8, uint8)), AMX)
    out = _aligned(np.zeros(17 * 18, np.int32))
    run(kernel, [out, *(_aligned(np.full((n, depth), 255, np.uint8)) for n in (17, 18))],
        played=played)  # fmt: skip
    assert (out == np.int64(255 * 255 * depth).astype(np.int32)).all() and out[0] < 0


def test_vectors_become_bfloat16_as_elsewhere() -> None:
    """All upper halves of a float32 with lower halves around each rounding's edge: as the plain
    cast, but for denormal numbers, which totals of tiles never are."""
    _skip_without("the processor")
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1)
    given, out = Memory("given", float32, bits.size), Memory("out", bfloat16, bits.size)
    at = Range("vector", bits.size // 16)
    narrow = value("narrow", bfloat16, [load(given, at.index() * 16, lanes=16)], lanes=16)
    body = (Loop(at, (Store(out, at.index() * 16, narrow),)),)
    kernel = verify(Kernel("narrow", (out, given), (), (1, 1, 1), 1, body))
    result = _aligned(np.zeros(bits.size, np.uint16))
    run(kernel, [result, _aligned(bits)], played=False)
    numbers = bits.view(np.float32)
    denormal = np.abs(numbers) < np.finfo(np.float32).tiny
    expected = dtypes.encode_bfloat16(numbers)
    assert (result == np.where(denormal, expected & 0x8000, expected)).all()


@pytest.mark.parametrize("columns", [64, 70])
def test_results_with_a_bias(columns: int) -> None:
    """A panel's results as vectors, and in incomplete ones one by one, have the same rounding: of
    the total, then of its sum with the bias, which may be denormal."""
    _skip_without("the processor")
    rows, depth = 40, 64
    bias = graph.expand(graph.reshape(buffer(columns, dtype=bfloat16), (1, columns)),
                        (rows, columns))  # fmt: skip
    plain = graph.reshape(product(rows, depth, columns, False), (rows, columns))
    total = graph.cast(graph.cast(plain, bfloat16), float32)
    node = graph.cast(graph.elementwise("add", float32, total, graph.cast(bias, float32)), bfloat16)
    (kernel,) = kernels_of(node, AMX)
    assert emit(kernel, AMX).count("= call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16") == 2
    random = np.random.default_rng(7)
    numbers = [random.standard_normal(shape).astype(np.float32)
               for shape in ((rows, depth), (columns, depth), (columns,))]  # fmt: skip
    numbers[0][:, 1:] = 0  # a total is one product
    numbers[0][1] *= np.float32(2.0**-125)
    numbers[2][::3] *= np.float32(2.0**-125)
    encoded = [dtypes.encode_bfloat16(each) for each in numbers]
    left, right, added = (dtypes.decode_bfloat16(each) for each in encoded)
    totals = left[:, :1] * right[:, 0]
    totals[np.abs(totals) < np.finfo(np.float32).tiny] = 0
    totals = dtypes.decode_bfloat16(dtypes.encode_bfloat16(totals))
    expected = dtypes.encode_bfloat16(totals + added)
    out = _aligned(np.zeros(rows * columns, np.uint16))
    order = [encoded[("in0", "in1", "in2").index(m.name)] for m in kernel.parameters[1:]]
    run(kernel, [out, *map(_aligned, order)], played=False)
    assert (out.reshape(rows, columns) == expected).all()
    assert (np.abs(totals + added)[1] > 0).any()


def _aligned(array: np.ndarray) -> np.ndarray:
    block = np.zeros(array.nbytes + 64, np.uint8)
    placed = block[-block.ctypes.data % 64 :][: array.nbytes].view(array.dtype)
    placed[:] = array.reshape(-1)
    return placed


def test_the_instructions() -> None:
    """By their encodings (volume 2): VEX.128.F3.0F38.W0 5C /r is TDPBF16PS, and so on."""
    (kernel,) = kernels_of(product(64, 64, 64, False), AMX)
    image = compile_text(emit(kernel, AMX), AMX)
    # C4, inverted R X B and the map (0F38), then W, inverted register, length and prefix
    assert image.count(bytes([0xC4, 0xE2, 0x4A, 0x5C])) >= 2  # tdpbf16ps x, y, tmm6
    assert image.count(bytes([0xC4, 0xE2, 0x42, 0x5C])) >= 2  # tdpbf16ps x, y, tmm7
    assert bytes([0xC4, 0xE2, 0x78, 0x49, 0xC0]) in image  # tilerelease
    assert bytes([0xC4, 0xE2, 0x7B, 0x49, 0xC0]) in image  # tilezero tmm0
    memory, kernels = load_object(image)
    assert kernel.name in kernels
    memory.close()


@pytest.mark.parametrize(
    ("depth", "features"),
    [
        (15, FEATURES),  # a block that is mostly zeros
        (64, FEATURES.replace("+amx-bf16,", "")),
        (64, FEATURES.replace("+amx-tile", "-amx-tile")),
    ],
)
def test_pairs_where_there_are_no_tiles(depth: int, features: str) -> None:
    target = dataclasses.replace(AMX, features=features)
    (kernel,) = kernels_of(product(64, depth, 64, False), target)
    text = emit(kernel, target)
    assert "tdpbf16ps" not in text and "avx512bf16.dpbf16ps" in text


def test_tiles_of_other_memories_are_refused() -> None:
    (kernel,) = kernels_of(product(64, 64, 64, False), AMX)
    short = dataclasses.replace(kernel.locals[0], count=64)
    with pytest.raises(BrokenKernel):
        verify(dataclasses.replace(kernel, locals=(short, *kernel.locals[1:])))


def test_permission_is_asked_for() -> None:
    asked: list[tuple[int, ...]] = []

    def call(*numbers: ctypes.c_long) -> int:
        asked.append(tuple(number.value for number in numbers))
        return answer

    answer = 0
    features = {"amx-tile": True, "amx-bf16": True, "avx512f": True}
    assert tiles.usable(features, call) == features
    assert asked == [(158, 0x1023, 18)]
    answer = -1
    assert tiles.usable(features, call) == {
        "amx-tile": False, "amx-bf16": False, "avx512f": True,
    }  # fmt: skip
    assert tiles.usable({"avx512f": True}, call) == {"avx512f": True}
    assert len(asked) == 2, "nothing is asked for on a processor without tiles"
