"""`make test-turnip`: Mesa's Vulkan driver for Adreno, unmodified, on the virtual GPUs.

turnip is built once, with its KGSL back end and its assertions on, into a cache outside the
checkout (`--cache DIR`; about 5 minutes on two cores, 500 MB while it builds), from Debian's source
package and without root. It reaches the model through a preload library (preload.c) that forwards
open and ioctl of the device file. Programs: client.c, and networks in ncnn (a wheel of PyPI), whose
results must equal ncnn's CPU path. Then Mesa's tools judge our driver's command streams
(streams.py). Where they cannot be made the tests are skipped with the reason.
Exit status: 0 passed or skipped, 1 failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from lab.kernel.machine import LabUnavailable
from lab.turnip import streams
from lab.turnip.build import Turnip, ensure
from lab.turnip.judge import CHIPS, check, programs
from ugpu.hcq.state.config import config


def main(arguments: list[str]) -> int:
    """Build, and run the programs on each chip."""
    parser = argparse.ArgumentParser(description="run turnip on the virtual Adreno GPUs")
    parser.add_argument("--cache", type=Path, default=config().cache_folder / "turnip")
    parser.add_argument("chips", nargs="*", default=CHIPS)
    options = parser.parse_args(arguments)
    try:
        turnip: Turnip = ensure(options.cache)
    except (LabUnavailable, subprocess.SubprocessError, OSError) as error:
        print(f"test-turnip skipped: {error}")
        return 0
    failed = 0
    for chip in options.chips:
        for name, command in programs(turnip).items():
            trouble = check(turnip, chip, command)
            print(f"turnip on virtual {chip}, {name}: {trouble or 'passed'}", flush=True)
            failed += bool(trouble)
        for name, troubles in streams.judged(turnip, chip).items():
            print(f"our streams on virtual {chip}, {name}: {'; '.join(troubles) or 'passed'}",
                  flush=True)  # fmt: skip
            failed += bool(troubles)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
