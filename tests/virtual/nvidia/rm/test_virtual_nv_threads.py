"""Programs side by side on one virtual machine: nobody waits for, or harms, another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.nvidia.rm_program import RmProgram
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.machine import VirtualMachine

SEMAPHORE, SOURCE, TARGET = 0x4000, 0x20_0000, 0x28_0000


def copies(machine: VirtualMachine, seed: int, start: threading.Barrier) -> None:
    """Bring a program up, copy and check many times, allocate and free in between; close."""
    with RmProgram(machine=machine) as program:
        program.bring_up()
        view = program.work_map.view
        assert view is not None
        start.wait(120)
        for number in range(1, 40):
            view[SOURCE : SOURCE + 4096] = bytes([seed + number & 0xFF]) * 4096
            source, target = program.work_address + SOURCE, program.work_address + TARGET
            program.method(
                4, 0x400, source >> 32, source & 0xFFFF_FFFF, target >> 32, target & 0xFFFF_FFFF
            )
            program.method(4, 0x418, 4096, 1)
            program.method(4, 0x300, 0x182)
            program.release(program.work_address + SEMAPHORE, number)
            program.push_at = 0x10_0000 + number % 8 * 4096
            program.submit()
            memory = program.video_memory(1 << 20)
            base = program.gpu_map(memory, 1 << 20)
            program.wait(SEMAPHORE, number)
            assert bytes(view[TARGET : TARGET + 4096]) == bytes([seed + number & 0xFF]) * 4096
            program.uvm_call("UVM_FREE", base=base, length=1 << 20)
            program.free(memory)


def test_programs_side_by_side() -> None:
    with RmProgram() as owner:
        start = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(copies, owner.machine, 50 * n, start) for n in range(4)]
            for future in done:
                future.result(300)
        assert owner.machine.live_objects() == []
        assert owner.machine.violations == []
        assert owner.machine.log == []
        assert owner.machine.live_bytes() == 0


def test_one_programs_fault_is_not_anothers() -> None:
    with RmProgram() as first, RmProgram(machine=first.machine) as second:
        first.bring_up()
        second.bring_up()
        second.release(second.work_address + SEMAPHORE, 1)
        second.submit()
        second.wait(SEMAPHORE, 1)
        first.submit_words([0xC000_0000])
        assert first.wait_error()[0] == Xid.PBDMA_ERROR
        second.release(second.work_address + SEMAPHORE, 2)
        second.submit()
        second.wait(SEMAPHORE, 2)
        view = second.notifier.view
        assert view is not None
        assert not any(view[:16])


@pytest.mark.parametrize("when", ["waiting", "idle"])
def test_a_program_that_ends_in_the_middle(when: str) -> None:
    with RmProgram() as owner, RmProgram(machine=owner.machine) as second:
        first = RmProgram(machine=owner.machine)
        first.bring_up()
        second.bring_up()
        if when == "waiting":
            first.acquire(first.work_address + SEMAPHORE, 1)
        first.submit()
        first.node.close()
        second.release(second.work_address + SEMAPHORE, 2)
        second.submit()
        second.wait(SEMAPHORE, 2)
        assert owner.machine.gpu.wait_idle()
