"""Products of packed factors in schedules: when it pays, who decides, what plans show, what comes
out on the virtual chip."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.kernel.gpu.test_matrix_units import product
from tests.support.clocks import Looks
from tests.support.compiler.compiler_cases import buffer
from tests.support.compiler.compiler_devices import poisoned
from tests.support.compiler.packed_products import HOPPER, groups_of, numbers
from ugpu import hcq
from ugpu.compiler import Tensor, function, jit
from ugpu.compiler.dtype import DType, bfloat16, float16, float32, int8
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning
from ugpu.compiler.front.explain import watch
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.choices import BulkTiles, Packing
from ugpu.compiler.kernel.nvidia import bulk as gpu_bulk
from ugpu.compiler.plan import packing
from ugpu.compiler.plan.packing import packed
from ugpu.compiler.runtime.kernels.store import packing_key
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.search.tune import tuning
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, ptx_target

Array = NDArray[Any]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are packed however small they are."""
    monkeypatch.setattr(packing, "pays", lambda *_: True)


# ---- when it pays ------------------------------------------------------------------------------


def packs(root: Node, target: TargetSpec = HOPPER) -> bool:
    return len(groups_of(root, target=target)) > 1


def test_when_packing_pays() -> None:
    assert packs(product(8192, 8192, 8192, bfloat16))
    assert packs(product(4096, 4096, 4096, int8))  # of which one factor runs across
    assert packs(product(4096, 4096, 4096, float32))
    assert not packs(product(1024, 1024, 1024, bfloat16))
    assert not packs(product(8192, 64, 8192, bfloat16))
    assert not packs(product(32, 8192, 8192, bfloat16))
    for cpu in ("sm_80", "sm_90", "sm_100", "sm_120"):
        assert not packs(product(8192, 8192, 8192, bfloat16), ptx_target(cpu, 132))


@pytest.mark.usefixtures("always")
def test_only_the_plain_form_is_packed() -> None:
    """Sums over several axes, and factors of other types, stay as they are."""
    left, right = buffer(64, 3, 40, dtype=float16), buffer(64, 40, 3, dtype=float16)
    shape = (64, 64, 3, 40)
    ours = graph.expand(graph.reshape(graph.cast(left, float32), (64, 1, 3, 40)), shape)
    theirs = graph.permute(graph.cast(right, float32), (0, 2, 1))
    theirs = graph.expand(graph.reshape(theirs, (1, 64, 3, 40)), shape)
    whole = graph.elementwise("mul", float32, ours, theirs)
    assert not packs(graph.reduce("sum", whole, (2, 3)))
    one, two = buffer(64, 64, dtype=float32), buffer(64, 64, dtype=float32)
    assert not packs(graph.elementwise("add", float32, one, two))


def test_who_knows_better_decides() -> None:
    large, small = product(8192, 8192, 8192, bfloat16), product(128, 128, 128, bfloat16)
    seen = []
    for root, verdict, count in (
        (large, False, 1), (large, None, 3), (small, True, 3), (small, None, 1),
    ):  # fmt: skip

        def judge(
            plain: Computation, forms: tuple[Computation, ...], says: bool | None = verdict
        ) -> bool | None:
            seen.append((plain, forms))
            return says

        assert len(packed(schedule([root]), HOPPER, [root], judge)) == count
    plain, forms = seen[-1]
    assert [each.origin for each in forms] == ["pack", "pack", plain.origin]
    assert packed(schedule([small]), ptx_target("sm_90", 132), [small], judge) and len(seen) == 4


def test_nothing_holds_nodes_longer() -> None:
    """Who refers to nodes is counted: the pass leaves no circles behind."""
    root = product(8192, 8192, 8192, bfloat16)
    gc.collect()
    gc.disable()
    try:
        groups = packed(schedule([root]), HOPPER, [root])
        kept = [weakref.ref(node) for group in groups for node in group.inputs]
        assert len(groups) == 3 and all(ref() is not None for ref in kept)
        watched = weakref.ref(root)
        del groups, root
        assert watched() is None
    finally:
        gc.enable()


# ---- on the virtual chip -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with hcq.open("virtual:gh100") as device:
        poisoned(device, tmp_path_factory.mktemp("cache") / "kernels")
        yield device


def tensors(gpu: Device, kind: str, left: Array, right: Array) -> tuple[Tensor, Tensor]:
    made = [Tensor(array, device=gpu) for array in (left, right)]
    if kind == "bfloat16":
        return made[0].bfloat16().realize(), made[1].bfloat16().realize()
    if kind == "tf32":
        return made[0].tf32(), made[1].tf32()
    return (made[0].int(), made[1].int()) if kind == "int8" else (made[0], made[1])


DEVICE: list[tuple[str, tuple[int, int, int], DType]] = [
    ("float16", (72, 200, 90), float16), ("bfloat16", (130, 77, 100), bfloat16),
    ("tf32", (70, 90, 66), float32), ("int8", (65, 300, 72), int8),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "shape", "dtype"), DEVICE)
def test_on_the_virtual_chip(
    gpu: Device, kind: str, shape: tuple[int, int, int], dtype: DType
) -> None:
    left, right = numbers(kind, shape, 7)
    one, two = tensors(gpu, kind, left, right)
    with watch() as runs:
        found = (one @ two).float().numpy()
    computes = [kernel.computes for run in runs for kernel in run.kernels]
    assert computes.count("pack") == 2
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol={"bfloat16": 2**-8}.get(kind, 0), atol=0)


