"""Native functions for atomic operations at the host addresses of lanes.

Lanes are processed one after another, lowest first; each operation is atomic among all worker
threads. Old values are returned as a vector. Operations for which LLVM has no instruction use
compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.shader.library import Part
from ugpu.virtual.shader.text import PASS

# Operation -> LLVM's atomicrmw; the numbers passed to the native functions are their indices here.
_NATIVE = {
    "exch": "xchg", "add": "add", "and": "and", "or": "or", "xor": "xor", "min_s": "min",
    "max_s": "max", "min_u": "umin", "max_u": "umax", "inc": "uinc_wrap", "dec": "udec_wrap",
    "sub": "sub", "csub": "usub_sat", "cond_sub": "usub_cond",
}  # fmt: skip
_HALVES = tuple(f"{name}_{kind}" for name in ("add", "min", "max") for kind in ("f16", "bf16"))
_PAIRS = tuple(f"{name}x2" for name in _HALVES)
# Of the old value, `data` and `other`: mskor clears the bits of data and sets those of other; wrap
# subtracts data if it can, else adds other; cas_f compares as floats.
_SOLVED = ("rsub", "mskor", "wrap")
_FLOATS = ("min_f", "max_f", "cas_f")
OPERATIONS = {
    16: ("exch", "cas", *_HALVES),
    32: (*_NATIVE, "cas", "add_f32", *_PAIRS, *_SOLVED, *_FLOATS),
    64: (*_NATIVE, "cas", "add_f64", *_SOLVED, *_FLOATS),
}


def _joined(operation: str, a: str, b: str) -> str:
    """Return the instruction that adds two floats, or takes their minimum or maximum."""
    if operation == "add":
        return f"fadd float {a}, {b}"
    return f"call float @llvm.{operation}imumnum.f32(float {a}, float {b})"


def _half(operation: str, old: str, data: str, out: str) -> str:
    """Return the lines that do an operation such as "add_f16" on two i16 into %out."""
    name, _, kind = operation.partition("_")
    joined = _joined(name, f"%{out}.f1", f"%{out}.f2")
    if kind == "f16":
        return f"""
  %{out}.h1 = bitcast i16 {old} to half
  %{out}.h2 = bitcast i16 {data} to half
  %{out}.f1 = fpext half %{out}.h1 to float
  %{out}.f2 = fpext half %{out}.h2 to float
  %{out}.s = {joined}
  %{out}.h = fptrunc float %{out}.s to half
  %{out} = bitcast half %{out}.h to i16
"""
    return f"""
  %{out}.w1 = zext i16 {old} to i32
  %{out}.w2 = zext i16 {data} to i32
  %{out}.u1 = shl i32 %{out}.w1, 16
  %{out}.u2 = shl i32 %{out}.w2, 16
  %{out}.f1 = bitcast i32 %{out}.u1 to float
  %{out}.f2 = bitcast i32 %{out}.u2 to float
  %{out}.s = {joined}
  %{out}.b = bitcast float %{out}.s to i32
  %{out}.l = lshr i32 %{out}.b, 16
  %{out}.o = and i32 %{out}.l, 1
  %{out}.r = add i32 %{out}.b, 32767
  %{out}.e = add i32 %{out}.r, %{out}.o
  %{out}.t = lshr i32 %{out}.e, 16
  %{out}.n = trunc i32 %{out}.t to i16
  %{out}.nan = fcmp uno float %{out}.s, %{out}.s
  %{out} = select i1 %{out}.nan, i16 32767, i16 %{out}.n
"""


def _sum(operation: str, bits: int) -> str:
    """Return the lines that compute %new.<operation> from %old.<operation> and %data."""
    old, new = f"%old.{operation}", f"new.{operation}"
    if operation in _HALVES:
        return _half(operation, old, "%data", new)
    if operation in _PAIRS:
        lines = ""
        for part, shift in (("l", 0), ("h", 16)):
            lines += f"""
  %{new}.{part}.os = lshr i32 {old}, {shift}
  %{new}.{part}.ds = lshr i32 %data, {shift}
  %{new}.{part}.ot = trunc i32 %{new}.{part}.os to i16
  %{new}.{part}.dt = trunc i32 %{new}.{part}.ds to i16
"""
            lines += _half(
                operation[:-2], f"%{new}.{part}.ot", f"%{new}.{part}.dt", f"{new}.{part}"
            )
        return (
            lines
            + f"""
  %{new}.lw = zext i16 %{new}.l to i32
  %{new}.hw = zext i16 %{new}.h to i32
  %{new}.hu = shl i32 %{new}.hw, 16
  %{new} = or i32 %{new}.lw, %{new}.hu
"""
        )
    if operation in _SOLVED:
        return _solved(operation, f"i{bits}", old, new)
    real, suffix = ("float", "f32") if bits == 32 else ("double", "f64")
    if operation == "cas_f":  # data: the expected value
        return f"""
  %{new}.a = bitcast i{bits} {old} to {real}
  %{new}.b = bitcast i{bits} %data to {real}
  %{new}.c = fcmp oeq {real} %{new}.a, %{new}.b
  %{new} = select i1 %{new}.c, i{bits} %other, i{bits} {old}
"""
    joined = f"fadd {real} %{new}.a, %{new}.b"
    if operation in _FLOATS:
        name = f"llvm.{operation[:3]}num.{suffix}"
        joined = f"call {real} @{name}({real} %{new}.a, {real} %{new}.b)"
    return f"""
  %{new}.a = bitcast i{bits} {old} to {real}
  %{new}.b = bitcast i{bits} %data to {real}
  %{new}.s = {joined}
  %{new} = bitcast {real} %{new}.s to i{bits}
