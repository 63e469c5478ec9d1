"""Values from other lanes of the wave, as LLVM intrinsics.

`exchange` gives each lane the value of the lane whose number differs in one bit. The hardware moves
words of 32 bits: narrower values are widened first, wider ones move in two halves.

AMD: within 16 lanes of RDNA by DPP row_xmask, across by v_permlanex16 (RDNA3 ISA, "Data Parallel
Processing (DPP)", "Cross-Lane and Data Parallel Processing"); of CDNA by ds_swizzle and
ds_bpermute (CDNA3 ISA, "LDS Lane-permute Ops"). NVIDIA: shfl.sync.bfly (PTX ISA, "shfl.sync").
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.compiler.codegen.lines import Lines

Word = Callable[[str], str]  # from an i32 of this lane to that of another lane
ROW_XMASK = 0x160  # DPP control: lane number xor 0 to 15
STRAIGHT = ("1985229328", "-19088744")  # lanes 0 to 7 and 8 to 15, four bits each, in order
SWIZZLE_ALL = 0x1F  # and-mask of ds_swizzle's bit mode; the xor-mask begins at bit 10


def amd(lines: Lines, mask: int, wave: int) -> Word:
    """Return the word of lane `number xor mask`."""

    def rows(word: str) -> str:
        flags = [("i32", "poison"), ("i32", word), ("i32", str(ROW_XMASK + mask)), ("i32", "15")]
        return lines.call(
            "llvm.amdgcn.update.dpp.i32", "i32", [*flags, ("i32", "15"), ("i1", "true")]
        )

    def halves(word: str) -> str:
        chosen = [("i32", lane) for lane in STRAIGHT]
        flags = [("i1", "false"), ("i1", "true")]
        given = [("i32", "poison"), ("i32", word), *chosen, *flags]
        return lines.call("llvm.amdgcn.permlanex16.i32", "i32", given)

    def swizzle(word: str) -> str:
        pattern = ("i32", str(SWIZZLE_ALL | mask << 10))
        return lines.call("llvm.amdgcn.ds.swizzle", "i32", [("i32", word), pattern])

    def permute(word: str) -> str:
        thread = lines.variables["thread"]
        if lines.index_type == "i64":
            thread = lines.new(f"trunc i64 {thread} to i32")
        other = lines.new(f"xor i32 {thread}, {mask}")
        address = lines.new(f"shl i32 {other}, 2")  # the hardware takes it modulo the wave
        return lines.call("llvm.amdgcn.ds.bpermute", "i32", [("i32", address), ("i32", word)])

    if wave == 32:
        return rows if mask < 16 else halves
    return swizzle if mask < 32 else permute


def nvidia(lines: Lines, mask: int) -> Word:
    """Return the word of lane `number xor mask`, for all lanes of a warp."""

    def butterfly(word: str) -> str:
        given = [("i32", "-1"), ("i32", word), ("i32", str(mask)), ("i32", "31")]
        return lines.call("llvm.nvvm.shfl.sync.bfly.i32", "i32", given)

    return butterfly


def exchange(lines: Lines, word: Word, text: str, kind: str, bits: int) -> str:
    """Return the other lane's scalar of LLVM type `kind` and `bits` bits."""
    if kind == "double":
        whole = lines.new(f"bitcast double {text} to i64")
        return lines.new(f"bitcast i64 {exchange(lines, word, whole, 'i64', bits)} to double")
    if bits == 64:
        low = word(lines.new(f"trunc i64 {text} to i32"))
        upper = lines.new(f"lshr i64 {text}, 32")
        high = word(lines.new(f"trunc i64 {upper} to i32"))
        high = lines.new(f"shl i64 {lines.new(f'zext i32 {high} to i64')}, 32")
        return lines.new(f"or i64 {high}, {lines.new(f'zext i32 {low} to i64')}")
    if bits == 32:
        moved = word(text if kind == "i32" else lines.new(f"bitcast {kind} {text} to i32"))
        return moved if kind == "i32" else lines.new(f"bitcast i32 {moved} to {kind}")
    plain = f"i{bits}"
    narrow = text if kind == plain else lines.new(f"bitcast {kind} {text} to {plain}")
    moved = lines.new(f"trunc i32 {word(lines.new(f'zext {plain} {narrow} to i32'))} to {plain}")
    return moved if kind == plain else lines.new(f"bitcast {plain} {moved} to {kind}")
