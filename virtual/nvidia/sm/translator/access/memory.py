"""Loads and stores of all state spaces.

Lanes at consecutive addresses of one page whose translation is known are accessed as one vector.
All other accesses go through the functions of `runtime.resolve` and `runtime.access`. Cache
operators, eviction hints and scopes have no effect: memory here is coherent.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions": ld, ldu, st, prefetch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.ptx.module import (
    SIZES,
    Address,
    Instruction,
    Integer,
    Name,
    Operand,
    Register,
    Vector,
)
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import ACCESS_NAMES, PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access import halves
from ugpu.virtual.nvidia.sm.translator.handler import Handler, is_signed, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.moves import space_of
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader import tlb
from ugpu.virtual.shader.memory import Access

SHARED_SPACES = ("shared", "shared::cluster", "")  # whose addresses may be in shared memory
# Accesses that are calls where the emitter has `outlines`, see `functions`: spaces and bytes a
# lane; units, and how many; those loaded from shared memory by `halves`; bytes at an address that
# lanes share.
OUTLINED_SPACES, OUTLINED_SIZES = ("global", "shared"), (1, 2, 4, 8)
UNITS = (4, 2), (4, 4), (8, 2)
HALVES = (4, 1), (8, 1), *UNITS
UNIFORM_SIZES = (1, 2, 4, 8, 16, 32)


def address(k: Kernel, operand: Operand) -> tuple[Value, str | None]:
    """Return an address operand as i64, and the space of the variable that it names, if any."""
    if not isinstance(operand, Address):
        raise k.bad("expected an address in brackets")
    base = operand.base
    if isinstance(base, Register):
        if base.type not in ("b64", "u64", "s64", "b32", "u32", "s32"):
            raise k.bad(f"expected an address, got {base.name}")
        value = k.register(base)
        if operand.offset:
            value = k.op("add", value, number(value.element, operand.offset))
        return k.resize(value, "i64", False), None
    if isinstance(base, Integer):
        return number("i64", base.value + operand.offset), None
    assert isinstance(base, Name)
    value = k.address_of(base.name, operand.offset)
    return value, k.places.spaces[base.name]


def resolver(k: Kernel, space: str, access: Access | bool) -> str:
    """Return the name of the function that resolves addresses of a space. access: True for a
    write, False for a read."""
    verb = ACCESS_NAMES[Access(access)]
    if space in ("shared", "local"):
        return f"{PREFIX}resolve_{space}"
    if space == "shared::cluster":
        return f"{PREFIX}resolve_cluster"
    if space == "":
        return f"{PREFIX}resolve_generic_{verb}"
    if space in ("global", "const", "param"):
        return f"{PREFIX}resolve_global_{verb}"
    raise k.unsupported(f"state space {space}")


def resolve(
    k: Kernel, space: str, where: Value, size: int, access: Access | bool, mask: str
) -> str:
    """Return the host addresses of lanes; a fault ends the grid. access: see `resolver`."""
    k.settle()
    hosts = k.call(
        WIDE, resolver(k, space, access), ("ptr", "%context"), (WIDE, k.vec(where)), ("i32", mask),
        ("i32", str(size)),
    )  # fmt: skip
    k.fault_if_found()
    return hosts


def column(k: Kernel, number_: int) -> str:
    """Return the address of an IO column of the context."""
    return k.at("%context", layout.IO + number_ * layout.IO_COLUMN)


def load_lanes(k: Kernel, space: str, where: Value, size: int, mask: str) -> list[Value]:
    """Load `size` bytes a lane. Return them as vectors of i32 (up to 4 bytes) or i64."""
    hosts = resolve(k, space, where, size, False, mask)
    arguments = ("ptr", "%context"), (WIDE, hosts), ("i32", mask)
    if size <= 8:
        element = "i64" if size == 8 else "i32"
        text = k.call(f"<32 x {element}>", f"{PREFIX}load_{size}", *arguments)
        return [Value(text, element, False)]
    k.call("void", f"{PREFIX}load_{size}", *arguments)
    return [
        Value(k.value(f"load {WIDE}, ptr {column(k, n)}, align 64"), "i64", False)
        for n in range(size // 8)
    ]


def store_lanes(
    k: Kernel, space: str, where: Value, size: int, mask: str, words: list[Value]
) -> None:
    """Store `size` bytes a lane: one vector of i32 (up to 4 bytes) or one or more of i64."""
    hosts = resolve(k, space, where, size, True, mask)
    if k.proxies and space in SHARED_SPACES:
        k.call("void", f"{PREFIX}proxy_written", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
               ("i64", str(size)))  # fmt: skip
    arguments = [("ptr", "%context"), (WIDE, hosts), ("i32", mask)]
    if size <= 8:
        arguments.append((k.kind(words[0].element, False), k.vec(words[0])))
    else:
        for n, word in enumerate(words):
            k.do(f"store {WIDE} {k.vec(word)}, ptr {column(k, n)}, align 64")
    k.call("void", f"{PREFIX}store_{size}", *arguments)


# -- the fast path -------------------------------------------------------------------------------


def _consecutive(k: Kernel, where: Value, size: int, mask: str) -> tuple[str, str]:
    """Return, as i1, whether the lanes follow lane 0 and are aligned; and lane 0's address."""
    first = k.scalar(where)
    steps = k.op("sub", where, first)
    follow = k.mask_bits(k.cmp("eq", steps, k.each([size * lane for lane in range(32)], "i64")))
    if mask != "-1":
        off = k.value(f"xor i32 {mask}, -1")
        follow = k.value(f"or i32 {follow}, {off}")
    row = k.value(f"icmp eq i32 {follow}, -1")
    if size == 1:
        return row, first.text
    low = k.value(f"and i64 {first.text}, {size - 1}")
    return k.value(f"and i1 {row}, {k.value(f'icmp eq i64 {low}, 0')}"), first.text


