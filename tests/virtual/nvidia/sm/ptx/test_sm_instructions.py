"""Single instructions against the oracle, on random numbers and on awkward ones."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.oracles import ptx as oracle
from lab.oracles.ptx_numbers import FORMS, NAN, is_nan
from tests.support.nvidia.sm.sm_families import FAMILIES
from tests.support.nvidia.sm.sm_run import HEAD
from tests.support.nvidia.sm.sm_unit import Try, Unit
from ugpu.nv.code.assemble import assemble, find_library

_LANES = 40  # more than a warp, and a ragged one


@cache
def _unit(family: str, name: str) -> Unit:
    return Unit(FAMILIES[family][name])


_EDGES = {16: [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x0400, 0x03FF, 0x7BFF,
               0x3F80, 0x7F80, 0x7F7F, 0x0080],
          32: [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000,
               0xFF800000, 0x7FC00000, 0x00800000, 0x007FFFFF, 0x7F7FFFFF, 0x80000001, 0x4B000001,
               0x3F000000, 0xC0200000, 0x5F000000, 31, 32, 33, 64, 0x477FF000, 0x33000001],
          64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x3FF << 52, 0xBFF << 52, 0x7FF << 52,
               0xFFF << 52, 0x7FF8 << 48, 1 << 52, (1 << 52) - 1, (0x7FF << 52) - 1, (1 << 63) | 1,
               0x47EFFFFFF0000000, 0x36A0000000000001, 0x3FE << 52, 31, 32, 63, 64, 65,
               0x0010000000000001, 0x43E << 52, 0xC004 << 48]}  # fmt: skip


def _operand(draw: Random, bits: int) -> int:
    """Half of the operands awkward, some small, the rest anything."""
    kind = draw.random()
    if kind < 0.5:
        return draw.choice(_EDGES[bits])
    return draw.getrandbits(bits) if kind < 0.85 else draw.randrange(100)


def _expected(family: str, one: Try, operands: list[int]) -> oracle.Result:
    constants = [int(c) for c in one.constants]
    if family == "integer":
        return oracle.integer(one.opcode, *operands, *constants)
    if family == "real":
        return oracle.real(one.opcode, *operands)
    return oracle.convert(one.opcode, operands[0])


def _same(one: Try, found: int, wanted: oracle.Result) -> bool:
    kind = one.opcode.split(".")[-2 if one.opcode.startswith("cvt") else -1]
    if wanted == NAN:
        form = FORMS[kind]
        return is_nan(found & ((1 << form.bits) - 1), form)
    assert isinstance(wanted, int)
    if one.opcode.startswith("cvt") and kind[0] == "s":  # extended to the register
        wanted = oracle.signed(wanted, oracle.width(kind)) & ((1 << one.result) - 1)
    return found == wanted


@pytest.mark.parametrize(
    ("family", "name"), [(f, n) for f, families in FAMILIES.items() for n in families]
)
def test_instructions_do_what_the_oracle_says(family: str, name: str) -> None:
    unit = _unit(family, name)

    @settings(max_examples=4, deadline=None)
    @given(st.integers(0, 1 << 32))
    @example(7883)
    def check(seed: int) -> None:
        draw = Random(seed)
        columns = [
            [[_operand(draw, bits) for _ in range(_LANES)] for bits in one.widths]
            for one in unit.tries
        ]
        for one, operands, found in zip(unit.tries, columns, unit.run(columns), strict=True):
            for lane, result in enumerate(found):
                given_ = [column[lane] for column in operands]
                wanted = _expected(family, one, given_)
                assert _same(one, result, wanted), (
                    one.opcode, [hex(x) for x in given_], hex(result), wanted if isinstance(
                        wanted, str) else hex(wanted),
                )  # fmt: skip

    check()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_kernels_of_these_tests_are_ptx_that_assembles(family: str) -> None:
    """What we take for PTX must be PTX to NVIDIA's assembler too."""
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    for name in FAMILIES[family]:
        text = HEAD.format(target="sm_90") + _unit(family, name).text
        assert assemble(text.encode(), "sm_90")
