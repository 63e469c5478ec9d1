"""`ugpu run model.onnx`: run an ONNX model and show its outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu import compiler
from ugpu.compiler import Tensor, onnx
from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.hcq.near import meant
from ugpu.tools.base.console import Output, count
from ugpu.tools.base.progress import shown

RUNS = 3  # timed after the first


@dataclass(frozen=True)
class RunOptions:
    """inputs: NAME=FILE.npy. sizes: NAME=NUMBER for sizes that the model leaves open. output: a
    .npz or .safetensors file for the outputs, or None. seed: of inputs that are not given."""

    device: str | None
    inputs: Sequence[str]
    sizes: Sequence[str]
    output: Path | None
    seed: int


def run(path: str, options: RunOptions, out: Output) -> int:
    """Run the model on the given inputs, or on random numbers; print the outputs' shapes and
    ranges, and times. Return the exit code."""
    with shown(out, f"run {path}"):
        start = time.perf_counter()
        model = onnx.load(path, device=options.device)
        loaded = time.perf_counter() - start
        given = _inputs(model, options)
        start = time.perf_counter()
        results = _results(model(given))
        first = time.perf_counter() - start
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            results = _results(model(given))
            times.append(time.perf_counter() - start)
    nodes = sum(model.operators.values())
    out.say(f"{path}: {count(nodes, 'node')}, opset {model.opset}, on {model.device.name}", "bold")
    out.table(("input", "type", "shape"), [(n, v.dtype.name, _shape(v)) for n, v in given.items()])
    out.table(
        ("output", "type", "shape", "least", "most"),
        [(name, v.dtype.name, _shape(v), *_range(v)) for name, v in results.items()],
    )
    out.say(f"load {loaded:.2f} s, first run {first:.2f} s, then {min(times) * 1e3:.1f} ms")
    if options.output is not None:
        compiler.save(options.output, {name: Tensor(v) for name, v in results.items()})
        out.say(f"outputs written to {options.output}")
    out.result(
        {
            "model": path,
            "device": model.device.name,
            "operators": dict(model.operators),
            "load_s": loaded,
            "first_s": first,
            "run_s": min(times),
            "outputs": {
                name: {"type": v.dtype.name, "shape": list(v.shape)} for name, v in results.items()
            },
        }
    )
    return 0


def _shape(array: NDArray[Any]) -> str:
    return " x ".join(map(str, array.shape)) or "scalar"


def _range(array: NDArray[Any]) -> tuple[str, str]:
    if not array.size or array.dtype.kind not in "biuf":
        return "", ""
    return f"{array.min():.6g}", f"{array.max():.6g}"


def _results(outputs: dict[str, Any]) -> dict[str, NDArray[Any]]:
    return {
        name: value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        for name, value in outputs.items()
        if not isinstance(value, list)
    }


def _pairs(given: Sequence[str], what: str) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.rpartition("=")
        if not equals or not name:
            raise UsageError(f"{what} must be NAME=VALUE, got {each!r}")
        pairs[name] = value
    return pairs


def _inputs(model: onnx.Model, options: RunOptions) -> dict[str, NDArray[Any]]:
    """Return an array for each input of the model."""
    files = _pairs(options.inputs, "--input")
    unknown = [name for name in files if name not in model.input_types]
    if unknown:
        hint = meant(unknown[0], model.input_types)
        raise UsageError(f"the model has no input {unknown[0]!r}; {hint}".rstrip("; "))
    sizes = _pairs(options.sizes, "--size")
    random = np.random.default_rng(options.seed)
    arrays: dict[str, NDArray[Any]] = {}
    for name, (kind, shape) in model.input_types.items():
        if name in files:
            arrays[name] = compiler.load(files[name], device="cpu").numpy()
            continue
        fixed = [_size(name, size, sizes) for size in shape]
        if kind == "bool":
            arrays[name] = random.integers(0, 2, fixed).astype(bool)
        elif kind.startswith(("int", "uint")):
            arrays[name] = random.integers(0, 2, fixed).astype(kind)
        elif kind.startswith(("float", "bfloat")):
            arrays[name] = random.random(fixed, np.float32)
        else:
            raise UsageError(f"input {name!r} of {kind} must be given: --input {name}=FILE.npy")
    return arrays


def _size(name: str, size: int | str, sizes: dict[str, str]) -> int:
    if isinstance(size, int):
        return size
    text = sizes.get(size, "1")
    if not text.isdecimal() or not 0 <= int(text) <= 1 << 32:
        raise BadArgument(f"size {size!r} of input {name!r} must be a number, got {text!r}")
    return int(text)
