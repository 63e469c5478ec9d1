"""Groups that run together: on devices that have clusters as they say, on others an error."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.cluster_kernel import TELL, expected
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.work.program import Program


def test_groups_of_a_cluster_reach_each_other(device: Device, program: Program) -> None:
    most = device.target.max_cluster
    if not most:
        with device.queue() as queue, pytest.raises(NotSupported, match="clusters"):
            queue.launch(program["scale"], grid=(2,), block=(64,), cluster=(2,))
        return
    text = TELL.format(target=device.target.cpu, directive="", more="")
    with device.load(text.encode()) as loaded, device.alloc(64 * 32) as out:
        kernel = loaded["tell"]
        for grid, cluster in (((8, 4), (2, 2)), ((8, 4), (8, 1)), ((4, 4), (1, 4)), ((6, 1), (3,))):
            count = grid[0] * grid[1]
            out.copy_from(np.full(16 * 32, -1, np.int32))
            with device.queue() as queue:
                queue.launch(kernel, grid=grid, block=(32,), args=(out,), cluster=cluster)
            device.synchronize()
            found = out.numpy(np.int32).reshape(32, 16)[:count]
            assert np.array_equal(found, expected(grid, (*cluster, 1)))
        with device.queue() as queue, pytest.raises(BadArgument, match="multiple of the cluster"):
            queue.launch(kernel, grid=(3,), block=(32,), args=(out,), cluster=(2,))
