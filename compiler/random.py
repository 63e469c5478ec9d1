"""Tensor: random numbers, functions of a counter and a key (compiler.methods.randomness)."""

from __future__ import annotations

import math
from functools import partial
from math import prod
from typing import Any, Self

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bfloat16, float32, int64
from ugpu.compiler.gradients.differentiable import Differentiable
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import ByValue, Node, Shape
from ugpu.compiler.graph.tracking import mode
from ugpu.compiler.methods.core import integer_of, number_of, shape_of
from ugpu.compiler.methods.randomness import squares
from ugpu.compiler.runtime.generator import drawn, generator
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import device_of
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, NotSupported

_STEPS = {
    dtypes.float16: 11, bfloat16: 8, dtypes.float8_e4m3fn: 4, dtypes.float8_e4m3fnuz: 4,
    dtypes.float8_e5m2: 3, dtypes.float8_e5m2fnuz: 3,
}  # fmt: skip


class Random(Differentiable):
    """Random numbers of this process's stream: the same on every device for the same seed."""

    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Restart this process's stream of random numbers; a seed gives the same numbers on every
        device."""
        recording = current_recording()
        if recording is not None:
            raise BadArgument(
                f"@jit {recording.name}: the seed would be set only during recording; set "
                "it outside the function"
            )
        generator.seed(seed)

    @classmethod
    def _bits(cls, shape: Shape, device: Device | str | None) -> Self:
        """Return 32 random bits for each element, as uint64."""
        count = prod(shape)
        tape = mode.tape
        taken = (
            cls._taken(device_of(device), count)
            if tape is None
            else tape.take(lambda: cls._taken(device_of(device), count))
        )
        first, key = taken
        return first._again(("random", shape), (key,), partial(first._from, key, shape))

    def _from(self, key: Self, shape: Shape) -> Self:
        """Return the random bits of consecutive numbers, of which self is the first."""
        numbers = self._new(graph.iota(prod(shape))).cast(dtypes.uint64) + self
        return squares(numbers, key).reshape(shape)

    @classmethod
    def _doubles(cls, shape: Shape, device: Device | str | None) -> Self:
        """Return 53 random bits for each element, as uint64."""
        pairs = cls._bits((2, *shape), device)
        return (pairs[0] << 21) | (pairs[1] >> 11)

    @classmethod
    def _taken(cls, device: Device, count: int) -> tuple[Self, Self]:
        """Return the number of the first of the next `count` random numbers, and the key, both by
        value; in a recorded function each replay sets them."""
        recording = current_recording()
        capturing = core_of(device).capturing
        if recording is None and capturing is not None and capturing.is_mine:
            raise NotSupported(
                "random numbers in capture() would be the same in every replay; use @jit"
            )
        if recording is not None and recording.stages is not None:
            draws = recording.draws
            draw = drawn(lambda: draws.draw(count))
            both: list[ByValue] = [draws.number((draw, which)) for which in (False, True)]
        else:
            both = [ByValue(word) for word in drawn(lambda: generator.take(count)).tolist()]
        first, key = both
        return cls._drawn(device, first), cls._drawn(device, key)

    @classmethod
    def _drawn(cls, device: Device, number: ByValue) -> Self:
        made = object.__new__(cls)
        made.device = device
        made.node = Node("buffer", dtypes.uint64, ())
        made.node.storage = number
        return made

    @classmethod
    def rand(cls, *shape: Any, device: Device | str | None = None, dtype: Any = float32) -> Self:
        """Return uniform random numbers in [0, 1), in steps of 2^-24 (float64 2^-53, float16
        2^-11, bfloat16 2^-8, float8 2^-4 and 2^-3)."""
        wanted = shape_of("rand", shape)
        if dtypes.as_dtype(dtype) is dtypes.float64:
            return cls._doubles(wanted, device).cast(dtypes.float64) * 2.0**-53
        bits = cls._bits(wanted, device)
        kept = _STEPS.get(dtypes.as_dtype(dtype), 24)
        return ((bits >> (32 - kept)).cast(float32) * 2.0**-kept).cast(dtype)

    @classmethod
    def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, device: Any = None) -> Self:
        """Return uniform random numbers in [low, high)."""
        low, high = number_of("uniform", "low", low), number_of("uniform", "high", high)
        if not low <= high:
            raise BadArgument(f"uniform: low must be at most high, got {low} and {high}")
        spread = cls.rand(*shape, device=device) * (high - low) + low
        # the sum may round to `high`
        return spread.minimum(float(np.nextafter(np.float32(high), np.float32(low))))

    @classmethod
    def randn(cls, *shape: Any, device: Device | str | None = None, dtype: Any = float32) -> Self:
        """Return normally distributed random numbers with mean 0 and variance 1 (G. Box, M. Muller,
        1958)."""
        wanted = shape_of("randn", shape)
        kind, count = (dtypes.float64, 53) if dtypes.as_dtype(dtype) is dtypes.float64 else (
            float32, 24
        )  # fmt: skip
        pairs = (
            cls._bits((2, *wanted), device) >> 8
            if count == 24
            else cls._doubles((2, *wanted), device)
        )
        radius = (pairs[0].cast(kind) + 1) * 2.0**-count  # in (0, 1]
        angle = pairs[1].cast(kind) * (2 * math.pi * 2.0**-count)
        return ((radius.log() * -2).sqrt() * angle.cos()).cast(dtype)

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, device: Any = None) -> Self:
        """Return normally distributed random numbers with the given mean and standard deviation."""
        return cls.randn(*shape, device=device) * std + mean

    @classmethod
    def randint(
        cls, *shape: Any, low: int = 0, high: int, device: Any = None, dtype: Any = dtypes.int64
    ) -> Self:
        """Return random integers in [low, high), of at most 2^31 different values."""
        low, high = integer_of("randint", "low", low), integer_of("randint", "high", high)
        if not 0 < high - low <= 1 << 31:
            raise BadArgument(f"randint: high must exceed low by 1 to 2^31, got {low} and {high}")
        bits = cls._bits(shape_of("randint", shape), device)
        return ((bits * (high - low) >> 32).cast(dtypes.int64) + low).cast(dtype)

    @classmethod
    def randperm(cls, count: int, *, device: Device | str | None = None) -> Self:
        """Return 0 .. count - 1 in random order, as int64."""
        wanted = shape_of("randperm", [integer_of("randperm", "count", count)])
        return cls._bits(wanted, device).cast(dtypes.uint32).argsort()

    def dropout(self, probability: float = 0.5, *, training: bool) -> Self:
        """Zero elements with a probability and scale the others, if `training`; otherwise return
        the tensor unchanged. Uses one random number per element."""
        if not 0 <= number_of("dropout", "probability", probability) <= 1:
            raise BadArgument(f"dropout: probability must be from 0 to 1, got {probability}")
        if not training or not probability:
            return self._same()
        kept = type(self).rand(self.shape, device=self.device) >= probability
        return kept.where(self * (1 / (1 - probability) if probability < 1 else 0), 0)

    # ---- the stream ----------------------------------------------------------------------------

    @staticmethod
    def get_rng_state() -> tuple[int, int]:
        """Return the state of this process's stream: its key and how many numbers were taken."""
        return generator.state

    @staticmethod
    def set_rng_state(state: tuple[int, int]) -> None:
        """Continue the stream from a state of `get_rng_state`."""
        recording = current_recording()
        if recording is not None:
            raise BadArgument(
                f"@jit {recording.name}: the state would be set only during recording; set it "
                "outside the function"
            )
        generator.restore(state)

    # ---- choices -------------------------------------------------------------------------------

    def bernoulli(self) -> Self:
        """Return 1 with the probability that each element says, otherwise 0, in its type."""
        if not self.dtype.is_float:
            raise BadArgument(f"bernoulli: expected probabilities, got {self.dtype.name}")
        drawn = type(self).rand(self.shape, device=self.device)
        return drawn._compare("lt", self.detach()).cast(self.dtype)

    def multinomial(self, count: int, replacement: bool = False) -> Self:
        """Return `count` indices of each row, as int64, each with a probability in proportion to
        its weight; without replacement all are different.

        With replacement a number is looked up among the running totals; without, the largest of
        the weights' logarithms plus Gumbel noise are taken (arXiv:1903.06059).
        """
        if not self.dtype.is_float or self.ndim not in (1, 2) or not self.shape[-1]:
            raise BadArgument(
                "multinomial: expected weights of one or two axes, got "
                f"{self.dtype.name} {self._shown}"
            )
        wanted, size = integer_of("multinomial", "count", count), self.shape[-1]
        if wanted <= 0 or (not replacement and wanted > size):
            raise BadArgument(
                f"multinomial: expected 1 to {size} different indices, got {wanted}"
                if not replacement
                else f"multinomial: expected count > 0, got {wanted}"
            )
        weights = self.detach().cast(float32)
        rows = weights.reshape((1, size)) if self.ndim == 1 else weights
        if replacement:
            totals = rows.cumsum(-1)
            drawn = type(self).rand((rows.shape[0], wanted), device=self.device)
            sought = drawn * totals[:, -1:]
            chosen = totals.searchsorted(sought, right=True).minimum(size - 1)
        else:
            bits = type(self)._bits(rows.shape, self.device) >> 8
            exponential = -((bits.cast(float32) + 1) * 2.0**-24).log()
            chosen = (rows.log() - exponential.log()).topk(wanted, -1)[1]
        chosen = chosen.cast(int64)
        return chosen.reshape((wanted,)) if self.ndim == 1 else chosen