def hit(k: Kernel, at: str, size: int, write: bool) -> tuple[str, str]:
    """Look up an address in the TLB: whether `size` bytes may be accessed, and the host address."""
    return tlb.hit(k, "%tlb", at, size, Access.WRITE if write else Access.READ)


def _in_shared(k: Kernel, at: str, size: int) -> tuple[str, str]:
    limit = k.context(layout.SHARED_SIZE, "i64")
    end = k.value(f"add i64 {at}, {size}")
    low = k.value(f"icmp ult i64 {at}, {layout.GENERIC_WINDOW_SIZE}")
    good = k.value(f"and i1 {low}, {k.value(f'icmp ule i64 {end}, {limit}')}")
    shared = k.context(layout.SHARED, "ptr")
    return good, k.value(f"getelementptr i8, ptr {shared}, i64 {at}")


def as_vector(k: Kernel, space: str, where: Value, size: int, mask: str, write: bool) -> (
        tuple[str, str]):  # fmt: skip
    """Return whether all lanes can be accessed as one vector, and its host address."""
    row, first = _consecutive(k, where, size, mask)
    if space == "shared":
        good, host = _in_shared(k, first, 32 * size)
    else:
        good, host = hit(k, first, 32 * size, write)
    return k.value(f"and i1 {row}, {good}"), host


def name_of(verb: str, space: str, size: int) -> str:
    """Return the name of the function that is an access of `size` bytes a lane."""
    return f"{PREFIX}access_{verb}_{space}_{size}"


def units_name(verb: str, space: str, unit: int, count: int) -> str:
    """Return the name of the function that accesses `count` units a lane, a row of them in each of
    the first IO columns; of a load of one unit, which it returns."""
    return f"{PREFIX}access_{verb}_{space}_{unit}_{count}"


def _outlined(k: Kernel, result: str, name: str, *arguments: tuple[str, str]) -> str:
    """Call one of `functions`."""
    assert k.now is not None
    text = k.call(result, name, ("ptr", "%context"), *arguments, ("i32", str(k.now.index)))
    k.settle_later()
    return text


def _load_varying(k: Kernel, space: str, where: Value, size: int, mask: str) -> list[Value]:
    if space not in OUTLINED_SPACES or size > 8:
        return load_lanes(k, space, where, size, mask)
    if not k.outlines:
        return load_quickly(k, space, where, size, mask)
    element = "i64" if size == 8 else "i32"
    name = name_of("load", space, size)
    text = _outlined(k, f"<32 x {element}>", name, (WIDE, k.vec(where)), ("i32", mask))
    return [Value(text, element, False)]


