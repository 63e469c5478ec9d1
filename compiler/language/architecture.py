"""The shape of a decoder, from the keys of a GGUF file.

Names of keys: ggml-org/ggml docs/gguf.md. Order of rotated pairs: ggml-org/llama.cpp,
llama_model_rope_type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadFile, NotSupported

# Whether rotary embedding rotates consecutive elements, or elements half a head apart.
CONSECUTIVE = {"llama": True, "qwen2": False, "qwen3": False, "qwen2moe": False, "qwen3moe": False}
NORMALISED = frozenset(("llama", "qwen3moe"))  # chosen experts' weights are divided by their sum
LIMITS = {"block_count": 1000, "embedding_length": 1 << 20, "attention.head_count": 4096,
          "context_length": 1 << 30, "expert_count": 4096}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """width: of the hidden state. head_size: elements of a key; value_size: of a value.
    rotated: elements of a head that are rotated. experts, used: 0 for a dense model."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    epsilon: float
    rotated: int
    base: float
    scale: float
    context: int
    experts: int
    used: int

    @property
    def consecutive(self) -> bool:
        return CONSECUTIVE[self.name]

    @property
    def normalised(self) -> bool:
        return self.name in NORMALISED


def architecture(keys: Mapping[str, Any], file: str) -> Architecture:
    """Return the architecture. NotSupported for an unknown one, BadFile for missing or impossible
    numbers."""
    name = keys.get("general.architecture")
    if not isinstance(name, str) or name not in CONSECUTIVE:
        raise NotSupported(
            f"{file}: architecture {name!r} is not supported; supported: {', '.join(CONSECUTIVE)}"
        )

    def number(key: str, default: Any = None, types: tuple[type, ...] = (int,)) -> Any:
        value = keys.get(f"{name}.{key}", default)
        limit = LIMITS.get(key, 1 << 40)
        if isinstance(value, np.ndarray):
            if not value.size or (value != value.flat[0]).any():
                raise NotSupported(f"{file}: {name}.{key} differs between layers")
            value = value.flat[0].item()
        if type(value) not in types or not 0 <= value <= limit:
            kind = types[-1].__name__
            raise BadFile(f"{file}: {name}.{key} must be {kind} from 0 to {limit}, got {value!r}")
        return value

    def real(key: str, default: float | None = None) -> float:
        return float(number(key, default, (int, float)))

    heads = number("attention.head_count")
    width = number("embedding_length")
    if not heads or not width:
        raise BadFile(f"{file}: {name} has {heads} heads of a width of {width}")
    size = number("attention.key_length", width // heads)
    kind = keys.get(f"{name}.rope.scaling.type", "none")
    if not isinstance(kind, str) or kind not in ("none", "linear"):
        raise NotSupported(f"{file}: rope scaling {kind!r} is not supported")
    result = Architecture(
        name,
        number("block_count"),
        width,
        heads,
        number("attention.head_count_kv", heads),
        size,
        number("attention.value_length", size),
        real("attention.layer_norm_rms_epsilon"),
        number("rope.dimension_count", size),
        real("rope.freq_base", 10000.0),
        real("rope.scaling.factor", 1.0) if kind == "linear" else 1.0,
        number("context_length"),
        number("expert_count", 0),
        number("expert_used_count", 0),
    )
    if not result.kv_heads or heads % result.kv_heads or result.rotated % 2:
        raise BadFile(f"{file}: {heads} heads cannot share {result.kv_heads} keys")
    return result


def angles(
    shape: Architecture, length: int, divisors: NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines [length, rotated / 2] of rotary embedding."""
    steps = np.arange(0, shape.rotated, 2, dtype=np.float64)
    frequency = shape.base ** (-steps / shape.rotated) / shape.scale
    if divisors is not None:
        frequency = frequency / divisors
    angle = np.outer(np.arange(length), frequency)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
