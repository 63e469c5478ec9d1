"""Work of the cpu device that is known to be short runs in the thread that submits it; no other."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.support.kernels import compile_ir
from ugpu import hcq
from ugpu.hcq.cpu.processor import source
from ugpu.hcq.cpu.queue import SHALLOW
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Reference, Symbol
from ugpu.hcq.work.prepared import prepare
from ugpu.hcq.work.queue import Queue

# who(u64 out[2], u64 spins): its thread into out[0], after so many rounds, which it adds to out[1]
WHO = """
target triple = "{triple}"
@who.ugpu = constant {{ i32, i32 }} {{ i32 1, i32 16 }}
declare i64 @pthread_self()
define void @who(ptr %kernarg, ptr %launch) {{
entry:
  %local = alloca [{stack} x i8]
  store volatile i8 1, ptr %local
  %out = load ptr, ptr %kernarg
  %spins.at = getelementptr i8, ptr %kernarg, i64 8
  %spins = load i64, ptr %spins.at
  %count = getelementptr i64, ptr %out, i64 1
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %old = load volatile i64, ptr %count
  %new = add i64 %old, 1
  store volatile i64 %new, ptr %count
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %spins
  br i1 %more, label %loop, label %done
done:
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %out
  ret void
}}
"""
LONG = 1_000_000  # rounds that take any processor more than BRIEF_NS
FE_UPWARD = 0x800  # fenv.h of x86-64


@contextmanager
def submitting(
    threads: int, bounded: bool, spins: int, stack: int = 64
) -> Iterator[tuple[Device, Buffer, Callable[[], int]]]:
    """A device, the memory that the kernel writes, and a function that submits it once more."""
    with hcq.open("cpu", threads=threads) as device, device.alloc(16) as out:
        target = device.target
        text = WHO.format(triple=target.triple, stack=stack)
        image = compile_ir(text, target.triple, target.cpu)
        out.fill(0)
        with device.load(image) as program:
            program.bounded = bounded
            queue = device.queue()
            queue.launch(program["who"], grid=(1,), block=(1,), args=(out, np.uint64(spins)))
            (launch,) = queue.commands
            assert isinstance(launch, Launch)
            opened = replace(launch, references=(Reference(0, 8, Symbol("parameter", slot=0)),))
            prepared = prepare(queue.hardware, [opened])
            again = queue.hardware.repetition(prepared, [0], [[0]])
            yield device, out, partial(again.submit, int(out.address))


def runs_here(device: Device, out: Buffer, submit: Callable[[], object]) -> bool:
    """Submit once; return whether the calling thread ran it."""
    submit()
    device.synchronize()
    return int(out.numpy(np.uint64)[0]) == threading.get_ident()


def await_here(device: Device, out: Buffer, submit: Callable[[], object]) -> None:
    """Submit until the calling thread runs it: a busy host may need several tries to be quick."""
    Clock().wait_until(
        lambda: runs_here(device, out, submit),
        unit="the kernel", waiting_for="a run in this thread", limit_s=60,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
def test_short_work_runs_in_the_thread_that_submits_it(threads: int) -> None:
    with submitting(threads, True, 1) as parts:
        assert not runs_here(*parts), "how long a kernel takes is not known before it has run"
        await_here(*parts)
        device, out, submit = parts
        value = submit()
        timeline = device.queue().timeline
        assert (timeline.value, timeline.last) in ((value, value), (value - 1, value))
        timeline.wait(value)
        launches = core_of(device).launches
        runs = int(out.numpy(np.uint64)[1])
        assert runs == launches


@pytest.mark.parametrize(("bounded", "spins"), [(False, 1), (True, LONG)])
def test_other_work_does_not(bounded: bool, spins: int) -> None:
    with submitting(1, bounded, spins) as parts:
        assert not any(runs_here(*parts) for _ in range(20))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="frames are read from x86-64 code")
def test_kernels_with_large_frames_do_not() -> None:
    """They might not fit the stack of a thread that is not ours."""
    with submitting(1, True, 1, 2 * SHALLOW) as parts:
        assert not any(runs_here(*parts) for _ in range(20))


@pytest.mark.parametrize(
    ("numbers", "error"),
    [((), TypeError), ((1, 2), TypeError), (("1",), TypeError), ((-1,), OverflowError),
     ((1 << 64,), OverflowError)],
)  # fmt: skip
def test_wrong_numbers_are_refused_and_nothing_is_submitted(
    numbers: tuple[object, ...], error: type[Exception]
) -> None:
    with submitting(1, True, 1) as (device, out, submit):
        submit()
        last, submit_these = device.queue().timeline.last, cast(Any, submit).func
        with pytest.raises(error):
            submit_these(*numbers)
        assert device.queue().timeline.last == last
        submit()
        device.synchronize()
        assert int(out.numpy(np.uint64)[1]) == 2


def test_short_work_keeps_its_place_in_the_queue() -> None:
    with submitting(1, True, 1) as parts:
        device, out, submit = parts
        await_here(*parts)
        memory = device.alloc(16, placement=Placement.HOST)
        gate = hcq.Timeline(core_of(device), memory, "gate")
        before = int(out.numpy(np.uint64)[1])
        device.queue().wait(gate, 1).submit()
        value = submit()
        cells = (ctypes.c_uint64 * 2).from_address(int(out.address))
        assert (cells[1], device.queue().timeline.value) == (before, value - 2)
        device.queue(hcq.QueueKind.COPY).signal(gate, 1).submit()
        device.queue().timeline.wait(value)
        assert cells[1] == before + 1
        memory.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of FE_UPWARD is x86's")
def test_a_thread_that_rounds_otherwise_leaves_work_to_the_queue() -> None:
    library = ctypes.CDLL("libm.so.6")
    with submitting(1, True, 1) as parts:
        await_here(*parts)
        usual = library.fegetround()
        assert library.fesetround(FE_UPWARD) == 0
        try:
            assert not any(runs_here(*parts) for _ in range(20))
        finally:
            library.fesetround(usual)
        await_here(*parts)


def test_short_work_of_two_threads() -> None:
    """Each runs its own, or the queue's thread does; none is lost, none runs twice."""
    with submitting(1, True, 1) as parts:
        device, out, submit = parts
        await_here(*parts)
        before, count = int(out.numpy(np.uint64)[1]), 500

        def run() -> None:
            for _ in range(count):
                submit()

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        device.synchronize()
        assert int(out.numpy(np.uint64)[1]) == before + 3 * count


def test_short_graphs_run_in_the_thread_that_replays_them() -> None:
    with submitting(1, True, 1) as (device, out, submit):
        submit()
        program = next(iter(core_of(device).programs))
        with device.capture() as graph:
            queue: Queue = device.queue()
            queue.launch(program["who"], grid=(1,), block=(1,), args=(out, np.uint64(1))).submit()
        await_here(device, out, graph.replay)
        graph.close()


@pytest.mark.parametrize(
    ("triple", "reads"),
    [("x86_64", "stmxcsr"), ("aarch64", "FPCR"), ("riscv64", "ret")],  # the last: not known
)
def test_the_mode_of_a_thread_is_read_on_every_architecture(triple: str, reads: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    full = f"{triple}-unknown-linux-gnu"
    module = llvm.parse_assembly(source(full))
    module.verify()
    machine = llvm.Target.from_triple(full).create_target_machine()
    assert reads in machine.emit_assembly(module)
