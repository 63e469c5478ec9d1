"""Loads from shared memory by half warps: blocks of 16 threads a row are common in tiled kernels.

If the 16 lanes of each half read one address, or consecutive ones, one or two vectors are loaded
and distributed. All other patterns use the general code.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value
from ugpu.virtual.shader.text import lanes

_HALF = 16
_WIDE = "<32 x i64>"


def load(
    k: Kernel, where: Value, unit: int, count: int, mask: str,
    general: Callable[[], list[Value]],
) -> list[Value]:  # fmt: skip
    """Load `count` units a lane from shared memory; `general` emits code for other patterns."""
    first, second = (
        k.value(f"extractelement {_WIDE} {where.text}, i32 {lane}") for lane in (0, _HALF)
    )
    same, row = _patterns(k, where, unit * count, mask)
    straight = _aligned(k, first, second, unit * count)
    labels = {name: k.new_label(name) for name in ("same", "other", "row", "slow", "done")}
    good = _all(k, same, straight, _inside(k, first, second, unit * count))
    k.do(f"br i1 {good}, label %{labels['same']}, label %{labels['other']}")
    k.lines.append(f"{labels['same']}:")
    spread = _spread(k, _pointers(k, first, second), unit, count)
    k.do(f"br label %{labels['done']}")
    k.lines.append(f"{labels['other']}:")
    good = _all(k, row, straight, _inside(k, first, second, _HALF * unit * count))
    k.do(f"br i1 {good}, label %{labels['row']}, label %{labels['slow']}")
    k.lines.append(f"{labels['row']}:")
    rows = _rows(k, _pointers(k, first, second), unit, count)
    k.do(f"br label %{labels['done']}")
    k.lines.append(f"{labels['slow']}:")
    others = general()
    last = next(x[:-1] for x in reversed(k.lines) if x.endswith(":") and x[0] != " ")
    k.do(f"br label %{labels['done']}")
    k.lines.append(f"{labels['done']}:")
    kind = f"<32 x i{8 * unit}>"
    return [
        Value(
            k.value(f"phi {kind} [ {a}, %{labels['same']} ], [ {b}, %{labels['row']} ],"
                    f" [ {c.text}, %{last} ]"), f"i{8 * unit}", False,
        )
        for a, b, c in zip(spread, rows, others, strict=True)
    ]  # fmt: skip


def _patterns(k: Kernel, where: Value, size: int, mask: str) -> tuple[str, str]:
    """Return, as i1, whether each half reads one address, and whether it reads consecutive ones."""
    order = lanes([0] * _HALF + [_HALF] * _HALF)
    base = k.value(f"shufflevector {_WIDE} {where.text}, {_WIDE} poison, <32 x i32> {order}")
    steps = k.op("sub", where, Value(base, "i64", False))
    found = []
    for wanted in ([0] * 32, [size * (lane % _HALF) for lane in range(32)]):
        bits = k.mask_bits(k.cmp("eq", steps, k.each(wanted, "i64")))
        if mask != "-1":
            bits = k.value(f"or i32 {bits}, {k.value(f'xor i32 {mask}, -1')}")
        found.append(k.value(f"icmp eq i32 {bits}, -1"))
    return found[0], found[1]


def _aligned(k: Kernel, first: str, second: str, size: int) -> str:
    low = k.value(f"and i64 {k.value(f'or i64 {first}, {second}')}, {size - 1}")
    return k.value(f"icmp eq i64 {low}, 0")


def _inside(k: Kernel, first: str, second: str, size: int) -> str:
    """Return, as i1, whether `size` bytes from each address are in shared memory."""
    limit = k.context(layout.SHARED_SIZE, "i64")
    most = k.call("i64", "llvm.umax.i64", ("i64", first), ("i64", second))
    low = k.value(f"icmp ult i64 {most}, {layout.GENERIC_WINDOW_SIZE}")
    end = k.value(f"add i64 {most}, {size}")
    return k.value(f"and i1 {low}, {k.value(f'icmp ule i64 {end}, {limit}')}")


def _all(k: Kernel, *conditions: str) -> str:
    result = conditions[0]
    for condition in conditions[1:]:
        result = k.value(f"and i1 {result}, {condition}")
    return result


def _pointers(k: Kernel, first: str, second: str) -> tuple[str, str]:
    shared = k.context(layout.SHARED, "ptr")
    return (
        k.value(f"getelementptr i8, ptr {shared}, i64 {first}"),
        k.value(f"getelementptr i8, ptr {shared}, i64 {second}"),
    )


def _spread(k: Kernel, hosts: tuple[str, str], unit: int, count: int) -> list[str]:
    """Broadcast the data at a half's address to all its lanes."""
    kind = f"<{_HALF} x i{8 * unit}>"
    found = []
    for n in range(count):
        halves = []
        for host in hosts:
            at = k.value(f"getelementptr i8, ptr {host}, i64 {unit * n}")
            number = k.value(f"load i{8 * unit}, ptr {at}, align {unit}")
            one = k.value(f"insertelement {kind} poison, i{8 * unit} {number}, i32 0")
            halves.append(k.value(f"shufflevector {kind} {one}, {kind} poison, <16 x i32>"
                                  " zeroinitializer"))  # fmt: skip
        order = lanes(list(range(32)))
        found.append(
            k.value(f"shufflevector {kind} {halves[0]}, {kind} {halves[1]}, <32 x i32> {order}")
        )
    return found


def _rows(k: Kernel, hosts: tuple[str, str], unit: int, count: int) -> list[str]:
    """Distribute the data from a half's address on to its lanes, `count` units each."""
    kind = f"<{_HALF * count} x i{8 * unit}>"
    low, high = (k.value(f"load {kind}, ptr {host}, align {unit}") for host in hosts)
    found = []
    for n in range(count):
        order = lanes([n + count * lane for lane in range(32)])
        found.append(k.value(f"shufflevector {kind} {low}, {kind} {high}, <32 x i32> {order}"))
    return found
