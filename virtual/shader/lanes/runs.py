"""Accesses to several pages whose lanes come in runs: the addresses of each four lanes are
contiguous.

Tiles of arrays have this form: some lanes for each row, each row in its own page. Four lanes then
need one TLB look-up, and are moved at once. All other accesses, including those to a page that is
not in the TLB, are left to the loops over lanes of `calls`.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import SIZES, data_parameter
from ugpu.virtual.shader.lanes.rows import Rows, load_block, store_block
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import constant, field, lanes
from ugpu.virtual.shader.tlb import PAGE, pages_of, row_at

RUN = 4  # lanes
WIDE = "<32 x i64>"
STARTS = f"<{32 // RUN} x i64>"


def run_starts() -> str:
    """Return, for each lane, the first lane of its run."""
    return lanes([lane // RUN * RUN for lane in range(32)])


def _move(e: Rows, store: bool, size: int, pointers: list[str]) -> None:
    """Move the runs at `pointers` from or to the columns, or the first IO column."""
    if size > 4:
        (store_block if store else load_block)(e, size, pointers)
        return
    kind = f"i{8 * size}"
    column = e.value(f"getelementptr i8, ptr %context, i64 {context.IO}")
    if not store:
        parts = [e.value(f"load <{RUN} x {kind}>, ptr {at}, align 1") for at in pointers]
        whole = e.joined(RUN, parts, kind)
        if size < 4:
            whole = e.value(f"zext <32 x {kind}> {whole} to <32 x i32>")
        e.do(f"store <32 x i32> {whole}, ptr {column}, align 64")
        return
    whole = e.value(f"load <32 x i32>, ptr {column}, align 64")
    for number, at in enumerate(pointers):
        part = e.pick(32, whole, "poison", [RUN * number + k for k in range(RUN)])
        if size < 4:  # after the pick: LLVM 22 without its combiner picks other bytes of 32
            part = e.value(f"trunc <{RUN} x i32> {part} to <{RUN} x {kind}>")
        e.do(f"store <{RUN} x {kind}> {part}, ptr {at}, align 1")


def _looked_up(e: Rows, access: Access) -> tuple[list[str], str]:
    """Look the runs' pages up in the TLB; return the runs' addresses, and a number that is zero if
    all pages were found."""
    order = ", ".join(f"i32 {first}" for first in range(0, 32, RUN))
    starts = e.value(f"shufflevector {WIDE} %addresses, {WIDE} poison, <8 x i32> <{order}>")
    page, rows = pages_of(e, starts, STARTS)
    hosts, wrong = [], "0"
    for number in range(32 // RUN):
        picked = e.value(f"extractelement {STARTS} {rows}, i32 {number}")
        tag, delta = row_at(e, "%tlb", picked, access)
        wanted = e.value(f"extractelement {STARTS} {page}, i32 {number}")
        wrong = e.value(f"or i64 {wrong}, {e.value(f'xor i64 {tag}, {wanted}')}")
        start = e.value(f"extractelement {STARTS} {starts}, i32 {number}")
        hosts.append(e.value(f"inttoptr i64 {e.value(f'add i64 {start}, {delta}')} to ptr"))
    return hosts, wrong


def _access(store: bool, size: int) -> str:
    verb, access = ("store", Access.WRITE) if store else ("load", Access.READ)
    look, move = Rows("l"), Rows("m")
    hosts, wrong = _looked_up(look, access)
    _move(move, store, size, hosts)
    order = run_starts()
    steps = lanes([lane % RUN * size for lane in range(32)], "i64")
    data = data_parameter(size)
    return f"""
define internal void @runs_{verb}_{size}(ptr %context, {WIDE} %addresses,
    i32 %lanes{data}) noinline {{
entry:
  %firsts = shufflevector {WIDE} %addresses, {WIDE} poison, <32 x i32> {order}
  %wanted = add {WIDE} %firsts, {steps}
  %differ = icmp ne {WIDE} %wanted, %addresses
  %inside = and {WIDE} %firsts, {constant("i64", PAGE - 1)}
  %cross = icmp ugt {WIDE} %inside, {constant("i64", PAGE - RUN * size)}
  %either = or <32 x i1> %differ, %cross
  %bits = bitcast <32 x i1> %either to i32
  %off = xor i32 %lanes, -1
  %bad = or i32 %bits, %off
  %good = icmp eq i32 %bad, 0
  br i1 %good, label %runs, label %every
runs:
{field("tlb", context.TLB, "ptr")}{look.text()}
  %found = icmp eq i64 {wrong}, 0
  br i1 %found, label %whole, label %every, !prof !0
whole:
{move.text()}
  ret void
every:
  call void @slow_{verb}_{size}(ptr %context, {WIDE} %addresses, i32 %lanes{data})
  ret void
}}
"""


def runs_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return "\n".join(_access(store, size) for store in (False, True) for size in SIZES), set()
