"""What the virtual multiprocessors lack is told as such, and not as a fault of the chip."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import opened, powered, work
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.transport.node import take_gap
from ugpu.tools.debug.sniff import node
from ugpu.virtual.nvidia.faults import Xid

# Legal PTX that the model does not execute: a counter of performance.
LACKING = """
.visible .entry lacking(.param .u64 out)
{
  .reg .b64 %rd; .reg .b32 %r;
  ld.param.u64 %rd, [out];
  mov.u32 %r, %pm0;
  st.global.u32 [%rd], %r; ret;
}
"""


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_a_missing_instruction_is_not_supported(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device, device.alloc(64) as out:
        program = device.load(ptx_kernels.text(LACKING, device.target.cpu))
        with device.queue() as queue:
            queue.launch(program["lacking"], grid=(1,), block=(1,), args=(out,))
        with pytest.raises(NotSupported, match=r"lacking: .*PTX line 9: ") as caught:
            device.synchronize()
        assert caught.value.facts["ptx"] == "mov.u32 %r, %pm0;"
        assert machine.log[-1].xid == Xid.GR_EXCEPTION
        device.reset()
        work(device)
        assert take_gap(device.driver.session.node) is None


def test_through_a_recording_too(tmp_path: Path) -> None:
    def run(device: object) -> None:
        assert hasattr(device, "load")
        program = device.load(ptx_kernels.text(LACKING, "sm_90"))
        with device.alloc(64) as out, pytest.raises(NotSupported, match="PTX line 9"):
            with device.queue() as queue:
                queue.launch(program["lacking"], grid=(1,), block=(1,), args=(out,))
            device.synchronize()

    attachment = node.attach("virtual:gh100")
    node.record_device(attachment, "virtual:gh100", tmp_path / "calls", "580.142", run)
    assert (tmp_path / "calls").stat().st_size > 0
