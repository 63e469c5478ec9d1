"""Weights of a language model: floats, or groups of elements of 8 bits that share a scale.

Weights of quantised types stay quantised in memory: 1 byte an element, and 4 or 8 bytes a group.
The kernels that read them multiply by the scales, so that a token reads about a third of the bytes
that it would read as float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ugpu.compiler.files.entry import Scaled
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.tensor import Tensor


class Weight:
    """One tensor of a model, in device memory."""

    def __init__(self, values: Tensor | Scaled, shape: Shape, dtype: str) -> None:
        """Store the values. dtype: of floats; vectors and groups are computed in float32."""
        self.shape = shape
        self._floats: Tensor | None = None
        self._groups: Scaled | None = None
        if isinstance(values, Scaled) and len(shape) > 1 and dtype == "float32":
            self._groups = _stored(values, shape)
            return
        floats = values.floats() if isinstance(values, Scaled) else values
        kind = dtype if len(shape) > 1 else "float32"
        self._floats = floats.reshape(shape).cast(kind).contiguous().realize()

    def whole(self) -> Tensor:
        """Return all elements, lazily."""
        if self._groups is None:
            assert self._floats is not None
            return self._floats
        return self._groups.floats().reshape(self.shape)

    def rows(self, places: Tensor) -> Tensor:
        """Return the parts at indices along the first axis, lazily."""
        if self._groups is None:
            assert self._floats is not None
            return self._floats[places]
        least = self._groups.least
        chosen = Scaled(
            self._groups.scale[places],
            self._groups.codes[places],
            None if least is None else least[places],
        )
        return chosen.floats().reshape((*places.shape, *self.shape[1:]))

    @property
    def nbytes(self) -> int:
        """The memory that the values take."""
        groups = self._groups
        parts = [self._floats] if groups is None else [groups.scale, groups.codes, groups.least]
        return sum(each.numel() * each.dtype.itemsize for each in parts if each is not None)


def _stored(groups: Scaled, shape: Shape) -> Scaled:
    """Return groups in memory, as parts of the rows of a tensor."""
    size = groups.codes.shape[-1]
    outer = (*shape[:-1], shape[-1] // size)
    scale = groups.scale.reshape((*outer, 1)).contiguous()
    codes = groups.codes.reshape((*outer, size)).contiguous()
    least = None if groups.least is None else groups.least.reshape((*outer, 1)).contiguous()
    scale.realize(codes, *([] if least is None else [least]))
    return Scaled(scale, codes, least)


class Weights(Mapping[str, Tensor]):
    """Weights by name, or those of one layer: what `whole` returns."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self.stored = dict(weights)

    def __getitem__(self, name: str) -> Tensor:
        return self.stored[name].whole()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def part(self, start: str) -> Weights:
        """Return the weights whose names begin with `start`, by the rest of their names."""
        return Weights(
            {
                name.removeprefix(start).removesuffix(".weight"): weight
                for name, weight in self.stored.items()
                if name.startswith(start)
            }
        )

    @property
    def nbytes(self) -> int:
        """The memory that all values take."""
        return sum(weight.nbytes for weight in self.stored.values())
