"""Descriptors: constant buffers, storage buffers, images and samplers, translated to LLVM IR.

A descriptor is read at each use, by the first active lane's number. Untyped loads, stores and
atomics of buffers are native code, as are fetches of texels from buffers (`texels`). Other images
and samplers are handled by `virtual.adreno.sp.images`.
Sources: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml (A6XX_TEX_CONST, A6XX_UBO),
isa/ir3-cat5.xml and ir3-cat6.xml, src/freedreno/fdl/fd6_view.c (buffers), ir3/ir3_a6xx.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.adreno.sp.operands import TYPES, Kind, Op, Operand
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.translator import texels
from ugpu.virtual.adreno.sp.translator.memory import (
    BYTES,
    CONTEXT,
    Where,
    atomic,
    halves,
    load_narrow,
    load_words,
    note,
    set_constant,
    store_words,
    stored_narrow,
)
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.adreno.sp.translator.wave import components
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import LANES, constant

SIZE = 64  # bytes of a bindless descriptor, and of an image descriptor
_NONUNIFORM = 2


def scalar_of(e: Registers, number: int) -> str:
    """Return the first active lane's value of a register."""
    return e.lane("i32", e.word(number), e.first())


def _table(e: Registers, place: int, number: str, size: int) -> str:
    """Return the address of a descriptor in a table of the launch; 0 beyond the table's end."""
    base = e.value(f"getelementptr i8, ptr %tables, i64 {place}")
    count = e.value(f"getelementptr i8, ptr %tables, i64 {place + 8}")
    base, count = (e.value(f"load i64, ptr {at}") for at in (base, count))
    wide = e.value(f"zext i32 {number} to i64")
    inside = e.value(f"icmp ult i64 {wide}, {count}")
    at = e.value(f"add i64 {base}, {e.value(f'mul i64 {wide}, {size}')}")
    return e.value(f"select i1 {inside}, i64 {at}, i64 0")


def _bindless(e: Registers, base: str, number: str) -> str:
    """Return the address of a descriptor in a set; 0 where the set is not bound."""
    wide = e.value(f"zext i32 {base} to i64")
    at = e.value(f"getelementptr i64, ptr %tables, i64 {wide}")
    at = e.value(f"getelementptr i8, ptr {at}, i64 {layout.BINDLESS}")
    start = e.value(f"and i64 {e.value(f'load i64, ptr {at}')}, -4")
    bound = e.value(f"icmp ne i64 {start}, 0")
    wide = e.value(f"zext i32 {number} to i64")
    place = e.value(f"add i64 {start}, {e.value(f'mul i64 {wide}, {SIZE}')}")
    return e.value(f"select i1 {bound}, i64 {place}, i64 0")


def _descriptor(e: Registers, op: Op, source: str, place: int, size: int) -> str:
    """Return the address of the descriptor that an instruction of category 6 selects."""
    if op.raw("MODE") == _NONUNIFORM:
        raise Unsupported(f"{op.name} with descriptors that differ from lane to lane")
    bits = op.scope.inner(source).bits
    number = str(bits) if op.raw("MODE") == 0 else scalar_of(e, bits)
    if op.raw("BINDLESS"):
        return _bindless(e, str(op.scope.inner("BASE").raw("BASE")), number)
    return _table(e, place, number, size)


def _fetch(e: Registers, op: Op, address: str, count: int) -> list[str]:
    """Load words of a descriptor; zeros where there is none (address 0)."""
    note(e, op)
    there = e.value(f"icmp ne i64 {address}, 0")
    wanted = e.value(f"select i1 {there}, i64 {count}, i64 0")
    io = e.value(f"getelementptr i8, ptr %context, i64 {context.IO}")
    e.do(f"store <8 x i32> zeroinitializer, ptr {io}, align 64")
    e.call("void", f"{PREFIX}scalar_load", CONTEXT, ("i64", address), ("i64", wanted))
    return [
        e.value(f"load i32, ptr {e.value(f'getelementptr i32, ptr {io}, i64 {k}')}")
        for k in range(count)
    ]


def _wide(e: Registers, low: str, high: str) -> str:
    top = e.value(f"shl i64 {e.value(f'zext i32 {high} to i64')}, 32")
    return e.value(f"or i64 {top}, {e.value(f'zext i32 {low} to i64')}")


# ---- constant buffers ----------------------------------------------------------------------------


