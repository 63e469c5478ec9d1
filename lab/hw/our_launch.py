"""Record our own driver at a launch that lab.hw.cuda_program does with CUDA.

python -m lab.hw.our_launch DEVICE FILE --driver 580.142 [--work cluster]

Exit code: 3 where the device has no clusters, as the program on CUDA.

The recording has the memory that was written before each doorbell (docs/sniff.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.hw.calls import DEFAULT_DRIVER
from lab.hw.cuda_program import BLOCK, CLUSTER, COUNT, GRID, NO_CUDA
from tests.support.kernels import contract_object
from tests.support.nvidia import cluster_kernel
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError, NotSupported
from ugpu.tools.debug.sniff import node

_SHOTS = 64


def launch(device: Device) -> None:
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


def cluster(device: Device) -> None:
    """Run tell(out) in clusters, as the program on CUDA does."""
    if not device.target.max_cluster:
        raise NotSupported("clusters of groups", target=device.target.name)
    wanted = cluster_kernel.expected(GRID, CLUSTER)
    with (
        device.load(cluster_kernel.text(device.target.cpu).encode()) as program,
        device.alloc(wanted.nbytes) as out,
    ):
        out.copy_from(np.full(wanted.size, -1, np.int32))
        with device.queue() as queue:
            queue.launch(program["tell"], grid=GRID, block=(BLOCK,), args=(out,), cluster=CLUSTER)
        device.synchronize()
        if not np.array_equal(out.numpy(np.int32), wanted.ravel()):
            raise ChipError("the clusters computed wrongly")


WORKS = {"launch": launch, "cluster": cluster}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; what the driver raises is told on the way out, the recording stays."""
    parser = argparse.ArgumentParser(prog="python -m lab.hw.our_launch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("device")
    parser.add_argument("file", type=Path)
    parser.add_argument("--driver", default=DEFAULT_DRIVER)
    parser.add_argument("--work", choices=tuple(WORKS), default="launch")
    given = parser.parse_args(arguments)
    attachment, work = node.attach(given.device), WORKS[given.work]
    try:
        node.record_device(attachment, given.device, given.file, given.driver, work, _SHOTS)
    except NotSupported as error:
        sys.stderr.write(f"our_launch: {error}\n")
        return NO_CUDA
    return 0


if __name__ == "__main__":
    sys.exit(main())
