"""Global, local and private memory, translated to LLVM IR.

Global loads and stores of one word per lane have a fast path in the kernel: where all lanes are
active, access consecutive addresses, and the TLB holds their page, the code moves one vector. Every
other access calls the functions of lane memory, 32 lanes at a time.
Sources: Mesa 25.0.7, src/freedreno/isa/ir3-cat6.xml, src/freedreno/ir3/ir3_a6xx.c (offsets, order
of the operands of atomics), ir3_compiler_nir.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.adreno.sp.operands import TYPES, WIDE, Op
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader import context
from ugpu.virtual.shader.atomics import OPERATIONS
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import LANES, PASS, VECTOR, constant, lanes
from ugpu.virtual.shader.tlb import hit, tlb_of

CONTEXT = ("ptr", "%context")
BYTES = {
    "f16": 2, "f32": 4, "u16": 2, "u32": 4, "s16": 2, "s32": 4, "u8": 1, "u8_32": 1,
}  # fmt: skip
_LOCAL_MOST = 32 << 10


@dataclass(frozen=True)
class Where:
    """Addresses of all lanes: the two halves of 64 bits (i32 vectors), and an offset to add
    (i64)."""

    low: str
    high: str
    base: str

    def arguments(self, e: Registers, mask: str) -> list[tuple[str, str]]:
        """Return the arguments for functions of lane memory."""
        return [CONTEXT, (e.vector, self.low), (e.vector, self.high), ("i64", self.base),
                (LANES, mask)]  # fmt: skip

    def more(self, e: Registers, count: int) -> Where:
        """Return the addresses plus `count` bytes."""
        if not count:
            return self
        if not self.base.startswith("%"):
            return Where(self.low, self.high, str(int(self.base) + count))
        return Where(self.low, self.high, e.value(f"add i64 {self.base}, {count}"))


def type_of(op: Op) -> str:
    """Return the type of the data that an instruction of category 6 moves."""
    return TYPES[op.raw("TYPE")]


def pair(e: Registers, op: Op) -> tuple[str, str]:
    """Read the address in SRC1: two registers, or two constants."""
    number = op.scope.inner("SRC1").bits
    if op.raw("SRC1_CONST"):
        words = [e.broadcast("i32", e.constant_word(number + k)) for k in (0, 1)]
        return words[0], words[1]
    return e.word(number), e.word(number + 1)


def joined(e: Registers, low: str, high: str) -> str:
    """Combine halves into 64-bit addresses."""
    wide = (e.convert("zext", "i32", "i64", half) for half in (low, high))
    first, second = wide
    return e.binary("or", "i64", first, e.binary("shl", "i64", second, constant("i64", 32)))


def halves(e: Registers, addresses: str) -> tuple[str, str]:
    """Split 64-bit addresses into halves."""
    high = e.binary("lshr", "i64", addresses, constant("i64", 32))
    return e.convert("trunc", "i64", "i32", addresses), e.convert("trunc", "i64", "i32", high)


def global_address(e: Registers, op: Op) -> Where:
    """Return the addresses that the lanes of ldg, stg and similar instructions access."""
    low, high = pair(e, op)
    if not op.name.endswith(".a"):
        return Where(low, high, str(op.scope.signed("OFF")))
    index = e.convert("zext", "i32", "i64", e.word(op.raw("SRC2")))
    offset = op.raw("OFF")
    if e.generation == 6:
        scaled = op.raw("TYPE") < 6
        first = op.raw("SRC2_ADD_DWORD_SHIFT") if scaled else 0
        last = op.raw("TYPE_SHIFT") if scaled else 0
        index = e.binary("shl", "i64", index, constant("i64", first))
        index = e.binary("add", "i64", index, constant("i64", offset))
        index, offset = e.binary("shl", "i64", index, constant("i64", last)), 0
    address = e.binary("add", "i64", joined(e, low, high), index)
    return Where(*halves(e, address), str(offset))


def note(e: Registers, op: Op, where: Where | None = None) -> None:
    """Record in the context which instruction accesses memory, and at which addresses."""
    e.do(f"store i32 {op.index}, ptr {e.value(_field(layout.ACCESS))}")
    if where is None:
        e.do(f"store i128 0, ptr {e.value(_field(layout.ACCESSING))}")
        return
    for place, value in ((0, where.low), (4 * 128, where.high)):
        e.do(f"store {e.vector} {value}, ptr {e.value(_field(layout.ACCESSED + place))}, align 64")
    e.do(f"store i64 {where.base}, ptr {e.value(_field(layout.ACCESSED_BASE))}")
    wide = e.exec() if e.bits == "i128" else e.value(f"zext {e.bits} {e.exec()} to i128")
    e.do(f"store i128 {wide}, ptr {e.value(_field(layout.ACCESSING))}, align 16")


def _field(offset: int) -> str:
    return f"getelementptr i8, ptr %context, i64 {offset}"


def load_words(e: Registers, op: Op, where: Where, count: int) -> list[str]:
    """Load `count` words for every active lane."""
    note(e, op, where)
    if count == 1:
        arguments = where.arguments(e, e.exec())
        return [e.by_passes("i32", f"{PREFIX}far_load_4", *arguments)]
    passes = []
    columns = [context.IO + k * context.IO_COLUMN for k in range(count)]
    for one in e.cut_arguments(where.arguments(e, e.exec())):
        e.call("void", f"{PREFIX}far_load_{4 * count}", *one, ("ptr", e.value(_field(columns[0]))))
        passes.append(
            [e.value(f"load {VECTOR}, ptr {e.value(_field(c))}, align 64") for c in columns]
        )
    return [e.whole("i32", list(parts)) for parts in zip(*passes, strict=True)]


def load_narrow(e: Registers, op: Op, where: Where, size: int) -> str:
    """Load one or two bytes for every active lane, zero-extended to i32."""
    note(e, op, where)
    return e.by_passes("i32", f"{PREFIX}far_load_{size}", *where.arguments(e, e.exec()))


def store_words(e: Registers, op: Op, where: Where, values: list[str]) -> None:
    """Store one word per value for every active lane."""
    note(e, op, where)
    arguments = where.arguments(e, e.exec())
    if len(values) == 1:
        e.by_passes("", f"{PREFIX}far_store_4", *arguments, (e.vector, values[0]))
        return
    parts = [e.cut("i32", value) for value in values]
    for turn, one in enumerate(e.cut_arguments(arguments)):
        for k, part in enumerate(parts):
            at = e.value(_field(context.IO + k * context.IO_COLUMN))
            e.do(f"store {VECTOR} {part[turn]}, ptr {at}, align 64")
        first = ("ptr", e.value(_field(context.IO)))
        e.call("void", f"{PREFIX}far_store_{4 * len(values)}", *one, first)


def _in_a_row(e: Registers, where: Where, size: int, access: Access) -> tuple[str, str]:
    """Return whether all lanes access consecutive addresses of a page in the TLB, and their
    place."""
    first, first_high = e.lane("i32", where.low, 0), e.lane("i32", where.high, 0)
    steps = lanes([size * lane for lane in range(e.lanes)])
    wanted = e.binary("add", "i32", e.broadcast("i32", first), steps)
    good = e.compare("eq", "i32", wanted, where.low)
    same = e.compare("eq", "i32", e.broadcast("i32", first_high), where.high)
    bits = e.as_bits(e.binary("and", "i1", good, same))
    follow = e.value(f"icmp eq {e.bits} {bits}, -1")
    straight = e.value(f"icmp ule i32 {first}, {(1 << 32) - e.lanes * size}")
    wide = [e.value(f"zext i32 {half} to i64") for half in (first, first_high)]
    top = e.value(f"shl i64 {wide[1]}, 32")
    start = e.value(f"add i64 {e.value(f'or i64 {top}, {wide[0]}')}, {where.base}")
    known, host = hit(e, tlb_of(e), start, e.lanes * size, access)
    both = e.value(f"and i1 {follow}, {straight}")
    if e.mask() is not None:  # which also emits the mask before control flow divides
        whole = e.value(f"icmp eq {e.bits} {e.exec()}, -1")
        both = e.value(f"and i1 {both}, {whole}")
    return e.value(f"and i1 {both}, {known}"), host


def _load(e: Registers, op: Op, turn: int) -> None:
    where, name = global_address(e, op), type_of(op)
    count, target, size = op.raw("SIZE"), op.raw("DST"), BYTES[type_of(op)]
    if size == 4 and count == 1 and (e.every or not e.both):
        _load_row(e, op, where)
        return
    if not 1 <= count <= 4:
        raise Unsupported(f"a load of {count} elements")
    if size == 4:
        for k, value in enumerate(load_words(e, op, where, count)):
            e.set_word(target + k, value)
        return
    values = [load_narrow(e, op, where.more(e, size * k), size) for k in range(count)]
    for k, value in enumerate(values):
        if name == "u8_32":
            e.set_word(target + k, value)
        else:
            e.set_short(target + k, e.convert("trunc", "i32", "i16", value))


def _load_row(e: Registers, op: Op, where: Where) -> None:
    fast, slow, done = (e.new_label(name) for name in ("fast", "slow", "done"))
    good, host = _in_a_row(e, where, 4, Access.READ)
    e.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
    e.begin(fast)
    e.set_word(op.raw("DST"), e.value(f"load {e.vector}, ptr {host}, align 1"))
    e.do(f"br label %{done}")
    e.begin(slow)
    e.set_word(op.raw("DST"), load_words(e, op, where, 1)[0])
    e.do(f"br label %{done}")
    e.begin(done)


def _store(e: Registers, op: Op, turn: int) -> None:
    where, name = global_address(e, op), type_of(op)
    count, source, size = op.raw("SIZE"), op.raw("SRC3"), BYTES[type_of(op)]
    if not 1 <= count <= 4:
        raise Unsupported(f"a store of {count} elements")
    if size == 4:
        values = [e.word(source + k) for k in range(count)]
        if count > 1 or not (e.every or not e.both):
            store_words(e, op, where, values)
            return
        fast, slow, done = (e.new_label(name) for name in ("fast", "slow", "done"))
        good, host = _in_a_row(e, where, 4, Access.WRITE)
        e.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
        e.begin(fast)
        e.do(f"store {e.vector} {values[0]}, ptr {host}, align 1")
        e.do(f"br label %{done}")
        e.begin(slow)
        store_words(e, op, where, values)
        e.do(f"br label %{done}")
        e.begin(done)
        return
    for k in range(count):
        value = stored_narrow(e, name, source + k)
        place = where.more(e, size * k)
        note(e, op, place)
        arguments = place.arguments(e, e.exec())
        e.by_passes("", f"{PREFIX}far_store_{size}", *arguments, (e.vector, value))


def stored_narrow(e: Registers, name: str, number: int) -> str:
    """Read the value that a store of less than a word moves, as i32."""
    if name == "u8_32":
        return e.word(number)
    return e.convert("zext", "i16", "i32", e.short(number))


# ---- memory of a group ---------------------------------------------------------------------------


def _offsets(e: Registers, op: Op, field: str, more: int) -> str:
    base = e.word(op.raw(field))
    offset = op.scope.signed("OFF") + more
    return e.binary("add", "i32", base, constant("i32", offset)) if offset else base


def _load_local(e: Registers, op: Op, turn: int) -> None:
    name, target = type_of(op), op.raw("DST")
    size, count = BYTES[name], op.raw("SIZE")
    if not 1 <= count <= 4:
        raise Unsupported(f"a load of {count} elements")
    values = []
    for k in range(count):
        offsets = _offsets(e, op, "SRC", size * k)
        arguments = [CONTEXT, (e.vector, offsets), (LANES, e.exec())]
        values.append(e.by_passes("i32", f"{PREFIX}lds_load_{size}", *arguments))
    _loaded(e, name, target, values)


def _loaded(e: Registers, name: str, target: int, values: list[str]) -> None:
    for k, value in enumerate(values):
        if BYTES[name] == 4 or name == "u8_32":
            e.set_word(target + k, value)
        else:
            e.set_short(target + k, e.convert("trunc", "i32", "i16", value))


def _stored(e: Registers, name: str, number: int) -> str:
    return e.word(number) if BYTES[name] == 4 else stored_narrow(e, name, number)


def _store_local(e: Registers, op: Op, turn: int) -> None:
    name, source = type_of(op), op.raw("SRC")
    size, count = BYTES[name], op.raw("SIZE")
    if not 1 <= count <= 4:
        raise Unsupported(f"a store of {count} elements")
    for k in range(count):
        offsets = _offsets(e, op, "DST", size * k)
        arguments = [CONTEXT, (e.vector, offsets), (LANES, e.exec())]
        value = _stored(e, name, source + k)
        e.by_passes("", f"{PREFIX}lds_store_{size}", *arguments, (e.vector, value))


# ---- memory of a thread --------------------------------------------------------------------------


def _private(e: Registers, op: Op, field: str, more: int, size: int) -> list[tuple[str, str]]:
    """Return the arguments for an access of private memory; lanes beyond a thread's size do
    nothing."""
    offset = _offsets(e, op, field, more)
    bytes_each = e.value(f"load i32, ptr {e.value(_field(layout.PRIVATE_SIZE))}")
    end = e.call("i32", "llvm.usub.sat.i32", ("i32", bytes_each), ("i32", str(size - 1)))
    inside = e.as_bits(e.compare("ult", "i32", offset, e.broadcast("i32", end)))
    active = e.value(f"and {e.bits} {inside}, {e.exec()}")
    own = lanes(list(range(e.lanes)))
    if e.private_per_wave:
        low = e.binary("and", "i32", offset, constant("i32", 3))
        word = e.binary("xor", "i32", offset, low)
        place = e.binary("mul", "i32", word, constant("i32", e.lanes))
        place = e.binary("add", "i32", place, low)
        place = e.binary("add", "i32", place, lanes([4 * lane for lane in range(e.lanes)]))
    else:
        start = e.binary("mul", "i32", own, e.broadcast("i32", bytes_each))
        place = e.binary("add", "i32", start, offset)
    base = e.value(f"load i64, ptr {e.value(_field(layout.PRIVATE))}")
    number = e.value(
        f"load i32, ptr {e.value(f'getelementptr i8, ptr %wave, i64 {layout.NUMBER}')}"
    )
    stride = e.value(f"mul i32 {bytes_each}, {e.lanes}")
    ahead = e.value(f"zext i32 {e.value(f'mul i32 {number}, {stride}')} to i64")
    base = e.value(f"add i64 {base}, {ahead}")
    note(e, op)
    return [CONTEXT, ("i64", base), (e.vector, place), (LANES, active)]


def _load_private(e: Registers, op: Op, turn: int) -> None:
    name, target = type_of(op), op.raw("DST")
    size, count = BYTES[name], op.raw("SIZE")
    if not 1 <= count <= 4:
        raise Unsupported(f"a load of {count} elements")
    values = []
    for k in range(count):
        arguments = _private(e, op, "SRC", size * k, size)
        values.append(e.by_passes("i32", f"{PREFIX}near_load_{size}", *arguments))
    _loaded(e, name, target, values)


def _store_private(e: Registers, op: Op, turn: int) -> None:
    name, source = type_of(op), op.raw("SRC")
    size, count = BYTES[name], op.raw("SIZE")
    if not 1 <= count <= 4:
        raise Unsupported(f"a store of {count} elements")
    for k in range(count):
        arguments = _private(e, op, "DST", size * k, size)
        value = _stored(e, name, source + k)
        e.by_passes("", f"{PREFIX}near_store_{size}", *arguments, (e.vector, value))


# ---- atomic operations ---------------------------------------------------------------------------

_SIGNED = {"min": "min_s", "max": "max_s"}
_UNSIGNED = {"min": "min_u", "max": "max_u"}
_NAMES = {"xchg": "exch", "cmpxchg": "cas"}
PASS_HOSTS = f"<{PASS} x i64>"


def atomic_name(op: Op) -> str:
    """Return the name of the operation in `virtual.shader.atomics`."""
    name = op.name.rsplit(".", 1)[1]
    if op.raw("TYPE") == WIDE and name not in _NAMES:
        raise Unsupported(f"{op.name} of 64 bits: only exchanges are implemented, as in Mesa")
    if name in _SIGNED:
        number = op.raw("TYPE")
        return (_SIGNED if TYPES[number] == "s32" else _UNSIGNED)[name]
    if name in ("inc", "dec"):
        raise Unsupported(f"{op.name}: the wrap-around is not documented in public sources")
    return _NAMES.get(name, name)


def atomic(
    e: Registers, op: Op, hosts: str, places: list[tuple[str, str]], mask: str, data: list[str]
) -> str:
    """Change words, or pairs of them, at host addresses that a function returns; return the old
    values. data: the new value, then, for compare and swap, the expected value."""
    name = atomic_name(op)
    first, second = [*data, "zeroinitializer"][:2]
    if name == "cas":
        first, second = second, first
    bits = 64 if op.raw("TYPE") == WIDE else 32
    vector, part = e.vector_of(f"i{bits}"), PASS_HOSTS if bits == 64 else VECTOR
    number = ("i32", str(OPERATIONS[bits].index(name)))
    arguments = [(LANES, mask), number, (vector, first), (vector, second)]
    old = []
    for where, what in zip(e.cut_arguments(places), e.cut_arguments(arguments), strict=True):
        found = (PASS_HOSTS, e.call(PASS_HOSTS, PREFIX + hosts, CONTEXT, *where))
        old.append(e.call(part, f"{PREFIX}atomic_{bits}", CONTEXT, found, *what))
    return e.whole(f"i{bits}", old)


def _checked_type(op: Op) -> None:
    if TYPES[op.raw("TYPE")] not in ("u32", "s32"):
        raise Unsupported(f"{op.name} of another type than u32 and s32")


def _source_word(e: Registers, op: Op, name: str, more: int = 0) -> str:
    """Read a source that is a register or an immediate."""
    scope = op.scope.inner(name)
    if op.flag(name + "_IM"):
        return constant("i32", scope.bits)
    return e.word(scope.bits + more)


def _atomic_data(e: Registers, op: Op) -> list[str]:
    data = [_source_word(e, op, "SRC2")]
    if op.name.endswith("cmpxchg"):
        data.append(_source_word(e, op, "SRC2", 1))
    return data


def _atomic_global(e: Registers, op: Op, turn: int) -> None:
    wide = op.raw("TYPE") == WIDE
    if not wide:
        _checked_type(op)
    number, target = op.scope.inner("SRC1").bits, op.raw("DST")
    low, high = e.word(number), e.word(number + 1)
    where = Where(low, high, "0")
    data = _wide_data(e, op) if wide else _atomic_data(e, op)
    note(e, op, where)
    address = joined(e, low, high)
    if wide:  # aligned, so that all of it is in one page
        address = e.binary("and", "i64", address, constant("i64", -8))
    places = [(e.vector_of("i64"), address), (LANES, e.exec())]
    old = atomic(e, op, "ir3_hosts", places, e.exec(), data)
    for k, word in enumerate(halves(e, old) if wide else (old,)):
        e.set_word(target + k, word)


def _wide_data(e: Registers, op: Op) -> list[str]:
    if op.flag("SRC2_IM"):
        raise Unsupported(f"{op.name} of 64 bits with an immediate")
    first = op.scope.inner("SRC2").bits
    count = 4 if op.name.endswith("cmpxchg") else 2
    return [joined(e, e.word(first + k), e.word(first + k + 1)) for k in range(0, count, 2)]


def _atomic_local(e: Registers, op: Op, turn: int) -> None:
    _checked_type(op)
    places = [(e.vector, _source_word(e, op, "SRC1")), (LANES, e.exec())]
    old = atomic(e, op, "lds_hosts_4", places, e.exec(), _atomic_data(e, op))
    e.set_word(op.raw("DST"), old)


def _store_constant(e: Registers, op: Op, turn: int) -> None:
    """Emit stc: store the first active lane's words in the constant file."""
    if BYTES[type_of(op)] != 4:
        raise Unsupported("stc of halves")
    for k in range(op.raw("SIZE")):
        word = e.lane("i32", e.word(op.raw("SRC") + k), e.first())
        set_constant(e, op, k, word)


