"""Registers that an instruction reads and writes.

Source: PTX ISA 8.x, "Instruction Set": the first operand is the result, except in stores and the
like.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ugpu.virtual.nvidia.sm.ptx.module import (
    Address,
    Arguments,
    Instruction,
    Inverted,
    Name,
    Operand,
    Pair,
    Register,
    Selected,
    Special,
    Vector,
)

# Instructions without a register result.
_NO_RESULT = frozenset((
    "st", "red", "bra", "brx", "ret", "exit", "trap", "brkpt", "bar", "barrier", "membar", "fence",
    "prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "pmevent", "stmatrix",
    "griddepcontrol", "setmaxnreg", "stackrestore", "cp",
))  # fmt: skip


CARRY = Register("%cc", "pred")  # the carry flag of add.cc and similar instructions


def _registers(operand: Operand) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Inverted | Selected):
        yield operand.register
    elif isinstance(operand, Address):
        if isinstance(operand.base, Register):
            yield operand.base
    elif isinstance(operand, Vector | Arguments):
        for item in operand.items:
            yield from _registers(item)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)


def has_result(i: Instruction) -> bool:
    """Return whether the first operand is written."""
    if not i.operands or i.name in ("barrier", "bar"):
        return False  # the result of bar.red is read after it, see `flatten`
    if i.name == "wgmma":
        return "mma_async" in i.modifiers
    if i.name == "wmma":
        return "store" not in i.modifiers
    if i.name == "mbarrier":
        return bool(i.modifiers) and i.modifiers[0] in (
            "arrive", "arrive_drop", "test_wait", "try_wait", "pending_count",
        ) and len(i.operands) > 1  # fmt: skip
    return i.name not in _NO_RESULT


@lru_cache(maxsize=100_000)
def written(i: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction writes."""
    found = tuple(_registers(i.operands[0])) if has_result(i) else ()
    return (*found, CARRY) if "cc" in i.modifiers else found


@lru_cache(maxsize=100_000)
def read(i: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction reads, including its guard."""
    found = [] if i.guard is None else [i.guard]
    for operand in i.operands[1 if has_result(i) else 0 :]:
        found += _registers(operand)
    if i.name == "wgmma" and i.operands:  # the product is added to D
        found += _registers(i.operands[0])
    if i.name in ("addc", "subc", "madc"):
        found.append(CARRY)
    return tuple(found)


def variables(i: Instruction) -> Iterator[str]:
    """Yield the names of variables and labels that an instruction mentions."""
    todo: list[Operand] = [each for each in i.operands if not isinstance(each, Register)]
    while todo:
        operand = todo.pop()
        if isinstance(operand, Name):
            yield operand.name
        elif isinstance(operand, Address) and isinstance(operand.base, Name):
            yield operand.base.name
        elif isinstance(operand, Vector | Arguments):
            todo += operand.items


def specials(i: Instruction) -> Iterator[str]:
    """Yield the predefined registers that an instruction reads."""
    for operand in i.operands:
        for item in operand.items if isinstance(operand, Vector) else (operand,):
            if isinstance(item, Special):
                yield item.name
