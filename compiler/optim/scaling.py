"""Scaling of losses, so that small gradients do not become zero in float16 (arXiv:1710.03740)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from ugpu.compiler.dtype import float32, int32
from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.nn.parameter import replace
from ugpu.compiler.optim.clipping import joined_gradients, spread_gradients
from ugpu.compiler.optim.optimizer import Optimizer
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

T = TypeVar("T", Tensor, list[Tensor], tuple[Tensor, ...])
OPTIONS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class GradScaler:
    """Multiplies a loss by a factor, and divides the gradients by it before the optimiser's step:
    torch.amp.GradScaler, decided on the device without waiting for it, so that `@jit` records it.

    A step whose gradients contain infinities or NaN changes neither parameters nor states, and
    `update` multiplies the factor by `backoff_factor`; after `growth_interval` steps without one it
    is multiplied by `growth_factor`. enabled=False makes all methods pass through.
    """

    def __init__(
        self, device: Device | str | None = None, init_scale: float = 65536.0,
        growth_factor: float = 2.0, backoff_factor: float = 0.5, growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:  # fmt: skip
        if not growth_factor > 1 or not 0 < backoff_factor < 1:
            raise BadArgument(
                "GradScaler: expected growth_factor above 1 and backoff_factor between 0 and 1, "
                f"got {growth_factor} and {backoff_factor}"
            )
        if not 0 < init_scale < math.inf or growth_interval < 1:
            raise BadArgument(
                "GradScaler: expected init_scale > 0 and growth_interval >= 1, got "
                f"{init_scale} and {growth_interval}"
            )
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self._enabled = enabled
        self._scale = Tensor(init_scale, device=device, dtype=float32).realize()
        self._tracker = Tensor(0, device=device, dtype=int32).realize()
        self._overflows: dict[int, Tensor] = {}  # by optimiser: whether a gradient is not finite
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the factor; 1.0 if disabled. Waits for the device."""
        return float(self._scale.item()) if self._enabled else 1.0

    def scale(self, outputs: T) -> T:
        """Return a loss, or several, times the factor."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._on(outputs.device)
        kind = type(outputs)
        return kind([each * self._on(each.device) for each in outputs])

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser's parameters by the factor, for example to limit
        them before `step`. Once for each `update`."""
        if not self._enabled:
            return
        if id(optimizer) in self._overflows:
            raise BadArgument("GradScaler: unscale_() was called already since the last update()")
        groups = optimizer._groups()
        parameters = [each for group in groups for each in group.parameters]
        devices = {id(each.device) for each in parameters}
        if len(devices) > 1:
            raise NotSupported(
                f"GradScaler: expected parameters on one device, got {len(devices)} devices"
            )
        with tracking(False):
            used, flat = joined_gradients(parameters)
            overflow = flat.isfinite().all().logical_not().contiguous()
            spread_gradients(used, (flat / self._on(flat.device)).contiguous())
        self._overflows[id(optimizer)] = overflow

    def step(self, optimizer: Optimizer) -> None:
        """Take the optimiser's step, which changes nothing if a gradient is not finite."""
        if not self._enabled:
            optimizer.step()
            return
        if id(optimizer) in self._stepped:
            raise BadArgument("GradScaler: step() was called already since the last update()")
        if id(optimizer) not in self._overflows:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        optimizer._step(self._overflows[id(optimizer)])

    def update(self, new_scale: float | None = None) -> None:
        """Change the factor by what the steps since the last call have met; or set it."""
        if not self._enabled:
            return
        if new_scale is None and not self._overflows:
            raise BadArgument("GradScaler: update() without unscale_() or step() before it")
        with tracking(False):
            if new_scale is not None:
                self._scale = Tensor(new_scale, device=self._scale.device, dtype=float32).realize()
            else:
                self._updated()
        self._overflows.clear()
        self._stepped.clear()

    def _updated(self) -> None:
        first, *others = [each.to(self._scale.device) for each in self._overflows.values()]
        overflow = first
        for each in others:
            overflow = overflow | each
        count = overflow.where(0, self._tracker + 1)
        grown = count._compare("eq", self.growth_interval)
        larger = self._scale * self.growth_factor
        larger = larger.isfinite().where(larger, self._scale)  # as in PyTorch
        scale = overflow.where(self._scale * self.backoff_factor, grown.where(larger, self._scale))
        replace(self._scale, scale.cast(float32).contiguous())
        replace(self._tracker, grown.where(0, count).cast(int32).contiguous())
        self._scale.realize(self._tracker)

    def _on(self, device: Device) -> Tensor:
        return self._scale if device is self._scale.device else self._scale.to(device)

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the factor, the options and the count of steps, as PyTorch; {} if disabled."""
        if not self._enabled:
            return {}
        values = (
            self.get_scale(), self.growth_factor, self.backoff_factor, self.growth_interval,
            int(self._tracker.item()),
        )  # fmt: skip
        return dict(zip(OPTIONS, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` has returned."""
        if not self._enabled:
            return
        missing = [name for name in OPTIONS if name not in state]
        if missing:
            raise BadArgument(f"GradScaler: the state lacks {missing}")
        recording = current_recording()
        if recording is not None:
            raise BadArgument(f"@jit {recording.name}: load the state outside the function")
        scale, self.growth_factor, self.backoff_factor, self.growth_interval, count = (
            state[name] for name in OPTIONS
        )
        device = self._scale.device
        self._scale = Tensor(float(scale), device=device, dtype=float32).realize()
        self._tracker = Tensor(int(count), device=device, dtype=int32).realize()
