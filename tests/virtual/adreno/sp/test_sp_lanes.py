"""Our code for Adreno on the virtual shader processors: what lanes of a wave tell each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno import ir3_machine
from tests.support.adreno.mesa import compiled, module, needs_mesa

CHIPS = ["a630", "a740"]


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
@pytest.mark.parametrize("wave", [64, 128])
def test_lanes_and_local_memory(chip: str, wave: int) -> None:
    """Threads exchange words through the wave and through local memory, over several waves."""
    kernel = compiled(module("""
  %there = call i32 @adreno.exchange(i32 %i, i32 33)
  %mine = getelementptr i32, ptr addrspace(3) @k.m, i32 %thread
  store i32 %there, ptr addrspace(3) %mine, align 4
  call void @adreno.barrier()
  %turned = sub i32 255, %thread
  %theirs = getelementptr i32, ptr addrspace(3) @k.m, i32 %turned
  %x = load i32, ptr addrspace(3) %theirs, align 4
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %x, ptr addrspace(1) %to, align 4""", "ptr addrspace(1) %out", 256,
        "@k.m = internal addrspace(3) global [256 x i32] poison, align 64"), chip)  # fmt: skip
    (found,) = ir3_machine.launch(
        kernel, chip, (3, 1, 1), [np.zeros(768, np.uint32)], thread_size=wave
    )
    number = np.arange(768)
    np.testing.assert_array_equal(found, (number // 256 * 256 + 255 - number % 256) ^ 33)


WORDS = np.random.default_rng(8).integers(-(1 << 31), 1 << 31, 200).astype(np.int32)
THREADS = 100  # a full wave and a part of one
EXTRA = """declare i32 @adreno.lane(i32, i32)
declare i32 @adreno.first(i32)
declare i32 @adreno.dot.s(i32, i32, i32)
declare i32 @adreno.dot.u(i32, i32, i32)
declare i32 @adreno.dot.su(i32, i32, i32)
declare float @adreno.reduce.fadd(float)"""


def computed(body: str, chip: str, declared: str = EXTRA, **more: object) -> NDArray[np.int32]:
    """What two groups store in %y, where %x is a word of the input."""
    kernel = compiled(module(f"""
  %from = getelementptr i32, ptr addrspace(1) %in, i64 %wide
  %x = load i32, ptr addrspace(1) %from, align 4
{body}
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %y, ptr addrspace(1) %to, align 4""",
        "ptr addrspace(1) %out, ptr addrspace(1) %in", THREADS, declared), chip)  # fmt: skip
    (found, _) = ir3_machine.launch(
        kernel, chip, (2, 1, 1), [np.zeros(200, np.int32), WORDS], **more
    )
    return found


def by_wave(function: Callable[[NDArray[np.int32]], object]) -> NDArray[np.int32]:
    """A function of the words of each wave."""
    found = np.empty(200, np.int32)
    for group in (0, THREADS):
        for first, end in ((0, 64), (64, THREADS)):
            found[group + first : group + end] = function(WORDS[group + first : group + end])
    return found


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
def test_words_of_chosen_lanes(chip: str) -> None:
    found = computed(
        """
  %part = and i32 %thread, 31
  %turned = sub i32 31, %part
  %y = call i32 @adreno.lane(i32 %x, i32 %turned)""",
        chip,
    )
    expected = by_wave(lambda words: words[31 - np.arange(len(words)) % 32])
    np.testing.assert_array_equal(found, expected)
    found = computed("  %y = call i32 @adreno.first(i32 %x)", chip)
    np.testing.assert_array_equal(found, by_wave(lambda words: words[0]))


TOTALS: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "smin": np.minimum, "smax": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "umin": np.minimum, "umax": np.maximum,
}  # fmt: skip


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", TOTALS)
def test_totals_of_a_wave(name: str, chip: str) -> None:
    function, kind = TOTALS[name], np.uint32 if name[0] == "u" else np.int32

    def total(words: NDArray[np.int32]) -> object:
        return function.reduce(words.view(kind), dtype=kind).view(np.int32)

    def running(words: NDArray[np.int32]) -> object:
        return function.accumulate(words.view(kind), dtype=kind).view(np.int32)

    for form, expected in (("reduce", total), ("scan", running)):
        declared = f"declare i32 @adreno.{form}.{name}(i32)"
        found = computed(f"  %y = call i32 @adreno.{form}.{name}(i32 %x)", chip, declared)
        np.testing.assert_array_equal(found, by_wave(expected))


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
def test_totals_leave_out_lanes_that_do_not_run(chip: str) -> None:
    found = computed(
        """
  %odd = and i32 %thread, 1
  %test = icmp eq i32 %odd, 0
  br i1 %test, label %yes, label %done
yes:
  %part = and i32 %x, 255
  %number = uitofp i32 %part to float
  %sum = call float @adreno.reduce.fadd(float %number)
  %whole = fptosi float %sum to i32
  br label %done
done:
  %y = phi i32 [ %whole, %yes ], [ -1, %entry ]""",
        chip,
    )

    def expected(words: NDArray[np.int32]) -> object:
        evens = (words & 255)[::2].sum()
        return np.where(np.arange(len(words)) % 2 == 0, evens, -1)

    np.testing.assert_array_equal(found, by_wave(expected))


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("name", "first", "second"), [("s", "i1", "i1"), ("u", "u1", "u1"),
                                                       ("su", "i1", "u1")])  # fmt: skip
def test_products_of_bytes(name: str, first: str, second: str, chip: str) -> None:
    found = computed(
        f"""
  %other = xor i32 %x, 1515870810
  %y = call i32 @adreno.dot.{name}(i32 %x, i32 %other, i32 %thread)""",
        chip,
    )
    left = WORDS.view(first).reshape(-1, 4).astype(np.int32)
    right = (WORDS ^ 1515870810).view(second).reshape(-1, 4).astype(np.int32)
    expected = (left * right).sum(1) + np.arange(200) % THREADS
    np.testing.assert_array_equal(found, expected)


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("space", ["global", "local"])
def test_compare_and_exchange(space: str, chip: str) -> None:
    """Threads take turns by a word: each finds the number before its own, once."""
    place, extra = "ptr addrspace(1) %in", EXTRA
    if space == "local":
        place = "ptr addrspace(3) @k.m"
        extra += "\n@k.m = internal addrspace(3) global [16 x i32] poison, align 64"
    start = "" if space == "global" else f"  store i32 {WORDS[0]}, {place}, align 4"
    found = computed(
        f"""
{start}
  call void @adreno.barrier()
  %pair = cmpxchg {place}, i32 {WORDS[0]}, i32 %thread monotonic monotonic
  %old = extractvalue {{ i32, i1 }} %pair, 0
  %done = extractvalue {{ i32, i1 }} %pair, 1
  %y = select i1 %done, i32 -1, i32 %old""",
        chip,
        extra,
    )
    groups = found.reshape(2, THREADS)
    winners = (groups == -1).sum(1)
    assert list(winners) == ([1, 0] if space == "global" else [1, 1])
    (winner,) = np.flatnonzero(groups[0] == -1)
    assert (np.delete(groups[0], winner) == winner).all()
