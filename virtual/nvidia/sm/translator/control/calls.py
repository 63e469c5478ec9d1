"""Calls through pointers, and stack memory of a thread.

Every function whose address a program takes has a number. Its address is the one that the loader
states, or one outside of all memory. A call through a pointer compares the pointer with all
functions of its type. The stack follows a thread's variables in local memory and grows upwards;
`flatten` keeps its end in a register.
Source: PTX ISA 8.x, "Control Flow Instructions: call", "Stack Manipulation Instructions".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Arguments, Instruction, Integer, Name, Vector
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import number


def _call_target(k: Kernel, i: Instruction) -> None:
    """call.target which, pointer, (functions): find the function that a pointer refers to."""
    which, pointer, functions = i.operands
    assert isinstance(functions, Arguments)
    address = k.source(pointer, "u64")
    found = number("i32", len(functions.items))
    for n, function in enumerate(functions.items):
        assert isinstance(function, Name)
        same = k.cmp("eq", address, k.address_of(function.name))
        found = k.choose(same, number("i32", n), found)
    k.write(which, found)


def _stack_begin(k: Kernel, i: Instruction) -> None:
    """stack.begin end: start with an empty stack."""
    k.write(i.operands[0], number("i32", k.places.local_size))


def _stack_take(k: Kernel, i: Instruction) -> None:
    """stack.take {place, end}, size, alignment, end: allocate bytes of a thread's stack."""
    results, size, alignment, end = i.operands
    assert isinstance(results, Vector) and isinstance(alignment, Integer)
    align = max(alignment.value, 1)
    before = k.resize(k.source(end, "u32"), "i64", False)
    start = k.op("and", k.op("add", before, number("i64", align - 1)), number("i64", -align))
    wide = k.resize(k.source(size, i.modifiers[0]), "i64", False)
    after = k.op("add", start, wide)
    limit = k.context_value(layout.LOCAL_SIZE, "i64")
    beyond = k.op("or", k.cmp("ugt", after, limit), k.cmp("ugt", wide, limit))
    lanes = k.value(f"and i32 {k.mask_bits(beyond)}, {k.mask()}")
    k.fault_if(lanes, layout.STACK_FULL)
    element = "i64" if i.modifiers[0][1:] == "64" else "i32"
    k.write(results.items[0], k.resize(start, element, False))
    k.write(results.items[1], k.resize(after, "i32", False))


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"call.target": _call_target, "stack.begin": _stack_begin, "stack.take": _stack_take}
