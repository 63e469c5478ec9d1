"""The first kernel: vector addition through the whole core."""

from __future__ import annotations

import numpy as np

from tests.support.amd.isa.gfx_run import Machine
from tests.support.kernels import AMD, compile_ir
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending


def test_vector_add_over_many_groups() -> None:
    machine = Machine(GfxCore())
    image = compile_ir(AMD, "amdgcn-amd-amdhsa", "gfx1100")
    count = 10_000
    x = np.arange(count, dtype=np.uint32)
    y = np.arange(count, dtype=np.uint32)[::-1] * np.uint32(3)
    out = np.zeros(count + 64, np.uint32)
    outcome, views = machine.run(image, [out, x, y, count], -(-count // 64), 64, name="add")
    assert outcome.ending is Ending.DONE
    assert np.array_equal(views[0][:count], x + y)
    assert not views[0][count:].any()
    assert not machine.memory.faults
    machine.core.close()
