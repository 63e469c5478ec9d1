"""Which target has which matrix instructions, by the target notes of the PTX ISA."""

from __future__ import annotations

import pytest

from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject

_SUMS, _TWO, _FOUR = "{%f1,%f2,%f3,%f4}", "{%r1,%r2}", "{%r1,%r2,%r3,%r4}"


@pytest.mark.parametrize(
    ("opcode", "operands", "lacks", "has"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", f"{_FOUR}, {_TWO}, {_SUMS}",
         "sm_75", "sm_80"),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
         f"{_TWO}, {_TWO}, {_SUMS}, %r1, 0", "sm_75", "sm_80"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", f"{_FOUR}, {_TWO}, {_SUMS}",
         "sm_86", "sm_89"),
        ("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32",
         f"{_FOUR}, {_TWO}, {_SUMS}", "sm_120", "sm_120f"),
        ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
         f"{_FOUR}, {_TWO}, {_SUMS}, %r1, {{0, 0}}, %r2, {{0, 0}}", "sm_120f", "sm_120a"),
    ],
)  # fmt: skip
def test_each_target_has_its_own_instructions(
    opcode: str, operands: str, lacks: str, has: str
) -> None:
    text = body(0, f"{opcode} {_SUMS}, {operands};")
    with pytest.raises(BadCodeObject, match=rf"PTX line \d+: mma.*expected .target .*{has}"):
        Bench().launch(HEAD.format(target=lacks) + text, target="sm_120")
    Bench().good(HEAD.format(target=has) + text, target="sm_120")
