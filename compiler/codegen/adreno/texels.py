"""Loads that read a parameter's memory as a texture: through the texture processors' own cache.

A load is marked with the metadata `!adreno.texel`. It becomes a fetch where its address is a
parameter and an offset of 32 bits, and how many bytes lie there is known: the parameter's attribute
`dereferenceable`. Texels are unsigned integers as wide as the elements, so that no bit changes.

    load float, align 4         one component of 32 bits
    load <4 x float>, align 16  four
    load half, align 2          one of 16 bits
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.codegen.adreno.llvm import Instruction
from compiler.codegen.adreno.nir import TEX_FETCH
from hcq.ir3object import Ir3Texture

if TYPE_CHECKING:
    from compiler.codegen.adreno.memory import Place
    from compiler.codegen.adreno.select import Selection

MOST_TEXELS = 1 << 27  # of a buffer; turnip's maxTexelBufferElements
_COMPONENTS = {32: (1, 2, 4), 16: (1, 4)}  # of a texel, by bits


class Texels:
    """The textures of one function. bases: what defines a parameter's address, and its number."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.textures: list[Ir3Texture] = []
        self.bases: dict[int, tuple[int, int]] = {}  # number of the parameter, bytes there

    def load(self, one: Instruction, place: Place) -> tuple[int, ...] | None:
        """The load's lanes, or None where it is none of a texel."""
        kind, known = one.type, self.bases.get(place.base)
        if not one.texel or kind is None or known is None:
            return None
        parameter, size = known
        bytes_of = kind.bits * kind.lanes // 8
        if (
            kind.lanes not in _COMPONENTS.get(kind.bits, ()) or one.align < bytes_of
            or not 0 < size // bytes_of <= MOST_TEXELS
        ):  # fmt: skip
            return None
        texture = Ir3Texture(parameter, "uint", kind.bits, kind.lanes, size // bytes_of)
        if texture not in self.textures:
            self.textures.append(texture)
        build = self.selection.build
        index = place.words if bytes_of == 4 else 0
        if not index:
            shift = build.constant(32, bytes_of.bit_length() - 1)
            index = build.alu("ushr", 32, place.offset, shift)
        number = self.textures.index(texture)
        found = build.texture(TEX_FETCH, number, index, 1, kind.bits)
        return build.channels(found, 4, kind.bits)[: kind.lanes]
