"""Activations and dropout as modules: each calls the method of Tensor of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ugpu.compiler.nn import init
from ugpu.compiler.nn.linear import empty
from ugpu.compiler.nn.module import Module
from ugpu.compiler.sharding.placing import beside
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.hcq.errors import BadArgument


def _plain(name: str, method: str) -> type[Module]:
    """Return a module without options."""

    class Activation(Module):
        def __init__(self, inplace: bool = False) -> None:  # results are always new
            super().__init__()

        def forward(self, x: Any) -> Any:
            return getattr(x, method)()

    Activation.__name__ = Activation.__qualname__ = name
    Activation.__doc__ = f"`Tensor.{method}` as a module."
    return Activation


ReLU = _plain("ReLU", "relu")
ReLU6 = _plain("ReLU6", "relu6")
SiLU = _plain("SiLU", "silu")
Mish = _plain("Mish", "mish")
Sigmoid = _plain("Sigmoid", "sigmoid")
Tanh = _plain("Tanh", "tanh")
SELU = _plain("SELU", "selu")
Softsign = _plain("Softsign", "softsign")
LogSigmoid = _plain("LogSigmoid", "logsigmoid")
Hardsigmoid = _plain("Hardsigmoid", "hardsigmoid")
Hardswish = _plain("Hardswish", "hardswish")


class GELU(Module):
    """`Tensor.gelu`, by default the exact one, as in PyTorch."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Return x times the normal distribution's cumulative probability."""
        return x.gelu(self.approximate)


def _option(name: str, method: str, option: str, default: float) -> type[Module]:
    """Return a module with one number as an option."""

    class Activation(Module):
        def __init__(self, value: float = default, inplace: bool = False, **named: Any) -> None:
            super().__init__()
            unknown = set(named) - {option}
            if unknown:
                raise BadArgument(f"{name}: unknown options {sorted(unknown)}; expected {option}")
            self.value = named.get(option, value)

        def forward(self, x: Any) -> Any:
            return getattr(x, method)(self.value)

    Activation.__name__ = Activation.__qualname__ = name
    Activation.__doc__ = f"`Tensor.{method}` as a module. {option}: by default {default}."
    return Activation


LeakyReLU = _option("LeakyReLU", "leaky_relu", "negative_slope", 0.01)
ELU = _option("ELU", "elu", "alpha", 1.0)
CELU = _option("CELU", "celu", "alpha", 1.0)
Softplus = _option("Softplus", "softplus", "beta", 1.0)
Softmax = _option("Softmax", "softmax", "dim", -1)
LogSoftmax = _option("LogSoftmax", "log_softmax", "dim", -1)
Softmin = _option("Softmin", "softmin", "dim", -1)


class Hardtanh(Module):
    """Limits elements to `min_val` to `max_val`."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        self.low, self.high = min_val, max_val

    def forward(self, x: Any) -> Any:
        """Return the limited elements."""
        return x.hardtanh(self.low, self.high)


class PReLU(Module):
    """x where positive, otherwise weight * x; weight [channels], on axis 1."""

    def __init__(self, num_parameters: int = 1, init_value: float = 0.25) -> None:
        super().__init__()
        self.weight = init.constant_(empty(num_parameters), init_value)

    def forward(self, x: Any) -> Any:
        """Return the elements, negative ones scaled."""
        shape = (-1, *[1] * (x.ndim - 2)) if x.ndim > 1 else (-1,)
        return (x > 0).where(x, x * self.weight.reshape(shape))


class GLU(Module):
    """The first half of an axis times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.axis = dim

    def forward(self, x: Any) -> Any:
        """Return half as many elements along the axis."""
        if x.shape[self.axis] % 2:
            raise BadArgument(f"GLU: axis {self.axis} of shape {list(x.shape)} must be even")
        one, two = x.chunk(2, self.axis)
        return one * two.sigmoid()


class Dropout(Module):
    """Zeros elements with probability p in training, and scales the others."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise BadArgument(f"Dropout: p must be from 0 to 1, got {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        """Return x with some elements dropped."""
        return x.dropout(self.p, training=self.training)


def _channels(name: str, axes: int) -> Callable[..., Any]:
    class Channels(Dropout):
        def forward(self, x: Any) -> Any:
            if not self.training or not self.p:
                return x
            if x.ndim != axes + 2:
                raise BadArgument(f"{name}: expected {axes + 2} axes, got {list(x.shape)}")
            shape = (*x.shape[:2], *[1] * axes)
            along = (x.axis, x.axis) if isinstance(x, Sharded) and x.axis in (0, 1) else None
            kept = beside(x, "rand", shape, along=along) >= self.p
            return kept.where(x * (1 / (1 - self.p) if self.p < 1 else 0), 0)

    Channels.__name__ = Channels.__qualname__ = name
    Channels.__doc__ = "Drops whole channels in training."
    return Channels


Dropout1d = _channels("Dropout1d", 1)
Dropout2d = _channels("Dropout2d", 2)
Dropout3d = _channels("Dropout3d", 3)
