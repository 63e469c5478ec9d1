"""Images and samplers: loads, stores and samples of a wave's lanes, in NumPy.

Supported are linear images (TILE6_LINEAR) of one level, buffers as images, nearest and linear
filters.
Source: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml (A6XX_TEX_CONST, A6XX_TEX_SAMP),
src/freedreno/fdl/fd6_view.c, ir3/ir3_compiler_nir.c (order of coordinates).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.adreno.sp.formats import Format, decoded, encoded, format_of
from ugpu.virtual.adreno.sp.operands import TYPES, Op
from ugpu.virtual.shader.memory import Access

Array = NDArray[Any]
BUFFER, CUBE, THREE = 4, 2, 3  # types of textures
REPEAT, TO_EDGE, MIRROR, TO_BORDER, MIRROR_ONCE = range(5)
_COORDINATES = 4
_ELEMENT = {"f16": 2, "u16": 2, "s16": 2, "f32": 4, "u32": 4, "s32": 4}  # bytes by type
_PLAIN = {1: 0x05, 2: 0x18, 4: 0x4B}  # FMT6_8_UINT, FMT6_16_UINT, FMT6_32_UINT, by bytes
# GPU addresses [n], bytes at each, data to write [n, bytes] -> contents [n, bytes]
Move = Callable[[Array, int, Access, Array | None], Array]


def _bits(word: int, low: int, high: int) -> int:
    return word >> low & (1 << high - low + 1) - 1


@dataclass(frozen=True)
class Texture:
    """A descriptor of a texture or image. Sizes are texels, pitches bytes."""

    form: Format
    swizzle: tuple[int, ...]
    width: int
    height: int
    depth: int
    kind: int
    pitch: int
    layer: int
    base: int
    levels: int

    @classmethod
    def of(cls, words: Array) -> Texture:
        """Read a descriptor. Raises NotSupported for features that are not implemented."""
        w = [int(word) for word in words]
        if _bits(w[0], 0, 1):
            raise NotSupported("tiled images are not implemented", tile_mode=_bits(w[0], 0, 1))
        if _bits(w[0], 30, 31) or _bits(w[0], 2, 2) or _bits(w[0], 20, 21):
            raise NotSupported("swapped, sRGB and multisampled images are not implemented",
                               word=hex(w[0]))  # fmt: skip
        form = format_of(_bits(w[0], 22, 29))
        kind = _bits(w[2], 29, 31)
        base = w[4] & ~31 | _bits(w[5], 0, 16) << 32
        width, height = _bits(w[1], 0, 14), _bits(w[1], 15, 29)
        if kind == BUFFER:
            base += _bits(w[2], 16, 21) * form.size
            width, height = width | height << 15, 1
        return cls(
            form, tuple(_bits(w[0], low, low + 2) for low in (4, 7, 10, 13)), width, height,
            max(1, _bits(w[5], 17, 29)), kind, _bits(w[2], 7, 28), _bits(w[3], 0, 22) << 12, base,
            _bits(w[0], 16, 19),
        )  # fmt: skip

    def elements(self, size: int) -> Texture:
        """Return the buffer as elements of `size` bytes, whatever the texel size of its format.

        isam.v reads buffers this way: turnip describes buffers as 16-bit texels from the 740 on and
        reads 32-bit words through that (Mesa 25.0.7 tu_descriptor_set.cc, write_buffer_descriptor).
        """
        if self.kind != BUFFER or self.form.size == size:
            return self
        return replace(
            self, form=format_of(_PLAIN[size]), width=self.width * self.form.size // size
        )

    def places(self, at: Array) -> tuple[Array, Array]:
        """Return the addresses of texels [3, n], and which of them are inside the image."""
        x, y, z = at
        inside = (x >= 0) & (y >= 0) & (z >= 0)
        inside &= (x < self.width) & (y < self.height) & (z < self.depth)
        offsets = x * self.form.size + y * self.pitch + z * self.layer
        return (np.uint64(self.base) + offsets.astype(np.uint64)), inside

    def read(self, at: Array, move: Move) -> tuple[Array, Array]:
        """Return components [n, 4] of texels [3, n], zeros outside, and which are inside the
        image."""
        addresses, inside = self.places(at)
        found = np.zeros((at.shape[1], self.form.size), np.uint8)
        if inside.any():
            found[inside] = move(addresses[inside], self.form.size, Access.READ, None)
        components = decoded(found, self.form)
        components[~inside] = 0
        return components, inside

    def swizzled(self, components: Array) -> Array:
        """Put the components in order: X, Y, Z, W, zero, one."""
        constants = np.zeros((len(components), 2), components.dtype)
        constants[:, 1] = 1
        every = np.concatenate([components, constants], axis=1)
        found: Array = every[:, [min(k, 5) for k in self.swizzle]]
        return found


@dataclass(frozen=True)
class Sampler:
    """A descriptor of a sampler. border: four floats."""

    linear: bool
    wraps: tuple[int, int, int]
    unnormalised: bool
    border: int

    @classmethod
    def of(cls, words: Array) -> Sampler:
        """Read a descriptor. Raises NotSupported for features that are not implemented."""
        w = [int(word) for word in words]
        magnified = _bits(w[0], 1, 2)
        if magnified > 1 or _bits(w[2], 0, 1):
            raise NotSupported("anisotropic, cubic and reduction filters are not implemented")
        wraps = (_bits(w[0], 5, 7), _bits(w[0], 8, 10), _bits(w[0], 11, 13))
        return cls(magnified == 1, wraps, bool(_bits(w[1], 5, 5)), _bits(w[2], 7, 31) << 7)

    @staticmethod
    def wrapped(at: Array, size: int, wrap: int) -> Array:
        """Wrap texel numbers into an image; -1 for those that read the border."""
        if wrap == REPEAT:
            found: Array = at % size
        elif wrap == MIRROR:
            folded = at % (2 * size)
            found = np.where(folded < size, folded, 2 * size - 1 - folded)
        elif wrap == MIRROR_ONCE:
            found = np.minimum(np.where(at < 0, -1 - at, at), size - 1)
        elif wrap == TO_BORDER:
            found = np.where((at < 0) | (at >= size), -1, at)
        else:
            found = np.clip(at, 0, size - 1)
        return found


class Images:
    """Executes image instructions for one wave. move: reads and writes GPU memory."""

    def __init__(self, move: Move, borders: int) -> None:
        self._move, self._borders = move, borders

    def _words(self, address: int, count: int) -> Array:
        if not address:
            raise NotSupported("an image or sampler is used that is not bound")
        place = np.array([address], np.uint64)
        found: Array = self._move(place, 4 * count, Access.READ, None).view(np.uint32)[0]
        return found

    def run(self, op: Op, texture: int, sampler: int, given: Array, lanes: int) -> Array:
        """Execute for the active lanes: words [operands, n] in, words [4, n] out."""
        image = Texture.of(self._words(texture, 16))
        if op.name == "ldib.b":
            return self._load(op, image, self._coordinates(given, op.raw("D")))
        if op.name == "stib.b":
            self._store(op, image, given)
            return np.zeros((4, lanes), np.uint32)
        if op.name in ("resinfo.b", "getsize"):
            depth = image.depth
            sizes = np.array([image.width, image.height, depth, image.levels + 1], np.uint32)
            return np.repeat(sizes[:, None], lanes, axis=1)
        if op.name in ("isam", "isaml"):
            return self._fetch(op, image, given)
        return self._sample(op, image, Sampler.of(self._words(sampler, 4)), given)

    @staticmethod
    def _coordinates(given: Array, count: int) -> Array:
        at = np.zeros((3, given.shape[1]), np.int64)
        at[:count] = given[:count].view(np.int32)
        return at

    def _load(self, op: Op, image: Texture, at: Array) -> Array:
        components, _ = image.read(at, self._move)
        return _as_type(components, TYPES[op.raw("TYPE")])

    def _store(self, op: Op, image: Texture, given: Array) -> None:
        dimensions, name = op.raw("D"), TYPES[op.raw("TYPE")]
        addresses, inside = image.places(self._coordinates(given, dimensions))
        values = np.zeros((given.shape[1], 4), np.uint32)
        stored = given[dimensions : dimensions + op.raw("TYPE_SIZE")]
        values[:, : len(stored)] = _from_type(stored, name).T
        if inside.any():
            data = encoded(values, image.form)[inside]
            self._move(addresses[inside], image.form.size, Access.WRITE, data)

    def _fetch(self, op: Op, image: Texture, given: Array) -> Array:
        _one_level(op, image, given)
        single = bool(op.flag("SV"))
        at = self._coordinates(given, 1 if single else 2)
        if not single:
            at[2] = given[2].view(np.int32) if op.flag("3D") or op.flag("A") else 0
        if op.flag("SV"):  # consecutive elements instead of components
            ahead = op.scope.inner("SRC2").bits if op.flag("SRC2_IMM_OFFSET") else 0
            parts = []
            image = image.elements(_ELEMENT.get(_type(op), 1))
            for k in range(4):
                moved = at + np.array([[ahead + k], [0], [0]])
                parts.append(image.read(moved, self._move)[0][:, :1])
            return _as_type(np.concatenate(parts, axis=1), _type(op))
        return _as_type(image.swizzled(image.read(at, self._move)[0]), _type(op))

    def _sample(self, op: Op, image: Texture, sampler: Sampler, given: Array) -> Array:
        _one_level(op, image, given)
        if image.kind == CUBE:
            raise NotSupported("cube maps are not implemented")
        sizes = (image.width, image.height, image.depth)
        floats = _as_float(given[:_COORDINATES], not op.raw("FULL"))
        scaled = [
            floats[k] * (1 if sampler.unnormalised else sizes[k]) for k in range(3)
        ]  # in f64: the GPU's fixed point is not published
        volume = bool(op.flag("3D"))
        layer = np.rint(floats[2]).astype(np.int64).clip(0, image.depth - 1)
        if not op.flag("A"):
            layer = np.zeros_like(layer)
        axes = 3 if volume else 2
        corners = [self._corners(scaled[k], sampler.linear) for k in range(axes)]
        total = np.zeros((given.shape[1], 4), np.float64)
        result: Array | None = None
        for choice in range(1 << axes if sampler.linear else 1):
            at = np.zeros((3, given.shape[1]), np.int64)
            at[2] = layer
            weight = np.ones(given.shape[1])
            outside = np.zeros(given.shape[1], bool)
            for k in range(axes):
                place, share = corners[k][choice >> k & 1]
                at[k] = sampler.wrapped(place, sizes[k], sampler.wraps[k])
                outside |= at[k] < 0
                weight = weight * share
            components, _ = image.read(np.maximum(at, 0), self._move)
            if outside.any():
                components[outside] = self._border(sampler, components.dtype)
            if image.form.integer:
                result = components
            else:
                total += components * weight[:, None]
        if result is None:
            result = total.astype(np.float32)
        return _as_type(image.swizzled(result), _type(op))

    @staticmethod
    def _corners(at: Array, linear: bool) -> list[tuple[Array, Array]]:
        """Return the texels on an axis and their weights."""
        if not linear:
            return [(np.floor(at).astype(np.int64), np.ones(len(at)))]
        low = np.floor(at - 0.5)
        share = at - 0.5 - low
        return [(low.astype(np.int64), 1 - share), (low.astype(np.int64) + 1, share)]

    def _border(self, sampler: Sampler, kind: np.dtype[Any]) -> Array:
        if not self._borders:
            return np.zeros(4, kind)
        return self._words(self._borders + sampler.border, 4).view(np.float32).astype(kind)


def _type(op: Op) -> str:
    return TYPES[op.scope.inner("TYPE").raw("TYPE")]


def _one_level(op: Op, image: Texture, given: Array) -> None:
    if op.name not in ("isaml", "saml") or not image.levels:
        return
    if given[_COORDINATES].any():
        raise NotSupported("levels of an image other than the first are not implemented")


def _as_float(words: Array, half: bool) -> Array:
    if half:
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32).astype(np.float64)


def _as_type(components: Array, name: str) -> Array:
    """Convert components [n, 4] to words [4, n] of a register type."""
    if name == "f16":
        return components.astype(np.float16).T.copy().view(np.uint16).astype(np.uint32)
    if components.dtype == np.float32:
        return np.ascontiguousarray(components.T).view(np.uint32)
    words = np.ascontiguousarray(components.T).view(np.uint32)
    return words & np.uint32(0xFFFF) if name in ("u16", "s16") else words


def _from_type(words: Array, name: str) -> Array:
    """Convert words of registers of a type to f32 or 32-bit integers."""
    if name == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    if name == "s16":
        return words.astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)
    return words
