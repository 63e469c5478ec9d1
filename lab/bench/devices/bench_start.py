"""Starting up: imports and the whole demo, as processes of their own, from a warm file cache."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def import_ms(module: str) -> float:
    """Milliseconds to import a module, best of seven fresh processes, as that process sees it."""
    code = (
        "import time; s = time.perf_counter(); "
        f"import {module}; print((time.perf_counter() - s) * 1e3)"
    )
    return min(
        float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) for _ in range(7)
    )


def _demo_s(device: str) -> float:
    """Seconds of the whole demo process on its second run."""
    command = [sys.executable, "-m", "ugpu.tools.cli", "demo", "--device", device]
    elapsed = 0.0
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        elapsed = time.perf_counter() - start
    return elapsed


def measure() -> list[dict[str, object]]:
    return [
        {"name": "from ugpu import hcq", "value": import_ms("hcq"), "unit": "ms"},
        {"name": "from ugpu import compiler", "value": import_ms("compiler"), "unit": "ms"},
        *(
            {"name": f"demo on {device}, second run", "value": _demo_s(device), "unit": "s"}
            for device in ("virtual:navi31", "cpu")
        ),
    ]