def _store_shared(e: Registers, op: Op, turn: int) -> None:
    """Emit stsc: copy shared constants, from registers of the GPU, to the constant file."""
    if BYTES[type_of(op)] != 4:
        raise Unsupported("stsc of halves")
    if not op.flag("SRC_IM"):
        raise Unsupported("stsc from a register")
    first = layout.IMMEDIATES + op.raw("SRC")
    if op.raw("SRC") + op.raw("SIZE") > layout.IMMEDIATE_WORDS:
        raise Unsupported("stsc beyond the shared constants")
    target = op.raw("DST")
    for k in range(op.raw("SIZE")):
        at = e.value(f"getelementptr i32, ptr %constants, i64 {first + k}")
        word = e.value(f"load i32, ptr {at}")
        place = min(target + k, layout.CONSTANT_WORDS)
        e.do(f"store i32 {word}, ptr {e.value(f'getelementptr i32, ptr %constants, i64 {place}')}")


def set_constant(e: Registers, op: Op, more: int, word: str) -> None:
    """Write the word of the constant file that DST selects."""
    bits = op.raw("DST")
    offset = (bits & 0xFF) + more
    if not bits >> 8:
        index = e.value(f"add i64 0, {offset}")
    else:
        wide = e.value(f"zext i32 {e.value('load i32, ptr %a1')} to i64")
        index = e.value(f"add i64 {wide}, {offset}")
    most = layout.CONSTANT_WORDS
    inside = e.value(f"icmp ult i64 {index}, {most}")
    safe = e.value(f"select i1 {inside}, i64 {index}, i64 {most}")  # one word beyond the file
    e.do(f"store i32 {word}, ptr {e.value(f'getelementptr i32, ptr %constants, i64 {safe}')}")


_ATOMIC = ("add", "sub", "xchg", "inc", "dec", "cmpxchg", "min", "max", "and", "or", "xor")


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {
        "ldg": _load, "ldg.a": _load, "stg": _store, "stg.a": _store, "ldl": _load_local,
        "stl": _store_local, "ldlw": _load_local, "stlw": _store_local, "ldp": _load_private,
        "stp": _store_private, "stc": _store_constant, "stsc": _store_shared,
    }  # fmt: skip
    for name in _ATOMIC:
        found[f"atomic.g.{name}"] = _atomic_global
        found[f"atomic.{name}"] = _atomic_local
    return found
