"""A case of the campaign: an operation at given sizes, how its input lies in memory, and what
follows it. All other parameters are drawn from the case's seed, so a smaller case is the same case
with smaller sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
Shape = tuple[int, ...]
VIEWS = ("plain", "turned", "sliced", "strided", "flipped", "computed", "joined")
AFTER = ("nothing", "shifted", "turned", "cast")
ODD = (-3, -1, 0, 0, 1, 3, 5)  # distances from multiples of powers of two


@dataclass(frozen=True)
class Case:
    """operation: its name in `lab.sizes.operations`. sizes: its free sizes. view: how the first
    input lies in memory. after: what is fused behind the operation."""

    operation: str
    sizes: Shape
    dtype: str
    view: str
    after: str
    seed: int

    @property
    def axis(self) -> int:
        return self.seed % len(self.sizes)

    @property
    def order(self) -> Shape:
        """Return a permutation of the axes."""
        return tuple(int(axis) for axis in self.random().permutation(len(self.sizes)))

    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


@dataclass(frozen=True)
class Operation:
    """work: the operation on tensors; numpy: the same on arrays, in float64 where the result is a
    float. axes: the fewest and the most sizes. shapes: of the inputs. values: the inputs themselves
    where small integers do not suit. work_of: the cost of sizes in elements. rtol, atol: 0 requires
    equality."""

    work: Callable[[Case, Sequence[Tensor]], Tensor]
    numpy: Callable[[Case, Sequence[Array]], Any]
    axes: tuple[int, int] = (1, 4)
    types: tuple[str, ...] = ("float32", "float16", "int32", "int8", "int64", "uint16")
    shapes: Callable[[Case], Sequence[Shape]] = lambda case: [case.sizes]
    values: Callable[[Case], Sequence[Array]] | None = None
    work_of: Callable[[Shape], float] = prod
    rtol: float = 0.0
    atol: float = 0.0

    def inputs(self, case: Case) -> Sequence[Array]:
        if self.values is not None:
            return self.values(case)
        random = case.random()
        return [integers(random, shape, case.dtype) for shape in self.shapes(case)]


def integers(random: np.random.Generator, shape: Shape, dtype: str, most: int = 3) -> Array:
    """Return small integers of a type: sums and products of them are exact in any order."""
    kind = np.dtype(dtype)
    low = 0 if kind.kind in "bu" else -most
    return random.integers(low, 2 if kind.kind == "b" else most + 1, shape).astype(kind)


def draw(
    random: np.random.Generator, table: dict[str, Operation], least: float, most: float
) -> Case:
    """Return a random case of `least` to `most` elements (of `work_of`)."""
    name = str(random.choice(sorted(table)))
    operation = table[name]
    fewest, axes = operation.axes
    count = int(random.integers(fewest, axes + 1))
    wanted = least * (most / least) ** float(random.random())
    return Case(
        name,
        _sizes(random, count, wanted, operation.work_of),
        str(random.choice(operation.types)),
        str(random.choice(VIEWS)),
        str(random.choice(AFTER)),
        int(random.integers(1 << 30)),
    )


def _sizes(
    random: np.random.Generator, count: int, wanted: float, work_of: Callable[[Shape], float]
) -> Shape:
    """Return sizes whose work is about `wanted`, most of them next to a multiple of a power of
    two."""
    shares = random.dirichlet(np.full(count, float(random.choice((1, 4, 20)))))  # even, uneven
    scale = 1.0
    sizes: Shape = ()
    for _ in range(60):
        sizes = tuple(max(1, round((wanted * scale) ** float(share))) for share in shares)
        if work_of(sizes) <= wanted:
            break
        scale *= 0.7
    return tuple(_odd(random, size) for size in sizes)


def _odd(random: np.random.Generator, size: int) -> int:
    step = 1 << int(random.integers(2, 9))
    if size < step or random.random() < 0.2:
        return size
    return max(1, size // step * step + int(random.choice(ODD)))


def viewed(case: Case, array: Array, device: Device) -> Tensor:
    """Return a tensor with the values of an array that lies in memory in the case's way."""
    last = array.ndim - 1
    if case.view == "turned" and array.ndim > 1:
        order = [int(axis) for axis in case.random().permutation(array.ndim)]
        back = [order.index(axis) for axis in range(array.ndim)]
        return Tensor(np.ascontiguousarray(array.transpose(order)), device=device).permute(*back)
    if case.view == "sliced":
        whole = Tensor(np.pad(array, 1), device=device)
        return whole[tuple(slice(1, size + 1) for size in array.shape)]
    if case.view == "strided":
        return Tensor(np.repeat(array, 2, last), device=device)[..., ::2]
    if case.view == "flipped":
        return Tensor(np.ascontiguousarray(array[..., ::-1]), device=device).flip(last)
    if case.view == "computed" and array.dtype.kind == "f":
        return -Tensor(-array, device=device)
    if case.view == "computed" and array.dtype.kind != "b":
        return Tensor(array - array.dtype.type(1), device=device) + 1
    if case.view == "joined" and array.shape[0] > 1:
        at = 1 + case.seed % (array.shape[0] - 1)
        return Tensor.cat([Tensor(array[:at], device=device), Tensor(array[at:], device=device)])
    return Tensor(array, device=device)


def followed(case: Case, result: Tensor) -> Tensor:
    """Return a result with what follows it."""
    if case.after == "shifted" and result.dtype.name != "bool":
        return result + 1
    if case.after == "turned":
        return result.permute(*reversed(range(result.ndim))).contiguous()
    return result.cast("float32") if case.after == "cast" else result


def followed_in_numpy(case: Case, result: Array) -> Array:
    if case.after == "shifted" and result.dtype != bool:
        return np.asarray(result + 1)
    return result.transpose() if case.after == "turned" else result
