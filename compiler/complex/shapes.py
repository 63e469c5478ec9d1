"""Complex tensors: shapes, places and assignment, each of both parts alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from ugpu.compiler.complex.arithmetic import Arithmetic
from ugpu.compiler.complex.core import ComplexCore, complex_dtype
from ugpu.compiler.dtype import PART_OF
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Method = Callable[..., Any]


def alike(name: str) -> Method:
    """Return a method that calls Tensor's for both parts."""

    def method(self: ComplexCore, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dtype") is not None:
            kwargs["dtype"] = PART_OF[complex_dtype(kwargs["dtype"])]
        return self._each(lambda part: getattr(part, name)(*args, **kwargs))

    return _described(method, name)


def like(name: str) -> Method:
    """Return a method that calls Tensor's with a tensor of the wanted shape for both parts."""

    def method(self: ComplexCore, other: Tensor | ComplexCore) -> Any:
        shown = other.real if isinstance(other, ComplexCore) else other
        return self._each(lambda part: getattr(part, name)(shown))

    return _described(method, name)


def in_pieces(name: str) -> Method:
    """Return a method that calls Tensor's, which gives several tensors, for both parts."""

    def method(self: ComplexCore, *args: Any, **kwargs: Any) -> Any:
        pieces = zip(*(getattr(part, name)(*args, **kwargs) for part in self.parts), strict=True)
        return tuple(self.of(one, two) for one, two in pieces)

    return _described(method, name)


def _described(method: Method, name: str) -> Method:
    method.__name__, method.__doc__ = name, getattr(Tensor, name).__doc__
    return method


class Shapes(Arithmetic):
    """Methods that move elements, as those of Tensor."""

    __slots__ = ()

    broadcast_to, expand, reshape, view = map(alike, ("broadcast_to", "expand", "reshape", "view"))
    flatten, ravel, unflatten = map(alike, ("flatten", "ravel", "unflatten"))
    squeeze, unsqueeze, repeat, tile = map(alike, ("squeeze", "unsqueeze", "repeat", "tile"))
    transpose, permute, t = map(alike, ("transpose", "permute", "t"))
    swapaxes, swapdims = alike("swapaxes"), alike("swapdims")
    movedim, moveaxis = alike("movedim"), alike("moveaxis")
    flip, roll, rot90 = alike("flip"), alike("roll"), alike("rot90")
    gather, take, index_select = map(alike, ("gather", "take", "index_select"))
    take_along_dim, repeat_interleave = alike("take_along_dim"), alike("repeat_interleave")
    diag, diagonal, tril, triu = map(alike, ("diag", "diagonal", "tril", "triu"))
    narrow, select, pad = alike("narrow"), alike("select"), alike("pad")
    flipud, fliplr = alike("flipud"), alike("fliplr")
    diagflat, diag_embed = alike("diagflat"), alike("diag_embed")
    zeros_like, unfold, sum_to_size = map(alike, ("zeros_like", "unfold", "sum_to_size"))
    expand_as, view_as, reshape_as = map(like, ("expand_as", "view_as", "reshape_as"))
    clone, contiguous, detach = alike("clone"), alike("contiguous"), alike("detach")
    chunk, split, tensor_split = map(in_pieces, ("chunk", "split", "tensor_split"))
    unbind, unstack = in_pieces("unbind"), in_pieces("unstack")
    hsplit, vsplit, dsplit = map(in_pieces, ("hsplit", "vsplit", "dsplit"))
    split_with_sizes = in_pieces("split_with_sizes")

    @property
    def T(self) -> Self:
        """The axes in reverse order."""
        return self._each(lambda part: part.T)

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self._each(lambda part: part.mT)

    @property
    def mH(self) -> Self:
        """The conjugate of `mT`."""
        return self.mT.conj()

    H = mH

    def __getitem__(self, key: Any) -> Self:
        return self._each(lambda part: part[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        given = self._lifted("assign", value)
        self.real[key], self.imag[key] = given.real, given.imag

    def __len__(self) -> int:
        return len(self.real)

    def masked_fill(self, mask: Tensor, value: Any) -> Self:
        """Return the elements, with one number where the mask is True."""
        filled: Self = self.where(mask, value, self)
        return filled

    def ones_like(self) -> Self:
        """Return ones of this shape."""
        return self.of(self.real.ones_like(), self.imag.zeros_like())

    def full_like(self, value: Any) -> Self:
        """Return one number in all elements of this shape."""
        number = self._lifted("full_like", value)
        return number._each(lambda part: part.expand(self.shape))

    @classmethod
    def _joined(
        cls, operation: str, join: Callable[..., Tensor], given: Sequence[Any], axis: int
    ) -> Self:
        first = next((each for each in given if isinstance(each, cls)), None)
        if first is None:
            raise BadArgument(f"{operation}: expected a ComplexTensor among {len(given)} tensors")
        lifted = [first._lifted(operation, each) for each in given]
        one, two = (join([each.parts[n] for each in lifted], axis) for n in (0, 1))
        return cls.of(one, two)

    @classmethod
    def cat(cls, tensors: Sequence[Any], axis: int = 0) -> Self:
        """Join along an axis, see `Tensor.cat`; some may be real."""
        return cls._joined("cat", Tensor.cat, tensors, axis)

    @classmethod
    def stack(cls, tensors: Sequence[Any], axis: int = 0) -> Self:
        """Join along a new axis, see `Tensor.stack`; some may be real."""
        return cls._joined("stack", Tensor.stack, tensors, axis)

    @classmethod
    def where(cls, condition: Tensor, one: Any, two: Any) -> Self:
        """Return elements of `one` where the condition holds, of `two` elsewhere; one of them is
        complex."""
        first = one if isinstance(one, cls) else two
        if not isinstance(first, cls):
            raise BadArgument("where: expected a ComplexTensor as one of two")
        left, right = first._lifted("where", one), first._lifted("where", two)
        pairs = zip(left.parts, right.parts, strict=True)
        return cls.of(*(condition.where(one, other) for one, other in pairs))
