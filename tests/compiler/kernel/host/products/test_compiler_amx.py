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
from ugpu.compiler.dtype import bfloat16, float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.host.products import amx
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.hcq.cpu import tiles
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.state import host

FEATURES = "+avx512f,+avx512bw,+avx512vl,+avx512bf16,+amx-tile,+amx-bf16,+fma,+f16c,+sse4.1"
AMX = dataclasses.replace(HOST, cpu="sapphirerapids", features=FEATURES, vector_bytes=64)


def product(rows: int, depth: int, columns: int, turned: bool) -> Node:
    """[rows, depth] by [columns, depth], or by [depth, columns] with the left one turned too."""
    shape = (rows, columns, depth)
    if turned:
        left = graph.permute(buffer(depth, rows, dtype=bfloat16), (1, 0))
        right = graph.permute(buffer(depth, columns, dtype=bfloat16), (1, 0))
    else:
        left, right = buffer(rows, depth, dtype=bfloat16), buffer(columns, depth, dtype=bfloat16)
    left = graph.expand(graph.reshape(graph.cast(left, float32), (rows, 1, depth)), shape)
    right = graph.expand(graph.reshape(graph.cast(right, float32), (1, columns, depth)), shape)
    return graph.reduce("sum", graph.elementwise("mul", float32, left, right), (2,))


class Tiles:
    """Eight registers of rows of bytes. Intel 64 and IA-32 Architectures Software Developer's
    Manual, volume 2: LDTILECFG, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TILERELEASE."""

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
    "tdpbf16ps": [ctypes.c_uint8] * 3,
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
    return [name for name in ("amx-tile", "amx-bf16", "avx512bf16") if not usable.get(name)]


@pytest.mark.parametrize("tiles_of", ["played", "the processor"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(32, 32, 32), (40, 64, 50), (17, 1120, 33), (70, 96, 8), (40, 2048, 17), (33, 2080, 40)],
)
def test_what_the_code_computes(shape: tuple[int, int, int], turned: bool, tiles_of: str) -> None:
    played = tiles_of == "played"
    if not played and _missing():
        pytest.skip(f"this machine's processor or kernel has no {', '.join(_missing())}")
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
        assert multiplied == 4 * panels * depth // 32, "each panel once, and nothing else"


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
        (80, FEATURES),  # would multiply what lies behind the end
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
