"""Tile registers of x86 (AMX) as LLVM intrinsics.

Names and operands: LLVM's IntrinsicsX86.td (int_x86_ldtilecfg, int_x86_tileloadd64,
int_x86_tdpbf16ps, int_x86_tdpbssd and their like). The configuration's layout: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 1, 18.4 "TILECFG": byte 0 the palette, bytes 16 on
the bytes of a row of each tile (16 bits), bytes 48 on the rows of each.
"""

from __future__ import annotations

import struct

from ugpu.compiler.codegen.lines import Lines
from ugpu.compiler.kernel.ir import TILE_BYTES, TILE_ROWS, TILES, TileStep

PALETTE = 1
MOVES = {"load": "tileloadd64", "stream": "tileloaddt164", "store": "tilestored64"}


def configuration() -> bytes:
    """Return the 64 bytes that configure eight tiles of 16 rows of 64 bytes."""
    bytes_of_rows = struct.pack("<8H", *[TILE_BYTES] * TILES)
    return struct.pack("<B15x16s16x8B8x", PALETTE, bytes_of_rows, *[TILE_ROWS] * TILES)


def constant(name: str) -> str:
    """Return the definition of a global that holds the configuration."""
    text = "".join(f"\\{byte:02x}" for byte in configuration())
    return f'@{name} = private constant [64 x i8] c"{text}", align 64'


def emit(lines: Lines, step: TileStep) -> None:
    """Emit one step."""
    tile = ("i8", str(step.tile))
    if step.operation == "zero":
        _call(lines, "tilezero", [tile])
    elif step.operation == "multiply":
        _call(lines, f"tdp{step.kind}", [tile, *(("i8", str(factor)) for factor in step.factors)])
    else:
        assert step.memory is not None and step.index is not None
        pointer = lines.address(step.memory, step.index, step.index)
        apart = ("i64", str(step.pitch * step.memory.dtype.itemsize))
        _call(lines, MOVES[step.operation], [tile, ("ptr", pointer), apart])
        lines.shared.clear()


def begin(lines: Lines, name: str) -> str:
    """Return the call that configures the tiles from a global."""
    lines.declarations.add("declare void @llvm.x86.ldtilecfg(ptr)")
    return f"  call void @llvm.x86.ldtilecfg(ptr @{name})"


def end(lines: Lines) -> str:
    """Return the call that releases them: a thread switch then saves less state."""
    lines.declarations.add("declare void @llvm.x86.tilerelease()")
    return "  call void @llvm.x86.tilerelease()"


def _call(lines: Lines, name: str, arguments: list[tuple[str, str]]) -> None:
    kinds = ", ".join(kind for kind, _ in arguments)
    lines.declarations.add(f"declare void @llvm.x86.{name}({kinds})")
    given = ", ".join(f"{kind} {text}" for kind, text in arguments)
    lines.put(f"call void @llvm.x86.{name}({given})")