def load_quickly(k: Kernel, space: str, where: Value, size: int, mask: str) -> list[Value]:
    """Load up to 8 bytes a lane, as one vector where the lanes are consecutive."""
    element = "i64" if size == 8 else "i32"
    fast, slow, done = k.new_label("fast"), k.new_label("slow"), k.new_label("done")
    good, host = as_vector(k, space, where, size, mask, False)
    k.vec(where)
    k.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
    k.lines.append(f"{fast}:")
    narrow = f"i{8 * size}"
    quick = k.value(f"load <32 x {narrow}>, ptr {host}, align {size}")
    quick = k.convert("zext", narrow, element, quick)
    k.do(f"br label %{done}")
    k.lines.append(f"{slow}:")
    (value,) = load_lanes(k, space, where, size, mask)
    last = last_label(k)
    k.do(f"br label %{done}")
    k.lines.append(f"{done}:")
    text = k.value(f"phi <32 x {element}> [ {quick}, %{fast} ], [ {value.text}, %{last} ]")
    return [Value(text, element, False)]


def last_label(k: Kernel) -> str:
    """Return the label of the block that the last line belongs to."""
    return next(line[:-1] for line in reversed(k.lines) if line.endswith(":") and line[0] != " ")


def _store_varying(
    k: Kernel, space: str, where: Value, size: int, mask: str, words: list[Value]
) -> None:
    if space not in OUTLINED_SPACES or size > 8 or (k.proxies and space == "shared"):
        store_lanes(k, space, where, size, mask, words)
        return
    if not k.outlines:
        store_quickly(k, space, where, size, mask, words)
        return
    data = f"<32 x {words[0].element}>", k.vec(words[0])
    _outlined(k, "void", name_of("store", space, size), (WIDE, k.vec(where)), ("i32", mask), data)


def store_quickly(
    k: Kernel, space: str, where: Value, size: int, mask: str, words: list[Value]
) -> None:
    """Store up to 8 bytes a lane, as one vector where the lanes are consecutive."""
    fast, slow, done = k.new_label("fast"), k.new_label("slow"), k.new_label("done")
    good, host = as_vector(k, space, where, size, mask, True)
    k.vec(where)
    data = k.varying(words[0])
    condition = k.mask_vector(mask)
    k.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
    k.lines.append(f"{fast}:")
    narrow = f"i{8 * size}"
    value = k.convert("trunc", data.element, narrow, data.text)
    if mask == "-1":
        k.do(f"store <32 x {narrow}> {value}, ptr {host}, align {size}")
    else:
        k.call(
            "void", f"llvm.masked.store.v32{narrow}.p0", (f"<32 x {narrow}>", value),
            (f"ptr align {size}", host), ("<32 x i1>", condition),
        )  # fmt: skip
    k.do(f"br label %{done}")
    k.lines.append(f"{slow}:")
    store_lanes(k, space, where, size, mask, [data])
    k.do(f"br label %{done}")
    k.lines.append(f"{done}:")


# -- uniform addresses ---------------------------------------------------------------------------


def _uniform_host(k: Kernel, space: str, where: Value, size: int, mask: str) -> str:
    """Return the host address of data that all lanes load, for the lanes in `mask`."""
    alone = "shared" if space == "shared" else "global"
    if k.outlines and k.guard is None and space in ("shared", "global", "const", "param"):
        name = name_of("host", alone, size)
        return _outlined(k, "ptr", name, ("i64", where.text), ("i32", mask))
    if space in ("global", "const", "param") and mask == "-1":
        return host_quickly(k, space, where, size, mask)
    return _first_host(k, resolve(k, space, where, size, False, mask), mask)


def _first_host(k: Kernel, hosts: str, mask: str) -> str:
    """Return the address of the first lane in a mask."""
    first = k.call("i32", "llvm.cttz.i32", ("i32", mask), ("i1", "false"))
    lane = k.value(f"and i32 {first}, 31")
    one = k.value(f"extractelement {WIDE} {hosts}, i32 {lane}")
    return k.value(f"inttoptr i64 {one} to ptr")


