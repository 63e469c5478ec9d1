"""A decoder of a language model: one step is a recorded graph, in which the position is data."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.front.jit import jit
from ugpu.compiler.language.architecture import Architecture, angles
from ugpu.compiler.language.weights import Weights
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile

CHUNK = 64  # tokens of a prompt that are read at once


class Layer:
    """Weights of one layer, and the keys and values [kv heads, length, head] of past tokens."""

    def __init__(
        self, weights: Weights, number: int, shape: Architecture, length: int, device: Device
    ) -> None:
        self.weights = weights.part(f"blk.{number}.")
        sizes = (shape.kv_heads, length)
        self.keys = Tensor.zeros((*sizes, shape.head_size), device=device).contiguous().realize()
        self.values = Tensor.zeros((*sizes, shape.value_size), device=device).contiguous().realize()

    def of_rows(self, rows: int) -> Layer:
        """Return the same layer, with its weights for products of `rows` rows."""
        layer = copy.copy(self)
        layer.weights = Weights(self.weights.stored, rows)
        return layer


class Decoder:
    """Weights on a device, and the state of one conversation of at most `length` tokens.

    `read` appends tokens and returns the logits after the last one. Kernels are compiled for two
    sizes, CHUNK tokens and one; after that nothing is compiled or planned for a token.
    """

    def __init__(self, shape: Architecture, weights: Weights, device: Device, length: int) -> None:
        self.shape = shape
        self.device = device
        self.length = -(-length // CHUNK) * CHUNK
        self.position = 0
        _check(shape, weights)
        divisors = weights.get("rope_freqs.weight")
        tables = angles(shape, self.length, None if divisors is None else divisors.numpy())
        self._cosines, self._sines = (Tensor(table, device=device) for table in tables)
        self._embedding = weights.stored["token_embd.weight"]
        self._norm = weights["output_norm.weight"]
        self._output = weights.stored.get("output.weight", self._embedding)
        self._layers = [Layer(weights, n, shape, self.length, device) for n in range(shape.layers)]
        self._steps = {CHUNK: jit(self._step), 1: jit(self._step)}

    @property
    def vocabulary(self) -> int:
        return self._output.shape[0]

    def read(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; return the logits after the last one. BadArgument if they do not fit the
        length, or are none."""
        if not tokens or self.position + len(tokens) > self.length:
            raise BadArgument(
                f"expected 1 to {self.length - self.position} tokens, got {len(tokens)}"
            )
        if not all(0 <= token < self.vocabulary for token in tokens):
            raise BadArgument(f"tokens must be below {self.vocabulary}")
        logits: Tensor | None = None
        waiting = list(tokens)
        while waiting:
            size = CHUNK if len(waiting) > 1 else 1
            part, waiting = waiting[:size], waiting[size:]
            padded = np.zeros(size, np.int32)
            padded[: len(part)] = part
            given = np.array([self.position, len(part) - 1], np.int32)
            logits = self._steps[size](
                Tensor(padded, device=self.device), Tensor(given, device=self.device)
            )
            self.position += len(part)
        assert logits is not None
        return logits.numpy()

    def forget(self, position: int = 0) -> None:
        """Go back to a position; the tokens from there on are forgotten."""
        if not 0 <= position <= self.position:
            raise BadArgument(f"position must be from 0 to {self.position}, got {position}")
        self.position = position

    # ---- one step ------------------------------------------------------------------------------

    def _step(self, tokens: Tensor, given: Tensor) -> Tensor:
        """given: the position of the first token, and the place of the last valid one."""
        count = tokens.shape[0]
        places = given[0] + Tensor.arange(count, device=self.device).cast("int32")
        seen = Tensor.arange(self.length, device=self.device).cast("int32") <= places.unsqueeze(1)
        mask = seen.where(0.0, float("-inf"))
        turn = (self._cosines[places].unsqueeze(1), self._sines[places].unsqueeze(1))
        x = self._embedding.rows(tokens).float()
        for layer in (each.of_rows(count) for each in self._layers):
            x = x + self._attention(layer, self._normed(x, layer.weights["attn_norm"]), places,
                                    mask, turn)  # fmt: skip
            hidden = self._normed(x, layer.weights["ffn_norm"])
            x = x + (self._experts(layer, hidden) if self.shape.experts else _gated(
                hidden, *(layer.weights[n] for n in ("ffn_gate", "ffn_up", "ffn_down"))
            ))  # fmt: skip
        last = self._normed(x[given[1]].reshape(1, self.shape.width), self._norm)
        return _product(last, self._output.whole()).reshape(self.vocabulary)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdims=True) + self.shape.epsilon).rsqrt()
        return x * scale * weight

    def _attention(
        self, layer: Layer, x: Tensor, places: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        shape, weights, count = self.shape, layer.weights, x.shape[0]
        query, key, value = (
            self._projected(weights, x, name, heads, size)
            for name, heads, size in (
                ("q", shape.heads, shape.head_size), ("k", shape.kv_heads, shape.head_size),
                ("v", shape.kv_heads, shape.value_size),
            )
        )  # fmt: skip
        if "attn_q_norm" in weights:
            query = self._normed(query, weights["attn_q_norm"])
            key = self._normed(key, weights["attn_k_norm"])
        query, key = self._rotated(query, turn), self._rotated(key, turn)
        layer.keys[:, places] = key.transpose(0, 1)
        layer.values[:, places] = value.transpose(0, 1)
        group = shape.heads // shape.kv_heads
        queries = query.reshape(count, shape.kv_heads, group, shape.head_size).permute(1, 2, 0, 3)
        queries = queries.reshape(shape.kv_heads, group * count, shape.head_size)
        scores = queries @ layer.keys.transpose(1, 2) * shape.head_size**-0.5
        scores = scores.reshape(shape.kv_heads, group, count, self.length) + mask
        weight = scores.softmax(-1).reshape(shape.kv_heads, group * count, self.length)
        mixed = (weight @ layer.values).reshape(shape.kv_heads, group, count, shape.value_size)
        joined = mixed.permute(2, 0, 1, 3).reshape(count, shape.heads * shape.value_size)
        return _product(joined, weights["attn_output"])

    def _projected(self, weights: Weights, x: Tensor, name: str, heads: int, size: int) -> Tensor:
        result = _product(x, weights[f"attn_{name}"])
        bias = weights.get(f"attn_{name}.bias")
        result = result if bias is None else result + bias
        return result.reshape(x.shape[0], heads, size)

    def _rotated(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate pairs of elements by angles that depend on the position."""
        cosine, sine = turn
        part, rest = x[..., : self.shape.rotated], x[..., self.shape.rotated :]
        half = self.shape.rotated // 2
        if self.shape.consecutive:
            pairs = part.reshape(*part.shape[:-1], half, 2)
            one, two = pairs[..., 0], pairs[..., 1]
        else:
            one, two = part[..., :half], part[..., half:]
        first, second = one * cosine - two * sine, one * sine + two * cosine
        if self.shape.consecutive:
            turned = Tensor.stack([first, second], -1).reshape(part.shape)
        else:
            turned = Tensor.cat([first, second], -1)
        return turned if not rest.shape[-1] else Tensor.cat([turned, rest], -1)

    def _experts(self, layer: Layer, x: Tensor) -> Tensor:
        """Mix the results of the chosen experts. For one token their weights are looked up; for a
        chunk all experts are computed."""
        weights, shape = layer.weights, self.shape
        chances = _product(x, weights["ffn_gate_inp"]).softmax(-1)
        best, chosen = chances.topk(shape.used, -1)
        if shape.normalised:
            best = best / best.sum(-1, keepdims=True)
        parts = [weights.stored[f"ffn_{name}_exps"] for name in ("gate", "up", "down")]
        if x.shape[0] == 1:
            gate, up, down = (part.rows(chosen[0]) for part in parts)
            share = best[0]
        else:
            gate, up, down = (part.whole(x.shape[0]) for part in parts)
            share = Tensor.zeros((x.shape[0], shape.experts), device=self.device)
            share = share.scatter(1, chosen, best).transpose(0, 1).unsqueeze(2)
        hidden = x.matmul(gate.transpose(1, 2)).silu() * x.matmul(up.transpose(1, 2))
        each = hidden.matmul(down.transpose(1, 2))  # [experts, tokens, width]
        if x.shape[0] == 1:
            mixed = (each * share.reshape(-1, 1, 1)).sum(0)
        else:
            mixed = (each * share).sum(0)
        if "ffn_up_shexp" not in weights:
            return mixed
        own = _gated(x, *(weights[f"ffn_{name}_shexp"] for name in ("gate", "up", "down")))
        opened = x.matmul(weights["ffn_gate_inp_shexp"].reshape(-1, 1)).sigmoid()
        return mixed + own * opened


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight^T, weight [out, in]."""
    return x.matmul(weight.transpose(0, 1))


def _gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return _product(_product(x, gate).silu() * _product(x, up), down)


def _check(shape: Architecture, weights: Weights) -> None:
    """Raise BadFile with all tensors that are missing or have another shape than expected."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    values = shape.kv_heads * shape.value_size
    wanted: dict[str, tuple[int, ...]] = {"output_norm.weight": (shape.width,)}
    for n in range(shape.layers):
        start = f"blk.{n}."
        wanted |= {
            f"{start}attn_norm.weight": (shape.width,),
            f"{start}attn_q.weight": (queries, shape.width),
            f"{start}attn_k.weight": (keys, shape.width),
            f"{start}attn_v.weight": (values, shape.width),
            f"{start}attn_output.weight": (shape.width, shape.heads * shape.value_size),
            f"{start}ffn_norm.weight": (shape.width,),
        }
        names = ("ffn_gate_inp",) if shape.experts else ("ffn_gate", "ffn_up", "ffn_down")
        wanted |= {f"{start}{name}.weight": () for name in names}
    wanted["token_embd.weight"] = ()
    problems = []
    for name, size in wanted.items():
        have = weights.stored.get(name)
        if have is None:
            problems.append(f"{name} is missing")
        elif size and have.shape != size:
            problems.append(f"{name} has shape {list(have.shape)}, expected {list(size)}")
    if problems:
        raise BadFile(f"the model's tensors do not fit its keys: {'; '.join(problems[:20])}")
