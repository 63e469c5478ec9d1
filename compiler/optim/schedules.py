"""Learning rates over time, in closed form; names and values as in torch.optim.lr_scheduler. A rate
is in memory, so that a step that was recorded by `@jit` uses the new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.optim.optimizer import Optimizer
from ugpu.hcq.errors import BadArgument


class LambdaLR:
    """Multiplies each group's first rate by a function of the number of `step` calls."""

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self.optimizer, self.factor = optimizer, factor
        self.first = [float(group["lr"]) for group in optimizer.param_groups]
        self.count = 0
        self._set()

    def step(self) -> None:
        """Go to the next rate: once for each step of the optimiser, or each epoch."""
        self.count += 1
        self._set()

    def _set(self) -> None:
        for group, first in zip(self.optimizer.param_groups, self.first, strict=True):
            group["lr"] = self._rate(first)

    def _rate(self, first: float) -> float:
        return first * self.factor(self.count)

    def get_last_lr(self) -> list[float]:
        """Return the present rate of each group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the first rates."""
        return {"last_epoch": self.count, "base_lrs": list(self.first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place of a state."""
        self.count, self.first = int(state["last_epoch"]), [float(n) for n in state["base_lrs"]]
        self._set()


class StepLR(LambdaLR):
    """Times gamma after every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, lambda count: gamma ** (count // step_size))


class MultiStepLR(LambdaLR):
    """Times gamma at each milestone."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        ends = sorted(milestones)
        super().__init__(optimizer, lambda count: gamma ** sum(end <= count for end in ends))


class ExponentialLR(LambdaLR):
    """Times gamma after every step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(optimizer, lambda count: gamma**count)


class LinearLR(LambdaLR):
    """From start_factor to end_factor in `total_iters` steps: a warm-up."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:  # fmt: skip
        spread = end_factor - start_factor
        super().__init__(
            optimizer, lambda n: start_factor + spread * min(n, total_iters) / total_iters
        )


class CosineAnnealingLR(LambdaLR):
    """From the first rate to eta_min by half a cosine of T_max steps."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        if T_max < 1:
            raise BadArgument(f"CosineAnnealingLR: T_max must be positive, got {T_max}")
        self.least = eta_min
        super().__init__(optimizer, lambda count: (1 + math.cos(math.pi * count / T_max)) / 2)

    def _rate(self, first: float) -> float:
        return self.least + (first - self.least) * self.factor(self.count)


class OneCycleLR(LambdaLR):
    """Up from max_lr / div_factor to max_lr in pct_start of the steps, then down to the first
    divided by final_div_factor, both by half a cosine."""

    def __init__(
        self, optimizer: Optimizer, max_lr: float, total_steps: int, pct_start: float = 0.3,
        div_factor: float = 25.0, final_div_factor: float = 1e4,
    ) -> None:  # fmt: skip
        low, last = max_lr / div_factor, max_lr / div_factor / final_div_factor
        top = pct_start * total_steps - 1

        def rate(count: int) -> float:
            if count > total_steps - 1:
                raise BadArgument(f"OneCycleLR: step {count} of {total_steps} steps")
            start, end, part = low, max_lr, count / top if top > 0 else 1.0
            if count > top:
                start, end, part = max_lr, last, (count - top) / (total_steps - 1 - top)
            return end + (start - end) / 2 * (1 + math.cos(math.pi * part))

        super().__init__(optimizer, rate)

    def _rate(self, first: float) -> float:
        return self.factor(self.count)