def test_what_a_search_found_is_used(gpu: Device) -> None:
    """A record on disk, found by the product as it would be without."""
    values = np.ones((64, 64), np.float16)
    one, two = Tensor(values, device=gpu), Tensor(values.copy(), device=gpu)
    root = (one @ two).node
    seen = []
    packed(schedule([root]), gpu.target, [root], lambda plain, _: seen.append(plain))
    tuned = runtime_of(gpu).programs.tuned
    for pays in (False, True):
        with interning:
            key = packing_key(seen[0], gpu)
        tuned.put(key, Packing(pays))
        with watch() as runs:
            runtime_of(gpu).programs._groups.clear()
            runtime_of(gpu)._plans.clear()
            result = one @ two
            assert (result.numpy() == 64).all()
        assert len(runs[0].kernels) == (3 if pays else 1)
    tuned.disk.forget(key)


@pytest.mark.usefixtures("always")
def test_groups_go_round_their_rings_one_after_another(gpu: Device) -> None:
    """More groups than a worker runs beside each other, each with more slices than stages: all
    its warps wait now and then, and the groups behind it begin like the first ones."""
    left, right = numbers("float16", (64, 320, 320), 3)
    one, two = tensors(gpu, "float16", left, right)
    found = (one @ two).float().numpy()
    np.testing.assert_array_equal(found, left.astype(np.float64) @ right.astype(np.float64))


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_cluster_shares_what_it_fetches(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = BulkTiles("sm_90a.float16", (1, 1), (1, 16), 3, cluster=2)
    monkeypatch.setattr(gpu_bulk, "default_tiles", lambda *_: tiles)
    left, right = numbers("float16", (128, 300, 130), 7)
    one, two = tensors(gpu, "float16", left, right)
    with watch() as runs:
        found = (one @ two).float().numpy()
    assert "cluster 2" in runs[0].kernels[-1].ir
    expected = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_tuning_measures_both_forms(tmp_path_factory: pytest.TempPathFactory) -> None:
    with hcq.open("virtual:gh100") as device:
        use_cache(device, tmp_path_factory.mktemp("tuned") / "kernels")
        # of no whole blocks: kernels that skip what lies between agree with those that add it
        left, right = (np.ones(shape, np.float16) for shape in ((66, 70), (70, 65)))
        one, two = Tensor(left, device=device), Tensor(right, device=device)
        with tuning(beam=1, budget_s=60, clock=Looks()) as report:
            assert ((one @ two).numpy() == 70).all()
        details = "\n".join(line for kernel in report.kernels for line in kernel.details())
        assert "bulktiles" in details and "another result" not in details
        names = [kernel.computes for kernel in report.kernels]
        assert names.count("pack") >= 1 and len(names) >= 3
        root = (one @ two).node
        seen = []
        packed(schedule([root]), device.target, [root], lambda plain, _: seen.append(plain))
        with interning:
            found = runtime_of(device).programs.tuned.get(packing_key(seen[0], device))
        assert isinstance(found, Packing)


@pytest.mark.usefixtures("always")
def test_plans_show_what_is_packed(gpu: Device) -> None:
    """Two layers, of which the second one's left factor is computed by the first."""
    random = np.random.default_rng(2)
    x, w = (random.integers(-2, 3, (64, 64)).astype(np.float16) for _ in range(2))
    one, two = Tensor(x, device=gpu), Tensor(w, device=gpu)
    with watch() as runs:
        found = (one @ two).relu() @ two
        values = found.numpy()
    kernels = [kernel.computes.split()[0] for run in runs for kernel in run.kernels]
    # the second one's right factor is the first one's
    assert kernels == ["pack", "pack", "cast", "cast"]
    assert "= pack from %" in runs[0].schedule
    hidden = np.maximum(x.astype("f8") @ w, 0)
    np.testing.assert_array_equal(values, (hidden @ w).astype(np.float16))


@pytest.mark.usefixtures("always")
def test_rows_that_are_no_whole_chunks_are_filled_up(gpu: Device) -> None:
    """What lies between the end of a row and that of its last chunk is added up, too: zeros. The
    product before it does not write them (all memory is NaN before)."""
    random = np.random.default_rng(6)
    x, one, two = (random.integers(-2, 3, shape).astype(np.float16)
                   for shape in ((64, 64), (64, 72), (72, 64)))  # fmt: skip
    given = [Tensor(array, device=gpu) for array in (x, one, two)]
    found = ((given[0] @ given[1]).relu() @ given[2]).numpy()
    hidden = np.maximum(x.astype("f8") @ one, 0)
    np.testing.assert_array_equal(found, (hidden @ two).astype(np.float16))


@pytest.mark.usefixtures("always")
def test_functions_pack_too(gpu: Device) -> None:
    """Inside a nested function, whose plan is made once, and in what is recorded."""
    random = np.random.default_rng(4)
    arrays = [random.integers(-2, 3, (64, 64)).astype(np.float16) for _ in range(3)]
    x, *weights = (Tensor(array, device=gpu) for array in arrays)

    @function
    def layer(given: Tensor, weight: Tensor) -> Tensor:
        return (given @ weight).relu()

    with watch() as runs:
        found = layer(layer(x, weights[0]), weights[1]).numpy()
    assert [kernel.computes for kernel in runs[0].kernels].count("pack") == 4
    hidden = np.maximum(arrays[0].astype("f8") @ arrays[1], 0)
    expected = np.maximum(hidden @ arrays[2], 0).astype(np.float16)
    np.testing.assert_array_equal(found, expected)

    @jit
    def step(given: Tensor) -> Tensor:
        return layer(layer(given, weights[0]), weights[1])

    for _ in range(4):
        np.testing.assert_array_equal(step(x).numpy(), expected)
    assert step.kernels == 6
