"""Products of matrices whose rows of A are lists: of factors, and of the rows of B they multiply.

A list leaves out zeros, so that sparse products equal those of the chip: an infinity in B that
meets no factor has no effect. During the product the matrices are in memory. The lists of A are
interleaved: factor s of row r is at s * rows + r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value

Place = Callable[[int, int], int]  # (part of registers, lane) -> index in the matrix in memory
_EIGHT, _BLOCK = 8, 64
_SIZES = {"float": 4, "i32": 4, "double": 8}


def spread(e: Lanes, base: str, values: Sequence[Value], place: Place) -> None:
    """Store values of 32 lanes at their places in a matrix."""
    element = values[0].element
    kind = f"<{_EIGHT} x {element}>"
    source = {place(part, lane): (part, lane) for part in range(len(values)) for lane in range(32)}
    for start in range(0, len(source), _EIGHT):
        wanted = [source[start + n] for n in range(_EIGHT)]
        whole = ""
        for part in sorted({part for part, _ in wanted}):
            mine = [lane if part == one else -1 for one, lane in wanted]
            text = e.value(
                f"shufflevector {e.type_of(values[part])} {values[part].text},"
                f" {e.type_of(values[part])} poison, <{_EIGHT} x i32> {_order(mine)}"
            )
            whole = _blend(e, kind, whole, text, mine)
        at = e.value(f"getelementptr {element}, ptr {base}, i64 {start}")
        e.do(f"store {kind} {whole}, ptr {at}, align {_SIZES[element]}")


def collect(e: Lanes, base: str, count: int, place: Place, element: str) -> list[Value]:
    """Load values of 32 lanes from their places in a matrix."""
    found = []
    for part in range(count):
        places = [place(part, lane) for lane in range(32)]
        whole = ""
        for block in sorted({at // _BLOCK for at in places}):
            mine = [at % _BLOCK if at // _BLOCK == block else -1 for at in places]
            at = e.value(f"getelementptr {element}, ptr {base}, i64 {_BLOCK * block}")
            wide = f"<{_BLOCK} x {element}>"
            loaded = e.value(f"load {wide}, ptr {at}, align {_SIZES[element]}")
            text = e.value(
                f"shufflevector {wide} {loaded}, {wide} poison, <32 x i32> {_order(mine)}"
            )
            whole = _blend(e, f"<32 x {element}>", whole, text, mine)
        found.append(Value(whole, element, False))
    return found


def _order(places: list[int]) -> str:
    return "<" + ", ".join("i32 poison" if at < 0 else f"i32 {at}" for at in places) + ">"


def _blend(e: Lanes, kind: str, whole: str, text: str, mine: list[int]) -> str:
    """Merge the lanes of `text` that are known into `whole`."""
    if not whole:
        return text
    count = len(mine)
    order = [count + n if at >= 0 else n for n, at in enumerate(mine)]
    return e.value(f"shufflevector {kind} {whole}, {kind} {text}, <{count} x i32> {_order(order)}")


def room(e: Lanes, element: str, count: int) -> str:
    """Allocate a matrix in memory and return its address."""
    return e.value(f"alloca [{count} x {element}], align 64")


def multiply(
    e: Lanes, element: str, rows: int, depth: int, factors: str, meets: str, second: str, sums: str
) -> None:
    """Add to each row of `sums`, which has eight columns, its factors times the rows of `second`.

    factors: of type `element`. meets: for each factor the index of its row of `second`, i32.
    """
    e.declarations.add(f"declare <8 x float> @llvm.fma.v8f32({', '.join(['<8 x float>'] * 3)})")
    e.declarations.add(f"declare <8 x double> @llvm.fma.v8f64({', '.join(['<8 x double>'] * 3)})")
    kind, size = f"<{_EIGHT} x {element}>", _SIZES[element]
    e.do("br label %enter")
    e.lines += [
        "enter:",
        "  br label %row",
        "row:",
        "  %r = phi i64 [ 0, %enter ], [ %r.next, %row.done ]",
        f"  %sum.at = getelementptr {kind}, ptr {sums}, i64 %r",
        f"  %sum.0 = load {kind}, ptr %sum.at, align {size}",
        "  br label %factor",
        "factor:",
        "  %s = phi i64 [ 0, %row ], [ %s.next, %factor ]",
        f"  %sum = phi {kind} [ %sum.0, %row ], [ %sum.new, %factor ]",
        f"  %s.row = mul i64 %s, {rows}",
        "  %place = add i64 %s.row, %r",
        f"  %x.at = getelementptr {element}, ptr {factors}, i64 %place",
        f"  %x = load {element}, ptr %x.at",
        f"  %meets.at = getelementptr i32, ptr {meets}, i64 %place",
        "  %meets.n = load i32, ptr %meets.at",
        f"  %y.at = getelementptr {kind}, ptr {second}, i32 %meets.n",
        f"  %y = load {kind}, ptr %y.at, align {size}",
        f"  %x.1 = insertelement {kind} poison, {element} %x, i32 0",
        f"  %x.v = shufflevector {kind} %x.1, {kind} poison, <{_EIGHT} x i32> zeroinitializer",
    ]
    if element == "i32":
        e.lines += [f"  %xy = mul {kind} %x.v, %y", f"  %sum.new = add {kind} %sum, %xy"]
    else:
        name = "llvm.fma.v8f32" if element == "float" else "llvm.fma.v8f64"
        e.lines.append(f"  %sum.new = call {kind} @{name}({kind} %x.v, {kind} %y, {kind} %sum)")
    e.lines += [
        "  %s.next = add i64 %s, 1",
        f"  %s.more = icmp ult i64 %s.next, {depth}",
        "  br i1 %s.more, label %factor, label %row.done",
        "row.done:",
        f"  store {kind} %sum.new, ptr %sum.at, align {size}",
        "  %r.next = add i64 %r, 1",
        f"  %r.more = icmp ult i64 %r.next, {rows}",
        "  br i1 %r.more, label %row, label %multiplied",
        "multiplied:",
    ]
