"""Measurement of a kernel's time on a device, and comparison of its results with the default's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.kernel.nvidia.packed import Packed
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.buffer import Buffer

SEED = 7
RUNS = 7  # maximum; the fastest counts
SHARE_S = 0.2  # seconds of a candidate's runs after the first, in all
HOPELESS = 2.0  # times the best so far: then one run is enough


@dataclass(frozen=True)
class Parameter:
    """An array of a kernel: its element type's name and the number of elements. packed: the layout,
    for a factor that was packed; kernels may rely on the zeros between its elements."""

    dtype: str
    count: int
    packed: Packed | None = None


@dataclass(frozen=True)
class Problem:
    """The arrays of a computation: `outputs` of them are its results, and come first."""

    parameters: tuple[Parameter, ...]
    outputs: int = 1


@dataclass(frozen=True)
class Candidate:
    """A compiled kernel and how to launch it. best_s: of the candidates so far, 0 for none.
    dynamic_local: bytes of local memory that the launch gives a group."""

    image: bytes
    kernel: str
    grid: tuple[int, int, int]
    block: int
    best_s: float = 0.0
    dynamic_local: int = 0


@dataclass(frozen=True)
class Outcome:
    """seconds: of the fastest run; None if the candidate was rejected, with the reason."""

    seconds: float | None
    reason: str = ""


class Bench:
    """The arrays of one computation on a device, and the results that its first candidate gave. A
    context manager."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device = device
        self.outputs = problem.parameters[: problem.outputs]
        self.references: list[NDArray[np.generic]] = []
        self.buffers: list[Buffer] = []
        random = np.random.default_rng(SEED)
        for parameter in problem.parameters:
            array = numbers(random, parameter)
            buffer = device.alloc(max(1, array.nbytes))
            self.buffers.append(buffer)
            buffer.copy_from(array.view(np.uint8))

    def run(self, candidate: Candidate) -> Outcome:
        """Measure a candidate. All others must agree with the first one's result."""
        with self.device.load(candidate.image) as program:
            kernel = program[candidate.kernel]
            for buffer, _ in zip(self.buffers, self.outputs, strict=False):
                buffer.copy_from(np.zeros(buffer.size, np.uint8))

            def once() -> float:
                queue = self.device.queue()
                queue.launch(
                    kernel,
                    grid=candidate.grid,
                    block=(candidate.block, 1, 1),
                    args=self.buffers,
                    dynamic_local=candidate.dynamic_local,
                )
                start = time.perf_counter()
                queue.submit()
                self.device.synchronize()
                return time.perf_counter() - start

            once()  # the device's preparations happen in this run
            if not self.agrees():
                return Outcome(None, "another result than the default's")
            best = once()
            spent, runs = best, 1
            hopeless = candidate.best_s and best > HOPELESS * candidate.best_s
            while not hopeless and runs < RUNS and spent < SHARE_S:
                seconds = once()
                best, spent, runs = min(best, seconds), spent + seconds, runs + 1
            return Outcome(best)

    def agrees(self) -> bool:
        """Return whether the outputs equal those of the first candidate; always true for the
        first."""
        found = []
        for buffer, output in zip(self.buffers, self.outputs, strict=False):
            raw = np.zeros(buffer.size, np.uint8)
            buffer.copy_to(raw)
            found.append(_wide(raw[: output.count * _kind(output.dtype).itemsize], output.dtype))
        if not self.references:
            self.references = found
            return True
        each = zip(found, self.references, self.outputs, strict=True)
        return all(_alike(values, reference, output.dtype) for values, reference, output in each)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()
        self.buffers.clear()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kind(name: str) -> np.dtype[np.generic]:
    return dtypes.to_numpy(dtypes.as_dtype(name))


def _wide(raw: NDArray[np.uint8], name: str) -> NDArray[np.generic]:
    """Return raw bytes as numbers that can be compared."""
    array = dtypes.decode(raw.view(_kind(name)), dtypes.as_dtype(name))
    return array.astype(np.float32) if name == "float16" else array


def _alike(values: NDArray[Any], reference: NDArray[Any], name: str) -> bool:
    """Return whether values are equal; for floats, as close as sums in another order are."""
    if values.dtype.kind != "f":
        return bool((values == reference).all())
    finite = np.abs(reference[np.isfinite(reference)])
    scale = float(finite.max()) if finite.size else 1.0
    close = 1e-4 if name == "float32" else 2e-2
    return bool(np.allclose(values, reference, rtol=close, atol=close * scale, equal_nan=True))


def numbers(random: np.random.Generator, parameter: Parameter) -> NDArray[np.generic]:
    """Return data for an array: small numbers, so that their sums are exact enough to compare."""
    found = _small(random, parameter)
    if parameter.packed is not None:
        found[parameter.packed.padding(parameter.count)] = 0
    return found


def _small(random: np.random.Generator, parameter: Parameter) -> NDArray[Any]:
    kind = _kind(parameter.dtype)
    dtype = dtypes.as_dtype(parameter.dtype)
    if dtype.is_float:
        return dtypes.encode(random.normal(size=parameter.count), dtype)
    return random.integers(0, 2 if kind.kind == "b" else 8, parameter.count).astype(kind)
