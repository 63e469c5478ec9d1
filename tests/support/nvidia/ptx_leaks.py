"""Kernels that leave a secret in shared memory of an NVIDIA GPU, and that look for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.nvidia import ptx_kernels
from ugpu.hcq.device.device import Device
from ugpu.virtual.nvidia.gpu import facts_of
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.sm.multiprocessors import VirtualMultiprocessors

SECRET = 0x5EC2E75
GROUPS, THREADS = 2, 128
_LOOP = """
.visible .entry {name}(.param .u64 out, .param .u32 size, .param .u32 value)
.reqntid 128, 1, 1
{{
  .reg .pred %p; .reg .b32 %at, %size, %value, %place; .reg .b64 %out, %far;
  ld.param.u64 %out, [out]; ld.param.u32 %size, [size]; ld.param.u32 %value, [value];
  mov.u32 %at, %ctaid.x; mul.wide.u32 %far, %at, %size; add.u64 %out, %out, %far;
  mov.u32 %at, %tid.x; shl.b32 %at, %at, 2;
AGAIN:
  setp.ge.u32 %p, %at, %size; @%p bra DONE;
  mov.u32 %place, all; add.u32 %place, %place, %at; cvt.u64.u32 %far, %at; add.u64 %far, %far, %out;
  {step}
  add.u32 %at, %at, 512; bra AGAIN;
DONE:
  ret;
}}
"""
_BODY = ".extern .shared .align 16 .b8 all[];\n" + "".join(
    _LOOP.format(name=name, step=step)
    for name, step in (
        ("plant", "st.volatile.shared.u32 [%place], %value;"),
        ("find", "ld.volatile.shared.u32 %value, [%place]; st.global.u32 [%far], %value;"),
    )
)


def run(device: Any, name: str, dynamic: int = 0) -> Any:
    """Run "plant" or "find" in groups that have all shared memory that a group can have, or
    `dynamic` bytes; what the groups found, GROUPS rows of words."""
    with device.load(ptx_kernels.text(_BODY, device.target.cpu)) as program:
        kernel = program[name]
        size = dynamic or device.target.dynamic_local_memory - kernel.local_size
        with device.alloc(GROUPS * size) as out:
            out.fill(0)
            with device.queue() as queue:
                arguments = (out, np.uint32(size), np.uint32(SECRET))
                queue.launch(kernel, grid=(GROUPS,), block=(THREADS,), args=arguments,
                             dynamic_local=size)  # fmt: skip
            device.synchronize()
            return out.numpy(np.uint32).reshape(GROUPS, -1)


def small_machine(chip: str) -> VirtualMachine:
    """A machine with a GPU of four multiprocessors, all of which one thread runs. The caller closes
    it."""
    options = MachineOptions(multiprocessors=lambda _: VirtualMultiprocessors(1))
    return VirtualMachine(replace(facts_of(chip), sm_count=4), options)


def clean(device: Device) -> str:
    """Clean, wait for it, and return the gap."""
    core = device.driver.core
    with core.lock:
        ended = core.driver.clean()
    assert ended is not None
    ended[0].wait(ended[1])
    return core.driver.clean_gap
