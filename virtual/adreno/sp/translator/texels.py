"""Fetches of texels from buffers, translated to LLVM IR: isam and isaml that do not convert bits.

The kind of a descriptor is known only at launch. The code for a fetch that may be one of these
checks the descriptor, and calls `virtual.adreno.sp.images` for any other kind.
Source of the layouts: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml (A6XX_TEX_CONST).
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.adreno.sp.operands import TYPES, Op
from ugpu.virtual.adreno.sp.translator.memory import Where, halves, load_narrow, load_words
from ugpu.virtual.adreno.sp.translator.registers import Registers
from ugpu.virtual.adreno.sp.translator.wave import components
from ugpu.virtual.shader.text import constant

WORDS = 8  # words of a descriptor that are checked
_BUFFER = 4
# Formats of whole components of 32 bits (float, uint, sint) and of 16 (uint, sint) -> components.
_WIDE = {0x4A: 1, 0x4B: 1, 0x4C: 1, 0x67: 2, 0x68: 2, 0x69: 2, 0x82: 4, 0x83: 4, 0x84: 4}
_NARROW = {0x18: 1, 0x19: 1, 0x46: 2, 0x47: 2, 0x63: 4, 0x64: 4}
_FORMATS = {"u32": _WIDE, "s32": _WIDE, "f32": _WIDE, "u16": _NARROW, "s16": _NARROW}


def is_plain(op: Op) -> bool:
    """Return whether an instruction may be a fetch that is translated here."""
    if op.name not in ("isam", "isaml") or any(op.flag(name) for name in ("SV", "3D", "A")):
        return False
    return TYPES[op.scope.inner("TYPE").raw("TYPE")] in _FORMATS and bool(components(op))


def fetch(
    e: Registers, op: Op, words: list[str], at: tuple[str, str], otherwise: Callable[[], None]
) -> None:
    """Fetch a texel for each lane. words: of the descriptor. at: the coordinates. otherwise: emits
    the code for a descriptor of another kind."""
    name = TYPES[op.scope.inner("TYPE").raw("TYPE")]
    written = components(op)
    bytes_of = 4 if _FORMATS[name] is _WIDE else 2
    size = _texel_size(e, words, _FORMATS[name], written, bytes_of)
    e.exec()  # cached masks are emitted before the branch: both sides use them
    e.mask()
    plain, other, done = (e.new_label(stem) for stem in ("texels", "image", "fetched"))
    e.do(f"br i1 {e.value(f'icmp ne i32 {size}, 0')}, label %{plain}, label %{other}, !prof !0")
    e.begin(plain)
    where, inside = _place(e, words, at, size)
    active = e.value(f"and {e.bits} {e.as_bits(inside)}, {e.exec()}")
    with e.only(active):
        if bytes_of == 4:
            found = load_words(e, op, where, max(written) + 1)
            values = [found[k] for k in written]
        else:
            values = [load_narrow(e, op, where.more(e, 2 * k), 2) for k in written]
    for k, value in zip(written, values, strict=True):
        shown = e.select(inside, "i32", value, constant("i32", 0))
        if op.raw("DST_HALF"):
            e.set_short(op.raw("DST") + k, e.convert("trunc", "i32", "i16", shown))
        else:
            e.set_word(op.raw("DST") + k, shown)
    e.do(f"br label %{done}")
    e.begin(other)
    otherwise()
    e.do(f"br label %{done}")
    e.begin(done)


def _texel_size(
    e: Registers, words: list[str], formats: dict[int, int], written: list[int], bytes_of: int
) -> str:
    """Return the bytes of a texel; 0 unless the descriptor is a buffer of such texels and each
    written component is the texel's own."""
    # Tile mode, sRGB, levels, samples, swap must be 0; format and written components must match.
    mask = 0b111 | 0xF << 16 | 0b11 << 20 | 0xFF << 22 | 0b11 << 30
    wanted = 0
    for k in written:
        mask |= 0b111 << 4 + 3 * k
        wanted |= k << 4 + 3 * k
    kept = e.value(f"and i32 {words[0]}, {_signed(mask)}")
    size = "0"
    for form, count in formats.items():
        if count > max(written):
            same = e.value(f"icmp eq i32 {kept}, {_signed(wanted | form << 22)}")
            size = e.value(f"select i1 {same}, i32 {count * bytes_of}, i32 {size}")
    kind = e.value(f"lshr i32 {words[2]}, 29")
    buffer = e.value(f"icmp eq i32 {kind}, {_BUFFER}")
    return e.value(f"select i1 {buffer}, i32 {size}, i32 0")


def _place(e: Registers, words: list[str], at: tuple[str, str], size: str) -> tuple[Where, str]:
    """Return the addresses of the lanes' texels, and which lanes have one in the buffer."""
    x, y = at
    width = e.value(f"and i32 {words[1]}, 32767")
    rest = e.value(f"and i32 {e.value(f'lshr i32 {words[1]}, 15')}, 32767")
    texels = e.value(f"or i32 {width}, {e.value(f'shl i32 {rest}, 15')}")
    inside = e.compare("ult", "i32", x, e.broadcast("i32", texels))
    inside = e.binary("and", "i1", inside, e.compare("eq", "i32", y, constant("i32", 0)))
    low = e.value(f"zext i32 {e.value(f'and i32 {words[4]}, -32')} to i64")
    high = e.value(f"zext i32 {e.value(f'and i32 {words[5]}, 131071')} to i64")
    base = e.value(f"or i64 {e.value(f'shl i64 {high}, 32')}, {low}")
    wide = e.value(f"zext i32 {size} to i64")
    start = e.value(f"and i32 {e.value(f'lshr i32 {words[2]}, 16')}, 63")
    ahead = e.value(f"mul i64 {e.value(f'zext i32 {start} to i64')}, {wide}")
    base = e.value(f"add i64 {base}, {ahead}")
    offsets = e.binary("mul", "i64", e.convert("zext", "i32", "i64", x), e.broadcast("i64", wide))
    return Where(*halves(e, offsets), base), inside


def _signed(word: int) -> int:
    """Return a word in LLVM's text form."""
    return word - (1 << 32) if word >> 31 else word
