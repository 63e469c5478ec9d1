"""Asynchronous products of a warp group: wgmma.mma_async, its fence, groups and waiting.

Source: PTX ISA 8.x, "Asynchronous Warpgroup Level Matrix Instructions": wgmma.mma_async,
wgmma.fence, wgmma.commit_group, wgmma.wait_group, "Matrix Descriptor Format".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Integer, Operand, Register
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.matrix.held import names_of

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_INTEGERS = ("s8", "u8")
_MATES = ({"e4m3", "e5m2"}, {"s8", "u8"})
_INTEGER_COLUMNS = (8, 24)


@dataclass(frozen=True)
class _Kind:
    """columns: of B and D. result: type of D. first, second: types of A and B."""

    columns: int
    result: str
    first: str
    second: str

    @property
    def sums(self) -> int:
        """Number of registers of D."""
        return self.columns // (4 if self.result == "f16" else 2)


def _emit(k: Kernel, i: Instruction) -> None:
    if not {"sync", "aligned"} <= set(i.modifiers):
        raise k.bad("expected .sync.aligned")
    what = i.modifiers[0]
    mask = _whole(k)
    if mask is not None:
        skip, on = k.new_label("skip"), k.new_label("on")
        some = k.value(f"icmp ne i32 {mask}, 0")
        k.do(f"br i1 {some}, label %{on}, label %{skip}")
        k.begin(on)
    if what == "fence":
        for table in range(len(k.held.tables)):
            k.do(f"store i64 0, ptr {_note(k, table, 8)}")
    elif what == "commit_group":
        k.call("void", f"{PREFIX}product_commit", ("ptr", "%context"))
    elif what == "mma_async":
        _product(k, i)
    else:
        raise k.unsupported()
    k.touched.clear()
    if mask is not None:
        k.do(f"br label %{skip}")
        k.begin(skip)


def _whole(k: Kernel) -> str | None:
    """Check that all lanes or none execute this; return them, or None if all always do."""
    mask = k.mask()
    if mask == "-1":
        return None
    some = k.value(f"icmp ne i32 {mask}, 0")
    rest = k.value(f"xor i32 {mask}, -1")
    k.fault_if(k.value(f"select i1 {some}, i32 {rest}, i32 0"), layout.NOT_TOGETHER)
    return mask


def _note(k: Kernel, table: int, offset: int) -> str:
    at = k.held.notes + flight.TABLE_SIZE * table + offset
    return k.value(f"getelementptr i8, ptr %warp, i64 {at}")


def _kind(k: Kernel, i: Instruction) -> _Kind:
    """Read the modifiers. Raises NotSupported for unsupported kinds."""
    modifiers = i.modifiers[3:]
    if len(modifiers) != 4:
        raise k.unsupported()
    shape, result, first, second = modifiers
    match = _SHAPE.fullmatch(shape)
    if match is None or first not in _DEPTHS:
        raise k.unsupported()
    columns, depth = int(match[1]), int(match[2])
    if depth != _DEPTHS[first] or columns % 8 or not 8 <= columns <= 256:
        raise k.bad(f"shape {shape} does not exist for {first}")
    if first != second and not any({first, second} <= mates for mates in _MATES):
        raise k.bad(f"products of {first} and {second} are not supported")
    whole = first in _INTEGERS
    if whole and columns % 16 and columns not in _INTEGER_COLUMNS:
        raise k.bad(f"shape {shape} does not exist for {first}")
    results = ("s32",) if whole else ("f32",) if first in ("bf16", "tf32") else ("f16", "f32")
    if result not in results:
        raise k.bad(f"sums of {result} are not supported for {first}")
    return _Kind(columns, result, first, second)


def _product(k: Kernel, i: Instruction) -> None:
    kind = _kind(k, i)
    d, a = names_of(i, 0), names_of(i, 1)
    if len(d) != kind.sums or (a and len(a) != 4):
        raise k.bad(f"expected {kind.sums} registers of D, and 4 or a descriptor of A")
    if set(a) & set(d):
        raise k.bad("a register is used in both A and D")
    rest = list(i.operands[4:])
    negated = [False, False]
    if kind.first not in _INTEGERS:
        negated = [_immediate(k, rest, (-1, 1)) == -1 for _ in range(2)]
    turned = [False, False]
    if kind.first in ("f16", "bf16"):
        turned = [False] if a else [_immediate(k, rest, (0, 1)) == 1]
        turned.append(_immediate(k, rest, (0, 1)) == 1)
    if rest or len(i.operands) < 4:
        raise k.bad("the wrong number of operands")
    for name in (*a, *d):  # other products that use these registers must have completed
        for table in k.held.of[name]:
            if table not in (k.held.tables[d], k.held.tables.get(a)):
                k.touch_table(table)
    fields = {
        flight.KIND_A: flight.KINDS.index(kind.first),
        flight.KIND_B: flight.KINDS.index(kind.second), flight.COLUMNS: kind.columns,
        flight.A_HELD: int(bool(a)), flight.TURN_A: int(turned[0]), flight.TURN_B: int(turned[1]),
        flight.NEGATED: int(negated[0] != negated[1]),
        flight.RESULT: flight.RESULTS.index(kind.result), flight.D_PLACES: _places(k, d),
        flight.A_PLACES: _places(k, a) if a else 0, flight.D_TABLE: k.held.tables[d],
        flight.A_TABLE: k.held.tables[a] if a else flight.NO_TABLE, flight.INDEX: i.index,
    }  # fmt: skip
    name = f"@wgmma.{i.index}"
    values = ", ".join(f"i64 {fields[offset]}" for offset in sorted(fields))
    k.helpers[name] = f"{name} = internal constant [{len(fields)} x i64] [{values}]"
    first = "0" if a else _same(k, i.operands[1])
    tables = k.value(f"getelementptr i8, ptr %warp, i64 {k.held.notes}")
    k.mark()
    k.call(
        "void", f"{PREFIX}product_issue", ("ptr", "%context"), ("ptr", tables), ("ptr", name),
        ("i64", first), ("i64", _same(k, i.operands[2])), ("i64", _adds(k, i.operands[3])),
    )  # fmt: skip
    k.fault_if_found()


def _places(k: Kernel, registers: tuple[str, ...]) -> str:
    """Return the constant that contains the registers' offsets in a warp's state."""
    name = f"@held.{k.held.tables[registers]}"
    if name not in k.helpers:
        listed = ", ".join(f"i32 {k.held.place(register)}" for register in registers)
        k.helpers[name] = f"{name} = internal constant [{len(registers)} x i32] [{listed}]"
    return f"ptrtoint (ptr {name} to i64)"


def _immediate(k: Kernel, operands: list[Operand], allowed: tuple[int, int]) -> int:
    operand = operands.pop(0) if operands else None
    if not isinstance(operand, Integer) or operand.value not in allowed:
        raise k.bad(f"expected a constant of {allowed[0]} or {allowed[1]}")
    return operand.value


def _same(k: Kernel, operand: Operand) -> str:
    """Return a matrix descriptor, which must be the same in all lanes."""
    if not isinstance(operand, Register):
        raise k.bad("expected a matrix descriptor in a register")
    value = k.source(operand, "b64")
    first = k.scalar(value)
    if not value.uniform:
        differ = k.mask_bits(k.cmp("ne", value, first))
        k.fault_if(differ, layout.BAD_DESCRIPTOR, first.text)
    return first.text


def _adds(k: Kernel, operand: Operand) -> str:
    """Return scale-d as i64: whether the product is added to D."""
    if isinstance(operand, Integer):
        return str(int(operand.value != 0))
    value = k.source(operand, "pred")
    bits = k.mask_bits(value)
    if not value.uniform:
        mixed = k.value(f"add i32 {bits}, 1")
        wrong = k.value(f"icmp ugt i32 {mixed}, 1")
        k.fault_if(k.value(f"zext i1 {wrong} to i32"), layout.WARP_GROUP)
    return k.value(f"zext i1 {k.value(f'icmp ne i32 {bits}, 0')} to i64")


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"wgmma": _emit}
