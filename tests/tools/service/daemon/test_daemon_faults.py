"""Faults of kernels over a lease: whatever waits for the work raises, every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.adreno import adreno_leaks
from tests.support.adreno.ir3_text import i, r
from tests.support.amd.am_faulty import faulty_object
from tests.support.kernels import contract_object
from tests.support.nvidia import ptx_kernels
from tests.support.service.daemon import Running, scaled, started
from ugpu.hcq.device.device import core_of
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.objects.ir3_object import Ir3Parameter, pack_ir3
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer

WILD = 1 << 40
TIMES = 50
#: a model's worker that reports a fault may do so after the work's end; few tries rarely show it
DEVICES = (
    "virtual:navi31",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("virtual:gh100", "virtual:a630", "cpu")
    ),
)


@pytest.fixture(scope="module", params=DEVICES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    made = started(tmp_path_factory.mktemp("f"), count=1, device=request.param)
    yield made
    made.close()


def bad_kernel(gpu: Any) -> tuple[bytes, str, tuple[Any, ...], int]:
    """An object, its kernel that stores to unmapped memory, the arguments after the first, and
    the threads of a group."""
    if gpu.target.abi == "host":
        return (
            contract_object(gpu.target),
            "scale",
            (np.uint64(16), np.uint32(64), np.uint32(3)),
            64,
        )
    if gpu.target.name.startswith("adreno"):
        word = adreno_leaks.word
        code = [
            word(r(1), 0, "const"), word(r(1, "y"), 1, "const"),
            i("stg", DST_OFF=0, SRC1=r(1), SRC3=r(3), SIZE=1, TYPE=3, OFF_LO=0),
        ]  # fmt: skip
        wild = Ir3Parameter("address", 0, 8, False)
        made = replace(adreno_leaks.kernel("a630", code), parameters=(wild,))
        return pack_ir3([made]), "by_hand", (), adreno_leaks.THREADS
    image = (
        ptx_kernels.text(ptx_kernels.FAULTY, gpu.target.cpu)
        if gpu.target.name.startswith("sm_")
        else faulty_object(gpu.target.cpu)
    )
    return image, "write_at", (np.uint64(WILD),), 32


def record(gpu: Any, queue: Any, program: Any, out: Any) -> None:
    """Launch the kernel that faults."""
    _, name, more, threads = bad_kernel(gpu)
    first: Any = out
    if name == "by_hand":
        first = np.uint64(WILD)
    elif name == "scale":  # of `cpu`: page 0 is never mapped
        first = Buffer(core_of(gpu), VirtAddr(8), 64, Placement.DEVICE)
        more = (out, *more[1:])
    queue.launch(program[name], grid=(1,), block=(threads,), args=(first, *more))


def synchronized(gpu: Any, program: Any, out: Any) -> None:
    with gpu.queue() as queue:
        record(gpu, queue, program, out)
    gpu.synchronize()


def waited(gpu: Any, program: Any, out: Any) -> None:
    queue = gpu.queue()
    record(gpu, queue, program, out)
    queue.timeline.wait(queue.submit())


def copied(gpu: Any, program: Any, out: Any) -> None:
    with gpu.queue() as queue:
        record(gpu, queue, program, out)
    out.numpy()


def replayed(gpu: Any, program: Any, out: Any) -> None:
    with gpu.capture() as graph, gpu.queue() as queue:
        record(gpu, queue, program, out)
    try:
        graph.replay()
        graph.wait()
    finally:
        graph.close()


def signalled(gpu: Any, program: Any, out: Any) -> None:
    """The value is in memory that the host reads, not one of a queue's own."""
    timeline = gpu.timeline()
    try:
        with gpu.queue() as queue:
            record(gpu, queue, program, out)
            queue.signal(timeline, 1)
        timeline.wait(1)
    finally:
        timeline.close()


WAYS = (synchronized, waited, copied, replayed, signalled)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_covers_a_fault_raises(
    running: Running, way: Callable[[Any, Any, Any], None]
) -> None:
    """A kernel of `cpu` that faults ends the process of its lease, and with it the lease."""
    name = running.daemon.owned[0].name
    silent = 0
    if name == "cpu":
        for _ in range(TIMES):
            gpu = running.lease(wait_s=60)
            try:
                program, out = gpu.load(bad_kernel(gpu)[0]), gpu.alloc(64)
                with pytest.raises(DeviceLost):
                    way(gpu, program, out)
            finally:
                gpu.close()
        return
    with running.lease(wait_s=60) as gpu:
        program, out = gpu.load(bad_kernel(gpu)[0]), gpu.alloc(64)
        for _ in range(TIMES):
            try:
                way(gpu, program, out)
                silent += 1
            except UgpuError as error:
                assert not isinstance(error, DeviceLost), error
            if gpu.failure is None:
                with pytest.raises(UgpuError):
                    gpu.synchronize()
                    out.numpy()
            gpu.reset()
        assert silent == 0, f"{silent} of {TIMES} faults were not seen"
        assert scaled(gpu)
