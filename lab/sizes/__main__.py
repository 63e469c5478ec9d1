"""The campaign of large odd sizes: random operations of many elements against NumPy.

usage: python -m lab.sizes [--seed N] [--count 500] [--least 1e5] [--most 1e7] [--device cpu]

Cases depend on the seed and the range of elements alone. A case that fails is made smaller and
printed. Exit status 1 if any case failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

import numpy as np

from lab.sizes.case import draw
from lab.sizes.check import failure, smallest
from lab.sizes.operations import operations
from ugpu import hcq


def main() -> int:
    parser = argparse.ArgumentParser("python -m lab.sizes", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--least", type=float, default=1e5, help="elements of the smallest case")
    parser.add_argument("--most", type=float, default=1e7, help="elements of the largest case")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="operations whose names contain this")
    parser.add_argument("--verbose", action="store_true", help="print each case before it runs")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    table = {name: each for name, each in operations().items() if asked.only in name}
    random = np.random.default_rng(asked.seed)
    cases = [draw(random, table, asked.least, asked.most) for _ in range(asked.count)]
    failed: Counter[str] = Counter()
    begin = time.process_time()
    with hcq.open(asked.device) as device:
        for number, case in enumerate(cases):
            if asked.verbose:
                print(number, case, flush=True)
            first = failure(case, table, device)
            if first is not None:
                least, reason = smallest(case, table, device)
                failed[case.operation] += 1
                print(f"case {number}: {case}: {first}", flush=True)
                print(f"  smallest: {least}\n  {reason}", flush=True)
    total, took = sum(failed.values()), time.process_time() - begin
    print(f"{len(cases)} cases on {asked.device}, seed {asked.seed}: {total} failed, {took:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
