"""Run random programs of tensors, and print the smallest form of each that is wrong, as code.

usage: python -m lab.programs [--kind tensors|recorded|complex] [--seed N] [--count M] [--device D]

tensors: programs of 5 to 15 operations, against NumPy with our rules of types (lab.programs.judge),
and, where it is installed, PyTorch (lab.programs.torched).
recorded: functions that assign to arguments, slices and tensors from outside, under `@jit` and
`@function`, against the plain function.
complex: complex tensors and Fourier transforms, plain and under `@jit`, against NumPy.
Program number K of seed N is that of seed N + K.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lab.programs import complexes, recorded, tensors
from ugpu import hcq
from ugpu.hcq.device.device import Device

KINDS = {"tensors": tensors, "recorded": recorded, "complex": complexes}


def run(kind: str, device: Device, seed: int, count: int, say: Callable[[str], None]) -> int:
    """Run programs; return the number of those that fail."""
    campaign: Any = KINDS[kind]
    failed = 0
    shares = np.zeros(2, int)
    for number in range(seed, seed + count):
        tried = campaign.program(number)
        fault = campaign.difference(tried, device)
        shares += campaign.share(tried)
        if fault is None:
            continue
        failed += 1
        if device.failure is not None:
            say(f"# {kind} {number}: {fault}\n{tried.text(device.name)}\nthe device has failed")
            return failed
        least = campaign.reduced(tried, device)
        say(f"# {kind} {number} on {device.name}: {campaign.difference(least, device) or fault}")
        say(least.text(device.name) + "\n")
    say(f"{shares[0]} of {shares[1]} values were judged by PyTorch too")
    return failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.programs", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="tensors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    start = time.process_time()
    with hcq.open(options.device) as device:
        failed = run(options.kind, device, options.seed, options.count, _say)
    spent = time.process_time() - start
    _say(f"{options.count} programs on {options.device}: {failed} wrong, {spent:.0f} s")
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
