"""Rules of the compiler that begin above a size: a table of cases for each, and how one is checked.

A rule is named after its module below `compiler` and the constants whose values it compares sizes
with. It is run at sizes on both sides of what it cuts things into, must have been taken there, and
must not be taken just below the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.kernel.choices import Choices
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
Shape = tuple[int, ...]
Inputs = tuple[Shape, ...]  # the shapes of a case's inputs


@dataclass(frozen=True)
class Lowered:
    """The kernels of a tensor, and the default choices of those that have some."""

    kernels: list[Kernel]
    choices: list[Choices]

    def has(self, *names: str) -> bool:
        """Return whether the kernels have memories of these names."""
        known = {memory.name for kernel in self.kernels for memory in kernel.locals}
        return known.issuperset(names)

    def count(self, name: str) -> int:
        """Return the elements of a memory; 0 without it."""
        memories = (memory for kernel in self.kernels for memory in kernel.locals)
        return next((memory.count for memory in memories if memory.name == name), 0)

    def grid(self, axis: int) -> int:
        """Return the largest grid along an axis."""
        return max(kernel.grid[axis] for kernel in self.kernels)

    def text(self) -> str:
        return "\n".join(format_kernel(kernel) for kernel in self.kernels)


@dataclass(frozen=True)
class Rule:
    """module: below `compiler`. limits: the constants. taken: whether the rule is. shapes: above
    the threshold, with sizes that divide and sizes that do not. below: just below it. values:
    numbers of an input's shape. slow: devices on which the cases are slow."""

    module: str
    limits: str
    work: Callable[..., Tensor]
    numpy: Callable[..., Any]
    taken: Callable[[Lowered], bool]
    shapes: Sequence[Inputs]
    below: Sequence[Inputs] = ()
    dtypes: tuple[str, ...] = ("float32",)
    tolerance: float = 0.0
    devices: tuple[str, ...] = ("cpu",)
    slow: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.module}: {self.limits}"

    def arrays(self, shapes: Inputs) -> list[Array]:
        """Return small integers, of which sums and products are exact."""
        random = np.random.default_rng(sum(sum(shape) for shape in shapes))
        kinds = [np.dtype(self.dtypes[min(i, len(self.dtypes) - 1)]) for i in range(len(shapes))]
        lows = [0 if kind.kind in "bu" else -3 for kind in kinds]
        return [
            random.integers(low, 4, shape).astype(kind)
            for low, kind, shape in zip(lows, kinds, shapes, strict=True)
        ]

    def build(self, shapes: Inputs, device: Device) -> tuple[Tensor, list[Array]]:
        arrays = self.arrays(shapes)
        return self.work(*(Tensor(array, device=device) for array in arrays)), arrays

    def check(self, shapes: Inputs, device: Device) -> None:
        """AssertionError unless the rule is taken and its result is NumPy's."""
        result, arrays = self.build(shapes, device)
        kernels = lowered(result)
        assert self.taken(kernels), f"{self.name} is not taken at {shapes}"
        assert lowered(result).text() == kernels.text(), "the same computation, another kernel"
        wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
        found = result.numpy()
        wanted = np.asarray(self.numpy(*wide)).astype(found.dtype)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, self.tolerance, self.tolerance)

    def check_below(self, shapes: Inputs, device: Device) -> None:
        result, _ = self.build(shapes, device)
        assert not self.taken(lowered(result)), f"{self.name} is taken at {shapes}"


def lowered(tensor: Tensor) -> Lowered:
    """Return the kernels that compute a tensor on its device."""
    target = tensor.device.target
    computations = [express(group) for group in schedule([tensor.node])]
    known = [spaces(computation, target) for computation in computations]
    kernels = [lower(computation, target) for computation in computations]
    return Lowered(kernels, [each[0].start for each in known if each])


def above(rules: Iterable[Rule], device: str) -> list[Any]:  # Any: pytest's parameters
    """Return (rule, shapes) of a device for `pytest.mark.parametrize`."""
    return [
        pytest.param(
            rule, shapes, id=f"{rule.module.rpartition('.')[2]} {shapes}",
            marks=[pytest.mark.slow] if device in rule.slow else [],
        )
        for rule in rules for shapes in rule.shapes if device in rule.devices
    ]  # fmt: skip


def below(rules: Iterable[Rule], device: str) -> list[Any]:
    return [
        pytest.param(rule, shapes, id=f"{rule.module.rpartition('.')[2]} {shapes}")
        for rule in rules for shapes in rule.below if device in rule.devices
    ]  # fmt: skip
