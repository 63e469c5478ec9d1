"""Every operation of ir3 that NIR reaches, as Mesa's own constant folding has it.

Model and oracle are readings of the same sources by the same people, and have been wrong together.
Here a kernel of NIR operations is compiled by Mesa with its operands in memory and run by the
shader processors; Mesa's folding of the same operations with the same operands is the judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.oracles.nir_folding import folded
from tests.support.adreno.ir3_machine import launch
from tests.support.adreno.mesa import needs_mesa
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Parameter
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.decode import program
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.sp.translator import alu, floats, move

pytestmark = needs_mesa

Array = NDArray[Any]
F16, F32, U16, U32, S16, S32 = np.float16, np.float32, np.uint16, np.uint32, np.int16, np.int32
THREADS, GROUPS = 64, 8


@dataclass(frozen=True)
class Case:
    """An operation of NIR. result: the type of what it gives, bool for one bit. sources: types of
    the operands; ulps: by how much a float may differ from the folding."""

    name: str
    result: Any
    sources: tuple[Any, ...]
    ulps: int = 0
    what: str = ""  # operands: "" any, "counts" or "range"
    limit: int = 32


def same(name: str, kind: Any, count: int, ulps: int = 0, result: Any = None) -> Case:
    return Case(name, kind if result is None else result, (kind,) * count, ulps)


# Category 2 and 3 on floats. ffma of halves: folding rounds it twice, by way of a float.
FLOATS = [
    *(same(name, kind, 2) for name in ("fadd", "fmul", "fmin", "fmax") for kind in (F32, F16)),
    *(same(name, kind, 1) for kind in (F32, F16)
      for name in ("fneg", "fabs", "fsign", "ffloor", "fceil", "ftrunc", "fround_even", "fsat")),
    same("ffma", F32, 3), same("ffma", F16, 3, 1),
    *(same(name, kind, 2, result=bool) for name in ("flt", "fge", "feq", "fneu")
      for kind in (F32, F16)),
]  # fmt: skip
# Category 4: folding computes in double or float, and boards have errors of their own.
SLOW_FLOATS = [
    *(same(name, kind, 1, ulps=2) for kind in (F32, F16)
      for name in ("frcp", "frsq", "fsqrt", "fexp2", "flog2")),
    Case("fsin", F32, (F32,), 0, "range"), Case("fcos", F32, (F32,), 0, "range"),
]  # fmt: skip
INTEGERS = [
    *(same(name, kind, 2) for kind in (U32, U16) for name in
      ("iadd", "iand", "ior", "ixor", "umin", "umax", "imin", "imax", "imul",
       "isub")),
    same("uadd_sat", U32, 2), same("usub_sat", U32, 2),
    *(same(name, kind, 1) for kind in (U32, U16) for name in ("ineg", "inot", "iabs")),
    *(same(name, kind, 2, result=bool) for kind in (U32, U16)
      for name in ("ult", "uge", "ilt", "ige", "ieq", "ine")),
    *(Case(name, kind, (kind, U32), 0, "counts", 8 * np.dtype(kind).itemsize)
      for kind in (U32, U16) for name in ("ishl", "ishr", "ushr")),
    *(same(name, U32, 1) for name in
      ("bitfield_reverse", "bit_count", "ufind_msb", "ifind_msb", "find_lsb")),
    same("imul24", U32, 2), same("umul24", U32, 2), same("umul_low", U32, 2),
    same("imul_high", U32, 2), same("umul_high", U32, 2),
    same("imad24_ir3", U32, 3), same("umad24", U32, 3), same("iadd3", U32, 3),
    *(Case(name, U32, (U32, U32, U32), 0, "first counts") for name in
      ("shrm_ir3", "shlm_ir3", "shrg_ir3", "shlg_ir3")),
    same("andg_ir3", U32, 3),
    same("udot_4x8_uadd", U32, 3), same("sudot_4x8_iadd", U32, 3),
]  # fmt: skip
CONVERSIONS = [
    Case("f2f16_rtne", F16, (F32,)), Case("f2f32", F32, (F16,)),
    *(Case(f"{sign}2{sign}{to.__name__[-2:]}", to, (source,)) for sign in "iu"
      for source, to in ((U16, U32), (U32, U16))),
    *(Case(f"{sign}2f{8 * np.dtype(to).itemsize}", to, (source,)) for to in (F32, F16)
      for sign, source in (("u", U32), ("i", S32), ("u", U16), ("i", S16))),
    *(Case(f"f2{sign}{8 * np.dtype(to).itemsize}", to, (source,), 0, "range")
      for source in (F32, F16) for sign, to in (("u", U32), ("i", S32), ("u", U16), ("i", S16))),
]  # fmt: skip
# NIR has these, but its folding is no judge, with the reason; another source stands for them.
NOT_JUDGED = {
    "imadsh_mix16": "ignores the product; nir_opt_algebraic.py says which halves it takes, and "
                    "test_qcom_products.py computes with it",
    "iadd_sat": "relies on signed overflow, which compilers take for impossible; nir_opcodes.py",
    "isub_sat": "the same",
    "uadd_sat of 16 bits": "C promotes the sum to 32 bits, where it does not overflow",
}  # fmt: skip
# Instructions that no operation of NIR above becomes, and what says how they work instead.
NOT_REACHED = {
    "add.s": "ir3_compiler_nir.c: iadd_sat with (sat), see NOT_JUDGED; otherwise add.u",
    "sub.s": "the same for isub_sat",
    "dp2acc": "ir3-cat3.xml",
    "getbit.b": "ir3-cat2.xml",
    "rndaz.f": "ir3-cat2.xml: its name, round away from zero",
    "mul.u24": "ir3-cat2.xml; product24 is what imul24 judges in mul.s24",
    "mad.u24": "the same",
    "mad.u16": "ir3-cat3.xml; 16 bits of product and sum, whatever the sign",
    "mad.s16": "the same",
    "sad.s16": "ir3_compiler_nir.c (iadd3), judged in 32 bits",
    "sel.b16": "ir3_compiler_nir.c (bcsel), judged in 32 bits",
    "mov-const": "ir3-cat1.xml: moves compute nothing",
    "mov-immed": "the same", "mov-relconst": "the same", "mov-relgpr": "the same",
    "movs-a0": "the same", "movs-immed": "the same", "gat": "the same", "sct": "the same",
}  # fmt: skip
GROUPS_OF = {"floats": FLOATS, "category 4": SLOW_FLOATS, "integers": INTEGERS,
             "conversions": CONVERSIONS}  # fmt: skip
AT_ONCE = 8  # operations of a kernel
SPECIAL = [0, 1, 2, 3, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x10001, 0x7FFFFF,
           0x800000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001,
           0xFFFFFFFF]  # fmt: skip
FLOATING = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 1e-7, -1e-7, 6e-8, 65504.0,
            65520.0, 1e-40, -1e-40, 3.4e38, np.inf, -np.inf, np.nan]  # fmt: skip
LANES = THREADS * GROUPS


def operand(rng: np.random.Generator, kind: Any, place: int, case: Case) -> Array:
    """Operands of all lanes: special ones in every combination of two, then any bits."""
    floating = np.dtype(kind).kind == "f"
    bits = rng.integers(0, 1 << 32, LANES, np.uint32)
    unsigned = U16 if np.dtype(kind).itemsize == 2 else U32
    found: Array = bits.astype(unsigned).view(kind)
    if case.what == "range":
        signed = not case.name.startswith("f2u")
        width = np.dtype(case.result).itemsize * 8 if np.dtype(case.result).kind in "iu" else 11
        most = min(2.0 ** (width - 1) - 129, 65000 if kind is F16 else np.inf)
        values = rng.uniform(-most if signed else 0, most, LANES)
        values[::3] = rng.uniform(-3 if signed else 0, 3, len(values[::3]))
        return values.astype(kind)
    if (case.what, place) in (("counts", 1), ("first counts", 0)):
        return (bits % U32(2 * case.limit)).astype(kind)
    with np.errstate(all="ignore"):
        special = np.array(FLOATING if floating else SPECIAL).astype(kind if floating else U32)
    special = special if floating else special.astype(unsigned).view(kind)
    turn = np.arange(LANES // 2)
    index = turn // len(special) ** place if place < 2 else rng.integers(0, len(special), len(turn))
    found[: len(turn)] = special[index % len(special)]
    return found


def built(cases: list[Case], chip: str) -> Ir3Kernel:
    """A kernel: input k of lane n at word k * LANES + n of the first array, results likewise."""
    from ugpu.compiler.codegen.adreno.mesa import compiler_for, library
    from ugpu.compiler.codegen.adreno.nir import Builder

    build = Builder(library().tables)
    zero = build.constant(32, 0)
    bases = [build.alu("pack_64_2x32", 64, build.intrinsic("load_const_ir3", [zero], 2, 32, base=k))
             for k in (0, 2)]  # fmt: skip
    thread = build.alu("mov", 32, build.intrinsic("load_local_invocation_id", (), 3, 32))
    lane = build.alu("u2u64", 64, build.alu("ishl", 32, thread, build.constant(32, 2)))

    def at(base: int, row: int) -> int:
        offset = build.alu("iadd", 64, lane, build.constant(64, 4 * LANES * row))
        return build.alu("iadd", 64, base, offset)

    row = 0
    for number, case in enumerate(cases):
        values = []
        for kind in case.sources:
            width = 8 * np.dtype(kind).itemsize
            values.append(build.intrinsic("load_global", [at(bases[0], row)], 1, width,
                                          align_mul=width // 8))  # fmt: skip
            row += 1
        width = 1 if case.result is bool else 8 * np.dtype(case.result).itemsize
        value = build.alu(case.name, width, *values)
        if width == 1:
            value, width = build.alu("b2i32", 32, value), 32
        build.intrinsic("store_global", [value, at(bases[1], number)], write_mask=1,
                        align_mul=width // 8)  # fmt: skip
    facts = chips.facts(chip)
    binary = compiler_for(facts.chip_ids[0]).compile(build.serialise(LANES, 0), 4)
    copied = {field.name: getattr(binary, field.name) for field in fields(binary)
              if field.name in Ir3Kernel.__dataclass_fields__}  # fmt: skip
    return Ir3Kernel(
        name="k", chip_id=facts.chip_ids[0], generation=facts.generation, threads=LANES,
        parameters=(Ir3Parameter("in", 0, 8, True), Ir3Parameter("out", 8, 8, True)), **copied,
    )  # fmt: skip


def spread(values: Array) -> Array:
    """Values as words of their own, in the lower half where they are short."""
    width = values.dtype.itemsize
    return values.view(U16 if width == 2 else U32).astype(U32)


def judged(cases: list[Case], chip: str, seed: int = 1) -> tuple[list[str], set[str]]:
    """Run a kernel; return what differs from the folding, and the names of its instructions."""
    rng = np.random.default_rng(seed)
    given = [[operand(rng, kind, place, case) for place, kind in enumerate(case.sources)]
             for case in cases]  # fmt: skip
    kernel = built(cases, chip)
    words = np.concatenate([spread(values) for row in given for values in row])
    _, out = launch(kernel, chip, (1, 1, 1), [words, np.zeros(LANES * len(cases), U32)])
    wrong = []
    for case, operands, found in zip(cases, given, out.reshape(len(cases), LANES), strict=True):
        wrong += differences(case, operands, found)
    known = program(kernel.code, table(chips.facts(chip).gpu_id))
    return wrong, {one.name for one in known}


def differences(case: Case, operands: list[Array], words: Array) -> list[str]:
    width = 8 * operands[0].dtype.itemsize
    expected = folded(case.name, width, case.result, *operands)
    if case.result is bool:
        found = words.astype(bool)
    else:
        found = words.astype(U16 if expected.dtype.itemsize == 2 else U32).view(case.result)
    bad = np.flatnonzero(~agrees(case, found, expected))
    label = f"{case.name} of {np.dtype(case.sources[0]).name}"
    return [f"{label}{tuple(x[n] for x in operands)}: expected {expected[n]}, got {found[n]}"
            for n in bad[:1]]  # fmt: skip


def agrees(case: Case, found: Array, expected: Array) -> Array:
    """Equal values, any NaN; a minimum of two zeros may have either sign."""
    if expected.dtype.kind != "f":
        return found == expected
    same = (found == expected) & (np.signbit(found) == np.signbit(expected))
    if case.name in ("fmin", "fmax", "fsat"):
        same |= found == expected
    same |= np.isnan(found) & np.isnan(expected)
    if case.ulps:
        signed = S16 if expected.dtype.itemsize == 2 else S32
        bits = [x.view(signed).astype(np.int64) for x in (found, expected)]
        same |= (np.abs(bits[0] - bits[1]) <= case.ulps) & ~np.isnan(found) & ~np.isnan(expected)
    if case.name in ("fsin", "fcos"):
        same |= np.abs(found - expected) < 1e-4
    return same


def chunks(cases: list[Case]) -> Iterator[list[Case]]:
    for start in range(0, len(cases), AT_ONCE):
        yield cases[start : start + AT_ONCE]


def test_sums_products_and_signs_agree_with_the_folding() -> None:
    chosen = ("iadd", "imul", "fsign", "ffma", "shrm_ir3", "imad24_ir3")
    cases = [case for part in GROUPS_OF.values() for case in part
             if case.name in chosen and np.dtype(case.sources[0]).itemsize == 4]  # fmt: skip
    assert len(cases) == len(chosen)
    assert judged(cases, "a630")[0] == []


@pytest.mark.slow
def test_operations_agree_with_the_folding() -> None:
    """All of them; every instruction that computes is reached, or listed with its source."""
    wrong, seen = [], set[str]()
    for chip in ("a630", "a740"):  # the first has no dp4acc
        for part in (part for group in GROUPS_OF.values() for part in chunks(group)):
            differing, names = judged(part, chip)
            wrong += [f"{chip}: {text}" for text in differing]
            seen |= names
    assert wrong == []
    computing = alu.handlers().keys() | floats.handlers().keys() | move.handlers().keys()
    assert computing - seen - NOT_REACHED.keys() == set()


def test_a_wrong_result_is_told_apart() -> None:
    """The operands of the first special pair, with a result that is off by one."""
    case = same("iadd", U32, 2)
    operands = [operand(np.random.default_rng(1), U32, place, case) for place in (0, 1)]
    right = operands[0] + operands[1]
    assert differences(case, operands, right) == []
    assert differences(case, operands, right + U32(1)) != []
