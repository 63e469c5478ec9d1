"""The package onnx's node tests of types that ugpu has, on any device: what passes and what does
not.

    python -m lab.onnx_nodes cpu
    python -m lab.onnx_nodes virtual:navi31 --every 10 --failed failed.txt
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import ugpu
from tests.support.compiler import onnx_cases


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
    known = onnx_cases.expected() if given.expected else sorted(onnx_cases.cases())
    names = [name for name in known[given.first :: given.every] if name not in left_out]
    start = time.monotonic()
    with ugpu.open(given.device) as device:
        problems = onnx_cases.problems(names, device, partial(print, flush=True))
    if given.failed:
        given.failed.write_text("".join(f"{name}\n" for name in problems))
    print(f"{given.device}: {len(names) - len(problems)} of {len(names)} pass, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
