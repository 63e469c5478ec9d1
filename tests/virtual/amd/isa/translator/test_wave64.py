"""Waves of 64 lanes: objects that LLVM makes with `+wavefrontsize64`, on the translating core.

What does not depend on the size of a wave must leave the same memory as the same kernel in waves of
32, which the oracle judges; movement between lanes and matrices are computed here with NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.float_compare import both_nan
from tests.support.amd.isa.gfx_corpus import compile_ir, corpus, kernel
from tests.support.amd.isa.gfx_corpus_intrinsics import matrices
from tests.support.amd.isa.gfx_run import CODE, Machine
from tests.virtual.amd.isa.decoder.test_decode_listing import IN_WORDS
from tests.virtual.amd.isa.test_cores_agree_on_kernels import ARGUMENT, WORDS, _input
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.shader import Dispatch, Ending

WAVE64 = ",-wavefrontsize32,+wavefrontsize64"
# These see the size of a wave, or have the type of its masks.
SIZED = (
    "amdgcn.ballot", "amdgcn.inverse.ballot", "amdgcn.icmp", "wmma", "amdgcn.update.dpp.i32 i32 %x,"
    " i32 %y, i32 321", "amdgcn.permlane64", "amdgcn.readlane", "amdgcn.readfirstlane",
    "amdgcn.writelane", "amdgcn.mbcnt", "amdgcn.wave.reduce",
)  # fmt: skip
ALIKE = [name for name in corpus() if not name.startswith(SIZED)]
FEW = ALIKE[::8]
THREADS = 104  # one whole wave of 64 lanes, and one of 40
LANE = np.arange(64)

Words = NDArray[np.uint32]


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    made = GfxCore(workers=1)
    yield made
    made.close()


def _run(
    core: GfxCore, ir: str, options: str, inputs: list[NDArray[Any]], threads: int
) -> list[Words] | None:
    """Return the kernel's arrays afterwards; None where the core does not execute it."""
    machine = Machine(core)
    found = machine.load(compile_ir(ir, options).image)
    assert found.descriptor.is_wave32 is (options != WAVE64)
    arrays = [machine.place(array.view(np.uint32)) for array in inputs]
    block = struct.pack("<QQQI", *(address for address, _ in arrays), ARGUMENT)
    arguments = block.ljust(found.kernarg_size, b"\0")
    dispatch = machine.dispatch(found, arguments, (2, 1, 1), (threads, 1, 1))
    machine.memory.invalidate()
    outcome = core.run(dispatch, machine.memory, machine.abort)
    if outcome.ending is Ending.ILLEGAL_INSTRUCTION:
        return None
    assert outcome.ending is Ending.DONE, outcome
    assert not machine.memory.faults, machine.memory.faults[:3]
    return [view.copy() for _, view in arrays]


def _compare(core: GfxCore, names: list[str]) -> None:
    wrong, compared = [], 0
    for name in names:
        rng = np.random.default_rng(len(name))
        inputs = [np.zeros(WORDS, np.uint32), _input(name, rng), _input(name, rng)]
        narrow = _run(core, corpus()[name], "", inputs, THREADS)
        wide = _run(core, corpus()[name], WAVE64, inputs, THREADS)
        if narrow is None or wide is None:
            assert narrow is wide, name
            continue
        compared += 1
        for number, (one, other) in enumerate(zip(narrow, wide, strict=True)):
            differs = np.nonzero((one != other) & ~both_nan(one, other))[0]
            wrong += [f"{name}: array {number}, word {place}" for place in differs[:2]]
    assert not wrong, "\n".join(wrong[:20])
    assert compared > 0.9 * len(names)


@pytest.mark.parametrize("group", range(4))
def test_kernels_compute_the_same_in_waves_of_64(core: GfxCore, group: int) -> None:
    _compare(core, FEW[group::4])


@pytest.mark.slow
@pytest.mark.parametrize("group", range(12))
def test_all_kernels_compute_the_same_in_waves_of_64(core: GfxCore, group: int) -> None:
    _compare(core, [name for name in ALIKE if name not in FEW][group::12])


