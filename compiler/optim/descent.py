"""SGD, Adam, AdamW and LAMB; orders of operations and names of states as in PyTorch."""

from __future__ import annotations

import math
from typing import Any

from ugpu.compiler.nn.parameter import Array, replace
from ugpu.compiler.optim.optimizer import Group, Optimizer, Parameters
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument


def check_range(name: str, option: str, value: float, below: float = math.inf) -> None:
    """Raise BadArgument unless 0 <= value < below."""
    if not 0 <= value < below:
        limit = "" if below == math.inf else f" and below {below}"
        raise BadArgument(f"{name}: {option} must be at least 0{limit}, got {value}")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay."""

    arrays = ("momentum_buffer",)

    def __init__(
        self, params: Parameters, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, offload: bool = False,
    ) -> None:  # fmt: skip
        check_range("SGD", "lr", lr)
        if nesterov and (momentum <= 0 or dampening):
            raise BadArgument("SGD: nesterov requires a momentum and no dampening")
        options = {"lr": lr, "momentum": momentum, "dampening": dampening,
                   "weight_decay": weight_decay, "nesterov": nesterov}  # fmt: skip
        super().__init__(params, options, offload)

    def _update(self, group: Group, array: Array, gradients: Tensor) -> list[Tensor]:
        options, states, p = group.options, group.states, array.tensor
        g = gradients
        if options["weight_decay"]:
            g = g + p * options["weight_decay"]
        changed = [p]
        if options["momentum"]:
            buffer, step = states["momentum_buffer"], group.clock[0]
            # the first step takes the gradient whole, without dampening
            part = 1.0 if not options["dampening"] else (step > 0).where(
                1 - options["dampening"], 1.0)  # fmt: skip
            moved = buffer * options["momentum"] + g * part
            changed.append(self._set(group, "momentum_buffer", moved))
            if options["dampening"]:
                replace(group.clock, group.clock + 1)
                changed.append(group.clock)
            g = g + moved * options["momentum"] if options["nesterov"] else moved
        replace(p, p - g * group.rate)
        return changed


class Adam(Optimizer):
    """Adam (arXiv:1412.6980). weight_decay is added to the gradient."""

    arrays: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    decoupled = False

    def __init__(
        self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *,
        offload: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        check_range(name, "lr", lr)
        check_range(name, "eps", eps)
        for beta in betas:
            check_range(name, "betas", beta, 1.0)
        if amsgrad:
            self.arrays = (*self.arrays, "max_exp_avg_sq")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                   "amsgrad": amsgrad}  # fmt: skip
        super().__init__(params, options, offload)

    def _moments(self, group: Group, g: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Return the corrected mean's factor, the mean and the root of the corrected square mean of
        the gradients; and the states, which are assigned."""
        states, (one, two) = group.states, group.options["betas"]
        step = group.clock[0] + 1
        # 1 - beta^step without cancellation
        first = -(step * math.log(one)).expm1() if one else step * 0 + 1
        second = -(step * math.log(two)).expm1() if two else step * 0 + 1
        mean = states["exp_avg"] + (g - states["exp_avg"]) * (1 - one)
        square = states["exp_avg_sq"] * two + g * g * (1 - two)
        changed = [group.clock]
        most = square
        if group.options["amsgrad"]:
            most = states["max_exp_avg_sq"].maximum(square)
            changed.append(self._set(group, "max_exp_avg_sq", most))
        clock = Tensor.stack([step, group.rate / first, second.rsqrt()]).contiguous()
        changed += [self._set(group, "exp_avg", mean), self._set(group, "exp_avg_sq", square)]
        replace(group.clock, clock)
        return clock[1], mean, most.sqrt() * clock[2] + group.options["eps"], changed

    def _update(self, group: Group, array: Array, gradients: Tensor) -> list[Tensor]:
        p, decay = array.tensor, group.options["weight_decay"]
        g = gradients
        if decay and not self.decoupled:
            g = g + p * decay
        rate, mean, root, changed = self._moments(group, g)
        kept: Any = p * (1 - group.rate * decay) if decay and self.decoupled else p
        replace(p, kept - rate * mean / root)
        return [p, *changed]


class AdamW(Adam):
    """Adam with weight decay apart from the gradient (arXiv:1711.05101)."""

    decoupled = True

    def __init__(
        self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
        offload: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, offload=offload)


class LAMB(Adam):
    """Adam with a step in proportion to each parameter's norm (arXiv:1904.00962)."""

    elementwise = False

    def __init__(
        self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.0, *, offload: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, offload=offload)

    def _update(self, group: Group, array: Array, gradients: Tensor) -> list[Tensor]:
        p, decay = array.tensor, group.options["weight_decay"]
        rate, mean, root, changed = self._moments(group, gradients)
        move = (rate / group.rate * mean / root + p * decay).contiguous()
        ratios = []
        for parameter in array.parameters:
            parts = [p._new(array.of(each.node, parameter)) for each in (p, move)]
            own, theirs = (part.square().sum().sqrt() for part in parts)
            ratio = ((own > 0) & (theirs > 0)).where(own / theirs, 1.0)
            ratios.append(ratio.reshape(1).expand(parameter.numel()))
        replace(p, p - group.rate * array.joined(ratios) * move)
        return [p, *changed]
