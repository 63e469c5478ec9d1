"""The largest errors of elementary functions on `cpu`, over all 2^32 float32 numbers or each
STEP-th of them, beside the bounds of docs/accuracy.md: python -m lab.accuracy [--step STEP] [NAME].
All numbers take about three minutes of processor time for each function. Ends with 1 if a bound
does not hold.
"""

import argparse
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tests.compiler.numeric.test_compiler_accuracy import (
    REFERENCES,
    bound_of,
    compute,
    reference,
    ulps,
)
from ugpu import hcq

PIECE = 1 << 20  # numbers that are computed at a time


def numbers(step: int) -> Iterator[npt.NDArray[np.float32]]:
    """Each step-th bit pattern of a float32, in pieces."""
    for start in range(0, 1 << 32, PIECE * step):
        end = min(start + PIECE * step, 1 << 32)
        yield np.arange(start, end, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("lab.accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *REFERENCES], help="functions; else all")
    parser.add_argument("--step", type=int, default=1, help="each STEP-th number")
    options = parser.parse_args(arguments)
    broken = 0
    with hcq.open("cpu") as device:
        for name in options.names or REFERENCES:
            worst, place = 0.0, np.float32(0)
            for values in numbers(options.step):
                errors = ulps(compute(device, name, values), reference(name, values))
                index = int(errors.argmax())
                if errors[index] > worst:
                    worst, place = float(errors[index]), values[index]
            holds = worst <= bound_of(name)
            broken += not holds
            verdict = f"bound {bound_of(name)}{'' if holds else ', which does not hold'}"
            print(f"{name:12} {worst:.4f} at {place!r}, {verdict}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
