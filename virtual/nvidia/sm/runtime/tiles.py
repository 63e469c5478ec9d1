"""Native functions that multiply 8x8 tiles, for matrix instructions.

`tile_<type>(sums, a, b)` adds the product of a[8][4] and the transpose of b[8][4] to sums[8][8] in
memory. Both are passed as 32 lanes, row by row, as the lanes of a warp hold them. The products are
added one after another in the order of k, each rounded (f32, f64) or exact (i32).
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX

TYPES = {"f32": "float", "f64": "double", "i32": "i32"}


def _function(name: str) -> tuple[str, set[str]]:
    kind = TYPES[name]
    lanes, row = f"<32 x {kind}>", f"<8 x {kind}>"
    size = 8 if kind == "double" else 4
    lines = [
        f"define void @{PREFIX}tile_{name}(ptr %sums, {lanes} %a, {lanes} %b) noinline {{",
        "entry:",
        f"  %rows = alloca [32 x {kind}], align 64",
        f"  store {lanes} %a, ptr %rows, align 64",
    ]
    for k in range(4):
        order = ", ".join(f"i32 {4 * n + k}" for n in range(8))
        lines.append(f"  %b{k} = shufflevector {lanes} %b, {lanes} poison, <8 x i32> <{order}>")
    lines += [
        "  br label %loop",
        "loop:",
        "  %m = phi i64 [ 0, %entry ], [ %m.next, %loop ]",
        f"  %at = getelementptr {row}, ptr %sums, i64 %m",
        f"  %s0 = load {row}, ptr %at, align {8 * size}",
        f"  %row = getelementptr [4 x {kind}], ptr %rows, i64 %m",
    ]
    for k in range(4):
        lines += [
            f"  %x{k}.p = getelementptr {kind}, ptr %row, i64 {k}",
            f"  %x{k} = load {kind}, ptr %x{k}.p",
            f"  %x{k}.1 = insertelement {row} poison, {kind} %x{k}, i32 0",
            f"  %x{k}.v = shufflevector {row} %x{k}.1, {row} poison, <8 x i32> zeroinitializer",
        ]
        if kind == "i32":
            lines += [f"  %p{k} = mul {row} %x{k}.v, %b{k}",
                      f"  %s{k + 1} = add {row} %s{k}, %p{k}"]  # fmt: skip
        else:
            lines.append(
                f"  %s{k + 1} = call {row} @llvm.fma.v8{name}({row} %x{k}.v, {row} %b{k},"
                f" {row} %s{k})"
            )
    lines += [
        f"  store {row} %s4, ptr %at, align {8 * size}",
        "  %m.next = add i64 %m, 1",
        "  %more = icmp ult i64 %m.next, 8",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    needed = set()
    if kind != "i32":
        needed.add(f"declare {row} @llvm.fma.v8{name}({row}, {row}, {row})")
    return "\n".join(lines), needed


def tiles_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts, declarations = [], set()
    for name in TYPES:
        text, needed = _function(name)
        parts.append(text)
        declarations |= needed
    return "\n".join(parts), declarations


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}tile_{name}" for name in TYPES]