def host_quickly(k: Kernel, space: str, where: Value, size: int, mask: str) -> str:
    """Return the host address of data that the lanes of a mask load: fast if the translation is
    known and the address is aligned."""
    fast, slow, done = k.new_label("fast"), k.new_label("slow"), k.new_label("done")
    found = _in_shared(k, where.text, size) if space == "shared" else None
    good, host = found or hit(k, where.text, size, False)
    low = k.value(f"and i64 {where.text}, {size - 1}")
    straight = k.value(f"icmp eq i64 {low}, 0")
    both = k.value(f"and i1 {good}, {straight}")
    k.vec(where)
    k.do(f"br i1 {both}, label %{fast}, label %{slow}, !prof !0")
    k.lines.append(f"{fast}:")
    k.do(f"br label %{done}")
    k.lines.append(f"{slow}:")
    other = _first_host(k, resolve(k, space, where, size, False, mask), mask)
    last = last_label(k)
    k.do(f"br label %{done}")
    k.lines.append(f"{done}:")
    return k.value(f"phi ptr [ {host}, %{fast} ], [ {other}, %{last} ]")


def load_uniform(k: Kernel, space: str, where: Value, unit: int, count: int) -> list[Value]:
    """Load `count` units from an address that all lanes share."""
    if space == "param" and where.bits is not None:
        offset = where.bits - layout.MODULE_WINDOW
        if offset < 0 or offset + unit * count > k.places.parameter_size:
            raise k.bad("the address lies outside the parameters")
        host = k.at("%parameters", offset)
    else:
        host = _uniform_host(k, space, where, unit * count, k.mask())
    values = []
    for n in range(count):
        at = k.value(f"getelementptr i8, ptr {host}, i64 {n * unit}") if n else host
        values.append(Value(k.value(f"load i{8 * unit}, ptr {at}, align 1"), f"i{8 * unit}", True))
    return values


# -- instructions --------------------------------------------------------------------------------


def _unit(k: Kernel, i: Instruction) -> tuple[str, int, int]:
    """Return the type, the bytes of an element and the number of elements."""
    kind = type_of(k, i)
    count = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    unit = SIZES[kind]
    if unit * count > 32:
        raise k.bad("more than 32 bytes per lane")
    return kind, unit, count


def space_at(k: Kernel, i: Instruction, known: str | None) -> str:
    """Return the space that an instruction states, or that of the variable it names."""
    space = space_of(i.modifiers)
    if space == "" and known in ("shared", "local"):
        return known
    return space