def _constants_of(e: Registers, op: Op, source: str) -> tuple[str, str]:
    """Return address and size in bytes of a constant buffer."""
    low, high = _fetch(e, op, _descriptor(e, op, source, layout.UBOS, 8), 2)
    address = _wide(e, low, e.value(f"and i32 {high}, {0x1FFFF}"))
    return address, e.value(f"shl i32 {e.value(f'lshr i32 {high}, 17')}, 4")


def _load_constants(e: Registers, op: Op, turn: int) -> None:
    """Emit ldc: load words from a component of a vec4 on; zeros beyond the buffer's end."""
    address, size = _constants_of(e, op, "SRC2")
    bits = op.scope.inner("SRC1").bits
    vec4 = constant("i32", bits) if op.flag("SRC1_IM") else e.word(bits)
    start = e.binary("shl", "i32", vec4, constant("i32", 4))
    start = e.binary("add", "i32", start, constant("i32", 4 * op.raw("OFFSET")))
    found = []
    for k in range(op.raw("TYPE_SIZE")):
        offset = e.binary("add", "i32", start, constant("i32", 4 * k))
        inside = e.as_bits(e.compare("ult", "i32", offset, e.broadcast("i32", size)))
        active = e.value(f"and {e.bits} {inside}, {e.exec()}")
        arguments = [CONTEXT, ("i64", address), (e.vector, offset), (LANES, active)]
        value = e.by_passes("i32", f"{PREFIX}near_load_4", *arguments)
        found.append(e.select(e.as_mask(inside), "i32", value, constant("i32", 0)))
    for k, value in enumerate(found):
        e.set_word(op.raw("DST") + k, value)


def _copy(e: Registers, op: Op, address: str, words: int, size: str | None) -> list[str]:
    """Load consecutive words, the same for all lanes; zeros beyond `size` bytes."""
    found: list[str] = []
    note(e, op)
    for first in range(0, words, 16):
        count = min(16, words - first)
        at = e.value(f"add i64 {address}, {4 * first}")
        e.call("void", f"{PREFIX}scalar_load", CONTEXT, ("i64", at), ("i64", str(count)))
        for k in range(count):
            place = e.value(f"getelementptr i8, ptr %context, i64 {context.IO + 4 * k}")
            word = e.value(f"load i32, ptr {place}")
            if size is not None:
                inside = e.value(f"icmp ult i32 {4 * (first + k)}, {size}")
                word = e.value(f"select i1 {inside}, i32 {word}, i32 0")
            found.append(word)
    return found


def _buffer_to_constants(e: Registers, op: Op, turn: int) -> None:
    """Emit ldc.k: copy vec4s of a constant buffer into the constant file, from a1.x on."""
    address, size = _constants_of(e, op, "SRC2")
    bits = op.scope.inner("SRC1").bits
    vec4 = str(bits) if op.flag("SRC1_IM") else scalar_of(e, bits)
    start = e.value(f"shl i32 {vec4}, 4")
    left = e.call("i32", "llvm.usub.sat.i32", ("i32", size), ("i32", start))
    address = e.value(f"add i64 {address}, {e.value(f'zext i32 {start} to i64')}")
    words = _copy(e, op, address, 4 * op.raw("LOAD_SIZE"), left)
    index = e.value(f"zext i32 {e.value('load i32, ptr %a1')} to i64")
    for k, word in enumerate(words):
        at = e.value(f"add i64 {index}, {k}")
        safe = e.value(f"icmp ult i64 {at}, {layout.CONSTANT_WORDS}")
        at = e.value(f"select i1 {safe}, i64 {at}, i64 {layout.CONSTANT_WORDS}")
        e.do(f"store i32 {word}, ptr {e.value(f'getelementptr i32, ptr %constants, i64 {at}')}")


def _memory_to_constants(e: Registers, op: Op, turn: int) -> None:
    """Emit ldg.k: copy words of memory into the constant file."""
    if op.flag("SRC1_CONST"):
        raise Unsupported("ldg.k from an address in constants")
    number = op.scope.inner("SRC1").bits
    address = _wide(e, scalar_of(e, number), scalar_of(e, number + 1))
    address = e.value(f"add i64 {address}, {op.scope.signed('OFF')}")
    for k, word in enumerate(_copy(e, op, address, op.raw("SIZE"), None)):
        set_constant(e, op, k, word)


