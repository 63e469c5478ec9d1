"""Two loads from local memory that together read 32 bytes a lane, as for matrix operands.

If lanes 16..31 read the same data as lanes 0..15, and the distance to the second lane after is the
same for each lane (as for the rows and columns of a fragment), 16 rows of 32 bytes are transposed
into eight columns in one step. All other accesses are two loads of `local`.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.lanes.rows import HALF, Rows, numbers
from ugpu.virtual.shader.text import constant, field, splat

VECTOR = "<32 x i32>"
NAME = PREFIX + "lds_load_pair"
FRAGMENT = PREFIX + "lds_load_fragment"


def _turned(e: Rows, halves: tuple[int, ...]) -> None:
    """Load the rows of lanes 0..15, and store the columns to these halves of %low and %high."""
    rows = []
    for lane in range(16):
        far = e.value(f"mul i64 %stride, {lane // 2}")
        at = e.value(f"getelementptr i8, ptr %start{lane % 2}, i64 {far}")
        rows.append(e.value(f"load <8 x i32>, ptr {at}, align 1"))
    # A vector holds lanes k and k + 4; transposed, its parts are columns c, c + 4, c, c + 4.
    parts = []
    for eight in (0, 8):
        vectors = [e.joined(8, [rows[eight + k], rows[eight + 4 + k]]) for k in range(4)]
        parts.append(e.turned(*vectors))
    for column, (first, second) in enumerate(zip(*parts, strict=True)):
        for data, start in (("%low", 0), ("%high", 4)):
            order = [16 * side + start + place + k
                     for side in (0, 1) for place in (0, 8) for k in range(4)]  # fmt: skip
            whole = e.pick(16, first, second, order)
            for half in halves:
                place = column * context.IO_COLUMN + 64 * half
                at = e.value(f"getelementptr i8, ptr {data}, i64 {place}")
                e.do(f"store {HALF} {whole}, ptr {at}, align 64")


def _after(count: int) -> str:
    """Return the numbers of the lanes `count` further on, as a mask of shufflevector."""
    order = [f"i32 {lane + count}" if lane + count < 16 else "i32 poison" for lane in range(16)]
    return "<" + ", ".join(order) + ">"


def _start(lane: int) -> str:
    return (
        f"  %offset{lane} = extractelement {HALF} %first, i32 {lane}\n"
        f"  %wide{lane} = zext i32 %offset{lane} to i64\n"
        f"  %start{lane} = getelementptr i8, ptr %lds, i64 %wide{lane}\n"
    )


def pairs_ir() -> tuple[str, set[str]]:
    """Return the IR of `lds_load_pair(context, addresses, low, high)`: it loads, for every lane, 16
    bytes at its address to the columns at `low`, and the following 16 bytes to those at `high`; and
    of `lds_load_fragment`, which may leave lanes 16..31 of the columns as they were."""
    return _function(NAME, (0, 1)) + _function(FRAGMENT, (0,)), set()


def _function(name: str, halves: tuple[int, ...]) -> str:
    e = Rows("p")
    _turned(e, halves)
    return f"""
define void @{name}(ptr %context, {VECTOR} %addresses, ptr %low, ptr %high) noinline {{
{field("lds", context.SHARED, "ptr")}{field("lds.size", context.SHARED_SIZE, "i64")}
  %limit = trunc i64 %lds.size to i32
  %end = call i32 @llvm.usub.sat.i32(i32 %limit, i32 31)
{splat("end.v", "i32", "%end")}
  %inside = icmp ult {VECTOR} %addresses, %end.v
  %inside.bits = bitcast <32 x i1> %inside to i32
  %all.inside = icmp eq i32 %inside.bits, -1
  %first = shufflevector {VECTOR} %addresses, {VECTOR} poison, {HALF} {numbers(0)}
  %second = shufflevector {VECTOR} %addresses, {VECTOR} poison, {HALF} {numbers(16)}
  %differ = icmp ne {HALF} %first, %second
  %differ.bits = bitcast <16 x i1> %differ to i16
  %same = icmp eq i16 %differ.bits, 0
  %next = shufflevector {HALF} %first, {HALF} poison, {HALF} {_after(2)}
  %strides = sub {HALF} %next, %first
  %stride.32 = extractelement {HALF} %strides, i32 0
  %stride.1 = insertelement {HALF} poison, i32 %stride.32, i32 0
  %stride.v = shufflevector {HALF} %stride.1, {HALF} poison, {HALF} zeroinitializer
  %equal = icmp eq {HALF} %strides, %stride.v
  %equal.bits = bitcast <16 x i1> %equal to i16
  %equal.some = or i16 %equal.bits, {-1 << 14}
  %even = icmp eq i16 %equal.some, -1
  %good.1 = and i1 %same, %all.inside
  %good = and i1 %good.1, %even
  br i1 %good, label %rows, label %each
rows:
  %stride = sext i32 %stride.32 to i64
{_start(0)}{_start(1)}{e.text()}
  ret void
each:
  call void @{PREFIX}lds_load_16(ptr %context, {VECTOR} %addresses, i32 -1, ptr %low)
  %behind = add {VECTOR} %addresses, {constant("i32", 16)}
  call void @{PREFIX}lds_load_16(ptr %context, {VECTOR} %behind, i32 -1, ptr %high)
  ret void
}}
"""


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [NAME, FRAGMENT]
