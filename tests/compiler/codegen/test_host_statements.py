"""Kernels of the host, each held against what the interpreter of the kernel IR makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

import ugpu
from tests.support.compiler.compiler_cases import HOST
from tests.support.compiler.kernel_interpreter import interpret
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process import objects
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import ALL, DType, float32, int32, uint64
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    value,
)
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec

Array = NDArray[Any]
ZERO = constant(0)
ROOM = 16  # elements of the memories of a test's kernel


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with ugpu.open("cpu") as opened:
        yield opened


def ran(device: Device, kernel: Kernel, given: Array, target: TargetSpec | None = None) -> Array:
    """Return the output of a kernel of one input, compiled."""
    target = target or device.target
    image = compile_text(emit(verify(kernel), target), target)
    output = kernel.parameters[0]
    result = np.zeros(output.count, output.dtype.name)
    with (
        device.load(image) as program,
        device.alloc(result.nbytes) as out,
        device.alloc(given.nbytes) as source,
    ):
        source.copy_from(given)
        out.copy_from(result)
        with device.queue() as queue:
            queue.launch(program[kernel.name], grid=(1, 1, 1), block=(1, 1, 1), args=(out, source))
        device.synchronize()
        out.copy_to(result)
    return result


def kernel_of(
    dtype: DType, own: tuple[Memory, ...], *body: Statement, inputs: int = ROOM
) -> Kernel:
    parameters = Memory("out", dtype, ROOM), Memory("given", dtype, inputs)
    return Kernel("small", parameters, own, (1, 1, 1), 1, body)


def none(*_: object) -> Array:
    raise AssertionError("these kernels have no matrix instructions")


@pytest.mark.parametrize("space", ["register", "local"])
@pytest.mark.parametrize("apart", [0, 2])
def test_places_in_memory_that_changes(device: Device, space: str, apart: int) -> None:
    """In every statement a place is where its number, as it is then, points to: alone, in a sum, a
    quotient or a condition."""
    number = Memory("number", uint64, 1, space)
    out, given = Memory("out", int32, ROOM), Memory("given", int32, ROOM)

    def write(place: Index, element: int) -> Statement:
        return Store(out, place, const(element, int32))

    def steps(first: int) -> list[Statement]:
        there = lookup(load(number, ZERO), 6) + apart
        return [
            write(there, first),
            write(there // 2 + 8, first + 1),
            Store(out, there % 3 + 12, load(given, there)),
            If(at_least_zero(there - 3 - apart), (write(constant(15), first + 2),)),
        ]

    body: list[Statement] = []
    for turn in range(5):
        body += [Store(number, ZERO, const(turn, uint64)), *steps(10 * turn)]
    kernel = kernel_of(int32, (number,), *body)
    inputs = np.arange(100, 100 + ROOM, dtype=np.int32)
    assert np.array_equal(ran(device, kernel, inputs), interpret(kernel, [inputs], none))


def compressed(dtype: DType, lanes: int) -> Kernel:
    """Return a kernel that moves the elements below another one to its output, vector by vector,
    as a part of a quicksort, and counts them in the last element."""
    count = Memory("count", uint64, 1, "register")
    vector = Memory("vector", dtype, 1, "register", lanes)
    out, given = Memory("out", dtype, ROOM), Memory("given", dtype, 2 * lanes + 1)
    each = Range("i", 2)
    held = load(vector, ZERO, (), lanes)
    pivot = broadcast(load(given, constant(2 * lanes)), lanes)
    below = binary("lt", held, pivot)
    packed = value("compress", dtype, (held, below), lanes=lanes)
    more = binary("add", load(count, ZERO), value("count", uint64, (below,)))
    body = (
        Store(vector, ZERO, load(given, each.index() * lanes, (), lanes)),
        Store(out, lookup(load(count, ZERO), ROOM - lanes), packed),
        Store(count, ZERO, more),
    )
    return kernel_of(
        dtype, (count, vector), Store(count, ZERO, const(0, uint64)), Loop(each, body),
        Store(out, constant(ROOM - 1), cast(load(count, ZERO), dtype)), inputs=2 * lanes + 1,
    )  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("name", ["float32", "float64", "int8", "uint16", "uint32", "int64"])
def test_vectors_are_compressed(device: Device, name: str, lanes: int, plain: bool) -> None:
    """Also by processors without an instruction for it."""
    dtype = next(each for each in ALL if each.name == name)
    target = replace(device.target, features=device.target.features.replace("+avx512", "-avx512"))
    kernel = compressed(dtype, lanes)
    random = np.random.default_rng(lanes)
    for _ in range(4):
        given = random.integers(0, 9, 2 * lanes + 1).astype(name)
        found = ran(device, kernel, given, target if plain else None)
        assert np.array_equal(found, interpret(kernel, [given], none))
        taken = given[:-1][given[:-1] < given[-1]]
        assert np.array_equal(found[: len(taken)], taken) and found[-1] == len(taken)


@pytest.mark.parametrize(("name", "lanes"), [("float32", 16), ("int32", 16), ("float64", 8)])
def test_an_instruction_compresses_whole_vectors(name: str, lanes: int) -> None:
    """Intel's manual, "VPCOMPRESSD" and "VPCOMPRESSQ", of AVX-512F; LLVM prints either name."""
    dtype = next(each for each in ALL if each.name == name)
    out, given = Memory("out", dtype, lanes), Memory("given", dtype, lanes)
    vector = load(given, ZERO, (), lanes)
    chosen = binary("lt", vector, broadcast(const(3, dtype), lanes))
    store = Store(out, ZERO, value("compress", dtype, (vector, chosen), lanes=lanes))
    kernel = Kernel("small", (out, given), (), (1, 1, 1), 1, (store,))
    target = replace(HOST, cpu="icelake-server", features="+avx512f", vector_bytes=64)
    machine = objects._machine(target.triple, target.cpu, target.features, 3)
    module = llvm.parse_assembly(emit(verify(kernel), target))
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    assert re.search(r"v(p)?compress(p)?[dqs]\s.*%k1", machine.emit_assembly(module))


VECTOR = broadcast(const(1.0, float32), 4)
BOOLS = binary("lt", VECTOR, VECTOR)
BROKEN: dict[str, Value] = {
    "bools choose a vector's lanes": value("compress", float32, (VECTOR, VECTOR), lanes=4),
    "lanes that are chosen keep their type": value("compress", int32, (VECTOR, BOOLS), lanes=4),
    "sources have the result's lanes": value("compress", float32, (VECTOR, BOOLS), lanes=2),
    "a count of bools": value("count", uint64, (VECTOR,)),
    "a count of bools, of integers": value("count", float32, (BOOLS,)),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_vectors_are_refused(rule: str) -> None:
    broken = BROKEN[rule]
    out = Memory("out", broken.dtype, ROOM)
    kernel = Kernel("bad", (out,), (), (1, 1, 1), 1, (Store(out, ZERO, broken),))
    with pytest.raises(BrokenKernel, match=rule.split(",")[0]):
        verify(kernel)
