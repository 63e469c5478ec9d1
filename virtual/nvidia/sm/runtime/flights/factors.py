"""The arithmetic of a warp group's product: load factors, multiply, load and store sums.

Factors are converted to numbers of 4 bytes in rows: A as [64][k] or transposed, B as [k][column].
The products are added one after another in the order of k, each rounded to f32 (integers are
exact). The chip's order and rounding within one instruction are not documented.
Source: PTX ISA 8.x, "Register Fragments and Shared Memory Matrix Layouts" of wgmma.mma_async.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.flights.products import factor_extent, factor_turned
from ugpu.virtual.nvidia.sm.runtime.native import Native
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.shader.native import Word, joined
from ugpu.virtual.shader.text import lanes

_LINE = "<16 x {}>"
_ROW_BYTES = 4 * flight.ROW
_COLUMNS_AT_ONCE, _ROWS_AT_ONCE = 32, 4
_FLOAT8 = "<8 x float>"
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


def _minifloat(byte: int, exponent_bits: int, fraction_bits: int, bias: int) -> int:
    """Return the bits of the f32 with the value of a byte. Source: OCP 8-bit floating point."""
    sign, exponent = byte >> 7, byte >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = byte & ((1 << fraction_bits) - 1)
    top = exponent == (1 << exponent_bits) - 1
    if (fraction_bits == 2 and top) or (fraction_bits == 3 and byte & 0x7F == 0x7F):
        if fraction_bits == 2 and not fraction:
            return sign << 31 | 0x7F800000
        return 0x7FFFFFFF
    if not exponent:
        if not fraction:
            return sign << 31
        shift = fraction_bits + 1 - fraction.bit_length()
        exponent, fraction = 1 - shift, (fraction << shift) & ((1 << fraction_bits) - 1)
    return sign << 31 | (exponent - bias + 127) << 23 | fraction << (23 - fraction_bits)


def _table(name: str, *shape: int) -> str:
    numbers = ", ".join(f"i32 {_minifloat(byte, *shape)}" for byte in range(256))
    return f"@{PREFIX}of_{name} = internal constant [256 x i32] [{numbers}]\n"


def _float_line(f: Native, halves: Word, kind: str) -> Word:
    """Return eight halves (<8 x i16>) as eight f32."""
    if kind == "f16":
        cast = f.value(f"bitcast <8 x i16> {halves.text} to <8 x half>", "<8 x half>")
        return f.value(f"fpext <8 x half> {cast.text} to {_FLOAT8}", _FLOAT8)
    wide = f.value(f"zext <8 x i16> {halves.text} to <8 x i32>", "<8 x i32>") << 16
    return f.value(f"bitcast <8 x i32> {wide.text} to {_FLOAT8}", _FLOAT8)


def _unpack() -> Native:
    """factor_unpack(kind, from, to): convert 16 bytes to numbers in a row."""
    f = Native(f"{PREFIX}factor_unpack", "void", ("i64", "kind"), ("ptr", "from"), ("ptr", "to"),
               part=True)  # fmt: skip
    kind, source, target = f.given
    for number, name in enumerate(flight.KINDS):
        with f.when(kind.same(number)):
            if _BYTES[name] == 2:
                f.store(_float_line(f, f.load("<8 x i16>", source), name), target)
            elif name == "tf32":
                f.store(f.load("<4 x i32>", source) & (0xFFFFE000), target)
            elif name in ("s8", "u8"):
                grow = "sext" if name == "s8" else "zext"
                narrow = f.load("<16 x i8>", source)
                f.store(f.value(f"{grow} <16 x i8> {narrow.text} to <16 x i32>", "<16 x i32>"),
                        target)  # fmt: skip
            else:
                table = Word(f, f"@{PREFIX}of_{name}", "ptr")
                with f.count(16) as at:
                    byte = f.load("i8", source.byte(at)).to("i64")
                    f.store(f.load("i32", table.byte(byte << 2)), target.byte(at << 2))
            f.give()
    return f


def _turn() -> Native:
    """factor_turn(kind, from, to): transpose 8 chunks of 8 halves, by 8 pointers, to rows of B."""
    f = Native(f"{PREFIX}factor_turn", "void", ("i64", "kind"), ("ptr", "from"), ("ptr", "to"))
    kind, source, target = f.given
    rows = [f.load("<8 x i16>", f.load("ptr", source.byte(8 * n))) for n in range(8)]

    def shuffled(a: Word, b: Word, order: list[int]) -> Word:
        listed = ", ".join(f"i32 {n}" for n in order)
        return f.value(
            f"shufflevector <8 x i16> {a.text}, <8 x i16> {b.text}, <8 x i32> <{listed}>",
            "<8 x i16>",
        )

    for unit in (1, 2, 4):  # rows that are `unit` apart swap blocks of `unit` columns
        order = {
            half: [n + 8 * part for start in range(0, 8, 2 * unit) for part in (0, 1)
                   for n in range(start + half * unit, start + half * unit + unit)]
            for half in (0, 1)
        }  # fmt: skip
        new = list(rows)
        for n in range(8):
            if not n & unit:
                new[n] = shuffled(rows[n], rows[n + unit], order[0])
                new[n + unit] = shuffled(rows[n], rows[n + unit], order[1])
        rows = new
    for name in ("f16", "bf16"):
        with f.when(kind.same(flight.KINDS.index(name))):
            for n, row in enumerate(rows):
                f.store(_float_line(f, row, name), target.byte(n * _ROW_BYTES))
    return f


def _factor_a() -> Native:
    """factor_a(context, state, what, descriptor): store A by rows, or by k if transposed."""
    f = Native(f"{PREFIX}factor_a", "void", ("ptr", "context"), ("ptr", "state"), ("ptr", "what"),
               ("i64", "descriptor"))  # fmt: skip
    _, state, what, descriptor = f.given
    target = f.field(layout.FLIGHT, "ptr").byte(flight.FACTOR_A)
    kind = f.load("i64", what.byte(flight.KIND_A))
    room = _numbers(f, kind)
    with f.when(f.load("i64", what.byte(flight.A_HELD)).differs(0)):
        places = f.load("ptr", what.byte(flight.A_PLACES))
        stride = f.field(layout.STATE_STRIDE, "i64")
        with f.count(64) as row, f.count(2) as chunk:
            register = (chunk << 1) | ((row >> 3) & 1)
            place = f.load("i32", places.byte(register << 2)).to("i64")
            at = state.byte((row >> 4) * stride + place + ((row & 7) << 4))
            to = target.byte(((row << 1) | chunk) * (room << 2))
            f.call("void", f"{PREFIX}factor_unpack", kind, at, to)
        f.give()
    shared = f.field(layout.SHARED, "ptr")
    turned = factor_turned(f, what, f.word(0))
    outer, inner = factor_extent(f, what, f.word(0))
    with f.count(outer) as row, f.count(inner) as chunk:
        at = f.call("i64", f"{PREFIX}product_chunk", descriptor, turned, row, chunk)
        to = target.byte((row * inner + chunk) * (room << 2))
        f.call("void", f"{PREFIX}factor_unpack", kind, shared.byte(at), to)
    return f


def _numbers(f: Native, kind: Word) -> Word:
    """Return how many factors 16 bytes contain."""
    wide = kind.same(flight.KINDS.index("tf32"))
    half = kind.below(flight.KINDS.index("tf32"))
    return f.choose(wide, f.word(4), f.choose(half, f.word(8), f.word(16)))


def _factor_b() -> Native:
    """factor_b(context, what, descriptor): store B as [k][column]."""
    f = Native(f"{PREFIX}factor_b", "void", ("ptr", "context"), ("ptr", "what"),
               ("i64", "descriptor"))  # fmt: skip
    _, what, descriptor = f.given
    area = f.field(layout.FLIGHT, "ptr")
    target, spare = area.byte(flight.FACTOR_B), area.byte(flight.TURNED)
    kind = f.load("i64", what.byte(flight.KIND_B))
    room = _numbers(f, kind)
    shared = f.field(layout.SHARED, "ptr")
    turned = factor_turned(f, what, f.word(1))
    outer, inner = factor_extent(f, what, f.word(1))

    def place(row: Word, chunk: Word) -> Word:
        at = f.call("i64", f"{PREFIX}product_chunk", descriptor, turned, row, chunk)
        return shared.byte(at)

    with f.when(turned.differs(0)):
        with f.count(outer) as row, f.count(inner) as chunk:
            to = target.byte(row * _ROW_BYTES + (chunk << 5))
            f.call("void", f"{PREFIX}factor_unpack", kind, place(row, chunk), to)
        f.give()
    with f.when(room.same(8)):
        with f.count(outer, 0, 8) as first, f.count(2) as chunk:
            for line in range(8):
                f.store(place(first + line, chunk), spare.byte(8 * line))
            f.call("void", f"{PREFIX}factor_turn", kind, spare,
                   target.byte((chunk << 3) * _ROW_BYTES + (first << 2)))  # fmt: skip
        f.give()
    with f.count(outer) as row, f.count(2) as chunk:
        f.call("void", f"{PREFIX}factor_unpack", kind, place(row, chunk), spare)
        with f.count(room) as n:
            to = target.byte((chunk * room + n) * _ROW_BYTES + (row << 2))
            f.store(f.load("i32", spare.byte(n << 2)), to)
    return f


def _product() -> Native:
    """product(context, state, what, a, b): add a product of all four warps to the sums."""
    f = Native(f"{PREFIX}product", "void", ("ptr", "context"), ("ptr", "state"), ("ptr", "what"),
               ("i64", "a"), ("i64", "b"))  # fmt: skip
    context, state, what, a, b = f.given
    f.call("void", f"{PREFIX}factor_a", context, state, what, a)
    f.call("void", f"{PREFIX}factor_b", context, what, b)
    area = f.field(layout.FLIGHT, "ptr")
    kind = f.load("i64", what.byte(flight.KIND_A))
    depth = _numbers(f, kind) << 1
    factor = area.byte(flight.FACTOR_A)
    with f.when(f.load("i64", what.byte(flight.NEGATED)).differs(0)), f.count(depth << 6) as n:
        at = factor.byte(n << 2)
        f.store(f.load("i32", at) ^ (1 << 31), at)
    turned = f.load("i64", what.byte(flight.TURN_A)).differs(0)
    per_row = f.choose(turned, f.word(4), depth << 2)
    per_k = f.choose(turned, f.word(256), f.word(4))
    columns = f.load("i64", what.byte(flight.COLUMNS))
    whole = f.load("i64", what.byte(flight.RESULT)).same(flight.RESULTS.index("s32"))
    arguments = (area.byte(flight.SUMS), factor, area.byte(flight.FACTOR_B), per_row, per_k, depth,
                 columns)  # fmt: skip
    with f.when(whole):
        f.call("void", f"{PREFIX}multiply_i32", *arguments)
        f.give()
    f.call("void", f"{PREFIX}multiply_f32", *arguments)
    return f


def _multiply(element: str, name: str) -> Native:
    """multiply_<type>(sums, a, b, per_row, per_k, depth, columns): in blocks of 4 rows, 32 columns.

    per_row, per_k: bytes from one number of A to the next along a row of A and along k.
    """
    f = Native(
        f"{PREFIX}multiply_{name}", "void", ("ptr", "sums"), ("ptr", "a"), ("ptr", "b"),
        ("i64", "per_row"), ("i64", "per_k"), ("i64", "depth"), ("i64", "columns"),
    )  # fmt: skip
    sums, a, b, per_row, per_k, depth, columns = f.given
    line = _LINE.format(element)
    parts = range(_COLUMNS_AT_ONCE // 16)
    with f.count(columns, 0, _COLUMNS_AT_ONCE) as column, f.count(64, 0, _ROWS_AT_ONCE) as row:
        corner = sums.byte(row * _ROW_BYTES + (column << 2))
        places = [[corner.byte(m * _ROW_BYTES + 64 * n) for n in parts]
                  for m in range(_ROWS_AT_ONCE)]  # fmt: skip
        totals = [[f.variable(line, f.load(line, at, 64)) for at in each] for each in places]
        with f.count(depth) as k:
            across = b.byte(k * _ROW_BYTES + (column << 2))
            right = [f.load(line, across.byte(64 * n), 64) for n in parts]
            for m in range(_ROWS_AT_ONCE):
                left = f.spread(line, f.load(element, a.byte((row + m) * per_row + k * per_k), 4))
                for n in parts:
                    total = totals[m][n]
                    if element == "float":
                        total.set(f.call(line, "llvm.fma.v16f32", left, right[n], total.get()))
                    else:
                        total.set(left * right[n] + total.get())
        for each, at in zip(totals, places, strict=True):
            for total, here in zip(each, at, strict=True):
                f.store(total.get(), here, 64)
    return f


# -- sums and registers --------------------------------------------------------------------------


def _sums(name: str, out: bool) -> Native:
    """sums_in/out(context, state, places, columns, result): copy D from/to all four warps."""
    f = Native(f"{PREFIX}{name}", "void", ("ptr", "context"), ("ptr", "state"), ("i64", "places"),
               ("i64", "columns"), ("i64", "result"))  # fmt: skip
    _, state, places, columns, result = f.given
    sums = f.field(layout.FLIGHT, "ptr").byte(flight.SUMS)
    stride = f.field(layout.STATE_STRIDE, "i64")
    halves = result.same(flight.RESULTS.index("f16"))
    listed = places.to("ptr")
    with f.count(8) as half, f.count(columns >> 3) as block:  # eight rows, eight columns
        warp = state.byte((half >> 1) * stride)
        corner = sums.byte((half << 3) * _ROW_BYTES + (block << 5))
        with f.when(halves):
            at = f.load("i32", listed.byte(((block << 1) | (half & 1)) << 2)).to("i64")
            for row in range(8):
                _half_row(f, warp.byte(at + 16 * row), corner.byte(row * _ROW_BYTES), out)
        with f.when(halves ^ Word(f, "true", "i1")):
            pair = (block << 2) | ((half & 1) << 1)
            first, second = (
                warp.byte(f.load("i32", listed.byte((pair + n) << 2)).to("i64")) for n in (0, 1)
            )
            for row in range(8):
                _pair_row(f, first.byte(16 * row), second.byte(16 * row),
                          corner.byte(row * _ROW_BYTES), out)  # fmt: skip
    return f


def _half_row(f: Native, register: Word, row: Word, out: bool) -> None:
    if out:
        wide = f.load(_FLOAT8, row)
        f.store(f.value(f"fptrunc {_FLOAT8} {wide.text} to <8 x half>", "<8 x half>"), register)
        return
    wide = f.value(f"fpext <8 x half> {f.load('<8 x half>', register).text} to {_FLOAT8}", _FLOAT8)
    f.store(wide, row)


def _pair_row(f: Native, first: Word, second: Word, row: Word, out: bool) -> None:
    four, eight = "<4 x i32>", "<8 x i32>"
    if out:
        whole = f.load(eight, row)
        for parity, register in enumerate((first, second)):
            order = ", ".join(f"i32 {2 * n + parity}" for n in range(4))
            f.store(f.value(
                f"shufflevector {eight} {whole.text}, {eight} poison, <4 x i32> <{order}>", four
            ), register)  # fmt: skip
        return
    order = lanes([n // 2 + 4 * (n % 2) for n in range(8)])
    a, b = f.load(four, first), f.load(four, second)
    f.store(f.value(f"shufflevector {four} {a.text}, {four} {b.text}, <8 x i32> {order}", eight),
            row)  # fmt: skip


def factors_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    text, needed = joined([
        _unpack(), _turn(), _factor_a(), _factor_b(), _product(), _multiply("float", "f32"),
        _multiply("i32", "i32"), _sums("sums_in", False), _sums("sums_out", True),
    ])  # fmt: skip
    return _table("e4m3", 4, 3, 7) + _table("e5m2", 5, 2, 15) + text, needed
