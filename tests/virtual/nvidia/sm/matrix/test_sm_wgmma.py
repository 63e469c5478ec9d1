"""wgmma against NumPy: shapes, kinds, layouts of shared memory, fragments; and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_run import Bench
from tests.support.nvidia.wgmma_case import BYTES, IMAGE, WIDTHS, Case, Lying
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome

TARGET = "sm_90a"


def run(
    case: Case, threads: int = 128, text: str = "", groups: int = 1
) -> tuple[SmOutcome, np.ndarray]:
    bench = Bench()
    image, _ = bench.array(case.image())
    factors, _ = bench.array(case.fragments())
    before, _ = bench.array(case.sums(case.start))
    after, out = bench.array(np.zeros((case.registers, 128), np.uint32))
    outcome = bench.launch(
        text or case.text(), image, factors, before, after, block=(threads,), shared=IMAGE,
        target=TARGET, grid=(groups,),
    )  # fmt: skip
    return outcome, out


def check(case: Case) -> None:
    outcome, out = run(case)
    assert outcome.ending is SmEnding.DONE, outcome
    wanted = case.numbers(case.wanted())
    wrong = np.argwhere(case.numbers(out) != wanted)
    assert not len(wrong), f"{len(wrong)} of {wanted.size} differ, first {wrong[0]}"


def lying(swizzle: str, turned: bool, kind: str, across: int, depth: int, start: int) -> Lying:
    """A factor of `across` rows and `depth` of k, packed as tightly as its pattern allows."""
    width = WIDTHS[swizzle]
    atom = 128 * width
    size = BYTES[kind]
    if turned:
        groups = depth // 8
        if swizzle == "none":  # along k the leading stride, along the rows the other
            return Lying(swizzle, turned, start, 128, 128 * groups)
        return Lying(swizzle, turned, start, atom * groups, atom)
    if swizzle == "none":
        return Lying(swizzle, turned, start, 128, 128 * (depth * size // 16))
    return Lying(swizzle, turned, start, 16, atom)


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("held", [False, True], ids=["shared", "registers"])
def test_kinds_of_factors(kind: str, held: bool) -> None:
    a = None if held else lying("128", False, kind, 64, 16, 0)
    check(Case(64, kind, result="s32" if kind in ("s8", "u8") else "f32", a=a,
               b=lying("128", False, kind, 64, 16, 32768)))  # fmt: skip


@pytest.mark.parametrize(("kind", "other"), [("e4m3", "e5m2"), ("u8", "s8")])
def test_factors_of_two_kinds(kind: str, other: str) -> None:
    check(Case(32, kind, other, "s32" if kind == "u8" else "f32",
               b=lying("none", False, kind, 64, 32, 32768)))  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_layouts_of_halves(data: st.DataObject) -> None:
    columns = 8 * data.draw(st.integers(1, 32), "columns / 8")
    kind = data.draw(st.sampled_from(["f16", "bf16"]), "kind")
    modes = [data.draw(st.sampled_from(sorted(WIDTHS)), name) for name in ("a", "b")]
    turned = [data.draw(st.booleans(), f"{name} turned") for name in ("a", "b")]
    held = data.draw(st.booleans(), "A in registers")
    most = min([4] + [WIDTHS[m] // 2 for m, t in zip(modes, turned, strict=True)
                      if not t and m != "none"])  # fmt: skip
    steps = data.draw(st.integers(1, most), "steps")
    for_a, for_b = (
        lying(mode, turn, kind, 0, 16 * steps, start)
        for mode, turn, start in zip(modes, turned, (1024, 81920), strict=True)
    )
    check(Case(
        columns, kind, result="f32" if kind == "bf16" or data.draw(st.booleans()) else "f16",
        a=None if held else for_a, b=for_b, steps=steps, adds=data.draw(st.booleans(), "adds"),
        scale_a=data.draw(st.sampled_from([1, -1])), scale_b=data.draw(st.sampled_from([1, -1])),
        seed=columns,
    ))  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["tf32", "e4m3", "s8"]), st.sampled_from(sorted(WIDTHS)),
       st.integers(1, 16), st.integers(1, 4))  # fmt: skip
def test_layouts_of_other_kinds(kind: str, mode: str, columns: int, steps: int) -> None:
    if mode != "none":
        steps = min(steps, WIDTHS[mode] // 2)
    depth = 32 // BYTES[kind] * steps
    check(Case(
        16 * columns, kind, result="s32" if kind == "s8" else "f32", steps=steps, seed=columns,
        a=lying(mode, False, kind, 64, depth, 2048), b=lying(mode, False, kind, 64, depth, 65536),
    ))  # fmt: skip


def test_strides_wider_than_they_need_be() -> None:
    a = Lying("128", False, 4096, 16, 3072)
    b = Lying("64", True, 65536, 8192, 1536)
    check(Case(96, a=a, b=b, steps=1))
    check(Case(40, a=Lying("none", False, 512, 2048, 272), b=Lying("none", True, 65536, 640, 1296)))


def test_a_pattern_that_starts_at_its_base_offset() -> None:
    """The pattern begins 256 bytes behind a boundary: base offset (start >> 7) & 7 = 2."""
    plain = Case(16, b=lying("128", False, "f16", 16, 16, 65536), a=None)
    image = plain.image()
    moved = image.copy()
    moved[65536 + 256 : 65536 + 256 + 4096] = image[65536 : 65536 + 4096]
    text = plain.text().replace(
        f"{plain.b.descriptor():#x}", f"{plain.b.descriptor(256) | 2 << 49:#x}")  # fmt: skip
    bench = Bench()
    given_ = [bench.array(part)[0] for part in (
        moved, plain.fragments(), plain.sums(plain.start))]  # fmt: skip
    after, out = bench.array(np.zeros((plain.registers, 128), np.uint32))
    bench.good(text, *given_, after, block=(128,), shared=IMAGE, target=TARGET)
    assert np.array_equal(out, plain.wanted())


def good_case(**options: Any) -> Case:
    values: dict[str, Any] = {"a": lying("128", False, "f16", 64, 16, 0),
              "b": lying("128", False, "f16", 32, 16, 65536), **options}  # fmt: skip
    return Case(32, **values)


def test_two_warp_groups_side_by_side() -> None:
    case = good_case()
    text = case.text().replace("mov.u32 %t, %tid.x;", "mov.u32 %t, %tid.x; and.b32 %t, %t, 127;")
    outcome, out = run(case, 256, text)
    assert outcome.ending is SmEnding.DONE, outcome
    assert np.array_equal(out, case.wanted())


def test_groups_one_after_another() -> None:
    case = good_case()
    outcome, out = run(case, groups=3)
    assert outcome.ending is SmEnding.DONE, outcome
    assert np.array_equal(out, case.wanted())


FAULTS = {
    "sums read before the wait": ({"wait": ""}, "still in flight"),
    "sums read though never committed": ({"commit": ""}, "still in flight"),
    "the newest group is not waited for": (
        {"wait": "wgmma.wait_group.sync.aligned 1;"}, "still in flight"),
    "a start that is not where the pattern starts": (
        {"a": Lying("128", False, 128, 16, 1024)}, "not a matrix descriptor"),
    "a factor beyond shared memory": (
        {"b": Lying("128", False, 198 << 10, 16, 4096)}, "out of range"),
    "lanes that do not come": (
        {"before": "setp.eq.u32 %p3, %t, 5; @%p3 exit;"}, "never execute it together"),
    "a warp that leaves before": (
        {"before": "setp.ge.u32 %p3, %t, 96; @%p3 exit;"}, "warp group"),
    "a warp that waits for another group": (
        {"wait": "setp.ge.u32 %p3, %t, 96; @%p3 bra ELSE; wgmma.wait_group.sync.aligned 0;"
                 "bra ON; ELSE: wgmma.wait_group.sync.aligned 3; ON:"}, "warp group"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(name: str) -> None:
    options, wanted = FAULTS[name]
    outcome, _ = run(good_case(**options))
    assert outcome.ending is not SmEnding.DONE, name
    assert wanted in outcome.detail and outcome.line > 0, outcome


UNFENCED = {
    "no wgmma.fence": ({"fence": ""}, "without wgmma.fence"),
    "registers changed behind the fence": (
        {"fence": "wgmma.fence.sync.aligned; mov.f32 %acc0, 0f00000000;"},
        "without wgmma.fence: mov.f32 in line"),
    "no proxy fence": ({"proxy": ""}, "without fence.proxy.async"),
    "memory changed behind the proxy fence": (
        {"before": "mov.u32 %r9, part; st.shared.u32 [%r9], %r9; bar.sync 0;"},
        "without fence.proxy.async"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFENCED)
def test_a_missing_fence_is_a_violation(name: str) -> None:
    options, wanted = UNFENCED[name]
    outcome, _ = run(good_case(**options))
    assert outcome.ending is SmEnding.DONE, outcome
    assert any(wanted in text and "PTX line" in text for text in outcome.violations), outcome


def test_three_warps_are_no_warp_group() -> None:
    outcome, _ = run(good_case(), 96)
    assert "warp group" in outcome.detail
