"""Every kernel of the corpus on the translating core and on the oracle: the same memory afterwards.

The kernels are what LLVM makes of the operations: loops, branches, calls, scratch, LDS, atomics,
buffers and matrices among them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.float_compare import both_nan, close
from tests.support.amd.isa.gfx_case_makers import SPECIAL_WORDS
from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.gfx_run import Machine
from tests.support.amd.isa.oracle_run import run_oracle
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending

GROUPS = 12
WORDS = 8192
ARGUMENT = 9  # the kernels' fourth
# Results of the transcendental unit: two such operations may be in a row.
ROUGH = ("rcp", "rsq", "sqrt", "exp", "log", "sin", "cos", "tan")
# The core may stop at these as at an illegal instruction.
NOT_TRANSLATED = (
    "amdgcn.trig.preop",
    "hardware register",
)

Words = NDArray[np.uint32]


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    made = GfxCore(workers=1)
    yield made
    made.close()


def _input(name: str, rng: np.random.Generator) -> Words:
    words = rng.integers(0, 1 << 32, WORDS, np.uint32)
    if "wmma" in name:  # sums of products of small numbers are exact in any order
        small = rng.integers(-4, 5, 2 * WORDS)
        if "bf16" in name:
            return (
                (small.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
            )
        return words if ".iu" in name else small.astype(np.float16).view(np.uint32)
    if "dot2" in name:
        return rng.integers(-8, 9, 2 * WORDS).astype(np.float16).view(np.uint32)
    special = rng.random(WORDS) < 0.3
    words[special] = rng.choice(SPECIAL_WORDS, int(special.sum()))
    if any(part in name for part in ROUGH):  # that unit flushes denormals
        words = np.where(words & 0x78000000, words, 0).astype(np.uint32)
    return words


def _run(name: str, core: GfxCore | None, machine: Machine) -> list[Words] | None:
    """Return the arrays afterwards; None when the core does not execute the kernel."""
    rng = np.random.default_rng(len(name))
    compiled = compile_ir(corpus()[name])
    kernel = machine.load(compiled.image)
    arrays = [machine.place(array) for array in
              (np.zeros(WORDS, np.uint32), _input(name, rng), _input(name, rng))]  # fmt: skip
    block = struct.pack("<QQQI", *(address for address, _ in arrays), ARGUMENT)
    threads = 64 if "wmma" in name else 40
    arguments = block.ljust(kernel.kernarg_size, b"\0")
    dispatch = machine.dispatch(kernel, arguments, (2, 1, 1), (threads, 1, 1))
    machine.memory.invalidate()
    if core is None:
        run_oracle(dispatch, machine.memory)
    else:
        outcome = core.run(dispatch, machine.memory, machine.abort)
        if outcome.ending is Ending.ILLEGAL_INSTRUCTION and name.startswith(NOT_TRANSLATED):
            return None
        assert outcome.ending is Ending.DONE, f"{name}: {outcome}"
    assert not machine.memory.faults, f"{name}: {machine.memory.faults[:3]}"
    return [view.copy() for _, view in arrays]


def _differences(name: str, expected: list[Words], found: list[Words]) -> list[str]:
    lines = []
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        same = (wanted == got) | both_nan(wanted, got)
        if any(part in name for part in ROUGH):
            for kind in ("f16", "f32", "f64"):
                same |= close(wanted, got, 2, kind)
        for place in np.nonzero(~same)[0][:2]:
            lines.append(
                f"{name}: array {number}, word {place}: oracle {wanted[place]:#x}, "
                f"core {got[place]:#x}"
            )
    return lines


@pytest.mark.parametrize("group", range(GROUPS))
def test_both_leave_the_same_memory(core: GfxCore, group: int) -> None:
    wrong = []
    names = list(corpus())[group::GROUPS]
    compared = 0
    for name in names:
        found = _run(name, core, Machine(core))
        if found is None:
            continue
        expected = _run(name, None, Machine(core))
        assert expected is not None
        compared += 1
        wrong += _differences(name, expected, found)
    assert compared > 40
    assert not wrong, "\n".join(wrong)
