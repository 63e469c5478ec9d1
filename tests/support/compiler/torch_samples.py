"""PyTorch's own samples of its operators (OpInfo), traced to ATen graphs and run by ugpu."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ugpu.compiler import Tensor
from ugpu.compiler.torch.exported import decompositions
from ugpu.compiler.torch.graph import Graph
from ugpu.compiler.torch.package import from_torch, to_torch
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported

SAMPLES = 2  # of each operation
LARGEST = 20_000  # elements
RANDOM = ("rand", "empty", "bernoulli", "dropout", "normal", "uniform", "multinomial", "cauchy",
          "exponential", "geometric", "rrelu")  # fmt: skip
_tree: Any = torch.utils._pytree


def operations() -> list[Any]:
    """Return PyTorch's operations that take float32, without random and uninitialised ones."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes
            and not any(word in op.name for word in RANDOM)]  # fmt: skip


def _traced(op: Any, sample: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return a sample's graph, its tensors, and the expected results."""
    leaves, form = _tree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]

    def function(*given: Any) -> Any:
        rest = iter(given)
        whole = [next(rest) if isinstance(each, torch.Tensor) else each for each in leaves]
        first, args, kwargs = _tree.tree_unflatten(whole, form)
        return _tree.tree_leaves(op.op(first, *args, **kwargs))

    expected = function(*[each.clone() for each in tensors])
    functional = torch.func.functionalize(function, remove="mutations_and_views")
    graph = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)
    graph.graph.eliminate_dead_code()
    return graph, tensors, expected


def _suits(value: Any) -> bool:
    return not (isinstance(value, torch.Tensor) and (
        value.is_complex() or value.layout != torch.strided or value.numel() > LARGEST
    ))  # fmt: skip


def outcomes(op: Any, device: Device) -> Iterator[str]:
    """Yield for each sample "ok", "missing" operators, "untraced" by PyTorch, or what differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for number, sample in enumerate(op.sample_inputs("cpu", torch.float32)):
            if number == SAMPLES:
                return
            if all(map(_suits, _tree.tree_leaves((sample.input, sample.args, sample.kwargs)))):
                yield _outcome(op, sample, device)


def _outcome(op: Any, sample: Any, device: Device) -> str:
    try:
        graph, tensors, expected = _traced(op, sample)
    except Exception:  # PyTorch cannot trace what depends on values, each time by another class
        return "untraced"
    try:
        ours = Graph(graph, device)
    except NotSupported:
        return "missing"
    try:
        results = ours.run([from_torch(each, device) for each in tensors])
        pairs = [(to_torch(found, wanted.dtype), wanted)
                 for found, wanted in zip(results, expected, strict=True)
                 if isinstance(found, Tensor)]  # fmt: skip
    except Exception as error:  # each sample is reported
        return f"{op.name}: {type(error).__name__}: {error}"
    for found, wanted in pairs:
        same = found.shape == wanted.shape
        if not same or not torch.allclose(
            found.double(), wanted.double(), rtol=2e-3, atol=1e-4, equal_nan=True
        ):
            return f"{op.name}: {tuple(found.shape)}, expected {tuple(wanted.shape)}"
    return "ok"


def summary(ops: list[Any], device: Device) -> tuple[Counter[str], list[str]]:
    """Return how many samples had each outcome, and what differs."""
    counts: Counter[str] = Counter()
    problems = []
    for op in ops:
        for outcome in outcomes(op, device):
            known = outcome in ("ok", "missing", "untraced")
            counts[outcome if known else "wrong"] += 1
            problems += [] if known else [outcome]
    return counts, problems
