"""The operation corpus: what every device must compute as NumPy does.

    for case in corpus():
        case.check(device)

A case is data (its arrays are made from a fixed seed) and knows no device, so the same corpus is
run on the host, on virtual GPUs and on real ones, and compiled for targets that have no device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.corpus.corpus_case import (
    FLOATS,
    INTEGERS,
    TYPES,
    Array,
    Case,
    in_float64,
    layer_norm,
    numbers,
    softmax,
)
from tests.support.corpus.corpus_composed import composed
from tests.support.corpus.corpus_network import network
from ugpu.compiler import Tensor


def _tolerance(dtype: str) -> dict[str, float]:
    return {"float16": {"rtol": 2e-3, "atol": 2e-3}, "float32": {"rtol": 1e-6, "atol": 1e-7}}.get(
        dtype, {}
    )


def _binary() -> Iterator[Case]:
    table: list[tuple[str, Callable[[Any, Any], Any], Callable[..., Any], Sequence[str]]] = [
        ("add", lambda a, b: a + b, np.add, TYPES),
        ("mul", lambda a, b: a * b, np.multiply, TYPES),
        ("maximum", lambda a, b: a.maximum(b), np.maximum, TYPES),
        ("minimum", lambda a, b: a.minimum(b), np.minimum, TYPES),
        ("less", lambda a, b: a < b, np.less, TYPES),
        ("less_equal", lambda a, b: a <= b, np.less_equal, ("int16", "uint32", "float32")),
        ("equal", lambda a, b: a == b, np.equal, TYPES),
        ("unequal", lambda a, b: a != b, np.not_equal, ("bool", "int64", "float16")),
        ("sub", lambda a, b: a - b, np.subtract, (*INTEGERS, *FLOATS)),
        ("div", lambda a, b: a / b, np.true_divide, FLOATS),
        ("floordiv", lambda a, b: a // b, np.floor_divide, INTEGERS),
        ("mod", lambda a, b: a % b, np.remainder, INTEGERS),
        ("and", lambda a, b: a & b, np.bitwise_and, ("bool", *INTEGERS)),
        ("or", lambda a, b: a | b, np.bitwise_or, ("bool", "int32", "uint8")),
        ("xor", lambda a, b: a ^ b, np.bitwise_xor, ("bool", "int16", "uint64")),
    ]
    for name, ours, theirs, types in table:
        for dtype in types:
            full = f"{name}_{dtype}"
            left, right = numbers(full + "l", (7, 37), dtype), numbers(full + "r", (37,), dtype)
            if name in ("floordiv", "mod", "div"):
                right = np.where(right == 0, right.dtype.type(3), right)
            compares = name in ("less", "less_equal", "equal", "unequal")
            rounded = {} if compares or name in ("maximum", "minimum") else _tolerance(dtype)
            reference = in_float64(theirs) if rounded else theirs
            yield Case(full, (left, right), ours, reference, **rounded)
    for dtype in INTEGERS:
        values = numbers(f"shift_{dtype}", (300,), dtype, -100, 100)
        amounts = numbers(f"amount_{dtype}", (300,), dtype, 0, 7)
        yield Case(f"shl_{dtype}", (values, amounts), lambda a, b: a << b, np.left_shift)
        yield Case(f"shr_{dtype}", (values, amounts), lambda a, b: a >> b, np.right_shift)
    powers = (np.abs(numbers("pow", (300,), "float32")), numbers("powr", (300,), "float32"))
    yield Case("pow", powers, lambda a, b: a**b, in_float64(np.power), rtol=2e-5, atol=1e-30)


def _unary() -> Iterator[Case]:
    wide = np.linspace(-20, 20, 333, dtype=np.float32)
    positive = np.geomspace(1e-6, 1e6, 333, dtype=np.float32)
    angles = numbers("angles", (333,), "float32") * np.float32(1e4)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -2.5, 3.5, 1e38], np.float32)
    table: list[tuple[str, Array, Callable[..., Any], Callable[..., Any], float, float]] = [
        ("exp", wide, lambda t: t.exp(), np.exp, 4e-7, 0),
        ("exp2", wide, lambda t: t.exp2(), np.exp2, 4e-7, 0),
        ("log", positive, lambda t: t.log(), np.log, 4e-7, 1e-7),
        ("log2", positive, lambda t: t.log2(), np.log2, 4e-7, 1e-7),
        ("sqrt", positive, lambda t: t.sqrt(), np.sqrt, 1e-7, 0),
        ("rsqrt", positive, lambda t: t.rsqrt(), lambda a: 1 / np.sqrt(a), 3e-7, 0),
        ("reciprocal", positive, lambda t: t.reciprocal(), lambda a: 1 / a, 1e-7, 0),
        ("sin", wide, lambda t: t.sin(), np.sin, 0, 2e-7),
        ("cos", wide, lambda t: t.cos(), np.cos, 0, 2e-7),
        ("sin_huge", angles, lambda t: t.sin(), np.sin, 0, 2e-7),
        ("tanh", wide, lambda t: t.tanh(), np.tanh, 6e-7, 0),
        ("sigmoid", wide, lambda t: t.sigmoid(), lambda a: 1 / (1 + np.exp(-a)), 1e-6, 1e-12),
        ("silu", wide, lambda t: t.silu(), lambda a: a / (1 + np.exp(-a)), 2e-6, 1e-7),
        ("relu", wide, lambda t: t.relu(), lambda a: np.maximum(a, 0), 0, 0),
        ("abs", wide, abs, np.abs, 0, 0),
        ("neg", wide, lambda t: -t, np.negative, 0, 0),
        ("floor", wide, lambda t: t.floor(), np.floor, 0, 0),
        ("ceil", wide, lambda t: t.ceil(), np.ceil, 0, 0),
        ("trunc", wide, lambda t: t.trunc(), np.trunc, 0, 0),
        ("round", wide * np.float32(0.5), lambda t: t.round(), np.round, 0, 0),
        ("sign", wide, lambda t: t.sign(), np.sign, 0, 0),
        ("square", wide, lambda t: t.square(), np.square, 1e-7, 0),
        ("clamp", wide, lambda t: t.clamp(-3, 5), lambda a: np.clip(a, -3, 5), 0, 0),
        ("isnan", special, lambda t: t.isnan(), np.isnan, 0, 0),
        ("isinf", special, lambda t: t.isinf(), np.isinf, 0, 0),
        ("exp_special", special, lambda t: t.exp(), np.exp, 4e-7, 0),
        ("sqrt_special", special, lambda t: t.sqrt(), np.sqrt, 1e-7, 0),
    ]
    for name, given, ours, theirs, rtol, atol in table:
        yield Case(name, (given,), ours, in_float64(theirs) if rtol or atol else theirs, rtol, atol)
    for dtype in INTEGERS:
        values = numbers(f"unary_{dtype}", (100,), dtype, -90, 90)
        yield Case(f"invert_{dtype}", (values,), lambda t: ~t, np.invert)
        yield Case(f"abs_{dtype}", (values,), abs, np.abs)


def _casts() -> Iterator[Case]:
    for source in TYPES:
        values = numbers(f"cast_{source}", (129,), source, 0, 100)
        if values.dtype.kind == "f":
            values = np.abs(values)
        for target in ("bool", "int8", "uint16", "int32", "int64", "float16", "float32"):
            yield Case(
                f"cast_{source}_to_{target}",
                (values,),
                lambda t, target=target: t.cast(target),
                lambda a, target=target: a.astype(target),
            )
    floats = numbers("bfloat16", (257,), "float32")

    def to_bfloat16(array: Array) -> Array:
        bits = array.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        return rounded.astype(np.uint32).view(np.float32)

    yield Case(
        "bfloat16_rounds", (floats,), lambda t: t.cast("bfloat16").cast("float32"), to_bfloat16
    )
    yield Case("bitcast", (floats,), lambda t: t.bitcast("int32"), lambda a: a.view(np.int32))


def _reductions() -> Iterator[Case]:
    shapes = ((3, 5), (1000,), (7, 1030), (1030, 7), (300, 96), (2, 3, 4, 5))
    for shape in shapes:
        text = "x".join(map(str, shape))
        floats = numbers(f"reduce_{text}", shape, "float32")
        whole = numbers(f"reduce_whole_{text}", shape, "int32")
        for axis in (None, 0, -1):
            at = "all" if axis is None else f"axis{axis}"
            for name, rtol, atol in (("sum", 1e-4, 1e-3), ("max", 0, 0), ("mean", 1e-4, 1e-5)):
                yield Case(
                    f"{name}_{text}_{at}".replace("-", "last"),
                    (floats,),
                    lambda t, n=name, a=axis: getattr(t, n)(axis=a),
                    in_float64(lambda x, n=name, a=axis: getattr(np, n)(x, axis=a)),
                    rtol,
                    atol,
                )
            for name in ("sum", "min", "argmin"):
                yield Case(
                    f"{name}_int32_{text}_{at}".replace("-", "last"),
                    (whole,),
                    lambda t, n=name, a=axis: getattr(t, n)(axis=a),
                    lambda x, n=name, a=axis: getattr(np, n)(x, axis=a),
                )
    for dtype in TYPES:
        values = numbers(f"total_{dtype}", (4, 200), dtype, -1, 1)
        rounded = {"rtol": 3e-3, "atol": 5e-2} if dtype in FLOATS else {}
        yield Case(
            f"sum_{dtype}", (values,), lambda t: t.sum(1), in_float64(lambda a: a.sum(1)), **rounded
        )
        yield Case(f"max_{dtype}", (values,), lambda t: t.max(0), lambda a: a.max(0))
    flags = numbers("flags", (9, 40), "bool")
    yield Case("any", (flags,), lambda t: t.any(1), lambda a: a.any(1))
    yield Case("all", (flags,), lambda t: t.all(0), lambda a: a.all(0))
    ones = numbers("prod", (6, 70), "int64", -1, 1)
    yield Case("prod", (ones,), lambda t: t.prod(1), lambda a: a.prod(1))
    long = numbers("long", (3, 70001), "int32")
    yield Case("sum_long", (long,), lambda t: t.sum(), lambda a: a.sum())
    table = numbers("table", (33, 200), "float32")
    yield Case(
        "std", (table,), lambda t: t.std(1), in_float64(lambda a: a.std(1, ddof=1)), 1e-5, 1e-6
    )
    yield Case("softmax", (table,), lambda t: t.softmax(), in_float64(softmax), 2e-6, 1e-9)
    log = in_float64(lambda a: np.log(softmax(a)))
    yield Case("log_softmax", (table,), lambda t: t.log_softmax(), log, 2e-6, 2e-6)
    yield Case("layer_norm", (table,), _layer_norm, in_float64(layer_norm), 1e-4, 1e-5)


def _layer_norm(tensor: Tensor) -> Tensor:
    centred = tensor - tensor.mean(-1, keepdims=True)
    return centred * (centred.square().mean(-1, keepdims=True) + 1e-5).rsqrt()


def _products() -> Iterator[Case]:
    for rows, depth, columns in (
        (8, 4, 8),
        (16, 16, 16),
        (65, 33, 130),
        (9, 300, 20),
        (64, 64, 129),
    ):
        text = f"{rows}x{depth}x{columns}"
        for dtype in ("float32", "float16", "int8", "int32", "int64", "uint8", "bool"):
            left = numbers(f"left_{text}", (rows, depth), dtype, -3, 3)
            right = numbers(f"right_{text}", (depth, columns), dtype, -3, 3)
            rounded = {}
            if left.dtype.kind == "f":
                rounded = (
                    {"rtol": 5e-3, "atol": 5e-2}
                    if dtype == "float16"
                    else {"rtol": 1e-4, "atol": 1e-4}
                )
            yield Case(
                f"matmul_{dtype}_{text}",
                (left, right),
                lambda a, b: a @ b,
                in_float64(lambda a, b: a @ b),
                **rounded,
            )
        for dtype in ("float16", "bfloat16"):
            small = (
                numbers(f"l_{text}", (2, rows, depth), "int8", -3, 3).astype(np.float32),
                numbers(f"r_{text}", (depth, columns), "int8", -3, 3).astype(np.float32),
            )
            yield Case(
                f"matmul_in_float32_of_{dtype}_{text}",
                small,
                lambda a, b, d=dtype: (
                    a.cast(d).contiguous().cast("float32") @ b.cast(d).contiguous().cast("float32")
                ),
                lambda a, b: a @ b,
            )
        bytes_ = [numbers(f"i8_{text}_{shape}", shape, "int8", -90, 90)
                  for shape in ((rows, depth), (depth, columns))]  # fmt: skip
        yield Case(
            f"matmul_in_int32_of_int8_{text}",
            tuple(bytes_),
            lambda a, b: a.cast("int32") @ b.cast("int32"),
            lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
        )
    exact = tuple(numbers(f"tf32_{n}", (50, 50), "int8", -90, 90).astype(np.float32) for n in "ab")
    yield Case("matmul_tf32", exact, lambda a, b: a.tf32() @ b.tf32(), lambda a, b: a @ b)
    turned = (numbers("tl", (33, 70), "float32"), numbers("tr", (90, 33), "float32"))
    yield Case(
        "matmul_transposed_epilogue",
        turned,
        lambda a, b: (a.T @ b.T * 2 + b.T[0]).relu(),
        in_float64(lambda a, b: np.maximum(a.T @ b.T * 2 + b.T[0], 0)),
        1e-4,
        1e-4,
    )
    heads = tuple(numbers(n, (2, 3, 40, 16), "float32") / 3 for n in ("q", "k", "v"))
    yield Case("attention", heads, _attention, in_float64(_attention_reference), 1e-4, 1e-5)
    image = numbers("image", (2, 3, 10, 12), "float32")
    filters = numbers("filters", (8, 3, 3, 3), "float32")
    yield Case("conv2d", (image, filters), _conv2d, in_float64(_conv2d_reference), 1e-4, 1e-3)


def _attention(query: Tensor, key: Tensor, values: Tensor) -> Tensor:
    return (query @ key.transpose(2, 3) / 4).softmax() @ values


def _attention_reference(query: Array, key: Array, values: Array) -> Array:
    return np.asarray(softmax(query @ key.swapaxes(2, 3) / 4) @ values)


def _conv2d(image: Tensor, filters: Tensor) -> Tensor:
    """Nine shifted views, each a sum of products over the channels."""
    height, width = image.shape[2] - 2, image.shape[3] - 2
    parts = []
    for dy in range(3):
        for dx in range(3):
            piece = image[:, :, dy : dy + height, dx : dx + width].unsqueeze(1)
            weight = filters[:, :, dy, dx].reshape(1, *filters.shape[:2], 1, 1)
            parts.append((piece * weight).sum(2))
    return functools.reduce(lambda a, b: a + b, parts)


def _conv2d_reference(image: Array, filters: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))
    return np.asarray(np.einsum("nchwyx,ocyx->nohw", windows, filters))


def _movement() -> Iterator[Case]:
    array = numbers("moved", (6, 10, 14), "float32")
    half = numbers("moved_half", (30, 50), "float16")
    small = numbers("moved_small", (30, 50), "int8")
    table: list[tuple[str, tuple[Array, ...], Callable[..., Any], Callable[..., Any]]] = [
        ("permute", (array,), lambda t: t.permute(2, 0, 1).contiguous(),
         lambda a: a.transpose(2, 0, 1)),
        ("transpose_half", (half,), lambda t: t.T.contiguous(), lambda a: a.T),
        ("flip", (array,), lambda t: t.flip(0, 2) * 1, lambda a: np.flip(a, (0, 2))),
        ("reshape_merge", (array,), lambda t: t.permute(1, 0, 2).reshape(60, 14) + 0,
         lambda a: a.transpose(1, 0, 2).reshape(60, 14)),
        ("expand", (half,), lambda t: t.unsqueeze(0).expand(3, 30, 50).contiguous(),
         lambda a: np.broadcast_to(a, (3, 30, 50))),
        ("pad", (half,), lambda t: t.pad(((1, 2), (3, 5)), 7).contiguous(),
         lambda a: np.pad(a, ((1, 2), (3, 5)), constant_values=7)),
        ("pad_int8", (small,), lambda t: t.pad(((0, 0), (1, 1))).contiguous(),
         lambda a: np.pad(a, ((0, 0), (1, 1)))),
        ("stride", (array,), lambda t: t[::2, 1:9, ::-3] * 1, lambda a: a[::2, 1:9, ::-3]),
        ("cat", (array, array), lambda a, b: Tensor.cat([a, b * 2, a], 1),
         lambda a, b: np.concatenate([a, b * 2, a], 1)),
        ("stack", (half, half), lambda a, b: Tensor.stack([a, b + 1], 1),
         lambda a, b: np.stack([a, b + 1], 1)),
        ("repeat", (half,), lambda t: t.repeat(2, 3).contiguous(), lambda a: np.tile(a, (2, 3))),
        ("where", (half, small), lambda a, b: (b < 0).where(a, -a),
         lambda a, b: np.where(b < 0, a, -a)),
    ]  # fmt: skip
    for name, given, ours, theirs in table:
        yield Case(name, given, ours, theirs)
    rows, places = (
        numbers("rows", (33,), "int32", -70, 69),
        numbers("places", (33,), "int64", 0, 39),
    )
    lookup = numbers("lookup", (70, 40), "float32")
    yield Case("gather_rows", (lookup, rows), lambda t, r: t[r], lambda a, r: a[r])
    yield Case(
        "gather_pairs", (lookup, rows, places), lambda t, r, c: t[r, c], lambda a, r, c: a[r, c]
    )
    yield Case(
        "one_hot",
        (places,),
        lambda p: (p.unsqueeze(1) == Tensor.arange(40, device=p.device)).int(),
        lambda p: (p[:, None] == np.arange(40)).astype(np.int32),
    )
    yield Case(
        "arange",
        (places,),
        lambda p: p * 0 + Tensor.arange(33, device=p.device) * 3 - 5,
        lambda p: np.arange(33) * 3 - 5,
    )
    yield Case("assign_slice", (lookup, lookup), _assign, _assign_reference)
    given = (lookup, rows, places, numbers("given", (33,), "float32"))
    yield Case("assign_pairs", given, _assign_pairs, _assign_pairs)
    yield Case("assign_rows", (lookup, rows % 40, lookup[:33]), _assign_rows, _assign_rows)
    yield Case("assign_mask", (lookup,), _assign_mask, _assign_mask)
    source = numbers("source", (33, 40), "float32")
    yield Case(
        "index_add",
        (lookup, rows % 9, source),
        lambda t, i, s: t.index_add(0, i, s),
        _index_add_reference,
    )


def _assign(target: Tensor, values: Tensor) -> Tensor:
    made = target * 1
    made[1:60, ::2] = values[:59, 20:] * 2
    return made


def _assign_reference(target: Array, values: Array) -> Array:
    made = target * 1
    made[1:60, ::2] = values[:59, 20:] * 2
    return made


def _assign_pairs(target: Any, rows: Any, columns: Any, values: Any) -> Any:
    made = target * 1
    made[rows, columns] = values
    return made


def _assign_rows(target: Any, rows: Any, values: Any) -> Any:
    made = target * 1
    made[rows, 1::2] = values[:, :20] * 2
    return made


def _assign_mask(target: Any) -> Any:
    made = target * 1
    made[made < 0] = 0.5
    return made


def _index_add_reference(target: Array, rows: Array, source: Array) -> Array:
    made = target * 1
    np.add.at(made, rows, source)
    return made


@functools.cache
def corpus() -> dict[str, Case]:
    """Every case, by name."""
    cases: dict[str, Case] = {}
    for make in (_binary, _unary, _casts, _reductions, _products, _movement, composed, network):
        for case in make():
            assert case.name not in cases, case.name
            cases[case.name] = case
    return cases
