"""The rows of `compiler_works` without AVX-512 and AMX, ours and the peers' alike, as on processors
that lack them: each ratio is to be within 15% of that of `compiler_works`.

The libraries read the environment when they are loaded, so a process of its own measures.
onnxruntime cannot be told, and has no rows. Skipped where this processor has neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.masks import settings
from ugpu.hcq.state.host import features

SUBJECT = "lab.bench.compiler.bench_compiler_works"
ROOT = Path(__file__).resolve().parents[3]
# PyTorch's own kernels, oneDNN and MKL below it, OpenBLAS below NumPy
PEERS = {
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell",
}  # fmt: skip
CODE = """
import importlib, json, sys
sys.stdout = sys.stderr
sys.__stdout__.write(json.dumps(importlib.import_module(sys.argv[1]).measure()))
"""


def measure() -> list[dict[str, object]]:
    if not features().get("avx512f"):
        return [{"name": "works without AVX-512", "skipped": "this processor has none"}]
    environment = os.environ | settings("AVX2 only") | PEERS
    command = [sys.executable, "-c", CODE, SUBJECT]
    rows: list[dict[str, Any]] = json.loads(
        subprocess.check_output(command, cwd=ROOT, env=environment)
    )
    kept = (row for row in rows if row.get("peer") != "onnxruntime")
    return [row | {"name": f"{row['name']}, without AVX-512"} for row in kept]
