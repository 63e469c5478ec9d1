"""Loads that read a parameter's memory as a texture: through the texture processors' own cache.

A load is marked with the metadata `!adreno.texel`. It becomes a fetch if its address is a parameter
and an offset of 32 bits, and the number of bytes there is known from the parameter's attribute
`dereferenceable`. Texels are unsigned integers as wide as the elements, so that no bit changes.

    load float, align 4         one component of 32 bits
    load <4 x float>, align 16  four
    load half, align 2          one of 16 bits
    load <4 x half>, align 4    two texels of two
"""

from __future__ import annotations

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Type
from ugpu.compiler.codegen.adreno.nir import TEX_FETCH
from ugpu.compiler.codegen.adreno.translation import Place, Translation
from ugpu.hcq.objects.ir3_object import Ir3Texture

MOST_TEXELS = 1 << 27  # of a buffer; turnip's maxTexelBufferElements


class Texels:
    """The textures of one function. bases: the parameter, by the definition of its address."""

    def __init__(self, selection: Translation) -> None:
        self.selection = selection
        self.textures: list[Ir3Texture] = []
        self.bases: dict[int, tuple[int, int]] = {}  # number of the parameter, bytes there

    def load(self, one: Instruction, place: Place) -> tuple[int, ...] | None:
        """Return the load's lanes, or None if it is not a load of a texel."""
        kind, known = one.type, self.bases.get(place.base)
        if not one.texel or kind is None or known is None:
            return None
        parameter, size = known
        width = _width(kind, one.align)
        if not width:
            return None
        bytes_of = kind.bits * width // 8
        if not 0 < size // bytes_of <= MOST_TEXELS:
            return None
        texture = Ir3Texture(parameter, "uint", kind.bits, width, size // bytes_of)
        if texture not in self.textures:
            self.textures.append(texture)
        build = self.selection.build
        index = place.words if bytes_of == 4 else 0
        if not index:
            shift = build.constant(32, bytes_of.bit_length() - 1)
            index = build.alu("ushr", 32, place.offset, shift)
        number = self.textures.index(texture)
        found: list[int] = []
        for first in range(0, kind.lanes, width):
            at = index
            if first:
                at = build.alu("iadd", 32, index, build.constant(32, first // width))
            texel = build.texture(TEX_FETCH, number, at, 1, kind.bits)
            found += build.channels(texel, 4, kind.bits)[:width]
        return tuple(found)


def _width(kind: Type, align: int) -> int:
    """Return the components of the widest texel in an access; 0 for other element widths."""
    if kind.bits not in (16, 32):
        return 0
    fitting = (n for n in (4, 2, 1) if kind.lanes % n == 0 and align >= n * kind.bits // 8)
    return next(fitting, 0)