"""


def _solved(operation: str, kind: str, old: str, new: str) -> str:
    if operation == "rsub":
        return f"\n  %{new} = sub {kind} %data, {old}\n"
    if operation == "mskor":
        return f"""
  %{new}.i = xor {kind} %data, -1
  %{new}.k = and {kind} {old}, %{new}.i
  %{new} = or {kind} %{new}.k, %other
"""
    return f"""
  %{new}.e = icmp uge {kind} {old}, %data
  %{new}.l = sub {kind} {old}, %data
  %{new}.u = add {kind} {old}, %other
  %{new} = select i1 %{new}.e, {kind} %{new}.l, {kind} %{new}.u
"""


def _case(operation: str, bits: int) -> str:
    kind = f"i{bits}"
    if operation in _NATIVE:
        return f"""
do.{operation}:
  %was.{operation} = atomicrmw {_NATIVE[operation]} ptr %at, {kind} %data seq_cst
  br label %keep
"""
    if operation == "cas":
        return f"""
do.cas:
  %pair.cas = cmpxchg ptr %at, {kind} %data, {kind} %other seq_cst seq_cst
  %was.cas = extractvalue {{{kind}, i1}} %pair.cas, 0
  br label %keep
"""
    return f"""
do.{operation}:
  %before.{operation} = load atomic {kind}, ptr %at monotonic, align {bits // 8}
  br label %try.{operation}
try.{operation}:
  %old.{operation} = phi {kind} [ %before.{operation}, %do.{operation} ],
    [ %was.{operation}, %try.{operation} ]
{_sum(operation, bits)}
  %pair.{operation} = cmpxchg ptr %at, {kind} %old.{operation}, {kind} %new.{operation} seq_cst
    seq_cst
  %was.{operation} = extractvalue {{{kind}, i1}} %pair.{operation}, 0
  %won.{operation} = extractvalue {{{kind}, i1}} %pair.{operation}, 1
  br i1 %won.{operation}, label %keep, label %try.{operation}
"""


def _function(prefix: str, room: int, bits: int) -> str:
    kind = f"i{bits}"
    vector, wide = f"<{PASS} x {kind}>", f"<{PASS} x i64>"
    names = OPERATIONS[bits]
    cases = " ".join(f"i32 {number}, label %do.{name}" for number, name in enumerate(names))
    values = ", ".join(
        f"[ %was.{name}, %{'do' if name in _NATIVE or name == 'cas' else 'try'}.{name} ]"
        for name in names
    )
    size = bits // 8
    return f"""
define {vector} @{prefix}atomic_{bits}(ptr %context, {wide} %hosts, i32 %lanes, i32 %operation,
    {vector} %datas, {vector} %others) noinline {{
entry:
  %hosts.at = getelementptr i8, ptr %context, i64 {room}
  %datas.at = getelementptr i8, ptr %context, i64 {room + 8 * PASS}
  %others.at = getelementptr i8, ptr %context, i64 {room + 16 * PASS}
  store {wide} %hosts, ptr %hosts.at, align 64
  store {vector} %datas, ptr %datas.at, align 64
  store {vector} %others, ptr %others.at, align 64
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %done, label %loop
loop:
  %left = phi i32 [ %lanes, %entry ], [ %rest, %keep ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %host.at = getelementptr i64, ptr %hosts.at, i32 %lane
  %host = load i64, ptr %host.at
  %at = inttoptr i64 %host to ptr
  %data.at = getelementptr {kind}, ptr %datas.at, i32 %lane
  %data = load {kind}, ptr %data.at, align {size}
  %other.at = getelementptr {kind}, ptr %others.at, i32 %lane
  %other = load {kind}, ptr %other.at, align {size}
  switch i32 %operation, label %lost [ {cases} ]
lost:
  unreachable
{"".join(_case(name, bits) for name in names)}
keep:
  %was = phi {kind} {values}
  store {kind} %was, ptr %data.at, align {size}
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  %result = load {vector}, ptr %datas.at, align 64
  ret {vector} %result
}}
"""


ATOMIC_DECLARATIONS = {"declare i32 @llvm.cttz.i32(i32, i1)"}


def atomics_ir(
    prefix: str, room: int, sizes: Sequence[int] = tuple(OPERATIONS)
) -> tuple[str, set[str]]:
    """Return the IR of `<prefix>atomic_<bits>(context, hosts, lanes, operation, data, other)` and
    the declarations it needs. sizes: values of bits. operation: its index in OPERATIONS. room:
    offset of 768 bytes in the context for these functions (using the stack would make them a fifth
    slower)."""
    needed = {f"declare float @llvm.{name}imumnum.f32(float, float)" for name in ("min", "max")}
    for real, suffix in (("float", "f32"), ("double", "f64")):
        for name in ("minnum", "maxnum"):
            needed.add(f"declare {real} @llvm.{name}.{suffix}({real}, {real})")
    text = "\n".join(_function(prefix, room, bits) for bits in sizes)
    return text, needed | ATOMIC_DECLARATIONS


def part(prefix: str, room: int, sizes: Sequence[int] = tuple(OPERATIONS)) -> Part:
    """Return the functions as part of a library; see `atomics_ir`."""
    return lambda: atomics_ir(prefix, room, sizes), [f"{prefix}atomic_{bits}" for bits in sizes]
