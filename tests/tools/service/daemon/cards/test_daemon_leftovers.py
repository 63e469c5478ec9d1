"""What one lease's commands contained (arguments, fill values, data, constants) is nowhere that a
kernel of the next lease can read. A kernel scans all that the driver has mapped for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import compile_ir, contract_object
from tests.support.nvidia import ptx_kernels
from tests.support.service.daemon import Running, settings_text
from ugpu import hcq
from ugpu.am.device.driver import AmDriver
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.driver import NvDriver
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.tools.service.daemon.cards import owned as owned_cards
from ugpu.tools.service.daemon.clients.service import Service
from ugpu.tools.service.daemon.config import parse

MARK, MASK = 0x5EC2_E000, 0xFFFF_F000
PART = 1 << 20  # bytes that one launch reads
NAMES = (
    "virtual:navi31",
    "virtual:gh100",
    "virtual:a630",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("virtual:navi32", "virtual:navi33", "virtual:navi31+usb", "virtual:tu102",
                     "virtual:gb202", "virtual:a740", "virtual:a630+msm")
    ),
)  # fmt: skip
WHOLE: dict[str, Any] = {}
SHARE: dict[str, Any] = {"shared": True, "memory": "64M"}
TABLE = ", ".join(f"i32 {MARK + 0x700 + n}" for n in range(64))
AMD_TABLE = f"""
target triple = "amdgcn-amd-amdhsa"
@table = addrspace(4) constant [64 x i32] [{TABLE}], align 16
define amdgpu_kernel void @look_up(ptr addrspace(1) %out, i32 %index) #0 {{
  %p = getelementptr [64 x i32], ptr addrspace(4) @table, i32 0, i32 %index
  %value = load i32, ptr addrspace(4) %p
  store i32 %value, ptr addrspace(1) %out
  ret void
}}
attributes #0 = {{ "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="64,64" }}
"""
SCRATCH = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @spill(ptr addrspace(1) %out, i32 %index) #0 {
  %own = alloca [64 x i32], align 4, addrspace(5)
  %p = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %index
  %value = load volatile i32, ptr addrspace(5) %p
  store i32 %value, ptr addrspace(1) %out
  ret void
}
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="64,64" }
"""
PTX_TABLE = f"""
.const .align 4 .u32 table[64] = {{{TABLE.replace("i32 ", "")}}};
.visible .entry look_up(.param .u64 out, .param .u32 index)
.reqntid 64, 1, 1
{{
  .reg .b32 %i, %v; .reg .b64 %o, %a, %w;
  ld.param.u64 %o, [out]; ld.param.u32 %i, [index];
  mul.wide.u32 %w, %i, 4; mov.u64 %a, table; add.u64 %a, %a, %w;
  ld.const.u32 %v, [%a]; st.global.u32 [%o], %v;
  ret;
}}
"""


def table_object(gpu: Any) -> bytes | None:
    """A program with constants of its own; None for ir3, which has them in the code."""
    if gpu.target.name.startswith("sm_"):
        return ptx_kernels.text(PTX_TABLE, gpu.target.cpu)
    if gpu.target.abi == "amdhsa":
        return compile_ir(AMD_TABLE, "amdgcn-amd-amdhsa", gpu.target.cpu)
    return None