def test_every_listed_instruction_decodes_to_its_text() -> None:
    wrong, count = [], 0
    for name in FEW:
        compiled = compile_ir(corpus()[name], WAVE64)
        for line in compiled.listing:
            count += 1
            ours, theirs = text(decode(compiled.text, line.pc, 64)), line.text
            if theirs.startswith((*IN_WORDS, "s_branch")) or "@" in theirs:
                ours, theirs = ours.split()[0], theirs.split()[0]
            if ours != theirs:
                wrong.append(f"{name}: {theirs}   decoded as   {ours}")
    assert count > 1000
    assert not wrong, "\n".join(wrong[:20])


def test_what_a_wave_of_64_has_not_is_no_instruction() -> None:
    dual = struct.pack("<II", 0xC8060101, 0x04020503)  # v_dual_mul_f32 :: v_dual_add_f32
    assert decode(dual).x is not None
    with pytest.raises(UnknownInstruction, match="pairs of operations"):
        decode(dual, 0, 64)
    odd = struct.pack("<II", 0xD4120003, 0x00020300)  # v_cmp_eq_f32 s3, v0, v1: half of a mask
    assert decode(odd).sdst is not None
    with pytest.raises(UnknownInstruction, match="not aligned"):
        decode(odd, 0, 64)


# -- lanes that meet -----------------------------------------------------------------------------


def _called(name: str, arguments: str, shapes: str, result: str = "i32") -> str:
    return kernel(
        f"  %c = icmp slt i32 %x, %y\n  %r = call {result} @llvm.amdgcn.{name}({arguments})",
        f"declare {result} @llvm.amdgcn.{name}({shapes})", inputs="i32", result=result,
    )  # fmt: skip


def _dpp(control: int, rows: int) -> str:
    arguments = f"i32 %x, i32 %y, i32 {control}, i32 {rows}, i32 15, i1 true"
    return _called("update.dpp.i32", arguments, "i32, i32, i32, i32, i32, i1")


def _mask(flags: NDArray[np.bool_]) -> Words:
    return np.packbits(flags, bitorder="little").view(np.uint32)


_FIRST_OF_SOME = kernel(
    """  %some = icmp ugt i32 %i, 36
  br i1 %some, label %in, label %out.of
in:
  %f = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %x)
  br label %out.of
out.of:
  %r = phi i32 [ 0, %0 ], [ %f, %in ]""",
    "declare i32 @llvm.amdgcn.readfirstlane.i32(i32)", inputs="i32", result="i32",
)  # fmt: skip
_LANE_NUMBER = kernel(
    """  %l = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 %x)
  %r = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %l)""",
    "declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)\ndeclare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)",
    inputs="i32", result="i32",
)  # fmt: skip
_SELECTORS = "i32 %x, i32 %x, i32 1985229328, i32 -19088744, i1 false, i1 false"
_BPERMUTE, _PERMUTE = "ds.bpermute", "ds.permute"

Expected = Callable[[Words, Words], Words]
MEETINGS: dict[str, tuple[str, Expected]] = {
    "permlane64": (_called("permlane64.i32", "i32 %x", "i32"), lambda x, y: x[LANE ^ 32]),
    "permlanex16": (
        _called("permlanex16.i32", _SELECTORS, "i32, i32, i32, i32, i1, i1"),
        lambda x, y: x[LANE ^ 16],
    ),
    "readlane": (
        _called("readlane.i32", "i32 %x, i32 41", "i32, i32"), lambda x, y: np.repeat(x[41], 64)
    ),
    "writelane": (
        _called("writelane.i32", "i32 %n, i32 35, i32 %y", "i32, i32, i32"),
        lambda x, y: np.where(LANE == 35, np.uint32(ARGUMENT), y),
    ),
    "readfirstlane": (
        _FIRST_OF_SOME, lambda x, y: np.where(LANE > 36, x[37], 0).astype(np.uint32)
    ),
    "mbcnt": (_LANE_NUMBER, lambda x, y: x + LANE.astype(np.uint32)),
    "row mirror of two rows": (
        _dpp(0x140, 0b1010),
        lambda x, y: np.where(LANE & 16, y[LANE & ~15 | 15 - (LANE & 15)], x),
    ),
    "row share": (_dpp(0x153, 15), lambda x, y: y[LANE & ~15 | 3]),
    "swizzle": (_called("ds.swizzle", "i32 %x, i32 3103", "i32, i32"), lambda x, y: x[LANE ^ 3]),
    "backward permute": (
        _called(_BPERMUTE, "i32 %x, i32 %y", "i32, i32"),
        lambda x, y: y[LANE & 32 | (x >> np.uint32(2)).astype(np.int64) & 31],
    ),
    "greatest": (
        _called("wave.reduce.umax.i32", "i32 %x, i32 0", "i32, i32"),
        lambda x, y: np.repeat(x.max(), 64),
    ),
}  # fmt: skip


