"""Functions of shape and order, and of elements by index."""

from __future__ import annotations

from typing import cast

from ugpu.compiler.array_api.operands import any_complex, array_of
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.methods.core import broadcast_shape
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Arrays = tuple[Tensor, ...] | list[Tensor]
Axes = int | tuple[int, ...]


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return all with one shape, see `broadcast_to`."""
    if not arrays:
        return []
    shapes = [array_of("broadcast_arrays", each).shape for each in arrays]
    shape = broadcast_shape("broadcast_arrays", *shapes)
    return [each.broadcast_to(shape) for each in arrays]


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return `Tensor.broadcast_to`."""
    return array_of("broadcast_to", x).broadcast_to(tuple(shape))


def concat(arrays: Arrays, /, *, axis: int | None = 0) -> Tensor:
    """Return `Tensor.cat`; axis None: of the flattened arrays."""
    if axis is None:
        return concat([array_of("concat", each).flatten() for each in arrays])
    return _home(arrays).cat(list(arrays), axis)


def _home(arrays: Arrays) -> type[Tensor]:
    """Return the class whose functions join arrays."""
    return cast("type[Tensor]", Tensor if any_complex(*arrays) is None else ComplexTensor)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """Return `Tensor.unsqueeze`."""
    return array_of("expand_dims", x).unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Return `Tensor.flip`; axis None: along all axes."""
    given = array_of("flip", x)
    return given.flip(tuple(range(given.ndim)) if axis is None else axis)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return `Tensor.mT`."""
    return array_of("matrix_transpose", x).mT


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Return `Tensor.movedim`."""
    return array_of("moveaxis", x).movedim(source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Return `Tensor.permute`."""
    return array_of("permute_dims", x).permute(tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return `Tensor.repeat_interleave`."""
    return array_of("repeat", x).repeat_interleave(repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """Return `Tensor.reshape`. The result is an independent value, whatever `copy`."""
    return array_of("reshape", x).reshape(tuple(shape))


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Return `Tensor.roll`."""
    return array_of("roll", x).roll(shift, axis)


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Return `Tensor.squeeze`; BadArgument if an axis has another size than 1."""
    given = array_of("squeeze", x)
    axes = given._axes("squeeze", axis)
    if any(given.shape[each] != 1 for each in axes):
        raise BadArgument(f"squeeze: axis {axis} of shape {list(given.shape)} must have size 1")
    return given.squeeze(axes)


def stack(arrays: Arrays, /, *, axis: int = 0) -> Tensor:
    """Return `Tensor.stack`."""
    return _home(arrays).stack(list(arrays), axis)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return `Tensor.take`; axis None: of an array of one axis."""
    given = array_of("take", x)
    if axis is None and given.ndim != 1:
        raise BadArgument(f"take: expected an axis for shape {list(given.shape)}, got None")
    return given.take(indices, 0 if axis is None else axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return `Tensor.take_along_dim`."""
    return array_of("take_along_axis", x).take_along_dim(indices, axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Return `Tensor.repeat`; missing repetitions are ones in front."""
    given = array_of("tile", x)
    return given.repeat((1,) * (given.ndim - len(repetitions)) + tuple(repetitions))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return `Tensor.unstack`."""
    return array_of("unstack", x).unstack(axis)
