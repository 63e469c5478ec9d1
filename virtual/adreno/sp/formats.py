"""Formats of texels: layout and meaning of their components.

Source: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml, a6xx_format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import NotSupported

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A format of texels. kind: "unorm", "snorm", "uint", "sint" or "float". bits: of each
    component."""

    name: str
    kind: str
    bits: int
    components: int

    @property
    def size(self) -> int:
        """Return the bytes of a texel."""
        return self.bits * self.components // 8

    @property
    def integer(self) -> bool:
        return self.kind in ("uint", "sint")


# The first of a run of formats, by bits and components; the kinds follow in order.
_RUNS = (
    (0x03, 8, 1, ("unorm", "snorm", "uint", "sint")),
    (0x0F, 8, 2, ("unorm", "snorm", "uint", "sint")),
    (0x15, 16, 1, ("unorm", "snorm", "float", "uint", "sint")),
    (0x30, 8, 4, ("unorm",)),
    (0x32, 8, 4, ("snorm", "uint", "sint")),
    (0x43, 16, 2, ("unorm", "snorm", "float", "uint", "sint")),
    (0x4A, 32, 1, ("float", "uint", "sint")),
    (0x60, 16, 4, ("unorm", "snorm", "float", "uint", "sint")),
    (0x67, 32, 2, ("float", "uint", "sint")),
    (0x82, 32, 4, ("float", "uint", "sint")),
)
FORMATS = {
    first + k: Format(f"{'_'.join([str(bits)] * count)}_{kind}".upper(), kind, bits, count)
    for first, bits, count, kinds in _RUNS
    for k, kind in enumerate(kinds)
}


def format_of(number: int) -> Format:
    """Return a format by number. NotSupported for formats that the shader processors do not
    implement."""
    found = FORMATS.get(number)
    if found is None:
        raise NotSupported("the virtual shader processors do not support the texel format",
                           format=hex(number))  # fmt: skip
    return found


def decoded(texels: Array, form: Format) -> Array:
    """Turn bytes [n, size] into components [n, 4]: float32, uint32 or int32. Components that a
    format lacks are 0, the fourth 1."""
    letter = {"float": "f", "uint": "u", "unorm": "u", "sint": "i", "snorm": "i"}[form.kind]
    parts = np.ascontiguousarray(texels).view(f"<{letter}{form.bits // 8}")
    kind = {"uint": np.uint32, "sint": np.int32}.get(form.kind, np.float32)
    found = np.zeros((len(texels), 4), kind)
    found[:, 3] = 1
    values = parts.astype(kind) if form.kind in ("float", "uint", "sint") else _scaled(parts, form)
    found[:, : form.components] = values
    return found


def _scaled(parts: Array, form: Format) -> Array:
    most = (1 << form.bits - (form.kind == "snorm")) - 1
    scaled: Array = np.maximum(parts.astype(np.float64) / most, -1).astype(np.float32)
    return scaled


def encoded(values: Array, form: Format) -> Array:
    """Turn components [n, 4] into bytes [n, size]; values out of range go to the nearest end."""
    values = values[:, : form.components]
    letter = {"float": "f", "uint": "u", "unorm": "u", "sint": "i", "snorm": "i"}[form.kind]
    kind = np.dtype(f"<{letter}{form.bits // 8}")
    if form.kind == "float":
        with np.errstate(over="ignore"):
            parts = values.view(np.float32).astype(kind)
    elif form.integer:
        signed = values.view(np.int32) if form.kind == "sint" else values.view(np.uint32)
        info = np.iinfo(kind)
        parts = np.clip(signed.astype(np.int64), info.min, info.max).astype(kind)
    else:
        most = (1 << form.bits - (form.kind == "snorm")) - 1
        single = np.nan_to_num(values.view(np.float32).astype(np.float64), nan=0)
        low = -1.0 if form.kind == "snorm" else 0.0
        parts = np.rint(np.clip(single, low, 1.0) * most).astype(kind)
    return np.ascontiguousarray(parts).view(np.uint8).reshape(len(values), form.size)
