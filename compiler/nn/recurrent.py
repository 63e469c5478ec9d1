"""LSTM, GRU and RNN, layer by layer and step by step; names and gate orders as in PyTorch."""

from __future__ import annotations

import math
from typing import Any

from ugpu.compiler.nn import init
from ugpu.compiler.nn.linear import empty
from ugpu.compiler.nn.module import Module
from ugpu.compiler.sharding.placing import beside
from ugpu.hcq.errors import BadArgument


class _Recurrent(Module):
    """weight_ih_lK [gates * hidden, inputs], weight_hh_lK [gates * hidden, hidden], bias_ih_lK,
    bias_hh_lK [gates * hidden]; "_reverse" for the other direction."""

    gates = 0
    states = 1

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.layers = input_size, hidden_size, num_layers
        self.biased, self.batch_first, self.dropout = bias, batch_first, dropout
        self.directions = 2 if bidirectional else 1
        bound = 1 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size * self.directions
            for direction in range(self.directions):
                end = self._end(layer, direction)
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, inputs),
                    "weight_hh": (rows, hidden_size),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                for name, shape in shapes.items():
                    made = init.uniform_(empty(*shape, device=device), -bound, bound)
                    setattr(self, f"{name}{end}", made)

    @staticmethod
    def _end(layer: int, direction: int) -> str:
        return f"_l{layer}" + ("_reverse" if direction else "")

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        """Return all outputs and the last states. x: [steps, batch, inputs], or the batch first.
        state: one tensor [layers * directions, batch, hidden], of LSTM two; zeros by default."""
        name = type(self).__name__
        if x.ndim != 3 or x.shape[2] != self.input_size:
            raise BadArgument(
                f"{name}: expected three axes, the last of {self.input_size}, got {list(x.shape)}"
            )
        if self.batch_first:
            x = x.transpose(0, 1)
        count = self.layers * self.directions
        shape = (count, x.shape[1], self.hidden_size)
        given = [state] if self.states == 1 and state is not None else state
        if given is None:
            given = [beside(x, "zeros", shape, along=(1, 1), dtype=x.dtype)] * self.states
        if len(given) != self.states or any(tuple(each.shape) != shape for each in given):
            raise BadArgument(f"{name}: expected {self.states} states of shape {list(shape)}")
        last: list[list[Any]] = [[] for _ in range(self.states)]
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                place = layer * self.directions + direction
                begin = [each[place] for each in given]
                output, end = self._along(x, begin, layer, direction)
                outputs.append(output)
                for kept, each in zip(last, end, strict=True):
                    kept.append(each)
            x = outputs[0] if len(outputs) == 1 else outputs[0].cat(outputs[1:], 2)
            if self.dropout and layer < self.layers - 1:
                x = x.dropout(self.dropout, training=self.training)
        ends = tuple(each[0].stack(each[1:]) for each in last)
        return (x.transpose(0, 1) if self.batch_first else x), ends if self.states > 1 else ends[0]

    def _along(self, x: Any, state: list[Any], layer: int, direction: int) -> tuple[Any, list[Any]]:
        """Return the outputs of one layer in one direction, and its last states."""
        end = self._end(layer, direction)
        inner = x @ getattr(self, f"weight_ih{end}").transpose(0, 1)
        if self.biased:
            inner = inner + getattr(self, f"bias_ih{end}")
        weight = getattr(self, f"weight_hh{end}").transpose(0, 1)
        bias = getattr(self, f"bias_hh{end}") if self.biased else None
        outputs: list[Any] = [None] * x.shape[0]
        steps = range(x.shape[0])
        for step in reversed(steps) if direction else steps:
            outer = state[0] @ weight
            state = self._step(inner[step], outer if bias is None else outer + bias, state)
            outputs[step] = state[0]
        return outputs[0].stack(outputs[1:]), state

    def _step(self, inner: Any, outer: Any, state: list[Any]) -> list[Any]:
        raise NotImplementedError


class LSTM(_Recurrent):
    """Long short-term memory; gates input, forget, cell, output. States: hidden and cell."""

    gates, states = 4, 2

    def _step(self, inner: Any, outer: Any, state: list[Any]) -> list[Any]:
        one, two, three, four = (inner + outer).chunk(4, 1)
        cell = two.sigmoid() * state[1] + one.sigmoid() * three.tanh()
        return [four.sigmoid() * cell.tanh(), cell]


class GRU(_Recurrent):
    """Gated recurrent unit; gates reset, update, new."""

    gates = 3

    def _step(self, inner: Any, outer: Any, state: list[Any]) -> list[Any]:
        here, there = inner.chunk(3, 1), outer.chunk(3, 1)
        reset, update = ((here[n] + there[n]).sigmoid() for n in (0, 1))
        new = (here[2] + reset * there[2]).tanh()
        return [new + update * (state[0] - new)]


class RNN(_Recurrent):
    """Recurrent unit with tanh."""

    gates = 1

    def _step(self, inner: Any, outer: Any, state: list[Any]) -> list[Any]:
        return [(inner + outer).tanh()]
