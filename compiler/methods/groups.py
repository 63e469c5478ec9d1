"""The groups of methods that stand side by side, joined."""

from __future__ import annotations

from ugpu.compiler.methods.assignment import Assignment
from ugpu.compiler.methods.einsum import Einsum
from ugpu.compiler.methods.losses import Losses
from ugpu.compiler.methods.order.scans import Scans
from ugpu.compiler.methods.order.scattering import Scattering
from ugpu.compiler.methods.order.sorting import Sorting
from ugpu.compiler.methods.shape.layout import Layout
from ugpu.compiler.methods.windows import Windows


class Groups(Assignment, Layout, Scattering, Sorting, Scans, Windows, Einsum, Losses):
    """All groups: what methods in `compiler.methods.derived` are composed of."""

    __slots__ = ()