def _words(seed: int) -> list[Words]:
    rng = np.random.default_rng(seed)
    return [np.zeros(WORDS, np.uint32), *(rng.integers(0, 1 << 32, (2, WORDS), np.uint32))]


@pytest.mark.parametrize("name", MEETINGS)
def test_lanes_meet_across_the_wave(core: GfxCore, name: str) -> None:
    ir, expected = MEETINGS[name]
    inputs = _words(len(name))
    found = _run(core, ir, WAVE64, inputs, 64)
    assert found is not None
    assert np.array_equal(found[0][:64], expected(inputs[1][:64], inputs[2][:64]))


def test_forward_permute_stays_in_its_half(core: GfxCore) -> None:
    inputs = _words(7)
    order = np.random.default_rng(8).permuted(np.tile(np.arange(32), (2, 1)), axis=1).reshape(-1)
    inputs[1][:64] = 4 * order
    ir = _called(_PERMUTE, "i32 %x, i32 %y", "i32, i32")
    found = _run(core, ir, WAVE64, inputs, 64)
    assert found is not None
    wanted = np.zeros(64, np.uint32)
    wanted[LANE & 32 | order] = inputs[2][:64]
    assert np.array_equal(found[0][:64], wanted)


@pytest.mark.parametrize("name", ["ballot.i64", "icmp.i64.i32"])
def test_masks_have_64_bits(core: GfxCore, name: str) -> None:
    arguments = "i1 %c" if "ballot" in name else "i32 %x, i32 %y, i32 40"
    shapes = "i1" if "ballot" in name else "i32, i32, i32"
    inputs = _words(9)
    found = _run(core, _called(name, arguments, shapes, "i64"), WAVE64, inputs, THREADS)
    assert found is not None
    less = inputs[1][:THREADS].view(np.int32) < inputs[2][:THREADS].view(np.int32)
    # The inputs are i32, the results i64: lanes of the second wave lie behind those of the first.
    pairs = found[0][: 2 * THREADS].reshape(-1, 2)
    assert np.array_equal(pairs[0], _mask(less[:64]))
    assert np.array_equal(pairs[64], _mask(np.append(less[64:], np.zeros(24, np.bool_))))


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [-1, 0x0F0F_FFFF_0000_1234], ids=["whole", "some"])
@pytest.mark.parametrize("registers", [24, 96])
@pytest.mark.parametrize("size", [4, 8, 12, 16])
def test_both_passes_reach_memory(core: GfxCore, size: int, registers: int, mask: int) -> None:
    """Of many registers those of wide accesses lie in the wave state, a file for each pass."""
    kind = f"b{8 * size}"
    code = [
        asm.vop2("v_lshlrev_b32", 1, asm.integer(4), 0),  # v1: 16 bytes for each lane
        asm.vop2("v_xor_b32", 2, asm.LITERAL, 1, 0x3F0),  # v2: the same from the last lane on
        *(asm.vop1("v_mov_b32", 4 + k, asm.integer(7)) for k in range(4)),
    ]
    if mask != -1:
        code.append(asm.sop1("s_mov_b64", asm.EXEC, 4))
    code += [
        asm.global_access(f"load_{kind}", addr=2, saddr=0, dst=4),
        asm.ds(f"ds_store_{kind}", addr=1, data=4),
        asm.ds(f"ds_load_{kind}", addr=1, dst=4),
    ]
    if mask != -1:
        code.append(asm.sop1("s_mov_b64", asm.EXEC, asm.integer(-1)))
    code += [asm.global_access("store_b128", addr=1, saddr=2, data=4), asm.sopp("s_endpgm")]
    machine = Machine(core)
    words = np.array([word for part in code for word in part], np.uint32)
    machine.memory.map(CODE, words.view(np.uint8), writable=False, executable=True)
    given = np.random.default_rng(size).integers(0, 1 << 32, (64, 4), np.uint32)
    places = [machine.place(array) for array in (given, np.zeros((64, 4), np.uint32))]
    pointers = [part for at, _ in places for part in (at & 0xFFFF_FFFF, at >> 32)]
    user = [*pointers, mask & 0xFFFF_FFFF, mask >> 32 & 0xFFFF_FFFF, *[0] * 10]
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(64, 1, 1),
        rsrc1=registers // 4 - 1 | 0xF0 << 12, rsrc2=6 << 1 | 2 << 15, rsrc3=0, user_data=user,
        wave32=False,
    )  # fmt: skip
    for _ in range(2):  # once without translations at hand, and once with them
        outcome = core.run(dispatch, machine.memory, machine.abort)
        assert outcome.ending is Ending.DONE, outcome
    enabled = np.array([mask >> lane & 1 for lane in range(64)], np.bool_)
    wanted = np.full((64, 4), 7, np.uint32)
    wanted[enabled, : size // 4] = given[::-1][enabled, : size // 4]
    assert np.array_equal(places[1][1].reshape(64, 4), wanted)


def test_atomics_beyond_local_memory_read_zero_in_both_passes(core: GfxCore) -> None:
    code = [
        asm.vop2("v_lshlrev_b32", 1, asm.integer(2), 0),
        asm.vop1("v_mov_b32", 2, asm.LITERAL, 0x2_0000),
        asm.vop1("v_mov_b32", 3, asm.integer(9)),
        asm.ds("ds_add_rtn_u32", addr=2, data=3, dst=4),
        asm.ds("ds_add_rtn_u32", addr=2, data=3, dst=4),
        asm.global_access("store_b32", addr=1, saddr=0, data=4),
        asm.sopp("s_endpgm"),
    ]
    machine = Machine(core)
    words = np.array([word for part in code for word in part], np.uint32)
    machine.memory.map(CODE, words.view(np.uint8), writable=False, executable=True)
    at, out = machine.place(np.full(64, 7, np.uint32))
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(64, 1, 1), rsrc1=5 | 0xF0 << 12,
        rsrc2=2 << 1 | 2 << 15, rsrc3=0, user_data=[at & 0xFFFF_FFFF, at >> 32, *[0] * 14],
        wave32=False,
    )  # fmt: skip
    machine.memory.invalidate()
    assert core.run(dispatch, machine.memory, machine.abort).ending is Ending.DONE
    assert not out.any()


