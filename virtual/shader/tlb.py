"""Native code for look-ups in a worker's TLB; see `virtual.shader.memory`."""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.virtual.shader import context
from ugpu.virtual.shader.memory import (
    DELTA,
    PAGE_SHIFT,
    READ_TAG,
    TLB_COLUMNS,
    TLB_SETS,
    WRITE_TAG,
    Access,
)
from ugpu.virtual.shader.text import Text

PAGE = 1 << PAGE_SHIFT
NAMES = {Access.READ: "read", Access.WRITE: "write"}
ATOMIC_NAMES = {Access.ATOMIC: "atomic", Access.ATOMIC_LOCAL: "atomic_local"}
_ROW_SHIFT = (8 * TLB_COLUMNS).bit_length() - 1


def tlb_of(e: Text) -> str:
    """Load the address of the worker's TLB."""
    return e.value(f"load ptr, ptr {e.value(f'getelementptr i8, ptr %context, i64 {context.TLB}')}")


def pages_of(e: Text, addresses: str, kind: str = "i64") -> tuple[str, str]:
    """Return the page of an address, and the offset of its row, as in `tlb_set`; `kind` may be a
    vector of i64."""

    def number(value: int) -> str:
        return f"splat (i64 {value})" if kind.startswith("<") else str(value)

    page = e.value(f"lshr {kind} {addresses}, {number(PAGE_SHIFT)}")
    high = e.value(f"lshr {kind} {page}, {number(6)}")
    fold = e.value(f"and {kind} {high}, {number(-64)}")
    mixed = e.value(f"xor {kind} {page}, {fold}")
    entry = e.value(f"and {kind} {mixed}, {number(TLB_SETS - 1)}")
    return page, e.value(f"shl {kind} {entry}, {number(_ROW_SHIFT)}")


def columns_of(access: Access) -> tuple[int, int]:
    """Return the columns of a row that hold the page translated for an access, and the distance to
    its host address."""
    return 8 * (WRITE_TAG if access.writes else READ_TAG), 8 * DELTA


def row_at(e: Text, tlb: str, offset: str, access: Access) -> tuple[str, str]:
    """Read the row at an offset: the page it translates, and the distance to its host address."""
    row = e.value(f"getelementptr i8, ptr {tlb}, i64 {offset}")
    tag_at, delta_at = (
        e.value(f"getelementptr i8, ptr {row}, i64 {place}") for place in columns_of(access)
    )
    tag = e.value(f"load atomic i64, ptr {tag_at} monotonic, align 8")
    return tag, e.value(f"load atomic i64, ptr {delta_at} monotonic, align 8")


def hit(e: Text, tlb: str, address: str, size: int, access: Access) -> tuple[str, str]:
    """Look an address up; return whether `size` bytes may be accessed (i1), and their address
    (ptr)."""
    page, offset = pages_of(e, address)
    tag, delta = row_at(e, tlb, offset, access)
    good = e.value(f"icmp eq i64 {tag}, {page}")
    inside = e.value(f"and i64 {address}, {PAGE - 1}")
    fits = e.value(f"icmp ule i64 {inside}, {PAGE - size}")
    host = e.value(f"add i64 {address}, {delta}")
    return e.value(f"and i1 {good}, {fits}"), e.value(f"inttoptr i64 {host} to ptr")


def translate_ir(prefix: str, names: Mapping[Access, str] = NAMES) -> str:
    """Return the IR of `<prefix>translate_<name>`, for each access by its name: an address to its
    host address.

    A miss calls the model, which returns a host address even for a fault.
    """
    return "\n".join(_translate(prefix, access, name) for access, name in names.items())


def _translate(prefix: str, access: Access, name: str) -> str:
    e = Text()
    page, offset = pages_of(e, "%address")
    tag, delta = row_at(e, tlb_of(e), offset, access)
    found = e.value(f"icmp eq i64 {tag}, {page}")
    e.do(f"br i1 {found}, label %found, label %miss, !prof !0")
    e.begin("found")
    e.do(f"ret i64 {e.value(f'add i64 %address, {delta}')}")
    e.begin("miss")
    at = e.value(f"getelementptr i8, ptr %context, i64 {context.REFILL}")
    refill = e.value(f"load ptr, ptr {at}")
    e.do(f"ret i64 {e.value(f'call i64 {refill}(i64 %address, i32 {int(access)})')}")
    head = f"define i64 @{prefix}translate_{name}(ptr %context, i64 %address) noinline"
    return f"{head} {{\n{e.text()}\n}}\n"
