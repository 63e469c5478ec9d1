"""Loads that read textures: which the cost model chooses, and that results stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.mesa import needs_mesa, target
from tests.support.compiler.compiler_cases import buffer, kernels_of
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.adreno.profit import different, fetched
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.ir import Kernel
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Texture
from ugpu.qcom.work import programs

THREAD, CHANNEL, ROW, COLUMN = (
    Range("thread", 64, "thread"), Range("c", 5), Range("y", 3), Range("x", 3),
)  # fmt: skip


def reached(index: Index, lanes: int) -> int:
    """How many elements differ, by trying all."""
    ranges = sorted(index.ranges(), key=lambda one: one.name)
    found = set()
    for place in np.ndindex(*(one.size for one in ranges)):
        values = dict(zip((one.name for one in ranges), place, strict=True))
        at = index.evaluate(values)
        found.update(range(at, at + lanes))
    return len(found)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "index",
    [
        THREAD.index(),
        THREAD.index() * 4,
        THREAD.index() * 100,
        THREAD.index() + COLUMN.index(),
        THREAD.index() * 2 + COLUMN.index(),
        CHANNEL.index() * 1000 + ROW.index() * 70 + THREAD.index() + COLUMN.index(),
        THREAD.index() % 8 + THREAD.index() // 8 * 16 + COLUMN.index() + ROW.index() * 16,
        THREAD.index() % 16,
        constant(7),
    ],
    ids=str,
)
def test_elements_that_an_index_reaches(index: Index, lanes: int) -> None:
    """An estimate: never below the true number by more than half, nor above it by more than that.
    Threads that Div and Mod split count once each."""
    true = reached(index, lanes)
    assert true / 1.5 <= different(index, lanes) <= 1.5 * true


def chosen(kernels: list[Kernel]) -> set[str]:
    """Names of the parameters that are fetched."""
    return {access.memory.name for kernel in kernels for access in fetched(kernel)}


def test_which_loads_are_chosen() -> None:
    """Rows that threads share are; what each thread reads alone is not."""
    spec, alone = target("a630"), buffer(4096, dtype=float32)
    assert not chosen(kernels_of(graph.elementwise("add", float32, alone, alone), spec))
    row = graph.expand(buffer(1, 40, dtype=float32), (64, 40))
    found = kernels_of(graph.elementwise("add", float32, buffer(64, 40, dtype=float32), row), spec)
    (kernel,) = found
    (name,) = chosen(found)
    assert name == kernel.parameters[2].name and kernel.parameters[2].count == 40


SHAPES = [((1, 3, 17, 19), (4, 3, 3, 3), 1), ((2, 1, 9, 70), (3, 1, 5, 2), 2)]


def convolved(x: NDArray[np.float64], w: NDArray[np.float64], padding: int) -> NDArray[np.float64]:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    total = np.zeros((x.shape[0], w.shape[0], height, width))
    for ky, kx in np.ndindex(*w.shape[2:]):
        part = x[:, :, ky : ky + height, kx : kx + width]
        total += np.einsum("oc,nchw->nohw", w[:, :, ky, kx], part)
    return total


@needs_mesa
@pytest.mark.parametrize(("chip", "shape", "kind"), [
    ("a630", SHAPES[0], "float32"), ("a740", SHAPES[1], "float16"),
])  # fmt: skip
def test_windows_of_odd_shapes(
    monkeypatch: pytest.MonkeyPatch, chip: str, shape: tuple[tuple[int, ...], ...], kind: str
) -> None:
    """A convolution that fetches texels is what NumPy says."""
    inside, outside, padding = shape
    random = np.random.default_rng(len(kind))
    x, w = (random.random(sizes).astype(kind) for sizes in (inside, outside))
    textures: list[Ir3Texture] = []
    read = programs.parse_ir3

    def noted(image: bytes) -> tuple[Ir3Kernel, ...]:
        made = read(image)
        textures.extend(texture for one in made for texture in one.textures)
        return made

    monkeypatch.setattr(programs, "parse_ir3", noted)
    with hcq.open(f"virtual:{chip}") as device:
        tensors = Tensor(x, device=device), Tensor(w, device=device)
        found = tensors[0].conv2d(tensors[1], padding=padding).numpy()
        machine = device.driver.interface.node.machine  # type: ignore[attr-defined]
        assert not machine.violations
    assert textures
    expected = convolved(x.astype(np.float64), w.astype(np.float64), int(padding))
    assert np.allclose(found, expected, rtol=2e-3 if kind == "float16" else 1e-6)
