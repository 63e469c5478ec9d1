"""The methods of Tensor that compute: what rules of gradients are written with."""

from __future__ import annotations

from ugpu.compiler.methods.derived.counting import Counting
from ugpu.compiler.methods.derived.images import Images
from ugpu.compiler.methods.derived.named import Named
from ugpu.compiler.methods.derived.numbers import Numbers
from ugpu.compiler.methods.derived.parts import Parts
from ugpu.compiler.methods.derived.products import Products
from ugpu.compiler.methods.derived.special import Special


class Values(Numbers, Counting, Products, Images, Named, Parts, Special):
    """All methods."""

    __slots__ = ()