# ---- buffers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buffer:
    """The address and the elements of a storage buffer."""

    base: str
    elements: str


def _buffer(e: Registers, op: Op) -> Buffer:
    words = _fetch(e, op, _descriptor(e, op, "SSBO", layout.UAVS, SIZE), 8)
    width = e.value(f"and i32 {words[1]}, 32767")
    height = e.value(f"and i32 {e.value(f'lshr i32 {words[1]}, 15')}, 32767")
    elements = e.value(f"or i32 {width}, {e.value(f'shl i32 {height}, 15')}")
    start = e.value(f"and i32 {e.value(f'lshr i32 {words[2]}, 16')}, 63")
    base = _wide(e, e.value(f"and i32 {words[4]}, -32"), e.value(f"and i32 {words[5]}, 131071"))
    ahead = e.value(f"mul i32 {start}, {BYTES[TYPES[op.raw('TYPE')]]}")
    base = e.value(f"add i64 {base}, {e.value(f'zext i32 {ahead} to i64')}")
    return Buffer(base, elements)


def _untyped(op: Op) -> bool:
    return not op.scope.inner("TYPED").raw("TYPED")


def _offset(op: Op) -> int:
    return op.raw("OFFSET") if op.flag("HAS_OFFSET") else 0


def _element(e: Registers, op: Op, buffer: Buffer, more: int, size: int) -> tuple[str, Where, str]:
    """Return which lanes have an element within a buffer, its address, and the lanes as a
    vector."""
    index = e.word(op.raw("SRC2"))
    ahead = _offset(op) + more
    if ahead:
        index = e.binary("add", "i32", index, constant("i32", ahead))
    inside = e.compare("ult", "i32", index, e.broadcast("i32", buffer.elements))
    bytes_at = e.binary("mul", "i64", e.convert("zext", "i32", "i64", index), constant("i64", size))
    low, high = halves(e, bytes_at)
    active = e.value(f"and {e.bits} {e.as_bits(inside)}, {e.exec()}")
    return active, Where(low, high, buffer.base), inside


def _load_buffer(e: Registers, op: Op, turn: int) -> None:
    if not _untyped(op):
        _image(e, op, turn)
        return
    name, size = TYPES[op.raw("TYPE")], BYTES[TYPES[op.raw("TYPE")]]
    buffer, found = _buffer(e, op), []
    for k in range(op.raw("TYPE_SIZE")):
        active, where, inside = _element(e, op, buffer, k, size)
        with e.only(active):
            if size == 4:
                value = load_words(e, op, where, 1)[0]
            else:
                value = load_narrow(e, op, where, size)
        found.append(e.select(inside, "i32", value, constant("i32", 0)))
    for k, value in enumerate(found):
        if size == 4 or name == "u8_32":
            e.set_word(op.raw("SRC1") + k, value)
        else:
            e.set_short(op.raw("SRC1") + k, e.convert("trunc", "i32", "i16", value))


def _store_buffer(e: Registers, op: Op, turn: int) -> None:
    if not _untyped(op):
        _image(e, op, turn)
        return
    name, size = TYPES[op.raw("TYPE")], BYTES[TYPES[op.raw("TYPE")]]
    buffer = _buffer(e, op)
    for k in range(op.raw("TYPE_SIZE")):
        active, where, _ = _element(e, op, buffer, k, size)
        number = op.raw("SRC1") + k
        value = e.word(number) if size == 4 else stored_narrow(e, name, number)
        with e.only(active):
            if size == 4:
                store_words(e, op, where, [value])
            else:
                note(e, op, where)
                arguments = where.arguments(e, active)
                e.by_passes("", f"{PREFIX}far_store_{size}", *arguments, (e.vector, value))


def _atomic_buffer(e: Registers, op: Op, turn: int) -> None:
    """Emit an atomic: the register that SRC1 selects receives the old value; the next ones hold
    operands."""
    if not _untyped(op):
        raise Unsupported("atomic operations on images")
    if TYPES[op.raw("TYPE")] not in ("u32", "s32"):
        raise Unsupported(f"{op.name} of another type than u32 and s32")
    buffer = _buffer(e, op)
    active, where, inside = _element(e, op, buffer, 0, 4)
    data = [e.word(op.raw("SRC1") + 1)]
    if op.name.endswith("cmpxchg"):
        data.append(e.word(op.raw("SRC1") + 2))
    wide = e.binary("shl", "i64", e.convert("zext", "i32", "i64", where.high), constant("i64", 32))
    address = e.binary("or", "i64", wide, e.convert("zext", "i32", "i64", where.low))
    address = e.binary("add", "i64", address, e.broadcast("i64", where.base))
    note(e, op, where)
    places = [(e.vector_of("i64"), address), (LANES, active)]
    old = atomic(e, op, "ir3_hosts", places, active, data)
    e.set_word(op.raw("SRC1"), e.select(inside, "i32", old, constant("i32", 0)))


