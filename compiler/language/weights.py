"""Weights of a language model: floats, or groups of elements of 8 or 4 bits that share a scale.

Weights of quantised types stay quantised in memory: 1 byte an element, or half a byte, and 4 or 8
bytes a group. The kernels that read them multiply by the scales, so that a token reads a fifth to a
third of the bytes that it would read as float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ugpu.compiler.files.bits import nibbles
from ugpu.compiler.files.entry import Scaled
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.tensor import Tensor

FEW = 16  # rows of a product up to which kernels read packed codes well


@dataclass(frozen=True)
class Groups:
    """Groups in memory, as parts of the rows of a tensor. packed: codes hold two elements each: the
    low four bits are of the first half of a group, the high ones of the second."""

    stored: Scaled
    packed: bool

    def floats(self, rows: int = 1) -> Tensor:
        """Return the elements as float32, [..., groups, elements of a group], lazily. rows: of the
        product; for many, packed codes are stored as bytes first."""
        if not self.packed:
            return self.stored.floats()
        codes = nibbles(self.stored.codes)
        return replace(self.stored, codes=codes.contiguous() if rows > FEW else codes).floats()

    def rows(self, places: Tensor) -> Groups:
        """Return the parts at indices along the first axis, lazily."""
        scale, codes, least = self.stored.scale, self.stored.codes, self.stored.least
        chosen = replace(
            self.stored, scale=scale[places], codes=codes[places],
            least=None if least is None else least[places],
        )  # fmt: skip
        return Groups(chosen, self.packed)

    @property
    def arrays(self) -> list[Tensor]:
        """The arrays in memory."""
        arrays = [self.stored.scale, self.stored.codes]
        return arrays if self.stored.least is None else [*arrays, self.stored.least]


class Weight:
    """One tensor of a model, in device memory."""

    def __init__(self, values: Tensor | Scaled, shape: Shape, dtype: str) -> None:
        """Store the values. dtype: that floats are computed in; vectors and groups are computed in
        float32. Floats of 16 bits stay so in memory where float32 is wanted."""
        self.shape = shape
        self._dtype = dtype if len(shape) > 1 else "float32"
        self._floats: Tensor | None = None
        self._groups: Groups | None = None
        if isinstance(values, Scaled) and len(shape) > 1 and dtype == "float32":
            self._groups = _stored(values, shape)
            return
        floats = values.floats() if isinstance(values, Scaled) else values
        narrow = len(shape) > 1 and self._dtype == "float32" and floats.dtype.itemsize == 2
        kept = floats if narrow else floats.cast(self._dtype)
        self._floats = kept.reshape(shape).contiguous().realize()

    def whole(self, rows: int = 1) -> Tensor:
        """Return all elements, lazily. rows: of the product that they are for."""
        if self._groups is None:
            assert self._floats is not None
            return self._floats.cast(self._dtype)
        return self._groups.floats(rows).reshape(self.shape)

    def rows(self, places: Tensor) -> Tensor:
        """Return the parts at indices along the first axis, lazily."""
        if self._groups is None:
            assert self._floats is not None
            return self._floats[places].cast(self._dtype)
        return self._groups.rows(places).floats().reshape((*places.shape, *self.shape[1:]))

    @property
    def nbytes(self) -> int:
        """The memory that the values take."""
        arrays = [self._floats] if self._groups is None else self._groups.arrays
        return sum(each.numel() * each.dtype.itemsize for each in arrays if each is not None)


def _stored(groups: Scaled, shape: Shape) -> Groups:
    """Return groups in memory."""
    size = groups.codes.shape[-1]
    outer, half = (*shape[:-1], shape[-1] // size), size // 2
    packed = groups.bits <= 4
    codes = groups.codes.reshape((*outer, size))
    if packed:
        codes = codes[..., :half] | codes[..., half:] << 4
    scale, codes = groups.scale.reshape((*outer, 1)).contiguous(), codes.contiguous()
    least = None if groups.least is None else groups.least.reshape((*outer, 1)).contiguous()
    stored = Groups(replace(groups, scale=scale, codes=codes, least=least), packed)
    scale.realize(*stored.arrays[1:])
    return stored


class Weights(Mapping[str, Tensor]):
    """Weights by name, or those of one layer: what `whole` returns."""

    def __init__(self, weights: Mapping[str, Weight], rows: int = 1) -> None:
        """rows: of the products that the weights are for."""
        self.stored = dict(weights)
        self.rows = rows

    def __getitem__(self, name: str) -> Tensor:
        return self.stored[name].whole(self.rows)

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
