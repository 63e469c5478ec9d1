"""A process with tinygrad's AM driver in it: run a scenario on the card behind `REMOTE`.

    python -m tests.foreign.tinygrad_client SCENARIO FIRMWARE RESULT

FIRMWARE is a folder of images, RESULT the JSON file to write: what each step gave, "ok" or the
trouble. The driver is as installed. Two functions around it are replaced: the one that downloads
firmware reads FIRMWARE, since the model takes images of its own signer only, and the compiler
behind the LLVM renderer is llvmlite's LLVM, because libLLVM is in no Python package.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Compiler
from tinygrad.runtime.support import compiler_llvm
from tinygrad.runtime.support.am import amdev

Step = tuple[str, Callable[[], Any], Any]  # name, what tinygrad computes, what NumPy says


class LlvmliteCompiler(Compiler):
    """tinygrad's IR to an AMD object, with the options of its own LLVM compiler."""

    def __init__(self, arch: str) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
        self._machine = target.create_target_machine(arch, "+cumode", opt=2, reloc="pic")
        super().__init__(None)

    def compile(self, src: str) -> bytes:
        """Optimise and emit. The module gets no triple: its `alloca` are not in addrspace(5)."""
        module = llvm.parse_assembly(src)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(self._machine.emit_object(module))


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operators() -> Iterator[Step]:
    """Copies, elementwise operations, reductions, products, sorting, convolution, graphs."""
    x, y = _numbers(64, 48), _numbers(64, 48, seed=1)
    square, halves = _numbers(64, 64, seed=2), _numbers(64, 64, seed=3).astype(np.float16)
    whole = np.arange(-60, 60, dtype=np.int32).reshape(10, 12)
    large = _numbers(1 << 20, seed=4)
    yield "copy", lambda: Tensor(x).numpy(), x
    yield "copy of 4 MiB", lambda: (Tensor(large) + 0).numpy(), large
    yield "add", lambda: (Tensor(x) + Tensor(y)).numpy(), x + y
    yield "multiply and add", lambda: (Tensor(x) * 2.5 - Tensor(y)).numpy(), x * 2.5 - y
    yield "divide", lambda: (Tensor(x) / Tensor(y)).numpy(), x / y
    yield "exp", lambda: Tensor(x).exp().numpy(), np.exp(x)
    yield "log", lambda: Tensor(x).abs().log().numpy(), np.log(np.abs(x))
    yield "sin", lambda: Tensor(x).sin().numpy(), np.sin(x)
    yield "sqrt", lambda: Tensor(x).abs().sqrt().numpy(), np.sqrt(np.abs(x))
    yield "where", lambda: (Tensor(x) > 0).where(Tensor(x), 0).numpy(), np.where(x > 0, x, 0)
    yield "sum", lambda: Tensor(x).sum().numpy(), x.sum(dtype=np.float64)
    yield "sum of an axis", lambda: Tensor(x).sum(axis=0).numpy(), x.sum(axis=0)
    yield "max", lambda: Tensor(x).max(axis=1).numpy(), x.max(axis=1)
    yield "argmax", lambda: Tensor(x).argmax(axis=1).numpy(), x.argmax(axis=1)
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    yield "softmax", lambda: Tensor(x).softmax().numpy(), shifted / shifted.sum(1, keepdims=True)
    yield "product", lambda: (Tensor(square) @ Tensor(square)).numpy(), square @ square
    product = halves.astype(np.float32) @ halves.astype(np.float32)
    yield (
        "product of halves",
        lambda: Tensor(halves).matmul(Tensor(halves), dtype=dtypes.float32).numpy(),
        product,
    )
    yield "transposed", lambda: Tensor(x).T.contiguous().numpy(), x.T
    yield "pad", lambda: Tensor(x).pad(((1, 2), (0, 3))).numpy(), np.pad(x, ((1, 2), (0, 3)))
    yield "cat", lambda: Tensor(x).cat(Tensor(y)).numpy(), np.concatenate((x, y))
    yield "whole division", lambda: (Tensor(whole) // 7).numpy(), whole // 7
    yield "remainder", lambda: (Tensor(whole) % 7).numpy(), whole % 7
    yield "shift and mask", lambda: (Tensor(whole).bitwise_and(12) << 3).numpy(), (whole & 12) << 3
    yield "bytes", lambda: Tensor(whole).cast(dtypes.uint8).numpy(), whole.astype(np.uint8)
    yield (
        "short integers",
        lambda: (Tensor(whole).cast(dtypes.int16) * Tensor(whole).cast(dtypes.int16) + 5).numpy(),
        (whole.astype(np.int16) * whole.astype(np.int16) + 5),
    )
    yield "doubles", lambda: (Tensor(x).cast(dtypes.float64) * 3).numpy(), x.astype(np.float64) * 3
    yield "cumsum", lambda: Tensor(x).cumsum(axis=1).numpy(), x.cumsum(axis=1)
    yield "sort", lambda: Tensor(x[0]).sort()[0].numpy(), np.sort(x[0])
    image, taps = _numbers(1, 3, 12, 12, seed=5), _numbers(4, 3, 3, 3, seed=6)
    windows = np.lib.stride_tricks.sliding_window_view(image[0], (3, 3), axis=(1, 2))
    convolved = np.einsum("chwij,ocij->ohw", windows, taps)[None]
    yield "convolution", lambda: Tensor(image).conv2d(Tensor(taps)).numpy(), convolved
    yield "recorded, replayed", _replayed, _numbers(32) * 2 + 1


def _replayed() -> np.ndarray:
    @TinyJit
    def step(value: Tensor) -> Tensor:
        return (value * 2 + 1).realize()

    result = Tensor.zeros(32)
    for seed in (3, 2, 1, 0):
        result = step(Tensor(_numbers(32, seed=seed)).realize())
    return np.asarray(result.numpy())


def copies() -> Iterator[Step]:
    """To the card and back."""
    x = _numbers(1 << 20)
    yield "copy", lambda: Tensor(x).to("AMD").realize().numpy(), x


def few() -> Iterator[Step]:
    """Three steps: the device works."""
    x = _numbers(256)
    yield "copy", lambda: Tensor(x).numpy(), x
    yield "add", lambda: (Tensor(x) + 1).numpy(), x + 1
    yield "sum", lambda: Tensor(x).sum().numpy(), x.sum(dtype=np.float64)


def timed() -> Iterator[Step]:
    """Kernels whose time is taken: timestamps by RELEASE_MEM with an interrupt and no data."""
    from tinygrad.helpers import Context

    def run() -> np.ndarray:
        with Context(DEBUG=2):
            return np.asarray((Tensor(_numbers(1024)) * 3).numpy())

    yield "timed kernel", run, _numbers(1024) * 3


SCENARIOS = {"copies": copies, "operators": operators, "few": few, "timed": timed}


def _trouble(name: str, act: Callable[[], Any], expected: Any) -> str:
    """Run a step; return "ok" or what is wrong."""
    try:
        got = np.asarray(act())
    except Exception as error:  # whatever tinygrad raises is this step's result
        return f"{type(error).__name__}: {error}"
    expected = np.asarray(expected)
    exact = expected.dtype.kind in "iub"
    tolerance = 0 if exact else 2e-4
    if got.shape == expected.shape and np.allclose(got, expected, tolerance, tolerance):
        return "ok"
    return f"expected {expected.ravel()[:4]}, got {got.ravel()[:4]} (shape {got.shape})"


def main(scenario: str, firmware: str, result: str) -> None:
    """Run one scenario and write what came of it."""
    amdev.fetch_fw = lambda _folder, name, _digest: (Path(firmware) / name).read_bytes()
    compiler_llvm.AMDLLVMCompiler = LlvmliteCompiler
    begun = time.monotonic()
    device = Device["AMD"]
    report: dict[str, Any] = {
        "arch": device.arch,
        "partial boot": device.iface.dev_impl.partial_boot,
        "boot_s": round(time.monotonic() - begun, 2),
    }
    report["steps"] = {name: _trouble(name, act, want) for name, act, want in SCENARIOS[scenario]()}
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
