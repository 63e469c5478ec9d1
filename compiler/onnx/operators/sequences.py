"""Sequences, which are lists of values, and optional values, which may be None."""

from __future__ import annotations

from typing import Any

import numpy as np

from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.shapes import ints
from ugpu.compiler.tensor import Tensor


def _place(at: Any) -> int:
    return int(np.asarray(at).reshape(-1)[0])


@operator("SequenceConstruct")
def construct(*inputs: Any) -> Any:
    return ([*inputs],)


@operator("SequenceEmpty")
def empty(*, dtype: int = 1) -> Any:
    return ([],)


@operator("SequenceAt", host=(1,))
def at(sequence: list[Any], place: Any) -> Any:
    return (sequence[_place(place)],)


@operator("SequenceInsert", host=(2,))
def insert(sequence: list[Any], value: Any, place: Any = None) -> Any:
    result = list(sequence)
    where = len(result) if place is None else _place(place)
    result.insert(where + len(result) if where < 0 else where, value)
    return (result,)


@operator("SequenceErase", host=(1,))
def erase(sequence: list[Any], place: Any = None) -> Any:
    result = list(sequence)
    del result[-1 if place is None else _place(place)]
    return (result,)


@operator("SequenceLength")
def length(sequence: list[Any]) -> Any:
    return np.array(len(sequence), np.int64)


@operator("ConcatFromSequence")
def concat(sequence: list[Any], *, axis: int, new_axis: int = 0) -> Tensor:
    return Tensor.stack(sequence, axis) if new_axis else Tensor.cat(sequence, axis)


@operator("SplitToSequence", host=(1,))
def split(x: Tensor, sizes: Any = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    if sizes is None:
        parts = list(x.split(1, axis))
        return (parts if keepdims else [part.squeeze(axis) for part in parts],)
    given = ints(sizes)
    return (list(x.split(given[0] if np.ndim(sizes) == 0 else given, axis)),)


@operator("Optional")
def optional(value: Any = None, *, type: Any = None) -> Any:
    return (value,)


@operator("OptionalGetElement")
def get_element(value: Any) -> Any:
    return (value,)


@operator("OptionalHasElement")
def has_element(value: Any = None) -> Any:
    return np.array(value is not None)
