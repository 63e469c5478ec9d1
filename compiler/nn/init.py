"""Initial values of parameters; names as in torch.nn.init. They change the tensor and return it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import TypeVar

from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

T = TypeVar("T", bound=Tensor)
_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, slope: float | None = None) -> float:
    """Return the recommended gain for an activation. slope: of leaky_relu, by default 0.01."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if slope is None else slope) ** 2))
    if nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity not in _GAINS:
        raise BadArgument(f"gain: expected one of {sorted(_GAINS)}, got {nonlinearity!r}")
    return _GAINS[nonlinearity]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of inputs and of outputs of each element of a weight, as PyTorch counts
    them: the inputs are on axis 1."""
    if len(shape) < 2:
        raise BadArgument(f"init: expected a shape of at least two axes, got {list(shape)}")
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _set(tensor: T, values: Tensor | float) -> T:
    with tracking(False):
        tensor.assign(values)
        tensor.realize()
    return tensor


def zeros_(tensor: T) -> T:
    """Fill with 0."""
    return _set(tensor, 0.0)


def ones_(tensor: T) -> T:
    """Fill with 1."""
    return _set(tensor, 1.0)


def constant_(tensor: T, value: float) -> T:
    """Fill with a number."""
    return _set(tensor, value)


def uniform_(tensor: T, low: float = 0.0, high: float = 1.0) -> T:
    """Fill with uniform random numbers in [low, high)."""
    return _set(tensor, Tensor.uniform(tensor.shape, low=low, high=high, device=tensor.device))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Fill with normally distributed random numbers."""
    return _set(tensor, Tensor.normal(tensor.shape, mean=mean, std=std, device=tensor.device))


def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0
) -> T:
    """Fill with normally distributed random numbers between low and high. One in a million is
    missed by the ten attempts that each element has, and is cut to the limits."""
    values = Tensor.normal(tensor.shape, mean=mean, std=std, device=tensor.device)
    for _ in range(9):
        again = Tensor.normal(tensor.shape, mean=mean, std=std, device=tensor.device)
        values = ((values >= low) & (values <= high)).where(values, again)
    return _set(tensor, values.clamp(low, high))


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Fill with uniform numbers of variance 2 / (inputs + outputs), times the gain squared."""
    bound = gain * math.sqrt(6 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Fill with normal numbers of variance 2 / (inputs + outputs), times the gain squared."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor.shape))))


def _kaiming(tensor: Tensor, slope: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise BadArgument(f"init: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    fan = fans(tensor.shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, slope) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Fill with uniform numbers that keep the variance through an activation. a: its slope."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Fill with normal numbers that keep the variance through an activation. a: its slope."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


def default_(weight: T, bias: Tensor | None) -> None:
    """Fill a weight, and its bias, as PyTorch's Linear and convolutions do: uniform up to
    1 / sqrt(inputs)."""
    kaiming_uniform_(weight, math.sqrt(5))
    if bias is not None:
        inputs = fans(weight.shape)[0]
        bound = 1 / math.sqrt(inputs) if inputs else 0.0
        uniform_(bias, -bound, bound)
