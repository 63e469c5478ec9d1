"""Kill processes that use a bare NVIDIA card, at random moments of boot and work. Each time the
next process must open the card and work.

    python -m lab.campaign.killed_nvidia [--count 300] [--chip ad102] [--seed 1]
"""

from __future__ import annotations

import argparse
from collections import Counter

from tests.support.nvidia.gsp.gsp_killed import killing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--chip", default="ad102")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ways: Counter[str] = Counter()
    with killing(options.chip, options.seed) as kills:
        for _ in range(options.count):
            ways[kills.round()] += 1
    print(f"{options.chip}: the next process worked {sum(ways.values())} of {options.count} times")
    for way, count in ways.most_common():
        print(f"{count:5} {way}")


if __name__ == "__main__":
    main()
