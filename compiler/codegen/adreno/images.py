"""Images: texels that a kernel stores, loads and samples by coordinates.

A parameter with the attribute "adreno-image" is an image; the attribute has the format of a texel,
the size in texels, and the bytes from row to row. A sampled image also has "adreno-sampler": the
filter (linear, nearest), the addressing outside the image (repeat, edge, mirror, border, which is
zeros), and "texels" if coordinates are in texels rather than from 0 to 1:

    ptr addrspace(1) "adreno-image"="8_8_8_8_unorm 640x480 2560" "adreno-sampler"="linear edge" %in

    adreno.image.store(image, x, y, <4 x float>)    store a texel; none outside the image
    adreno.image.load(image, x, y) -> <4 x float>   its components, 0 and a last 1 where it has
                                                    fewer; zeros outside the image
    adreno.image.sample(image, float, float) -> <4 x float>   the sampler's result at the place

A dot and a suffix after such a name distinguish declarations of several types. Components are float
or half, or i32 or i16 for formats that end in uint, which cannot be sampled. Samples go through the
texture processor's cache, so a kernel cannot sample an image it stores to. The driver describes
images and samplers to the GPU (hcq.objects.ir3_object). Sources: Mesa 25.0.7
src/compiler/nir/nir_intrinsics.py (image_load, image_store), src/freedreno/ir3/ir3_image.c and
ir3_a6xx.c (ldib, stib).
"""

from __future__ import annotations

import re
from typing import TypeVar

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Type
from ugpu.compiler.codegen.adreno.nir import TEX_SAMPLE
from ugpu.compiler.codegen.adreno.texels import Texels
from ugpu.compiler.codegen.adreno.translation import Translation
from ugpu.hcq.errors import CompileError
from ugpu.hcq.objects.ir3_object import TEXEL_KINDS, WRAPS, Ir3Sampler, Ir3Texture

_FORM = re.compile(r"(\d+(?:_\d+)*)_([a-z]+) (\d{1,9})x(\d{1,9}) (\d{1,9})")
_SAMPLER = re.compile(rf"(linear|nearest) ({'|'.join(WRAPS)})( texels)?")
_DIM_2D = 1  # enum glsl_sampler_dim
_UINT, _FLOAT = 4, 128  # enum nir_alu_type
_COMPONENTS = 4
_Record = TypeVar("_Record", Ir3Texture, Ir3Sampler)
_OPERANDS = {"load": 3, "store": 4, "sample": 3}


class Images:
    """The images and samplers of one function, numbered as its instructions first name them."""

    def __init__(self, selection: Translation, texels: Texels) -> None:
        self.selection = selection
        self.texels = texels
        self.images: list[Ir3Texture] = []
        self.samplers: list[Ir3Sampler] = []
        self._uses: set[tuple[str, int]] = set()

    def call(self, one: Instruction, what: str) -> tuple[int, ...]:
        """Emit a load, store or sample; CompileError if it does not match its image."""
        if len(one.operands) != _OPERANDS.get(what):
            raise _fault(f"expected adreno.image.load, store or sample, got {one.kind}", one)
        kind = one.operands[-1].type if what == "store" else one.type
        function, name = self.selection.function, one.operands[0].name
        form = function.images.get(name)
        if form is None:
            raise _fault('expected a parameter with the attribute "adreno-image"', one)
        image = described(form, [each for each, _ in function.parameters].index(name))
        _check(image, kind, what, one)
        assert kind is not None
        self._uses.add((what, image.parameter))
        if {("store", image.parameter), ("sample", image.parameter)} <= self._uses:
            raise _fault(f"{name} is stored to and sampled in one kernel", one)
        given = [self.selection.lanes(operand) for operand in one.operands[1:]]
        at = [given[0][0], given[1][0]]
        if what == "sample":
            return self._sample(image, sampler_of(function.samplers.get(name, "")), at, kind.bits)
        build = self.selection.build
        zero = build.constant(32, 0)
        place = build.alu("vec4", 32, *at, zero, zero, lanes=4)
        sources = [build.constant(32, _number(image, self.images)), place, zero]
        result = (_UINT if kind.kind == "i" else _FLOAT) | kind.bits
        if what == "store":
            texel = build.alu("vec4", kind.bits, *given[2], lanes=_COMPONENTS)
            sources += [texel, zero]
            build.intrinsic("image_store", sources, image_dim=_DIM_2D, src_type=result)
            return ()
        sources.append(zero)
        texel = build.intrinsic(
            "image_load", sources, _COMPONENTS, kind.bits, image_dim=_DIM_2D, dest_type=result
        )
        return build.channels(texel, _COMPONENTS, kind.bits)

    def _sample(
        self, image: Ir3Texture, sampler: Ir3Sampler, at: list[int], bits: int
    ) -> tuple[int, ...]:
        build = self.selection.build
        texture = _number(image, self.texels.textures)
        number = _number(sampler, self.samplers)
        place = build.alu("vec2", 32, *at, lanes=2)
        texel = build.texture(TEX_SAMPLE, texture, place, 2, bits, number)
        return build.channels(texel, _COMPONENTS, bits)


def _number(one: _Record, of: list[_Record]) -> int:
    if one not in of:
        of.append(one)
    return of.index(one)


def _check(image: Ir3Texture, kind: Type | None, what: str, one: Instruction) -> None:
    names, wanted = "float or half", "f"
    if image.kind == "uint":
        names, wanted = "i32 or i16", "i"
        if what == "sample":
            raise _fault("an image of integers cannot be sampled", one)
    fits = kind is not None and kind.bits in (16, 32)
    if kind is None or not fits or (kind.kind, kind.lanes) != (wanted, _COMPONENTS):
        raise _fault(f"expected a texel of four {names}", one)
    coordinate = Type("f" if what == "sample" else "i", 32)
    if any(operand.type != coordinate for operand in one.operands[1:3]):
        raise _fault(f"expected coordinates of type {'float' if what == 'sample' else 'i32'}", one)


def _fault(message: str, one: Instruction) -> CompileError:
    return CompileError(f"LLVM IR for Adreno: {message}", code=one.line.strip())


def described(form: str, parameter: int) -> Ir3Texture:
    """Return the image that "adreno-image" describes; CompileError if it describes none."""
    found = _FORM.fullmatch(form)
    sides = found[1].split("_") if found else []
    if (
        found is None or found[2] not in TEXEL_KINDS or len(set(sides)) != 1
        or sides[0] not in ("8", "16", "32") or len(sides) not in (1, 2, 4)
    ):  # fmt: skip
        raise CompileError(
            'the attribute "adreno-image" must be like "8_8_8_8_unorm 640x480 2560" (components, '
            f"{', '.join(TEXEL_KINDS)}; texels; bytes of a row), got {form!r}"
        )
    width, height, pitch = (int(found[place]) for place in (3, 4, 5))
    return Ir3Texture(parameter, found[2], int(sides[0]), len(sides), width, height, pitch)


def sampler_of(form: str) -> Ir3Sampler:
    """Return the sampler that "adreno-sampler" describes; CompileError if it describes none."""
    found = _SAMPLER.fullmatch(form)
    if found is None:
        raise CompileError(
            'the attribute "adreno-sampler" of a sampled image must be like "linear edge" or '
            f'"nearest repeat texels" (filter; {", ".join(WRAPS)}), got {form!r}'
        )
    return Ir3Sampler(found[1] == "linear", found[2], normal=not found[3])
