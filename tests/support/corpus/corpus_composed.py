"""Cases of the operation corpus that are made of other operations: functions, activations,
arrangements, whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.corpus.corpus_case import Array, Case, in_float64, layer_norm, numbers, softmax


def composed() -> Iterator[Case]:
    """All of them."""
    wide = np.linspace(-6, 6, 101, dtype=np.float32)
    unit = np.linspace(-0.99, 0.99, 67, dtype=np.float32)
    erf = np.vectorize(math.erf)
    functions: list[tuple[str, Array, Callable[..., Any], Callable[..., Any]]] = [
        ("tan", unit, lambda t: t.tan(), np.tan),
        ("asin", unit, lambda t: t.asin(), np.arcsin),
        ("acos", unit, lambda t: t.acos(), np.arccos),
        ("atan", wide, lambda t: t.atan(), np.arctan),
        ("sinh", wide, lambda t: t.sinh(), np.sinh),
        ("cosh", wide, lambda t: t.cosh(), np.cosh),
        ("asinh", wide, lambda t: t.asinh(), np.arcsinh),
        ("acosh", wide + 7, lambda t: t.acosh(), np.arccosh),
        ("atanh", unit, lambda t: t.atanh(), np.arctanh),
        ("erf", wide, lambda t: t.erf(), erf),
        ("log10", wide + 7, lambda t: t.log10(), np.log10),
        ("gelu", wide, lambda t: t.gelu("tanh"),
         lambda a: a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))),
        ("gelu_erf", wide, lambda t: t.gelu(), lambda a: a / 2 * (1 + erf(a / 2**0.5))),
        ("quick_gelu", wide, lambda t: t.quick_gelu(), lambda a: a / (1 + np.exp(-1.702 * a))),
        ("elu", wide, lambda t: t.elu(0.5), lambda a: np.where(a > 0, a, 0.5 * np.expm1(a))),
        ("celu", wide, lambda t: t.celu(2), lambda a: np.where(a > 0, a, 2 * np.expm1(a / 2))),
        ("selu", wide, lambda t: t.selu(),
         lambda a: 1.05070099 * np.where(a > 0, a, 1.67326324 * np.expm1(a))),
        ("leaky_relu", wide, lambda t: t.leaky_relu(0.1), lambda a: np.where(a > 0, a, a * 0.1)),
        ("relu6", wide * 2, lambda t: t.relu6(), lambda a: np.clip(a, 0, 6)),
        ("hardswish", wide, lambda t: t.hardswish(), lambda a: a * np.clip(a + 3, 0, 6) / 6),
        ("hardsigmoid", wide, lambda t: t.hardsigmoid(), lambda a: np.clip(a / 6 + 0.5, 0, 1)),
        ("softplus", wide, lambda t: t.softplus(), lambda a: np.logaddexp(a, 0)),
        ("logsigmoid", wide, lambda t: t.logsigmoid(), lambda a: -np.logaddexp(-a, 0)),
        ("softsign", wide, lambda t: t.softsign(), lambda a: a / (1 + np.abs(a))),
        ("mish", wide, lambda t: t.mish(), lambda a: a * np.tanh(np.logaddexp(a, 0))),
    ]  # fmt: skip
    for name, given, ours, theirs in functions:
        yield Case(name, (given,), ours, in_float64(theirs), 2e-6, 6e-7)
    one, two = numbers("one", (5, 33), "float32"), numbers("two", (5, 33), "float32")
    whole = numbers("ordered", (3, 70), "int32", -20, 20)
    arranged: list[tuple[str, tuple[Array, ...], Callable[..., Any], Callable[..., Any]]] = [
        ("copysign", (one, two), lambda a, b: a.copysign(b), np.copysign),
        ("fmod", (whole, whole[::-1] * 2 + 1), lambda a, b: a.fmod(b), np.fmod),
        ("tril", (one,), lambda t: t.tril(2), lambda a: np.tril(a, 2)),
        ("triu", (one,), lambda t: t.triu(-1), lambda a: np.triu(a, -1)),
        ("diagonal", (one,), lambda t: t.diagonal() + 0, np.diagonal),
        ("roll", (one,), lambda t: t.roll((2, -40), (0, 1)) + 0,
         lambda a: np.roll(a, (2, -40), (0, 1))),
        ("repeat_interleave", (whole,), lambda t: t.repeat_interleave(3, 1) + 0,
         lambda a: np.repeat(a, 3, 1)),
        ("split", (whole,), lambda t: t.split(32, 1)[2] * t.chunk(12, 1)[11].sum(),
         lambda a: a[:, 64:] * a[:, 66:].sum()),
        ("cumsum", (whole,), lambda t: t.cumsum(1), lambda a: np.cumsum(a, 1)),
        ("cumsum_long", (np.tile(whole, (1, 5)),), lambda t: t.cumsum(1),
         lambda a: np.cumsum(a, 1)),
        ("cummax", (whole,), lambda t: t.cummax(1), lambda a: np.maximum.accumulate(a, 1)),
        ("argsort", (whole,), lambda t: t.argsort(1), lambda a: np.argsort(a, 1, kind="stable")),
        ("sort", (one,), lambda t: t.sort(0)[0], lambda a: np.sort(a, 0)),
        ("topk", (one,), lambda t: t.topk(4)[0], lambda a: np.sort(a, 1)[:, :-5:-1]),
        ("one_hot_method", (whole % 7,), lambda t: t.one_hot(7), lambda a: np.eye(7)[a]),
    ]  # fmt: skip
    for name, inputs, ours, theirs in arranged:
        yield Case(name, inputs, ours, theirs)
    log = in_float64(lambda a: np.log(np.exp(a).sum(1)))
    yield Case("logsumexp", (one,), lambda t: t.logsumexp(1), log, 2e-6, 1e-6)
    yield Case(
        "normalize",
        (one,),
        lambda t: t.normalize(),
        in_float64(lambda a: a / np.sqrt((a * a).sum(1, keepdims=True))),
        2e-6,
        1e-7,
    )
    yield Case("layernorm", (one,), lambda t: t.layernorm(), in_float64(layer_norm), 1e-4,
               1e-5)  # fmt: skip
    heads = tuple(numbers(f"causal_{n}", (2, 20, 16), "float32") / 3 for n in "qkv")
    yield Case(
        "causal_attention",
        heads,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        in_float64(_causal_reference),
        1e-4,
        1e-5,
    )


def _causal_reference(query: Array, key: Array, values: Array) -> Array:
    scores = query @ key.swapaxes(1, 2) / 4
    hidden = np.triu(np.ones(scores.shape[1:], bool), 1)
    return np.asarray(softmax(np.where(hidden, -np.inf, scores)) @ values)
