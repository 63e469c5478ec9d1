"""Run a program of others in a process of its own, and name the packages that it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = 6000  # characters of a failed client's output that are shown


def require(package: str) -> None:
    """Skip the module where `package` is not installed; tests/foreign/__main__.py installs it."""
    if importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed: `make test-foreign` installs it from PyPI"
        pytest.skip(reason, allow_module_level=True)


def run_client(
    module: str, arguments: list[str], result: Path, environment: Mapping[str, str], limit_s: float
) -> Any:  # what the client wrote, decoded from JSON
    """Run `python -m module arguments... result`; return the JSON that it wrote to `result`.

    The process has its home, cache and temporary files beside `result`. Fails the test with the
    end of its output where it writes nothing, or not within `limit_s` seconds.
    """
    result.unlink(missing_ok=True)
    home = str(result.parent)
    own = {"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments, str(result)],
        cwd=ROOT,
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        pytest.fail(f"{module} has not ended after {limit_s} s:\n{output[-OUTPUT:]}")
    if not result.is_file():
        pytest.fail(f"{module} ended with status {process.returncode}:\n{output[-OUTPUT:]}")
    return json.loads(result.read_text(encoding="utf-8"))
