"""Linear, Bilinear, Embedding, Flatten, Identity."""

from __future__ import annotations

import math
from typing import Any

from ugpu.compiler.nn import init
from ugpu.compiler.nn.module import Module
from ugpu.compiler.nn.parameter import Parameter
from ugpu.compiler.sharding.placing import beside
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument


def empty(*shape: int, device: Any = None) -> Parameter:
    """Return a parameter of zeros, to be filled."""
    return Parameter(Tensor.zeros(*shape, device=device).contiguous().realize())


class Linear(Module):
    """x @ weight^T + bias; weight [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, device: Any = None) -> None:
        super().__init__()
        self.weight = empty(outputs, inputs, device=device)
        self.bias = empty(outputs, device=device) if bias else None
        init.default_(self.weight, self.bias)

    def forward(self, x: Any) -> Any:
        """Return the product over the last axis."""
        made = x @ self.weight.transpose(0, 1)
        return made if self.bias is None else made + self.bias

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


class Bilinear(Module):
    """x1^T weight x2 + bias for each output; weight [outputs, inputs 1, inputs 2]."""

    def __init__(
        self, inputs1: int, inputs2: int, outputs: int, bias: bool = True, device: Any = None
    ) -> None:
        super().__init__()
        self.weight = empty(outputs, inputs1, inputs2, device=device)
        self.bias = empty(outputs, device=device) if bias else None
        bound = 1 / math.sqrt(inputs1)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, one: Any, two: Any) -> Any:
        """Return the form's values."""
        if isinstance(one, Sharded):
            weight: Any = self.weight
            outputs, inputs1, inputs2 = weight.shape
            rows = weight.permute(1, 0, 2).reshape(inputs1, outputs * inputs2)
            made = ((one @ rows).unflatten(-1, (outputs, inputs2)) * two.unsqueeze(-2)).sum(-1)
        else:
            made = Tensor.einsum("...i,oij,...j->...o", one, self.weight, two)
        return made if self.bias is None else made + self.bias


class Embedding(Module):
    """Rows of a table, chosen by integers; weight [rows, size]. padding_idx: a row that gets no
    gradient and starts as zeros."""

    def __init__(
        self, rows: int, size: int, padding_idx: int | None = None, device: Any = None
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise BadArgument(f"Embedding: padding_idx {padding_idx} is outside the {rows} rows")
        self.padding_idx = None if padding_idx is None else padding_idx % rows
        self.weight = init.normal_(empty(rows, size, device=device))
        if self.padding_idx is not None:
            start = Tensor.arange(rows, device=device).reshape(rows, 1) != self.padding_idx
            init._set(self.weight, start.where(self.weight.detach(), 0.0))

    def forward(self, index: Any) -> Any:
        """Return the rows."""
        weight: Any = self.weight
        if self.padding_idx is not None and weight.requires_grad:
            rows = beside(weight, "arange", weight.shape[0]).reshape(-1, 1)
            weight = (rows != self.padding_idx).where(weight, weight.detach())
        return weight[index]


class Identity(Module):
    """Returns its argument."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Return x."""
        return x


class Flatten(Module):
    """Joins the axes from `start` to `end`."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start, self.end = start_dim, end_dim

    def forward(self, x: Any) -> Any:
        """Return x with joined axes."""
        return x.flatten(self.start, self.end)


class Unflatten(Module):
    """Splits an axis."""

    def __init__(self, axis: int, sizes: Any) -> None:
        super().__init__()
        self.axis, self.sizes = axis, list(sizes)

    def forward(self, x: Any) -> Any:
        """Return x with the axis split."""
        return x.unflatten(self.axis, self.sizes)
