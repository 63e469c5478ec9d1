"""Native functions that load and store at the host addresses of lanes.

Up to eight bytes a lane are passed in registers. For larger sizes, each eight bytes of all lanes
are one column of the context's IO area. Loads of one and two bytes are zero-extended to 32 bits.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import MASK, PREFIX, WIDE

SIZES = (1, 2, 4, 8, 16, 32)


def _narrow_load(size: int) -> str:
    kind = f"i{8 * size}"
    lines = [
        f"define <32 x i32> @{PREFIX}load_{size}(ptr %context, {WIDE} %hosts, i32 %lanes)"
        " noinline {",
        f"  %p = inttoptr {WIDE} %hosts to <32 x ptr>",
    ]
    last = "poison"
    for lane in range(32):
        lines += [
            f"  %p{lane} = extractelement <32 x ptr> %p, i32 {lane}",
            f"  %x{lane} = load {kind}, ptr %p{lane}",
            f"  %v{lane} = insertelement <32 x {kind}> {last}, {kind} %x{lane}, i32 {lane}",
        ]
        last = f"%v{lane}"
    lines += [f"  %r = zext <32 x {kind}> {last} to <32 x i32>", "  ret <32 x i32> %r", "}"]
    return "\n".join(lines)


def _narrow_store(size: int) -> str:
    kind = f"i{8 * size}"
    lines = [
        f"define void @{PREFIX}store_{size}(ptr %context, {WIDE} %hosts, i32 %lanes,"
        " <32 x i32> %data) noinline {",
        f"  %p = inttoptr {WIDE} %hosts to <32 x ptr>",
        f"  %n = trunc <32 x i32> %data to <32 x {kind}>",
    ]
    for lane in range(32):
        lines += [
            f"  %p{lane} = extractelement <32 x ptr> %p, i32 {lane}",
            f"  %x{lane} = extractelement <32 x {kind}> %n, i32 {lane}",
            f"  store {kind} %x{lane}, ptr %p{lane}",
        ]
    return "\n".join([*lines, "  ret void", "}"])


def _load(size: int) -> str:
    kind = f"i{8 * size}"
    vector = f"<32 x {kind}>"
    return f"""
define {vector} @{PREFIX}load_{size}(ptr %context, {WIDE} %hosts, i32 %lanes) noinline {{
  %p = inttoptr {WIDE} %hosts to <32 x ptr>
  %mask = bitcast i32 %lanes to {MASK}
  %v = call {vector} @llvm.masked.gather.v32{kind}.v32p0(<32 x ptr> align {size} %p,
    {MASK} %mask, {vector} zeroinitializer)
  ret {vector} %v
}}
"""


def _store(size: int) -> str:
    kind = f"i{8 * size}"
    vector = f"<32 x {kind}>"
    return f"""
define void @{PREFIX}store_{size}(ptr %context, {WIDE} %hosts, i32 %lanes, {vector} %data)
    noinline {{
  %p = inttoptr {WIDE} %hosts to <32 x ptr>
  %mask = bitcast i32 %lanes to {MASK}
  call void @llvm.masked.scatter.v32{kind}.v32p0({vector} %data, <32 x ptr> align {size} %p,
    {MASK} %mask)
  ret void
}}
"""


def _wide(size: int, store: bool) -> str:
    verb = "store" if store else "load"
    lines = [
        f"define void @{PREFIX}{verb}_{size}(ptr %context, {WIDE} %hosts, i32 %lanes) noinline {{",
        f"  %p = inttoptr {WIDE} %hosts to <32 x ptr>",
        f"  %mask = bitcast i32 %lanes to {MASK}",
    ]
    for k in range(size // 8):
        lines.append(f"  %p{k} = getelementptr i8, <32 x ptr> %p, i64 {8 * k}")
        lines.append(
            f"  %c{k} = getelementptr i8, ptr %context, i64 {layout.IO + k * layout.IO_COLUMN}"
        )
        if store:
            lines.append(f"  %v{k} = load {WIDE}, ptr %c{k}, align 64")
            lines.append(
                f"  call void @llvm.masked.scatter.v32i64.v32p0({WIDE} %v{k},"
                f" <32 x ptr> align 8 %p{k}, {MASK} %mask)"
            )
        else:
            lines.append(
                f"  %v{k} = call {WIDE} @llvm.masked.gather.v32i64.v32p0(<32 x ptr> align 8 %p{k},"
                f" {MASK} %mask, {WIDE} zeroinitializer)"
            )
            lines.append(f"  store {WIDE} %v{k}, ptr %c{k}, align 64")
    return "\n".join([*lines, "  ret void", "}"])


def access_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts = [_narrow_load(1), _narrow_load(2), _narrow_store(1), _narrow_store(2)]
    parts += [_load(4), _load(8), _store(4), _store(8)]
    parts += [_wide(size, store) for size in (16, 32) for store in (False, True)]
    declarations = set()
    for kind in ("i32", "i64"):
        vector = f"<32 x {kind}>"
        declarations.add(
            f"declare {vector} @llvm.masked.gather.v32{kind}.v32p0(<32 x ptr>, {MASK}, {vector})"
        )
        declarations.add(
            f"declare void @llvm.masked.scatter.v32{kind}.v32p0({vector}, <32 x ptr>, {MASK})"
        )
    return "\n".join(parts), declarations


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [f"{PREFIX}{verb}_{size}" for verb in ("load", "store") for size in SIZES]
