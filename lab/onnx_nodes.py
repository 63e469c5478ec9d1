"""The package onnx's node tests of types that ugpu has, on any device: what passes and what does
not.

    python -m lab.onnx_nodes cpu
    python -m lab.onnx_nodes virtual:navi31 --every 10 --failed failed.txt
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ugpu
from tests.compiler.onnx.test_onnx_nodes import reason
from tests.support.compiler import onnx_cases


def run(device: ugpu.Device, names: list[str]) -> dict[str, str]:
    """Run cases; print each that does not pass. Returns why each of them does not."""
    problems = {}
    for name in names:
        try:
            problem = onnx_cases.differences(onnx_cases.cases()[name], device)
        except Exception as error:  # each case is reported
            problem = f"{type(error).__name__}: {error}"
        if problem:
            problems[name] = problem
            print(f"{name}: {problem[:160]}", flush=True)
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("--every", type=int, default=1, help="run one of so many cases")
    parser.add_argument("--first", type=int, default=0, help="begin with this case")
    parser.add_argument("--expected", action="store_true", help="only those expected to pass")
    parser.add_argument("--skip", type=Path, help="a file of names to leave out, from --failed")
    parser.add_argument("--failed", type=Path, help="write the names that do not pass")
    given = parser.parse_args()
    left_out = set(given.skip.read_text().split()) if given.skip else set()
    names = [name for name in sorted(onnx_cases.cases())[given.first :: given.every]
             if name not in left_out and not (given.expected and reason(name))]  # fmt: skip
    start = time.monotonic()
    with ugpu.open(given.device) as device:
        problems = run(device, names)
    if given.failed:
        given.failed.write_text("".join(f"{name}\n" for name in problems))
    print(f"{given.device}: {len(names) - len(problems)} of {len(names)} pass, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
