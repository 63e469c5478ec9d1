"""What a program's memory may be used for, and what its kernels may be called."""

from __future__ import annotations

import numpy as np
import pytest

from tests.nv.code.test_nv_variables import text
from tests.support.kernels import contract_object
from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import opened, powered, work
from ugpu.hcq.errors import DriverRefused, PageFault
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.device import NvDevice

POKE = """
.visible .entry poke(.param .u64 place)
{ .reg .b64 %rd; ld.param.u64 %rd, [place]; st.global.u32 [%rd], 7; ret; }
"""


def code_of(device: NvDevice, address: int) -> Buffer:
    return Buffer(device.driver.core, VirtAddr(address & ~4095), 4096, Placement.DEVICE)


@pytest.mark.parametrize("chip", ["tu102", "gh100"])
def test_neither_kernels_nor_copies_write_code(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        program = device.load(contract_object(device.target))
        code = code_of(device, program["scale"].address)
        queue = device.queue(QueueKind.COPY).fill(code, 0)
        with pytest.raises(PageFault) as caught:
            queue.timeline.wait(queue.submit())
        assert caught.value.facts["access"] == "write"
        device.reset()
        poke = device.load(ptx_kernels.text(POKE, device.target.cpu))
        with device.queue() as queue:
            queue.launch(poke["poke"], grid=(1,), block=(1,), args=(code,))
        with pytest.raises(PageFault, match="poke"):
            device.synchronize()
        device.reset()
        work(device)


def test_variables_are_written_and_constants_are_not() -> None:
    with powered() as machine, opened(machine) as device:
        program = device.load(text(device))
        with device.alloc(32) as out:
            with device.queue() as queue:
                queue.launch(program["step"], grid=(1,), block=(32,), args=(out,))
            device.synchronize()
            counter = int(out.numpy(np.uint64)[0])
        # The page of a variable is not one of the code's.
        assert counter // (64 << 10) != program["step"].address // (64 << 10)
        fill = device.queue(QueueKind.COPY).fill(code_of(device, counter), 1)
        fill.timeline.wait(fill.submit())


def test_a_driver_that_refuses_leaves_code_writable(caplog: pytest.LogCaptureFixture) -> None:
    """A mapping that is refused must not cost the program."""
    with powered() as machine, opened(machine) as device:
        planted = device.driver.gpu.session.space.map_for
        calls: list[bool] = []

        def refusing(*arguments: object, read_only: bool = False) -> None:
            calls.append(read_only)
            if read_only:
                raise DriverRefused("planted")
            planted(*arguments, read_only=read_only)  # type: ignore[arg-type]

        device.driver.gpu.session.space.map_for = refusing  # type: ignore[method-assign]
        work(device)
        assert True in calls
        assert "code remains writable" in caplog.text


@pytest.mark.parametrize("chip", ["tu102", "gh100"])
def test_names_of_any_length(chip: str) -> None:
    """A mangled name of C++ templates has hundreds of bytes and more."""
    long, longer = "_Z" + "N4cuda3std" * 60, "_Z" + "x" * 5000
    body = "".join(
        f".visible .entry {name}(.param .u64 out) {{ .reg .b64 %rd; ld.param.u64 %rd, [out]; "
        f"st.global.u32 [%rd], {number}; ret; }}\n"
        for number, name in ((1, long), (2, longer))
    )
    with powered(chip) as machine, opened(machine) as device, device.alloc(64) as out:
        program = device.load(ptx_kernels.text(body, device.target.cpu))
        for number, name in ((1, long), (2, longer)):
            with device.queue() as queue:
                queue.launch(program[name], grid=(1,), block=(1,), args=(out,))
            device.synchronize()
            assert out.numpy(np.uint32)[0] == number
