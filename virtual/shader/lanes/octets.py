"""Accesses of all lanes in which each eight lanes are contiguous: rows of a tile of an array.

Eight lanes then need one TLB look-up, and their row is moved at once. Each row may lie in a
different page. All other accesses, including those to a page that is not in the TLB, continue at
%plain.

A load in a loop usually advances by equal steps: the host prefetches the rows that come next in
that case. A load is identified by the address of its columns, which no other load of the wave has
at that time.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.context import VISITED, VISITS
from ugpu.virtual.shader.lanes.rows import Rows, load_block, store_block
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import field, lanes
from ugpu.virtual.shader.tlb import PAGE, pages_of, row_at

ROW = 8  # lanes
_VECTOR = "<32 x i32>"
_LINE = 64  # bytes that hosts fetch at once
_COLUMNS_SHIFT = 9  # of the columns of the widest load


def _row(e: Rows, lane: int, size: int, access: Access) -> tuple[str, str]:
    """Return the address of the row that begins with a lane, and a number that is zero if its page
    is in the TLB."""
    bytes_ = ROW * size
    offset = e.value(f"extractelement {_VECTOR} %offsets, i32 {lane}")
    wraps = e.value(f"icmp ugt i32 {offset}, {(1 << 32) - bytes_}")
    address = e.value(f"add i64 %base, {e.value(f'zext i32 {offset} to i64')}")
    inside = e.value(f"and i64 {address}, {PAGE - 1}")
    crosses = e.value(f"icmp ugt i64 {inside}, {PAGE - bytes_}")
    page, offset = pages_of(e, address)
    tag, delta = row_at(e, "%o.tlb", offset, access)
    either = e.value(f"or i1 {wraps}, {crosses}")
    wrong = e.value(f"xor i64 {tag}, {page}")
    wrong = e.value(f"or i64 {wrong}, {e.value(f'zext i1 {either} to i64')}")
    return e.value(f"inttoptr i64 {e.value(f'add i64 {address}, {delta}')} to ptr"), wrong


def _announce(e: Rows, hosts: list[str], size: int) -> None:
    """Prefetch rows as far ahead as this load has moved since it last ran, in case the next rows
    are there; invalid addresses do no harm."""
    columns = e.value("ptrtoint ptr %data to i64")
    number = e.value(f"and i64 {e.value(f'lshr i64 {columns}, {_COLUMNS_SHIFT}')}, {VISITS - 1}")
    offset = e.value(f"add i64 {e.value(f'shl i64 {number}, 3')}, {VISITED}")
    place = e.value(f"getelementptr i8, ptr %context, i64 {offset}")
    last = e.value(f"load i64, ptr {place}")
    here = e.value(f"ptrtoint ptr {hosts[0]} to i64")
    e.do(f"store i64 {here}, ptr {place}")
    step = e.value(f"sub i64 {here}, {last}")
    for host in hosts:
        for line in range(0, ROW * size, _LINE):
            ahead = e.value(f"getelementptr i8, ptr {host}, i64 {step}")
            at = e.value(f"getelementptr i8, ptr {ahead}, i64 {line}")
            e.do(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 2, i32 1)")


def octets_ir(store: bool, size: int) -> str:
    """Return the lines that make the access, at %base + %offsets, if it has this form; else
    %plain."""
    look, move = Rows("ol"), Rows("om")
    found = [
        _row(look, lane, size, Access.WRITE if store else Access.READ) for lane in range(0, 32, ROW)
    ]
    wrong = found[0][1]
    for _, other in found[1:]:
        wrong = look.value(f"or i64 {wrong}, {other}")
    hosts = [host for host, _ in found]
    if not store:
        _announce(move, hosts, size)
    (store_block if store else load_block)(move, size, hosts)
    firsts = lanes([lane // ROW * ROW for lane in range(32)])
    steps = lanes([lane % ROW * size for lane in range(32)])
    return f"""
  %o.all = icmp eq i32 %lanes, -1
  %o.firsts = shufflevector {_VECTOR} %offsets, {_VECTOR} poison, {_VECTOR} {firsts}
  %o.wanted = add {_VECTOR} %o.firsts, {steps}
  %o.follow = icmp eq {_VECTOR} %o.wanted, %offsets
  %o.bits = bitcast <32 x i1> %o.follow to i32
  %o.rows = icmp eq i32 %o.bits, -1
  %o.try = and i1 %o.rows, %o.all
  br i1 %o.try, label %octets, label %plain
octets:
{field("o.tlb", context.TLB, "ptr")}{look.text()}
  %o.there = icmp eq i64 {wrong}, 0
  br i1 %o.there, label %octets.move, label %plain
octets.move:
{move.text()}
  ret void
plain:
"""