# -- matrices ------------------------------------------------------------------------------------


def _laid_out(lanes: int, kind: str) -> tuple[NDArray[np.int64], int]:
    """Return the place in memory of row m, column n of C and D, in elements, and how many elements
    the lanes hold: `kind` is the LLVM type of one lane's."""
    each = int(kind[1:].split()[0])
    packed = 2 if kind.endswith(("half>", "i16>")) else 1  # such a register has one element in use
    rows = lanes // 16
    m, n = np.mgrid[:16, :16]
    return (m % rows * 16 + n) * each + m // rows * packed, each * lanes


WMMA = {lanes: matrices(kernel, lanes) for lanes in (32, 64)}


@pytest.mark.parametrize("name", WMMA[64])
def test_matrices_are_spread_over_64_lanes(core: GfxCore, name: str) -> None:
    found = []
    high = int("true" in name)
    rng = np.random.default_rng(3)
    factors = [_input(name, rng) for _ in "ab"]
    kinds = {"f32": "float", "i32": "i32", "f16": "half", "bf1": "i16"}
    element = next(kind for letters, kind in kinds.items() if name[5:].startswith(letters))
    dtype = {"float": np.float32, "i32": np.int32}.get(element, np.uint16)
    added = rng.integers(-9, 9, (16, 16))
    bits = added.astype(np.float16).view(np.uint16) if element == "half" else added.astype(dtype)
    if element == "i16":
        bits = (added.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for lanes, options in ((32, ""), (64, WAVE64)):
        each = (16 if dtype is np.uint16 else 8) * 32 // lanes
        places, count = _laid_out(lanes, f"<{each} x {element}>")
        out = np.zeros(WORDS * 4 // np.dtype(dtype).itemsize, dtype)
        out[places + high * (dtype is np.uint16)] = bits
        arrays = [out.view(np.uint32), *factors]
        result = _run(core, WMMA[lanes][name], options, arrays, lanes)
        assert result is not None, name
        assert out[count:].sum() == 0
        found.append(result[0].view(dtype)[places + high * (dtype is np.uint16)])
    assert np.array_equal(found[0].view(np.uint8), found[1].view(np.uint8))
    assert len(np.unique(found[0])) > 50