# ---- images --------------------------------------------------------------------------------------


def _ask(
    e: Registers, op: Op, texture: str, sampler: str, given: list[str], wanted: int
) -> list[str]:
    """Emit a call of `Images` for an instruction: words of all lanes in, words of all lanes out."""
    note(e, op)
    for place, value in ((layout.TEXTURE, texture), (layout.SAMPLER, sampler)):
        e.do(f"store i64 {value}, ptr {e.value(f'getelementptr i8, ptr %context, i64 {place}')}")
    for k, value in enumerate(given):
        at = layout.IMAGE_IN + layout.IMAGE_COLUMN * k
        at_pointer = e.value(f"getelementptr i8, ptr %context, i64 {at}")
        e.do(f"store {e.vector} {value}, ptr {at_pointer}, align 64")
    mask = e.value(f"getelementptr i8, ptr %context, i64 {layout.ACCESSING}")
    wide = e.exec() if e.bits == "i128" else e.value(f"zext {e.bits} {e.exec()} to i128")
    e.do(f"store i128 {wide}, ptr {mask}, align 16")
    callback = e.value(f"getelementptr i8, ptr %context, i64 {layout.IMAGES}")
    callback = e.value(f"load ptr, ptr {callback}")
    e.do(f"call void {callback}(i32 {op.index})")
    found = []
    for k in range(wanted):
        at = layout.IMAGE_OUT + layout.IMAGE_COLUMN * k
        at_pointer = e.value(f"getelementptr i8, ptr %context, i64 {at}")
        found.append(e.value(f"load {e.vector}, ptr {at_pointer}, align 64"))
    return found


def _as_words(e: Registers, number: int, half: bool, count: int) -> list[str]:
    return [_as_word(e, Operand(Kind.REGISTER, number + k, half)) for k in range(count)]


def _as_word(e: Registers, operand: Operand) -> str:
    value = e.bits_of(operand)
    return e.convert("zext", "i16", "i32", value) if operand.half else value


def _alias(e: Registers, op: Op, turn: int) -> None:
    """Emit alias.tex: the next instruction of category 5 reads another source in place of a
    register. It is not published when that source is read; here it is read when that instruction
    runs."""
    if op.raw("SCOPE_HI") or op.raw("SCOPE_LO"):
        raise Unsupported("alias of another scope than tex")
    half = not op.raw("TYPE_SIZE")
    source, kind = op.scope.inner("SRC"), op.raw("SRC_REG_TYPE")
    operand = Operand(Kind.IMMEDIATE, source.bits, half)
    if kind < 2:
        operand = Operand((Kind.REGISTER, Kind.CONSTANT)[kind], source.bits, half)
    e.aliases[half, op.raw("DST")] = operand


def _sources(e: Registers, number: int, half: bool, count: int) -> list[str]:
    """Return registers of category 5, or their aliases, as words."""
    found = [
        e.aliases.get((half, number + k), Operand(Kind.REGISTER, number + k, half))
        for k in range(count)
    ]
    return [_as_word(e, operand) for operand in found]


def _put(e: Registers, number: int, half: bool, value: str) -> None:
    if half:
        value = e.convert("trunc", "i32", "i16", value)
    e.store(Operand(Kind.REGISTER, number, half), 0, value)


def _image(e: Registers, op: Op, turn: int) -> None:
    """Emit ldib.b and stib.b of images: the coordinates, then, for a store, the value."""
    half = TYPES[op.raw("TYPE")] in ("f16", "u16", "s16", "u8")
    descriptor = _descriptor(e, op, "SSBO", layout.UAVS, SIZE)
    given = _as_words(e, op.raw("SRC2"), False, op.raw("D"))
    count = op.raw("TYPE_SIZE")
    if op.name == "stib.b":
        given += _as_words(e, op.raw("SRC1"), half, count)
        _ask(e, op, descriptor, "0", given, 0)
        return
    for k, value in enumerate(_ask(e, op, descriptor, "0", given, count)):
        _put(e, op.raw("SRC1") + k, half, value)


