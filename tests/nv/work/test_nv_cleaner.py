"""What one holder's kernels leave in shared memory, local memory and the heap of an NVIDIA GPU, and
the cleaner that overwrites it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import pytest

from tests.nv.code.test_nv_heap import PTX as ALLOCATING
from tests.support.nvidia.nv_machine import opened, tenant, work
from tests.support.nvidia.ptx_leaks import GROUPS, SECRET, clean, run, small_machine
from ugpu.hcq.errors import MissingDependency
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.nv.code import heap, source
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.cubin import parse_cubin
from ugpu.nv.device.device import NvDevice
from ugpu.nv.rm.memory import Memory
from ugpu.nv.work import cleaner
from ugpu.virtual.nvidia.machine import VirtualMachine

CHIPS = ("tu102", "ga102", "gh100", "gb202")
_LDS, _NO_REGISTER = 0x984, 255


@pytest.fixture(params=CHIPS)
def machine(request: pytest.FixtureRequest) -> Iterator[VirtualMachine]:
    """One host thread runs all groups: what one leaves there, the next one finds."""
    made = small_machine(request.param)
    yield made
    made.close()


@pytest.fixture
def device() -> Iterator[NvDevice]:
    machine = small_machine("tu102")
    with opened(machine) as made:
        yield made
    machine.close()


def test_what_is_left_is_found_by_the_next_and_cleaned(machine: VirtualMachine) -> None:
    with opened(machine) as device:
        with tenant(device, "one") as one:
            run(one, "plant")
        with tenant(device, "other") as other:
            assert (run(other, "find") == SECRET).all(), "the model keeps what was there"
            assert clean(other) == ""
        with tenant(device, "third") as third:
            assert not run(third, "find").any()
            work(third)
        run(device, "plant")
        assert clean(device) == ""
        assert not run(device, "find").any()


def test_shared_memory_is_kept_by_groups_that_have_less(device: NvDevice) -> None:
    """And by multiprocessors that have not had a group of the size before."""
    run(device, "plant", 4096)
    words = run(device, "find")[:, :1024]
    assert (words == SECRET).all() and len(words) == GROUPS


def secret_in(device: NvDevice, memory: Memory) -> Buffer:
    core, place = device.driver.core, VirtAddr(memory.address)
    whole = Buffer(core, place, memory.size, Placement.DEVICE)
    end = whole[memory.size - 4096 :]
    end.fill(SECRET)
    return end


def test_memory_of_kernels_of_an_exclusive_holder_is_cleaned(device: NvDevice) -> None:
    """Local memory and the heap are the driver's own, and stay from one lease to the next."""
    blocks = device.driver.programs.heap
    with device.load(ALLOCATING.format(target="sm_75").encode()), device.alloc(4096) as out:
        local = device.driver.programs.local
        assert local is not None and blocks._memory is not None
        ends = [secret_in(device, memory) for memory in (local, blocks._memory)]
        head = blocks._memory.view[: heap._HEAD_SIZE]
        head[:24] = b"\xaa" * 24
        assert clean(device) == ""
        assert not any(end.numpy().any() for end in ends)
        assert bytes(head) == heap._EMPTY
        head.release()
        assert not out.numpy().any()


def test_the_cleaner_runs_again_and_after_a_reset(device: NvDevice) -> None:
    """Its code is loaded once."""
    assert clean(device) == ""
    memories = len(device.driver.gpu.memories)
    assert clean(device) == "" and len(device.driver.gpu.memories) == memories
    device.reset("block")
    run(device, "plant")
    assert clean(device) == ""
    assert not run(device, "find").any()


def test_without_an_assembler_the_gap_is_named(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is cleared nevertheless."""
    work(device)
    run(device, "plant")
    local = device.driver.programs.local
    assert local is not None
    end = secret_in(device, local)

    def missing(*_: object) -> bytes:
        raise MissingDependency("no assembler of PTX is installed")

    with monkeypatch.context() as without:
        without.setattr(source, "assemble", missing)
        assert clean(device) == (
            "shared memory and registers were not cleared: no assembler of PTX is installed"
        )
    assert not end.numpy().any()
    assert (run(device, "find") == SECRET).any()
    assert clean(device) == ""
    assert not run(device, "find").any()


def test_a_multiprocessor_that_may_have_been_missed_is_told_of(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = cleaner._PTX.replace(b"ld.param.u32 %groups, [groups]", b"mov.u32 %groups, 1000")
    changed = changed.replace(b"mov.u32 %left, 16384", b"mov.u32 %left, 2")
    monkeypatch.setattr(cleaner, "_PTX", changed)
    assert "4 of 4 groups that clear a multiprocessor each did not run beside" in clean(device)


def test_registers_that_an_assembler_leaves_out_are_told_of(
    device: NvDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = re.sub(rb"[ls][dt]\.volatile\.shared\.u32 [^;]*%v(59|60)\b[^;]*;", b"", cleaner._PTX)
    monkeypatch.setattr(cleaner, "_PTX", changed)
    assert clean(device).startswith("not all registers were cleared: the assembler gives 63 reg")


@pytest.mark.parametrize(
    "target", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
)
def test_the_machine_code_writes_all_registers(target: str) -> None:
    """Of 64 that a launch asks for the last two are the program counter's. An instruction has its
    operation in bits 0 to 11, and the register that it writes in bits 16 to 23."""
    made = parse_cubin(assemble(cleaner._PTX, target))
    code = made.kernels["clean"]
    assert (code.registers, code.stack_size) == (64, 0)
    words = struct.iter_unpack("<QQ", made.sections[code.text].data)
    loads = {low >> 16 & 0xFF for low, _ in words if low & 0xFFF == _LDS}
    assert len(loads) == 61
    assert {*range(62)} - loads <= {1, *range(8)}, "the rest has the address and counts"


def test_the_cleaner_is_of_the_holder_that_asks(device: NvDevice) -> None:
    with tenant(device, "one") as one:
        before = len(device.driver.gpu.memories)
        assert clean(one) == ""
        assert len(device.driver.gpu.memories) == before
