"""Variables of a module lie where the driver has loaded them: kernels and copies see the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered
from ugpu.nv.device.device import NvDevice

PTX = """
.version {version}
.target {target}
.address_size 64
.global .align 4 .u32 counter = 5;
.global .align 8 .u64 pointer = counter;
.const .align 4 .u32 steps[4] = {{10, 20, 30, 40}};
.visible .entry step(.param .u64 .ptr .global .align 16 out)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3;
  mul.wide.u32 %rd2, %r2, 4; mov.u64 %rd3, steps; add.u64 %rd3, %rd3, %rd2;
  ld.const.u32 %r3, [%rd3];
  ld.global.u64 %rd4, [pointer]; atom.global.add.u32 %r4, [%rd4], %r3;
  mov.u64 %rd5, counter; st.global.u64 [%rd1], %rd5; st.global.u64 [%rd1+8], %rd4;
  ret;
}}
.visible .entry read(.param .u64 .ptr .global .align 16 out)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [counter]; st.global.u32 [%rd1+16], %r1; ret;
}}
"""


def text(device: NvDevice) -> bytes:
    target = device.target.cpu
    version = "8.7" if int(target[3:].rstrip("a")) >= 100 else "8.0"
    return PTX.format(version=version, target=target).encode()


@pytest.mark.parametrize("chip", ["tu102", "gh100"])
def test_kernels_of_a_module_share_its_variables_and_programs_do_not(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        out = device.alloc(32)
        found = np.zeros(8, np.uint32)
        places = []
        for program in (device.load(text(device)), device.load(text(device) + b"// another\n")):
            for round_ in (1, 2):
                for name, threads in (("step", 32), ("read", 1)):
                    with device.queue() as queue:
                        queue.launch(program[name], grid=(1,), block=(threads,), args=(out,))
                    device.synchronize()
                out.copy_to(found)
                assert found[4] == 5 + round_ * 8 * (10 + 20 + 30 + 40)
                variable, pointed = found[:4].view(np.uint64)
                assert variable == pointed  # what the loader linked is where kernels look
            places.append(int(variable))
        assert len(set(places)) == 2
        assert all(place >> 62 == 0 for place in places)  # in memory of the device, not a window
