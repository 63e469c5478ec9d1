"""`ugpu demo`: bring a GPU up, classify real handwritten digits on it, and check the answer.

The 1,797 8x8 digits that ship with scikit-learn are classified by their nearest neighbour among the
other 1,796: all pairwise squared distances by matmul, the digit itself excluded, argmin. Pixels are
whole numbers from 0 to 16, so every distance is exact in float32, and the labels must all equal
those that NumPy finds.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import kernel_log
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import MissingDependency
from ugpu.hcq.state import trace
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown
from ugpu.tools.base.readings import read_sensors

BATCH = 599  # queries per step: 3 steps of the same shape make the 1,797
FAR = np.float32(1e9)  # excludes a digit as its own neighbour


@dataclass(frozen=True)
class Digits:
    """pixels: [1797, 64] float32, 0 to 16. labels: [1797] 0 to 9."""

    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_digits() -> Digits:
    """Read the digits from scikit-learn's package folder (importing scikit-learn takes seconds)."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "the demo's digits are part of scikit-learn, which is not installed",
            install="pip install 'ugpu[demo]'",
        )
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.array([[int(float(cell)) for cell in row] for row in csv.reader(file)])
    return Digits(rows[:, :64].astype(np.float32), rows[:, 64])


def neighbours_on(device: Device, pixels: NDArray[np.float32], out: Output) -> NDArray[np.int64]:
    """Return the index of each row's nearest other row, computed on `device`. [n] int64."""
    count = len(pixels)
    everyone = Tensor(pixels, device=device)
    norms = (everyone * everyone).sum(axis=1).realize()
    nearest = np.empty(count, np.int64)
    with out.steps("classify", count // BATCH) as progress:
        for first in range(0, count, BATCH):
            chosen = slice(first, first + BATCH)
            queries = Tensor(pixels[chosen], device=device)
            own = Tensor(np.arange(first, first + BATCH, dtype=np.int32), device=device)
            columns = Tensor.arange(count, device=device)
            products = queries @ everyone.permute(1, 0)
            distance = norms.reshape(1, count) - products * np.float32(2)
            distance = distance + (own.reshape(BATCH, 1) == columns.reshape(1, count)).where(FAR, 0)
            nearest[chosen] = distance.argmin(axis=1).numpy()
            if progress is not None:
                progress.advance(progress.task_ids[0])
    return nearest


def neighbours_by_numpy(pixels: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the same indices, computed by NumPy."""
    norms = (pixels * pixels).sum(axis=1)
    distance = norms[None, :] - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distance, FAR)
    return np.asarray(distance.argmin(axis=1))


def run(name: str, out: Output) -> int:
    """Run the demo on the named device; return 0 only if every label equals NumPy's."""
    digits = load_digits()
    out.say(f"ugpu demo on {name}: {len(digits.labels)} handwritten digits, nearest neighbour")
    out.say()
    stages: list[dict[str, Any]] = []  # Any: JSON values

    def on_event(event: trace.Event) -> None:
        if event.name == "boot" and event.duration_s is not None:
            stage, ms = str(event.arguments["stage"]), event.duration_s * 1e3
            stages.append({"stage": stage, "ms": round(ms, 3)})
            out.say(f"  boot    {stage:<24} {ms:8.2f} ms")

    start = time.perf_counter()
    with shown(out, "boot"), trace.subscribe(on_event):
        opened = hcq.open(name)
    with opened as device:
        boot_s = time.perf_counter() - start
        out.say(f"  {device.name} ({device.target.name}) is up after {boot_s * 1e3:.0f} ms")
        out.say()
        with kernel_log() as kernels:
            start = time.perf_counter()
            nearest = neighbours_on(device, digits.pixels, out)
            run_s = time.perf_counter() - start
        for kernel in kernels:
            out.say(
                f"  kernel  {kernel.name:<56} {kernel.code_bytes:6d} bytes "
                f"{kernel.seconds * 1e3:7.1f} ms{' from cache' if kernel.from_disk else ''}"
            )
        out.say()
        readings = read_sensors(device)
        for reading in readings:
            out.say(f"  sensor  {reading.words:<28} {reading}")
        info = device.info()
    labels = digits.labels[nearest]
    expected = digits.labels[neighbours_by_numpy(digits.pixels)]
    accuracy = float((labels == digits.labels).mean())
    reference = float((expected == digits.labels).mean())
    same = bool(np.array_equal(labels, expected))
    out.say()
    out.say(f"  classified in {run_s:.2f} s; accuracy {accuracy:.4f}, NumPy's {reference:.4f}")
    if not same:
        out.say(f"  {int((labels != expected).sum())} labels differ from NumPy's")
    verdict = "PASS" if same else "FAIL"
    out.say(
        f"demo: {verdict} accuracy={accuracy:.4f} boot_ms={boot_s * 1e3:.0f} kernels={len(kernels)}"
    )
    out.result(
        {
            "verdict": verdict,
            "device": name,
            "accuracy": accuracy,
            "numpy_accuracy": reference,
            "boot_ms": round(boot_s * 1e3, 3),
            "run_s": round(run_s, 3),
            "stages": stages,
            "kernels": [
                {"name": k.name, "code_bytes": k.code_bytes, "ms": round(k.seconds * 1e3, 3)}
                for k in kernels
            ],
            "sensors": [asdict(reading) for reading in readings],
            "info": info,
        }
    )
    return 0 if same else 1
