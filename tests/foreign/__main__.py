"""`make test-foreign`: drivers and compilers of others, unmodified, on the virtual devices.

Our drivers and our models could share a mistake; programs that were written for boards by others
cannot. A test of this tier is a file test_<whose>_<what>.py below tests/foreign that

- has `pytestmark = pytest.mark.foreign`, so that `make test` leaves it out,
- calls `require("package")` (client.py) at its top, which skips it where the package is missing,
- runs foreign code in a process of its own (`run_client`), since a driver keeps state for the life
  of a process, and compares what that process reports, and what the model objects to, with what
  the test states.

The packages are the extras `foreign` and `adreno` of pyproject.toml: to add one, name it there and
add the file. They are installed from PyPI into build/foreign/venv, downloads are kept in
build/foreign/pip; the home folder is not used. Without a package index the tier is skipped with
pip's reason. Installing has ten minutes, running thirty; a run that takes longer fails.
`python -m tests.foreign ARGUMENTS` hands its arguments to pytest. Exit status: 0 passed or skipped,
else pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "foreign"
LIMIT_S = 600  # of the installation
RUN_S = 1800  # of the run


def install() -> str:
    """Make the environment; return why it cannot be had, "" when it is there."""
    PLACE.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PIP_CACHE_DIR": str(PLACE / "pip"),
        "HOME": str(PLACE),
        "PYTHON3": sys.executable,
    }
    setup = [str(ROOT / "tools/house/setup.sh"), str(PLACE / "venv"), "dev", "foreign", "adreno"]
    try:
        done = subprocess.run(
            setup, cwd=ROOT, env=environment, timeout=LIMIT_S, stderr=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        return f"the packages were not installed within {LIMIT_S} s"
    return "" if done.returncode == 0 else "\n".join(done.stderr.splitlines()[-5:])


def main(arguments: list[str]) -> int:
    """Install and run; see the module."""
    trouble = install()
    if trouble:
        print(f"test-foreign skipped: {trouble}")
        return 0
    python = PLACE / "venv/bin/python"
    command = [str(python), "-m", "pytest", "-q", "-rs", "-m", "foreign", "tests/foreign"]
    try:
        return subprocess.run(command + arguments, cwd=ROOT, timeout=RUN_S).returncode
    except subprocess.TimeoutExpired:
        print(f"test-foreign FAILED: not at its end after {RUN_S} s")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
