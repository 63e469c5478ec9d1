"""Fields of bytes, as tensor operations. `raw`: uint8 [n, bytes], a row for each block."""

from __future__ import annotations

from ugpu.compiler.tensor import Tensor


def byte_pair(raw: Tensor, at: int) -> Tensor:
    """Return the uint16 at two bytes: [n, 1]."""
    return raw[:, at : at + 1].cast("uint16") | raw[:, at + 1 : at + 2].cast("uint16") << 8


def byte_quad(raw: Tensor, at: int) -> Tensor:
    """Return the uint32 at four bytes: [n, 1]."""
    return byte_pair(raw, at).cast("uint32") | byte_pair(raw, at + 2).cast("uint32") << 16


def float16_at(raw: Tensor, at: int) -> Tensor:
    """Return the float16 at two bytes, as float32: [n, 1]."""
    return byte_pair(raw, at).bitcast("float16").float()


def signed(raw: Tensor) -> Tensor:
    """Return bytes as signed numbers, float32."""
    return raw.bitcast("int8").float()


def parts(raw: Tensor, count: int, bits: int) -> Tensor:
    """Return the fields of each byte, the lowest first: [..., k] gives [..., k, count]."""
    shifts = Tensor.arange(count, device=raw.device, dtype="uint8") * bits
    return raw.unsqueeze(-1) >> shifts & ((1 << bits) - 1)


def low_high(raw: Tensor, count: int, bits: int) -> Tensor:
    """Return the lowest fields of all bytes of a group, then the next ones: [n, g, k] gives
    [n, g, count, k]."""
    shifts = Tensor.arange(count, device=raw.device, dtype="uint8").reshape(count, 1) * bits
    return raw.unsqueeze(-2) >> shifts & ((1 << bits) - 1)


def nibbles(raw: Tensor) -> Tensor:
    """Return the low nibbles of a block, then the high ones: [..., k] gives [..., 2 k]."""
    *outer, count = raw.shape
    return low_high(raw, 2, 4).reshape((*outer, 2 * count))
