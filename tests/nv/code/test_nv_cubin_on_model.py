"""A cubin on a virtual GPU, which executes PTX: refused when it is loaded."""

from __future__ import annotations

import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.errors import BadCodeObject
from ugpu.nv.code.assemble import assemble


def test_a_cubin_is_refused_at_load() -> None:
    with powered("gh100") as machine, opened(machine) as device:
        text = ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu)
        cubin = assemble(text, "sm_90a")
        used = device.sensors()[0].read()
        with pytest.raises(BadCodeObject, match=r"virtual GPUs execute PTX.*nvcc -ptx"):
            device.load(cubin)
        assert device.sensors()[0].read() == used
        with device.load(text) as program:
            assert "read_at" in program
