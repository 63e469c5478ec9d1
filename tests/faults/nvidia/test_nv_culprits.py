"""Faults on the virtual NVIDIA chips name the instruction, and its line of source where the PTX has
line directives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.errors import PageFault, UgpuError
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.nvidia.sm.ptx.source import instruction_in

UNMAPPED = 0x1234_5678_9000
# As ptxas wants them: `.file` beside the functions, `.loc` before each instruction.
WITH_LINES = """
.visible .entry copy(.param .u64 to, .param .u64 from)
.reqntid 64, 1, 1
{
  .reg .b32 %r0;
  .reg .b64 %a<2>;
  .loc 2 10 1
  ld.param.u64 %a0, [to];
  ld.param.u64 %a1, [from];
  .loc 2 11 3
  ld.global.u32 %r0, [%a1];
  .loc 1 4 3
  st.global.u32 [%a0], %r0;
  ret;
}
.file 1 "other.h"
.file 2 "kernels/copy.cu"
"""


@pytest.fixture(scope="module", params=["gh100", "ga102"])
def device(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    with powered(request.param) as machine:
        made = opened(machine)
        with made:
            yield made


def fault(device: NvDevice, text: str, kernel: str, address: int) -> UgpuError:
    with (
        device.alloc(256) as out,
        device.load(ptx_kernels.text(text, device.target.cpu)) as program,
    ):
        try:
            with pytest.raises(PageFault) as caught, device.queue() as queue:
                arguments = (out, np.uint64(address or out.address + 1))
                queue.launch(program[kernel], grid=(1,), block=(64,), args=arguments)
                queue.timeline.wait(queue.submit())
        finally:
            device.reset()
    return caught.value


@pytest.mark.parametrize(
    ("kernel", "instruction"),
    [
        ("read_at", "ld.volatile.global.u32 %r0, [%a1];"),
        ("write_at", "st.volatile.global.u32 [%a1], 7;"),
    ],
)
def test_the_instruction_is_named(device: NvDevice, kernel: str, instruction: str) -> None:
    error = fault(device, ptx_kernels.FAULTY, kernel, UNMAPPED)
    assert (error.facts["kernel"], error.facts["instruction"]) == (kernel, instruction)
    assert f"by `{instruction}`" in str(error)
    assert "source_line" not in error.facts


def test_the_line_of_source_is_named(device: NvDevice) -> None:
    error = fault(device, WITH_LINES, "copy", UNMAPPED)
    assert error.facts["source_line"] == "kernels/copy.cu:11"
    assert "kernels/copy.cu:11" in str(error)


def test_an_exception_names_its_instruction_too(device: NvDevice) -> None:
    error = fault(device, ptx_kernels.FAULTY, "read_at", 0)
    assert error.facts["kind"] == "MISALIGNED_ADDR"
    assert error.facts["instruction"] == "ld.volatile.global.u32 %r0, [%a1];"


def test_lines_without_directives_and_beyond_the_text() -> None:
    ptx = '.entry a()\n{\n.loc 1 5 0\n  ret;\n}\n.visible .entry b()\n{\n  ret;\n}\n.file 7 "x"\n'
    assert instruction_in(ptx, 4) == ("ret;", "file 1:5")
    assert instruction_in(ptx, 8) == ("ret;", "")
    assert instruction_in(ptx, 0) == instruction_in(ptx, 99) == ("", "")
