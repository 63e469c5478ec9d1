"""The node tests of the package onnx, run by ugpu."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ugpu.compiler import Tensor
from ugpu.compiler.onnx import Model
from ugpu.compiler.onnx.package import DTYPES
from ugpu.hcq.device.device import Device

OURS = frozenset(DTYPES)
# Cases that are not expected to pass, and why.
UNSUPPORTED = {
    **dict.fromkeys(
        ("test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple",
         "test_momentum", "test_momentum_multiple", "test_nesterov_momentum"),
        "training operators of a preview domain; see ugpu.optim",
    ),
    **dict.fromkeys(
        ("test_ai_onnx_ml_tree_ensemble_set_membership",
         "test_ai_onnx_ml_tree_ensemble_single_tree"),
        "decision trees",
    ),
    **dict.fromkeys(
        ("test_training_dropout", "test_training_dropout_default",
         "test_training_dropout_default_mask", "test_training_dropout_mask",
         "test_bernoulli", "test_bernoulli_expanded", "test_bernoulli_double",
         "test_bernoulli_double_expanded", "test_bernoulli_seed", "test_bernoulli_seed_expanded"),
        "random: the expected values are of NumPy's generator",
    ),
    "test_roialign_mode_max": "regions by maximum",
    "test_scan_sum": "Scan of opset 8 works on batches",
}  # fmt: skip
PREFIXES = {
    "test_image_decoder": "pictures are decoded before a model runs",
    "test_basic_deform_conv": "deformable convolution",
    "test_deform_conv": "deformable convolution",
}


@cache
def cases() -> dict[str, Any]:
    """Return the test cases whose inputs and outputs are tensors of types that ugpu has."""
    from onnx.backend.test.case.node import collect_testcases

    with contextlib.redirect_stdout(io.StringIO()):
        collected = collect_testcases(None)
    return {
        case.name: case
        for case in collected
        if case.model is not None and all(map(_ours, _values(case.model.graph)))
    }


def _values(graph: Any) -> Iterator[Any]:
    yield from graph.input
    yield from graph.output


def _ours(value: Any) -> bool:
    kind = value.type
    return kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.elem_type in OURS


def reason(name: str) -> str:
    """Return why a case is not expected to pass, "" if it is."""
    prefixed = (why for start, why in PREFIXES.items() if name.startswith(start))
    return UNSUPPORTED.get(name) or next(prefixed, "")


def expected() -> list[str]:
    """Return the names of the cases that are expected to pass, in order."""
    return [name for name in sorted(cases()) if not reason(name)]


def problems(
    names: Iterable[str], device: Device, tell: Callable[[str], object] | None = None
) -> dict[str, str]:
    """Run cases; return why each of them that does not pass does not. tell: gets a line for each of
    these as soon as it has run."""
    reasons = {}
    for name in names:
        try:
            problem = differences(cases()[name], device)
        except Exception as error:  # each case is reported
            problem = f"{type(error).__name__}: {error}"
        if problem:
            reasons[name] = problem
            if tell is not None:
                tell(f"{name}: {problem[:160]}")
    return reasons


def differences(case: Any, device: Device) -> str:
    """Run a case; return how its outputs differ from the expected ones, "" if they do not."""
    model = Model(case.model, device)
    for given, wanted in case.data_sets:
        inputs = [_array(value) for value in given]
        names = [each.name for each in case.model.graph.input]
        found = model(dict(zip(names, inputs, strict=False)))
        for name, value, expected in zip(model.outputs, found.values(), wanted, strict=True):
            problem = _difference(value, _array(expected), case.rtol, case.atol)
            if problem:
                return f"{name}: {problem}"
    return ""


def _array(value: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _difference(value: Any, expected: Any, rtol: float, atol: float) -> str:
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    kind = expected.dtype.name
    own = value.dtype.name if isinstance(value, Tensor) else array.dtype.name
    if own != kind or array.shape != expected.shape:
        return f"{own}{array.shape}, expected {kind}{expected.shape}"
    if kind == "bfloat16":
        expected, rtol = expected.astype(np.float32), max(rtol, 2.0**-6)
    if kind == "float16":
        rtol = max(rtol, 2.0**-9)
    if expected.dtype.kind in "biu":
        return "" if np.array_equal(array, expected) else "different integers"
    close = np.isclose(array, expected, rtol=rtol, atol=max(atol, 1e-6), equal_nan=True)
    if close.all():
        return ""
    worst = np.abs(np.where(close, 0, array.astype(np.float64) - expected)).max()
    return f"{(~close).sum()} of {close.size} differ, by up to {worst}"