def _image_size(e: Registers, op: Op, turn: int) -> None:
    descriptor = _descriptor(e, op, "SSBO", layout.UAVS, SIZE)
    for k, value in enumerate(_ask(e, op, descriptor, "0", [], 3)):
        e.set_word(op.raw("DST") + k, value)


def _texture(e: Registers, op: Op) -> tuple[str, str]:
    """Return the addresses of the texture and sampler descriptors."""
    if not op.flag("S2EN_BINDLESS"):
        return (
            _table(e, layout.TEXTURES, str(op.scope.inner("TEX").bits), SIZE),
            _table(e, layout.SAMPLERS, str(op.scope.inner("SAMP").bits), 16),
        )
    mode, bits = op.raw("DESC_MODE"), op.scope.inner("SRC3").bits
    if mode in (2, 3, 4):
        raise Unsupported(f"{op.name} with descriptors that differ from lane to lane")
    a1 = e.value("load i32, ptr %a1") if mode in (1, 7) else "0"
    if mode == 0:
        pair = _sources(e, bits, True, 2)
        texture, sampler = (e.lane("i32", one, e.first()) for one in pair)
        return _table(e, layout.TEXTURES, texture, SIZE), _table(e, layout.SAMPLERS, sampler, 16)
    base = str(2 * op.raw("BASE_HI") | op.scope.inner("BASE").bits)
    sampler_base = e.value(f"and i32 {a1}, 7") if mode in (1, 7) else base
    if mode in (1, 5):
        pair = _sources(e, bits, False, 2)
        texture, sampler = (e.lane("i32", one, e.first()) for one in pair)
    elif mode == 6:
        texture, sampler = str(bits >> 4), str(bits & 15)
    else:
        other = e.value(f"and i32 {e.value(f'lshr i32 {a1}, 3')}, 255")
        texture, sampler = (other, str(bits)) if e.generation == 6 else (str(bits), other)
    return _bindless(e, base, texture), _bindless(e, sampler_base, sampler)


_COORDINATES = 4


def _sample(e: Registers, op: Op, turn: int) -> None:
    """Emit a sample: coordinates of category 5, padded to four, then the second source's two
    words."""
    texture, sampler = _texture(e, op)
    half = not op.raw("FULL")
    count = _coordinates(op)
    given = _sources(e, op.scope.inner("SRC1").bits, half, count)
    given += [constant("i32", 0)] * (_COORDINATES - count)
    if op.name in ("isaml", "saml"):
        given += _sources(e, op.scope.inner("SRC2").bits, half, 1)
    e.aliases.clear()

    def ask() -> None:
        found = _ask(e, op, texture, sampler, given, 4)
        for k in components(op):
            _put(e, op.raw("DST") + k, bool(op.raw("DST_HALF")), found[k])

    if texels.is_plain(op) and not half:
        descriptor = _fetch(e, op, texture, texels.WORDS)
        texels.fetch(e, op, descriptor, (given[0], given[1]), ask)
    else:
        ask()


def _coordinates(op: Op) -> int:
    if op.name == "getsize":
        return 1
    if any(op.flag(name) for name in ("O", "P")):
        raise Unsupported(f"{op.name} with offsets or projection")
    # Bit 18 of isam ("1D") does not decide this: Mesa sets it for isam.v, which has one, and clears
    # it for reads of images (ir3_compiler_nir.c, emit_intrinsic_load_image).
    if op.flag("SV"):
        return 1
    return 2 + int(op.flag("3D") or op.flag("A"))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {
        "ldc": _load_constants, "ldc.k": _buffer_to_constants, "ldg.k": _memory_to_constants,
        "ldib.b": _load_buffer, "stib.b": _store_buffer, "resinfo.b": _image_size,
        "alias": _alias,
        "isam": _sample, "isaml": _sample, "sam": _sample, "saml": _sample, "getsize": _sample,
    }  # fmt: skip
    for name in ("add", "sub", "xchg", "cmpxchg", "min", "max", "and", "or", "xor"):
        found[f"atomic.b.{name}"] = _atomic_buffer
    return found