def split(k: Kernel, words: list[Value], unit: int, count: int) -> list[Value]:
    """Split loaded words into elements of `unit` bytes."""
    if unit >= 8:
        return words
    found = []
    for n in range(count):
        word = words[n * unit // 8] if len(words) > 1 or words[0].element == "i64" else words[0]
        shift = 8 * (n * unit % 8) if word.element == "i64" else 8 * (n * unit % 4)
        moved = k.op("lshr", word, number(word.element, shift)) if shift else word
        found.append(k.resize(moved, f"i{8 * unit}", False))
    return found


def join(k: Kernel, values: list[Value], unit: int) -> list[Value]:
    """Join elements of `unit` bytes into the words to store."""
    total = unit * len(values)
    element = "i32" if total <= 4 else "i64"
    each = min(total, 4 if element == "i32" else 8)
    words = []
    for start in range(0, total, each):
        word: Value | None = None
        for n in range(start // unit, min((start + each) // unit, len(values)) or 1):
            part = k.cast("zext", values[n], element)
            shift = 8 * (n * unit - start)
            part = k.op("shl", part, number(element, shift)) if shift else part
            word = part if word is None else k.op("or", word, part)
        assert word is not None
        words.append(word)
    return words


def _load(k: Kernel, i: Instruction) -> None:
    kind, unit, count = _unit(k, i)
    if len(i.operands) < 2:
        raise k.bad("expected two operands")
    target = i.operands[0]
    targets = target.items if isinstance(target, Vector) else (target,)
    if len(targets) != count:
        raise k.bad(f"expected {count} registers, got {len(targets)}")
    where, known = address(k, i.operands[1])
    space = space_at(k, i, known)
    if where.uniform and space != "local" and space != "":
        values = load_uniform(k, space, where, unit, count)
    else:
        values = _load_units(k, space, where, unit, count)
    for operand, value in zip(targets, values, strict=True):
        k.write(operand, _extended(k, operand, value, kind))


def _load_units(k: Kernel, space: str, where: Value, unit: int, count: int) -> list[Value]:
    """Load from addresses that differ by lane."""
    mask = k.mask()
    if (unit, count) not in (HALVES if space == "shared" else UNITS):
        return split(k, _load_varying(k, space, where, unit * count, mask), unit, count)
    if not k.outlines or space not in OUTLINED_SPACES:
        return load_units(k, space, where, unit, count, mask)
    kind = f"i{8 * unit}"
    result = f"<32 x {kind}>" if count == 1 else "void"
    name = units_name("load", space, unit, count)
    text = _outlined(k, result, name, (WIDE, k.vec(where)), ("i32", mask))
    rows = [text] if text else row_texts(k, unit, count)
    return [Value(row, kind, False) for row in rows]


def row_texts(k: Kernel, unit: int, count: int) -> list[str]:
    """Load the first `count` IO columns, a unit a lane."""
    return [k.value(f"load <32 x i{8 * unit}>, ptr {column(k, n)}, align 64") for n in range(count)]


def write_rows(k: Kernel, rows: Sequence[Value]) -> None:
    """Store values in the first IO columns."""
    for n, row in enumerate(rows):
        k.do(f"store <32 x {row.element}> {k.vec(row)}, ptr {column(k, n)}, align 64")


def load_units(
    k: Kernel, space: str, where: Value, unit: int, count: int, mask: str
) -> list[Value]:
    """Load `count` units a lane: from shared memory as by `halves`."""
    if space == "shared":
        return load_halves(k, where, unit, count, mask)
    return split(k, _load_varying(k, space, where, unit * count, mask), unit, count)


def load_halves(k: Kernel, where: Value, unit: int, count: int, mask: str) -> list[Value]:
    """Load `count` units a lane from shared memory, as rows where half warps read such."""
    k.vec(where)

    def general() -> list[Value]:
        return split(k, load_lanes(k, "shared", where, unit * count, mask), unit, count)

    return halves.load(k, k.varying(where), unit, count, mask, general)


def _extended(k: Kernel, operand: Operand, value: Value, kind: str) -> Value:
    """Extend a loaded value to the width of its register, which may be wider."""
    if not isinstance(operand, Register) or operand.type == "pred":
        return value
    element = f"i{8 * SIZES[operand.type]}"
    return k.resize(value, element, is_signed(kind)) if int(element[1:]) > value.width else value


def _store(k: Kernel, i: Instruction) -> None:
    if "bulk" in i.modifiers:
        raise k.unsupported()
    _, unit, count = _unit(k, i)
    if len(i.operands) < 2:
        raise k.bad("expected two operands")
    source = i.operands[1]
    operands = source.items if isinstance(source, Vector) else (source,)
    if len(operands) != count:
        raise k.bad(f"expected {count} registers, got {len(operands)}")
    where, known = address(k, i.operands[0])
    space = space_at(k, i, known)
    if space in ("const", "param"):
        raise k.bad(f"memory of .{space} cannot be written")
    values, mask = [_stored(k, operand, unit) for operand in operands], k.mask()
    where = k.varying(where)
    outlines = k.outlines and space in OUTLINED_SPACES and not (k.proxies and space == "shared")
    if outlines and (unit, count) in UNITS:
        write_rows(k, values)
        name = units_name("store", space, unit, count)
        _outlined(k, "void", name, (WIDE, where.text), ("i32", mask))
        return
    _store_varying(k, space, where, unit * count, mask, join(k, values, unit))


def _stored(k: Kernel, operand: Operand, unit: int) -> Value:
    if unit == 1:  # there are no registers of 8 bits
        if isinstance(operand, Register):
            return k.resize(k.register(operand), "i8", False)
        return k.cast("trunc", k.source(operand, "b16"), "i8")
    return k.source(operand, f"b{8 * unit}")


def _policy(k: Kernel, i: Instruction) -> None:
    """createpolicy: cache policies are not modelled, and programs cannot read them."""
    k.write(i.operands[0], number("i64", 0))


def _nothing(k: Kernel, i: Instruction) -> None:
    """Do nothing: caches are not modelled."""


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "ld": _load, "ldu": _load, "st": _store, "prefetch": _nothing, "prefetchu": _nothing,
        "createpolicy": _policy, "discard": _nothing, "applypriority": _nothing,
    }  # fmt: skip
