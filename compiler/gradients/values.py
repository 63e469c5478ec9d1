"""The methods of Tensor that compute: what rules of gradients are written with."""

from __future__ import annotations

from ugpu.compiler.methods.derived.counting import Counting
from ugpu.compiler.methods.derived.images import Images
from ugpu.compiler.methods.derived.numbers import Numbers
from ugpu.compiler.methods.derived.products import Products


class Values(Numbers, Counting, Products, Images):
    """All methods."""

    __slots__ = ()
