"""The choice of the next token, in llama.cpp's order and with its defaults: penalties, top k,
top p, min p, temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the most likely token. top_k: 0 for all. top_p, min_p: 1 and 0 for all.
    repeat_penalty: divides the logits of the last `repeat_last` tokens. seed: None for another
    text each time."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raise BadArgument for numbers out of range."""
        limits = {
            "temperature": (0.0, 100.0), "top_k": (0, 1 << 30), "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0), "repeat_penalty": (0.01, 100.0), "repeat_last": (0, 1 << 30),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            whole = isinstance(high, int)
            if type(value) not in ((int,) if whole else (int, float)) or not low <= value <= high:
                kind = "an int " if whole else ""
                raise BadArgument(f"{name} must be {kind}from {low} to {high}, got {value!r}")

    def stream(self) -> np.random.Generator:
        """Return the random numbers of one text."""
        return np.random.default_rng(self.seed)

    def choose(
        self, logits: NDArray[np.float32], past: Sequence[int], stream: np.random.Generator
    ) -> int:
        """Return the next token."""
        scores = logits.astype(np.float64)
        if self.repeat_penalty != 1 and self.repeat_last and past:
            recent = np.unique(np.asarray(past[-self.repeat_last :]))
            chosen = scores[recent]
            penalty = self.repeat_penalty
            scores[recent] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
        if self.temperature == 0:
            return int(scores.argmax())
        count = min(self.top_k or scores.size, scores.size)
        if count < scores.size:
            candidates = np.argpartition(-scores, count)[:count]
        else:
            candidates = np.arange(scores.size)
        candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
        chances = _chances(scores[candidates])
        if self.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(chances), self.top_p)) + 1
            candidates, chances = candidates[:kept], chances[:kept]
        if self.min_p > 0:
            likely = chances >= self.min_p * chances[0]
            candidates = candidates[likely]
        chances = _chances(scores[candidates] / self.temperature)
        return int(stream.choice(candidates, p=chances))


def _chances(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(scores - scores.max())
    chances: NDArray[np.float64] = raised / raised.sum()
    return chances
