"""Record our own driver at the launch that tests.hw.cuda_program does with CUDA.

python -m tests.hw.our_launch DEVICE FILE --driver 580.142

The recording has the memory that was written before each doorbell (docs/sniff.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hcq.device import Device
from tests.hw.calls import DEFAULT_DRIVER
from tests.hw.cuda_program import COUNT
from tests.support.kernels import contract_object
from tools.sniff import node

_SHOTS = 64


def work(device: Device) -> None:
    """Run scale(out, given, COUNT, 3), as the program on CUDA does."""
    numbers = np.arange(COUNT, dtype=np.uint32)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(4 * COUNT) as given,
        device.alloc(4 * COUNT) as out,
    ):
        given.copy_from(numbers)
        arguments = (out, given, np.uint32(COUNT), np.uint32(3))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(1,), block=(COUNT,), args=arguments)
        device.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; what the driver raises is told on the way out, the recording stays."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw.our_launch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("device")
    parser.add_argument("file", type=Path)
    parser.add_argument("--driver", default=DEFAULT_DRIVER)
    given = parser.parse_args(arguments)
    attachment = node.attach(given.device)
    node.record_device(attachment, given.device, given.file, given.driver, work, _SHOTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
