"""Programs whose references die before their work: one for each test, run in a process of its own.

Usage: python -m tests.support.amd.inflight SCENE DEVICE. Memory is guarded
(tests.support.guard_pages), so that work that uses freed memory ends the process by SIGSEGV. The
scene prints `end` when its own code is through; what happens after that is the interpreter's exit.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

import numpy as np

from tests.support import guard_pages
from tests.support.kernels import contract_object
from ugpu import compiler, hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

_SIZE = 1 << 20


def _spin(device: Device, program: Program) -> Buffer:
    """Launch a kernel that runs until the buffer's first word is not zero."""
    flag = device.alloc(64, placement=Placement.HOST)
    assert flag.view is not None
    flag.view[:] = bytes(64)
    with device.queue() as queue:
        queue.launch(program["spin"], grid=(2,), block=(1,), args=(flag,))
    return flag


def _release(flag: Buffer) -> None:
    assert flag.view is not None
    flag.view[:] = b"\1" * 64


def drop(device: Device) -> None:
    """Program, buffers and a graph are dropped while work uses them; so are later ones."""
    program = device.load(contract_object(device.target))
    flag = _spin(device, program)
    result = device.alloc(64)
    target = device.alloc(_SIZE)
    compute = device.queue().timeline
    with device.capture() as graph, device.queue(QueueKind.COPY) as copies:
        copies.wait(compute, compute.last).fill(target, 7)
    graph.replay()
    with device.queue() as queue:
        args = (result, np.uint64(40), np.uint8(2))
        queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
    with device.queue(QueueKind.COPY) as copies:
        copies.fill(device.alloc(_SIZE), 3)
    used = guard_pages.freed()
    del program, target, graph, queue, copies
    gc.collect()
    for _ in range(3):  # dropped at once, and collected by the allocation that follows
        device.alloc(_SIZE)
    assert guard_pages.freed() == used, "freed under the running kernel"
    _release(flag)
    device.synchronize()
    assert result.numpy(np.uint64)[0] == 42
    device.alloc(64).close()
    assert len(device.driver.core.retired) == 0
    device.close()


def exit_in_flight(device: Device) -> None:
    """The process ends while a kernel runs, which ends a little later; nothing is closed."""
    program = device.load(contract_object(device.target))
    flag = _spin(device, program)
    with device.queue(QueueKind.COPY) as copies:
        copies.fill(device.alloc(_SIZE), 3)
    settle = device.driver.core.settle

    def late() -> None:  # the end of the process waits for the kernel
        _release(flag)
        settle()

    device.driver.core.settle = late


def endless(device: Device) -> None:
    """The process ends while a kernel runs that never ends; nothing is closed."""
    device.limit_s = 0.1
    _spin(device, device.load(contract_object(device.target)))


def endless_reset(device: Device) -> None:
    """The same after a reset and more work: on `cpu` the old thread is left behind."""
    _spin(device, device.load(contract_object(device.target)))
    try:
        device.synchronize(0.1)
    except DeviceHang:
        device.reset()
    with device.alloc(64) as buffer:
        buffer.fill(5)
        assert buffer.numpy(np.uint32)[0] == 5
    device.close()


def dropped_devices(device: Device) -> None:
    """Devices dropped one after the other, each used and not closed: later ones work."""
    name = device.name
    del device
    for number in range(4):
        dropped = hcq.open(name)
        buffer = dropped.alloc(_SIZE)
        dropped.queue(QueueKind.COPY).fill(buffer, number).submit()
        assert buffer.numpy(np.uint32)[-1] == number
        dropped.queue(QueueKind.COPY).fill(buffer, number).submit()
        del dropped, buffer
        gc.collect()


def forked(device: Device) -> None:
    """A child is forked while work is in flight, drops all and ends as programs do: the parent's
    work and device go on."""
    flag = _spin(device, device.load(contract_object(device.target)))
    filled = device.alloc(_SIZE)
    device.queue(QueueKind.COPY).fill(filled, 3).submit()
    child = os.fork()
    if not child:
        del flag, filled, device
        gc.collect()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _release(flag)
    assert filled.numpy(np.uint32)[-1] == 3
    device.close()


def tensors(device: Device) -> None:
    """The process ends while products of tensors are under way; nothing is closed."""
    ones = compiler.Tensor(np.ones((500, 500), "f4"), device=device)
    for _ in range(6):
        ones = (ones @ ones) * 1e-3
    ones.realize()


SCENES: dict[str, Callable[[Device], None]] = {
    scene.__name__: scene
    for scene in (drop, exit_in_flight, endless, endless_reset, dropped_devices, forked, tensors)
}


def main() -> None:
    guard_pages.install()
    scene, name = sys.argv[1:]
    SCENES[scene](hcq.open(name))
    print("end", flush=True)


if __name__ == "__main__":
    main()
