"""RNN, GRU and LSTM: an unrolled step for each element of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": Tensor.sigmoid, "tanh": Tensor.tanh, "relu": Tensor.relu,
    "softsign": Tensor.softsign, "softplus": Tensor.softplus,
}  # fmt: skip
Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class _Layer:
    """What the three operators share. x: [steps, batch, inputs]. counts: valid steps of each
    sequence, or None."""

    x: Tensor
    counts: Tensor | None
    hidden: int
    direction: str
    layout: int
    clip: float

    def directions(self) -> list[bool]:
        """Return for each direction whether it is reversed."""
        words = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        return words[self.direction]

    def start(self, state: Tensor | None, n: int) -> Tensor:
        """Return the initial state of a direction: [batch, hidden]."""
        if state is None:
            shape = (self.x.shape[1], self.hidden)
            return Tensor.zeros(shape, device=self.x.device, dtype=self.x.dtype)
        return (state.transpose(0, 1) if self.layout else state)[n]

    def limited(self, gate: Tensor) -> Tensor:
        return gate.clamp(-self.clip, self.clip) if self.clip else gate

    def run(self, step: Step, state: tuple[Tensor, ...], backwards: bool) -> tuple[Tensor, ...]:
        """Return the outputs of all steps, and the last state. A step after a sequence's end keeps
        its state and outputs zero."""
        outputs: list[Tensor] = []
        order = range(self.x.shape[0])
        for time in reversed(order) if backwards else order:
            after = step(self.x[time], state)
            output = after[0]
            if self.counts is not None:
                valid = (self.counts > time).unsqueeze(1)
                output = valid.where(output, 0).cast(output.dtype)
                after = tuple(valid.where(a, b) for a, b in zip(after, state, strict=True))
            state = after
            outputs.append(output)
        return (Tensor.stack(outputs[::-1] if backwards else outputs), *state)

    def joined(self, parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return Y [steps, directions, batch, hidden] and the last states [directions, batch,
        hidden], with the batch first if `layout` is set."""
        whole = Tensor.stack([part[0] for part in parts], 1)
        states = [
            Tensor.stack(list(each)) for each in zip(*[part[1:] for part in parts], strict=True)
        ]
        if not self.layout:
            return (whole, *states)
        return (whole.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in states))


def _layer(
    x: Tensor, lengths: Tensor | None, hidden: int | None, recurrence: Tensor, direction: str,
    layout: int, clip: float,
) -> _Layer:  # fmt: skip
    size = recurrence.shape[-1] if hidden is None else hidden
    given = x.transpose(0, 1) if layout else x
    return _Layer(given, lengths, size, direction, layout, clip)


def _functions(
    given: list[str] | None, usual: list[str], count: int
) -> list[Callable[[Tensor], Tensor]]:
    names = given or usual * count
    unknown = [name for name in names if name.lower() not in _ACTIVATIONS]
    if unknown:
        raise NotSupported(f"ONNX recurrent operators: activations {', '.join(unknown)}")
    return [_ACTIVATIONS[name.lower()] for name in names]


def _gates(x: Tensor, weight: Tensor, bias: Tensor | None, count: int) -> Tensor:
    result = x @ weight.transpose(0, 1)
    return result if bias is None else result + bias[:count]


@operator("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, *, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, activations: list[str] | None = None,
    clip: float = 0.0, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    layer = _layer(x, lengths, hidden_size, r, direction, layout, clip)
    size, parts = layer.hidden, []
    functions = _functions(activations, ["Tanh"], len(layer.directions()))
    for n, backwards in enumerate(layer.directions()):

        def step(now: Tensor, state: tuple[Tensor, ...], n: int = n) -> tuple[Tensor, ...]:
            gate = now @ w[n].transpose(0, 1) + state[0] @ r[n].transpose(0, 1)
            gate = gate if b is None else gate + b[n][:size] + b[n][size:]
            return (functions[n](layer.limited(gate)),)

        parts.append(layer.run(step, (layer.start(h, n),), backwards))
    return layer.joined(parts)


@operator("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, *, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, activations: list[str] | None = None,
    clip: float = 0.0, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates in the order z, r, h."""
    layer = _layer(x, lengths, hidden_size, r, direction, layout, clip)
    size, parts = layer.hidden, []
    functions = _functions(activations, ["Sigmoid", "Tanh"], len(layer.directions()))
    for n, backwards in enumerate(layer.directions()):
        f, g = functions[2 * n : 2 * n + 2]
        inner = None if b is None else b[n][3 * size :]

        def step(
            now: Tensor, state: tuple[Tensor, ...], n: int = n, f: Callable[[Tensor], Tensor] = f,
            g: Callable[[Tensor], Tensor] = g, inner: Tensor | None = inner,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            before = state[0]
            given = _gates(now, w[n], None if b is None else b[n], 3 * size)
            again = before @ r[n][: 2 * size].transpose(0, 1)
            again = again if inner is None else again + inner[: 2 * size]
            both = f(layer.limited(given[:, : 2 * size] + again))
            z, reset = both[:, :size], both[:, size:]
            last = r[n][2 * size :].transpose(0, 1)
            hidden = reset * before @ last if not linear_before_reset else before @ last
            if inner is not None:
                hidden = hidden + inner[2 * size :]
            if linear_before_reset:
                hidden = reset * hidden
            new = g(layer.limited(given[:, 2 * size :] + hidden))
            return ((1 - z) * new + z * before,)

        parts.append(layer.run(step, (layer.start(h, n),), backwards))
    return layer.joined(parts)


@operator("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, p: Tensor | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float = 0.0, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates in the order i, o, f, c."""
    layer = _layer(x, lengths, hidden_size, r, direction, layout, clip)
    size, parts = layer.hidden, []
    functions = _functions(activations, ["Sigmoid", "Tanh", "Tanh"], len(layer.directions()))
    for n, backwards in enumerate(layer.directions()):
        f, g, last = functions[3 * n : 3 * n + 3]
        bias = None if b is None else b[n][: 4 * size] + b[n][4 * size :]
        peep = None if p is None else [p[n][k * size : (k + 1) * size] for k in range(3)]
        total = w[n].cat([r[n]], 1).transpose(0, 1).contiguous()

        def step(
            now: Tensor, state: tuple[Tensor, ...], f: Callable[[Tensor], Tensor] = f,
            g: Callable[[Tensor], Tensor] = g, last: Callable[[Tensor], Tensor] = last,
            bias: Tensor | None = bias, peep: list[Tensor] | None = peep, total: Tensor = total,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            before, cell = state
            gates = now.cat([before], 1) @ total
            gates = gates if bias is None else gates + bias
            i, o, forget, new = (gates[:, k * size : (k + 1) * size] for k in range(4))
            if peep is not None:
                i, forget = i + peep[0] * cell, forget + peep[2] * cell
            i = f(layer.limited(i))
            keep = 1 - i if input_forget else f(layer.limited(forget))
            after = keep * cell + i * g(layer.limited(new))
            o = o if peep is None else o + peep[1] * after
            return f(layer.limited(o)) * last(after), after

        parts.append(layer.run(step, (layer.start(h, n), layer.start(c, n)), backwards))
    return layer.joined(parts)
