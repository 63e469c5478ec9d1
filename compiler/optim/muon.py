"""Muon: momentum made orthogonal by Newton and Schulz' iteration (K. Jordan, 2024)."""

from __future__ import annotations

import math
from typing import Any

from ugpu.compiler.dtype import bfloat16
from ugpu.compiler.nn.parameter import Array, replace
from ugpu.compiler.optim.descent import check_range
from ugpu.compiler.optim.optimizer import Group, Optimizer, Parameters
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

FACTORS = (3.4445, -4.775, 2.0315)


class Muon(Optimizer):
    """For matrices only, as torch.optim.Muon. adjust_lr_fn: "original" or "match_rms_adamw"."""

    arrays = ("momentum_buffer",)
    elementwise = False

    def __init__(
        self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True, eps: float = 1e-7, ns_steps: int = 5,
        adjust_lr_fn: str | None = None, *, offload: bool = False,
    ) -> None:  # fmt: skip
        check_range("Muon", "lr", lr)
        check_range("Muon", "momentum", momentum, 1.0)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise BadArgument(f"Muon: adjust_lr_fn {adjust_lr_fn!r} is unknown")
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        }, offload)  # fmt: skip

    def _check(self, parameter: Any) -> None:
        super()._check(parameter)
        if parameter.ndim != 2:
            raise BadArgument(f"Muon: expected matrices, got shape {list(parameter.shape)}")

    def _update(self, group: Group, array: Array, gradients: Tensor) -> list[Tensor]:
        options, buffer, p = group.options, group.states["momentum_buffer"], array.tensor
        moved = buffer + (gradients - buffer) * (1 - options["momentum"])
        self._set(group, "momentum_buffer", moved)
        update = moved
        if options["nesterov"]:
            update = gradients + (moved - gradients) * options["momentum"]
        update = update.contiguous()
        parts = []
        for parameter in array.parameters:
            matrix = update._new(array.of(update.node, parameter))
            turned = orthogonal(matrix, options["ns_steps"], options["eps"])
            parts.append(turned * _scale(parameter.shape, options["adjust_lr_fn"]))
        replace(
            p, p * (1 - group.rate * options["weight_decay"]) - group.rate * array.joined(parts)
        )
        return [p, buffer]


def _scale(shape: tuple[int, ...], way: str | None) -> float:
    rows, columns = shape
    if way == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def orthogonal(matrix: Tensor, steps: int, epsilon: float) -> Tensor:
    """Return a matrix of about the same singular vectors with singular values near one, by products
    in bfloat16."""
    one, two, three = FACTORS
    u = matrix.cast(bfloat16)
    tall = u.shape[0] > u.shape[1]
    if tall:
        u = u.transpose(0, 1)
    u = u / u.float().square().sum().sqrt().cast(bfloat16).maximum(epsilon)
    for _ in range(steps):
        gram = (u @ u.transpose(0, 1)).contiguous()
        both = gram * two + (gram @ gram) * three
        u = (u * one + both @ u).contiguous()
    return (u.transpose(0, 1) if tall else u).float()
