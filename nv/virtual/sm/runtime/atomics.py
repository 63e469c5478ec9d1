"""Native functions for atomic operations at the host addresses of lanes.

Lanes go one after another, lowest first; each operation is atomic among all worker threads. Old
values come back as a vector. Floats are added by comparing and swapping.
Source: PTX ISA 8.x, "Parallel Synchronization and Communication Instructions": atom, red.
"""

from __future__ import annotations

from nv.virtual.sm.runtime import layout
from nv.virtual.sm.runtime.resolve import PREFIX, WIDE

# Operation -> LLVM's atomicrmw; the numbers passed to the native functions are their places here.
_NATIVE = {
    "exch": "xchg", "add": "add", "and": "and", "or": "or", "xor": "xor", "min_s": "min",
    "max_s": "max", "min_u": "umin", "max_u": "umax", "inc": "uinc_wrap", "dec": "udec_wrap",
}  # fmt: skip
_HALVES = tuple(f"{name}_{kind}" for name in ("add", "min", "max") for kind in ("f16", "bf16"))
_PAIRS = tuple(f"{name}x2" for name in _HALVES)
OPERATIONS = {
    16: ("exch", "cas", *_HALVES),
    32: (*_NATIVE, "cas", "add_f32", *_PAIRS),
    64: (*_NATIVE, "cas", "add_f64"),
}
WIDE_OPERATIONS = ("load", "store", "exch", "cas")  # of 128 bits


def _joined(operation: str, a: str, b: str) -> str:
    """Return the instruction that adds two floats, or takes the one that is less or more."""
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
    real = "float" if bits == 32 else "double"
    return f"""
  %{new}.a = bitcast i{bits} {old} to {real}
  %{new}.b = bitcast i{bits} %data to {real}
  %{new}.s = fadd {real} %{new}.a, %{new}.b
  %{new} = bitcast {real} %{new}.s to i{bits}
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


def _function(bits: int) -> str:
    kind = f"i{bits}"
    vector = f"<32 x {kind}>"
    names = OPERATIONS[bits]
    cases = " ".join(f"i32 {number}, label %do.{name}" for number, name in enumerate(names))
    values = ", ".join(
        f"[ %was.{name}, %{'do' if name in _NATIVE or name == 'cas' else 'try'}.{name} ]"
        for name in names
    )
    size = bits // 8
    return f"""
define {vector} @{PREFIX}atomic_{bits}(ptr %context, {WIDE} %hosts, i32 %lanes, i32 %operation,
    {vector} %datas, {vector} %others) noinline {{
entry:
  %hosts.at = getelementptr i8, ptr %context, i64 {layout.IO}
  store {WIDE} %hosts, ptr %hosts.at, align 64
  %datas.at = getelementptr i8, ptr %context, i64 {layout.IO + layout.IO_COLUMN}
  store {vector} %datas, ptr %datas.at, align 64
  %others.at = getelementptr i8, ptr %context, i64 {layout.IO + 2 * layout.IO_COLUMN}
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


def _wide_function() -> str:
    """atomic_128: the words of a lane lie in columns 1 and 2 (new or expected) and 3 and 4."""
    columns = "".join(
        f"""
  %c{n} = getelementptr i8, ptr %context, i64 {layout.IO + n * layout.IO_COLUMN}
  %p{n} = getelementptr i64, ptr %c{n}, i32 %lane
  %w{n} = load i64, ptr %p{n}
  %x{n} = zext i64 %w{n} to i128
"""
        for n in range(1, 5)
    )
    cases = " ".join(f"i32 {n}, label %do.{name}" for n, name in enumerate(WIDE_OPERATIONS))
    return f"""
define void @{PREFIX}atomic_128(ptr %context, {WIDE} %hosts, i32 %lanes, i32 %operation) noinline {{
entry:
  %hosts.at = getelementptr i8, ptr %context, i64 {layout.IO}
  store {WIDE} %hosts, ptr %hosts.at, align 64
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
{columns}
  %up1 = shl i128 %x2, 64
  %first = or i128 %x1, %up1
  %up2 = shl i128 %x4, 64
  %second = or i128 %x3, %up2
  switch i32 %operation, label %lost [ {cases} ]
lost:
  unreachable
do.load:
  %was.load = load atomic i128, ptr %at seq_cst, align 16
  br label %keep
do.store:
  store atomic i128 %first, ptr %at seq_cst, align 16
  br label %keep
do.exch:
  %was.exch = atomicrmw xchg ptr %at, i128 %first seq_cst
  br label %keep
do.cas:
  %pair = cmpxchg ptr %at, i128 %first, i128 %second seq_cst seq_cst
  %was.cas = extractvalue {{i128, i1}} %pair, 0
  br label %keep
keep:
  %was = phi i128 [ %was.load, %do.load ], [ %first, %do.store ], [ %was.exch, %do.exch ],
    [ %was.cas, %do.cas ]
  %low = trunc i128 %was to i64
  store i64 %low, ptr %p1
  %down = lshr i128 %was, 64
  %high = trunc i128 %down to i64
  store i64 %high, ptr %p2
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def atomics_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    text = "\n".join([*(_function(bits) for bits in OPERATIONS), _wide_function()])
    return text, {
        "declare i32 @llvm.cttz.i32(i32, i1)",
        "declare float @llvm.minimumnum.f32(float, float)",
        "declare float @llvm.maximumnum.f32(float, float)",
    }


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}atomic_{bits}" for bits in (*OPERATIONS, 128)]
