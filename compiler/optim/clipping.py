"""Limits of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.nn.parameter import Parameter
from ugpu.compiler.optim.placement import by_device
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument


def joined_gradients(parameters: Iterable[Parameter]) -> tuple[list[Parameter], Tensor]:
    """Return the parameters with gradients, and these as one array."""
    used = [each for each in parameters if each.grad is not None]
    if not used:
        raise BadArgument("expected parameters with gradients; call backward() first")
    return used, Tensor.cat([each.grad.reshape(each.numel()) for each in used]).contiguous()


def spread_gradients(used: list[Parameter], flat: Tensor) -> None:
    """Make parts of one array the gradients of parameters."""
    start = 0
    for parameter in used:
        part = flat[start : start + parameter.numel()]
        parameter.grad = part.reshape(parameter.shape)
        start += parameter.numel()


def clip_grad_norm_(
    parameters: Iterable[Parameter], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale all gradients down to a common norm of at most max_norm; return the norm before. Of the
    gradients one array is made, and two kernels read it."""
    rows = by_device("clip_grad_norm_", parameters, False)
    norms = [_clipped(row, max_norm, norm_type) for row in rows]  # equal ones
    return norms[0]


def _clipped(parameters: list[Parameter], max_norm: float, norm_type: float) -> Tensor:
    with tracking(False):
        used, flat = joined_gradients(parameters)
        if norm_type == math.inf:
            norm = flat.abs().max()
        elif norm_type == 2:
            norm = flat.square().sum().sqrt()
        else:
            norm = flat.abs().pow(norm_type).sum().pow(1 / norm_type)
        spread_gradients(used, (flat * (max_norm / (norm + 1e-6)).minimum(1.0)).contiguous())
        return norm


def clip_grad_value_(parameters: Iterable[Parameter], clip_value: float) -> None:
    """Limit each element of the gradients to -clip_value to clip_value."""
    with tracking(False):
        for row in by_device("clip_grad_value_", parameters, True):
            used, flat = joined_gradients(row)
            spread_gradients(used, flat.clamp(-clip_value, clip_value).contiguous())
