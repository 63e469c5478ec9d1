"""Faults provoked on the device, each named, each survived: afterwards a kernel must run right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from lab.hw.budget import Budget
from lab.hw.report import Result
from tests.support.amd.am_faulty import faulty_object
from tests.support.kernels import contract_object
from tests.support.nvidia import ptx_kernels
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError, DeviceHang, OutOfMemory, PageFault, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

TITLE = "Faults"
UNMAPPED = 0x1234_5678_9000
HANG_LIMIT_S = 0.5
FACTS = 5


def faulty(target: TargetSpec) -> tuple[bytes, str] | None:
    """Kernels that fail, and the name of the one that stops with an exception."""
    if target.abi == "ptx":
        return ptx_kernels.text(ptx_kernels.FAULTY, target.cpu), "stop"
    if target.abi == "amdhsa":
        return faulty_object(), "illegal"
    return None  # host threads share the process: a bad pointer would end it


class Provoker:
    """Provokes faults on one device and looks whether it lives on."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.good = device.load(contract_object(device.target))
        found = faulty(device.target)
        self.bad: Program | None = device.load(found[0]) if found else None
        self.exception = found[1] if found else ""

    def works(self) -> None:
        """Run a kernel and compare; AssertionError where it computes wrongly."""
        numbers = np.arange(64, dtype=np.uint32)
        with self.device.alloc(256) as out, self.device.alloc(256) as given:
            given.copy_from(numbers)
            args = (out, given, np.uint32(64), np.uint32(3))
            with self.device.queue() as queue:
                queue.launch(self.good["scale"], grid=(1,), block=(64,), args=args)
            self.device.synchronize()
            np.testing.assert_array_equal(out.numpy(dtype=np.uint32), numbers * 3)

    def _run(self, kernel: str, *args: object) -> None:
        assert self.bad is not None
        with self.device.alloc(64) as out:
            with self.device.queue() as queue:
                queue.launch(self.bad[kernel], grid=(1,), block=(64,), args=(out, *args))
            self.device.synchronize()

    def read_at(self) -> None:
        """Read an address that nothing is mapped at."""
        self._run("read_at", np.uint64(UNMAPPED))

    def write_at(self) -> None:
        """Write there."""
        self._run("write_at", np.uint64(UNMAPPED))

    def copy_at(self) -> None:
        """Copy from there."""
        with self.device.alloc(4096) as out:
            there = Buffer(self.device.driver.core, VirtAddr(UNMAPPED), 4096, Placement.DEVICE)
            queue = self.device.queue(QueueKind.COPY).copy(out, there)
            queue.timeline.wait(queue.submit())

    def stop(self) -> None:
        """Execute what is no valid instruction, or the trap that stands for it in PTX."""
        self._run(self.exception)

    def spin(self) -> None:
        """Start a kernel that never ends, and wait for it with a limit."""
        with self.device.alloc(64, placement=Placement.HOST) as flag:
            flag.fill(0)
            with self.device.queue() as queue:
                queue.launch(self.good["spin"], grid=(1,), block=(64,), args=(flag,))
            try:
                self.device.synchronize(limit_s=HANG_LIMIT_S)
            except UgpuError:
                self._release(flag)
                raise

    def _release(self, flag: Buffer) -> None:
        """Let the kernel end if its memory can still be written: the reset is then a gentle one."""
        assert flag.view is not None
        flag.view[:4] = b"\1\0\0\0"

    def exhaust(self) -> None:
        """Ask for more memory than any GPU has."""
        self.device.alloc(1 << 50).close()


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Each fault in turn; those that the device cannot have are skipped."""
    with hcq.open(device) as opened:
        provoker = Provoker(opened)
        provoker.works()
        kinds: tuple[tuple[str, Callable[[], None], type[UgpuError], bool], ...] = (
            ("bad pointer, read", provoker.read_at, PageFault, True),
            ("bad pointer, write", provoker.write_at, PageFault, True),
            ("bad pointer, copied from", provoker.copy_at, PageFault, True),
            ("illegal instruction", provoker.stop, ChipError, True),
            ("endless kernel, with a limit", provoker.spin, DeviceHang, False),
            ("out of memory", provoker.exhaust, OutOfMemory, False),
        )
        for name, provoke, expected, needs_kernels in kinds:
            if budget.left <= 0:
                yield Result(TITLE, name, "skipped", remark="no time was left")
            elif needs_kernels and provoker.bad is None:
                yield Result(TITLE, name, "skipped", remark="would end the process on host threads")
            else:
                yield _provoked(provoker, name, provoke, expected)


def _provoked(
    provoker: Provoker, name: str, provoke: Callable[[], None], expected: type[UgpuError]
) -> Result:
    start = time.perf_counter()
    try:
        provoke()
    except expected as error:
        seconds = time.perf_counter() - start
        facts = ", ".join(f"{k}={v}" for k, v in list(error.facts.items())[:FACTS])
        told = f"{type(error).__name__} {facts}".strip()
    except UgpuError as error:
        told = f"{type(error).__name__}, not {expected.__name__}: {error}"
        return Result(TITLE, name, "failed", remark=told[:200])
    else:
        return Result(TITLE, name, "failed", remark="nothing was reported")
    try:
        if provoker.device.failure is not None:
            provoker.device.reset()
        provoker.works()
    except (UgpuError, AssertionError) as error:
        remark = f"not survived: {type(error).__name__}: {error}"
        return Result(TITLE, name, "failed", remark=remark[:200])
    return Result(TITLE, name, "passed", seconds * 1e3, "ms", told[:200])