def leave(gpu: Any) -> None:
    """Put marked words into all that a lease has: arguments, fills, data, constants, graphs."""
    data = (np.arange(1 << 16, dtype=np.uint32) & 0xFF) + np.uint32(MARK)
    out, source = gpu.alloc(data.nbytes), gpu.alloc(data.nbytes)
    large = gpu.alloc(4 << 20)  # freed memory that the next lease's programs and scratch may get
    with gpu.queue() as queue:
        queue.fill(large, MARK)
    program = gpu.load(contract_object(gpu.target))
    host = gpu.alloc(8192, placement=Placement.HOST)
    source.copy_from(data)
    host.copy_from(data[:2048])
    queue = gpu.queue()
    for number in range(40):
        arguments = (out, source, np.uint32(64), np.uint32(MARK + 0x100 + number))
        queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        queue.fill(out, MARK + 0x200 + number)
        queue.submit()
    gpu.synchronize()
    with gpu.queue(QueueKind.COPY) as copies:
        copies.fill(source, MARK + 0x300).barrier().copy(out, source)
    gpu.synchronize()
    assert (out.numpy(np.uint32) == MARK + 0x300).all()
    with gpu.capture() as graph, gpu.queue() as queue:
        for number in range(300):
            queue.fill(out[4 * number : 4 * number + 4], MARK + 0x400 + number % 64)
        arguments = (out, source, np.uint32(64), np.uint32(MARK + 0x500))
        queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
    for _ in range(3):
        graph.replay()
        graph.wait()
    own = table_object(gpu)
    if own is not None:
        constants = gpu.load(own)
        with gpu.queue() as queue:
            queue.launch(constants["look_up"], grid=(1,), block=(64,), args=(out, np.uint32(3)))
        gpu.synchronize()
        assert out.numpy(np.uint32)[0] == MARK + 0x703


def mapped(device: Device) -> list[tuple[int, int]]:
    """Addresses and sizes of all that the driver has mapped for the holder's kernels."""
    driver = device.driver
    if isinstance(driver, AmDriver):
        found = [
            (int(each.address), each.size)
            for each in driver.memory.mappings.values()
            if each.kind != "reserved addresses"
        ]
    elif isinstance(driver, NvDriver):
        found = [(each.address, each.size) for each in driver.gpu.memories]
    else:
        assert isinstance(driver, AdrenoDriver)
        found = [(each.address, each.size) for each in driver.interface.memories]
    return sorted(found)


def holder_of(running: Running) -> Device:
    (client,) = [each for each in running.daemon.clients if each.holder is not None]
    assert isinstance(client.holder, Service)
    return client.holder.device


def marked(gpu: Any, running: Running) -> list[int]:
    """Run a kernel that copies all mapped memory to a buffer of the lease; addresses of the words
    that another lease has marked."""
    program, out = gpu.load(contract_object(gpu.target)), gpu.alloc(PART)
    spilling = gpu.target.abi == "amdhsa" and gpu.load(
        compile_ir(SCRATCH, "amdgcn-amd-amdhsa", gpu.target.cpu)
    )
    found: list[int] = []
    for start, size in mapped(holder_of(running)):
        for at in range(start, start + size, PART):
            part = min(PART, start + size - at)
            if at <= int(out.address) < at + part:
                continue
            source = Buffer(core_of(gpu), VirtAddr(at), part, Placement.DEVICE)
            with gpu.queue() as queue:
                arguments = (out, source, np.uint32(part // 4), np.uint32(1))
                queue.launch(program["scale"], grid=(-(-part // 256),), block=(64,), args=arguments)
            words = out.numpy(np.uint32)[: part // 4]
            found += [at + 4 * int(n) for n in np.flatnonzero((words & MASK) == MARK)]
    del spilling  # until here, it is mapped
    return found


@pytest.fixture(params=NAMES)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    made = Running(parse(settings_text(tmp_path, [request.param], "", inside=True)))
    yield made
    made.close()


def found_by_next(running: Running, first: dict[str, Any], then: dict[str, Any]) -> list[int]:
    with running.lease(**first) as gpu:
        leave(gpu)
    with running.lease(wait_s=60, **then) as gpu:
        return marked(gpu, running)


@pytest.mark.parametrize(
    ("first", "then"),
    [(WHOLE, WHOLE), (SHARE, SHARE), (WHOLE, SHARE), (SHARE, WHOLE)],
    ids=["whole", "shared", "whole-shared", "shared-whole"],
)
def test_no_word_of_a_lease_can_be_read_by_the_next(
    running: Running, first: dict[str, Any], then: dict[str, Any]
) -> None:
    (owned,) = running.daemon.owned
    if (first or then) and owned.card.alone:
        with pytest.raises(hcq.errors.NotSupported):
            running.lease(**SHARE)
        return
    found = found_by_next(running, first, then)
    assert not found, f"{len(found)} words, the first at {found[0]:#x}"


def test_the_scan_finds_what_is_there(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_cards, "overwrite_commands", lambda device: None)
    assert found_by_next(running, WHOLE, WHOLE)
