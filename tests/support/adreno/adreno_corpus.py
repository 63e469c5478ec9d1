"""The operation corpus on virtual Adreno GPUs, through driver, kernel driver and shader processors.

`python -m tests.support.adreno.adreno_corpus [CHIP ...]` (`make test-adreno`) runs all of it on
each chip, in as many processes as there are processors. Exit status: 0 all right, 1 something
differed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from tests.support.compiler.compiler_devices import poisoned
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.hcq.errors import UgpuError

CHIPS = ("a630", "a660", "a740", "a750")
PARTS = 4  # processes may share a chip's cases out


def run(chip: str, names: list[str]) -> None:
    """Check cases; AssertionError for the first that differs from NumPy, and for what the model
    calls a violation of the hardware's rules."""
    with hcq.open(f"virtual:{chip}") as device:
        poisoned(device, None)
        for name in names:
            corpus()[name].check(device)
        machine = device.driver.interface.node.machine  # type: ignore[attr-defined]
        assert not machine.violations, machine.violations


def _part(share: tuple[str, int]) -> tuple[str, list[str]]:
    """Every case that fails of a share, alone on a device."""
    (chip, part), failed = share, []
    for name in list(corpus())[part::PARTS]:
        try:
            run(chip, [name])
        except (AssertionError, UgpuError) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return chip, failed


def main(arguments: list[str]) -> int:
    """Run all chips; print what failed of each."""
    parser = argparse.ArgumentParser(description="run the operation corpus on virtual Adreno GPUs")
    parser.add_argument("chips", nargs="*", default=CHIPS)
    chips = parser.parse_args(arguments).chips
    failed = dict.fromkeys(chips, 0)
    with multiprocessing.get_context("spawn").Pool() as pool:
        shares = [(chip, part) for chip in chips for part in range(PARTS)]
        for chip, wrong in pool.imap_unordered(_part, shares):
            failed[chip] += len(wrong)
            for line in wrong:
                print(f"virtual {chip}: {line}", flush=True)
    for chip, count in failed.items():
        print(f"virtual {chip}: {len(corpus()) - count} of {len(corpus())} cases")
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
