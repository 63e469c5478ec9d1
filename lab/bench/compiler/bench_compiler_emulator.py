"""A product on the virtual Navi31 beside tinygrad on its own emulated gfx1100.

tinygrad's emulator is part of its tests (`test/mockgpu`), which no package has: clone
github.com/tinygrad/tinygrad and name the clone in TINYGRAD_SOURCES, or install it with
`pip install -e`. The emulator translates to C and wants clang. Known to work: sources of August
2026. The peer runs in a process of its own, which multiplies when told; the two take turns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import use_cache

SIZE = 256
TURNS = 5
NAME = f"matmul {SIZE} f32 on virtual:navi31, warm"
PEER = "tinygrad on its emulated gfx1100"
SOURCES = "TINYGRAD_SOURCES"
EMULATOR = Path("test", "mockgpu", "amd", "emu.py")
COMPILERS = ("clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14")

# For each line it reads, one product; answers with its seconds, and how far off it was at first.
SCRIPT = f"""
import json, sys, time
import numpy as np
from tinygrad import Device, Tensor
array = np.random.default_rng(0).random(({SIZE}, {SIZE}), np.float32)
matrix = Tensor(array).realize()
device = Device[Device.DEFAULT]
device.synchronize()
for number, line in enumerate(sys.stdin):
    start = time.perf_counter()
    product = (matrix @ matrix).realize()
    device.synchronize()
    spent = time.perf_counter() - start
    error = 0.0 if number else float(np.abs(product.numpy() - array @ array).max())
    print(json.dumps([spent, error]), flush=True)
"""


class NoPeer(Exception):
    """Why the peer cannot be measured."""


def _checkout() -> Path:
    """The peer's sources, tests included."""
    named = os.environ.get(SOURCES)
    spec = importlib.util.find_spec("tinygrad")
    installed = Path(spec.origin).parents[1] if spec is not None and spec.origin else None
    folder = Path(named) if named else installed
    if folder is None or not (folder / EMULATOR).is_file():
        where = f"{folder} has no {EMULATOR}" if folder else "no tinygrad here"
        raise NoPeer(f"{where}; {SOURCES} names a clone of github.com/tinygrad/tinygrad")
    return folder


class _Peer:
    """tinygrad's process. Use as a context manager: leaving it ends the process."""

    def __init__(self, folder: Path) -> None:
        compiler = next((name for name in COMPILERS if shutil.which(name)), None)
        if compiler is None:
            raise NoPeer("its emulator compiles with clang, of which there is none")
        self._kept = tempfile.TemporaryDirectory()
        environment = {
            **os.environ, "DEV": "MOCK+AMD", "CC": compiler, "PYTHONPATH": str(folder),
            "CACHEDB": str(Path(self._kept.name, "cache.db")),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> _Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._process.communicate()  # closes its input, which ends it
        self._kept.cleanup()

    def turn(self) -> tuple[float, float]:
        """Seconds of a product; and of the first one, its largest error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            last = self._process.communicate()[1].strip().splitlines() or ["without a word"]
            raise NoPeer(f"it ended: {last[-1]}")
        spent, error = json.loads(answer)
        return spent, error


def _versus(peer: _Peer) -> list[dict[str, object]]:
    array = np.random.default_rng(0).random((SIZE, SIZE), np.float32)
    with hcq.open("virtual:navi31") as device:
        use_cache(device, None)
        matrix = Tensor(array, device=device)

        def ours() -> float:
            start = time.perf_counter()
            (matrix @ matrix).realize()
            device.synchronize()
            return time.perf_counter() - start

        ours()
        _, error = peer.turn()
        if error > 1e-3:
            raise NoPeer(f"its product is wrong by {error:g}")
        turns = [(ours(), peer.turn()[0]) for _ in range(TURNS)]
    mine, theirs = (min(column) for column in zip(*turns, strict=True))
    return [
        {
            "name": NAME, "value": mine * 1e3, "unit": "ms", "peer": PEER,
            "peer_value": theirs * 1e3, "ratio": theirs / mine,
        }
    ]  # fmt: skip


def measure() -> list[dict[str, object]]:
    try:
        with _Peer(_checkout()) as peer:
            return _versus(peer)
    except NoPeer as reason:
        return [{"name": f"{NAME}, beside {PEER}", "skipped": f"not measured: {reason}"}]
