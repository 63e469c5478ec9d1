"""What the virtual GPUs say of caches and barriers, by hand: descriptors, copies, semaphores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from tests.support.nvidia.rm_program import RecordingSms, RmProgram
from ugpu.virtual.nvidia.engines.coherence import Coherence, Scope
from ugpu.virtual.nvidia.sm_contract import GridLaunch, SmEnding, SmOutcome
from ugpu.virtual.shader.memory import Abort, Access, LaneMemory

SEMAPHORE, SOURCE, TARGET = 0x4000, 0x20_0000, 0x28_0000
COPY = 2 | 3 << 7  # not pipelined, pitch to pitch
FLUSH, FLUSH_GPU = 1 << 2, 1 << 2 | 1 << 25
EMPTY = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry empty()\n{ ret; }\n"
Answer = Callable[[GridLaunch, LaneMemory, Abort], SmOutcome]


@pytest.fixture(params=["tu102", "ga102", "gh100", "gb202"])
def program(request: pytest.FixtureRequest) -> Iterator[RmProgram]:
    with RmProgram(request.param, coherence=True) as made:
        made.bring_up()
        made.windows()
        yield made


def touches(program: RmProgram, *accesses: tuple[Access, int, int]) -> None:
    """Let the next grids access places in the work memory: (access, offset, value to write)."""
    sms = program.machine.gpu.multiprocessors
    assert isinstance(sms, RecordingSms)

    def answer(launch: GridLaunch, memory: LaneMemory, abort: Abort) -> SmOutcome:
        table = memory.new_tlb()
        for access, offset, value in accesses:
            host = memory.refill(table, program.work_address + offset, access)
            if access is Access.WRITE:
                ctypes.c_uint32.from_address(host).value = value
        return SmOutcome(SmEnding.DONE)

    sms.answer = answer


def run(program: RmProgram, *, done: bool = True, **fields: int) -> None:
    """Launch a grid with fields of its descriptor, and wait until it has ended."""
    address = program.program(EMPTY, "empty", 0)
    program.launch(program.put_qmd(program.qmd(address, **fields)))
    if done:
        finish(program)


def finish(program: RmProgram) -> None:
    program.method(0, 0x110, 0)  # WAIT_FOR_IDLE of the compute class
    program.submit()
    assert program.machine.gpu.wait_idle()
    assert program.machine.log == []


def copy(program: RmProgram, source: int, target: int, flags: int, size: int = 64) -> None:
    base = program.work_address
    words = [base + source >> 32, base + source & 0xFFFF_FFFF]
    words += [base + target >> 32, base + target & 0xFFFF_FFFF, 0, 0, size, 1]
    program.method(4, 0x400, *words)
    program.method(4, 0x300, flags)
    program.submit()
    assert program.machine.gpu.wait_idle()


def signal(program: RmProgram, **options: bool) -> None:
    program.release(program.work_address + SEMAPHORE, 1, **options)
    program.submit()
    assert program.machine.gpu.wait_idle()


def found(program: RmProgram) -> list[str]:
    """What was said since the last call."""
    said = list(program.machine.violations)
    program.machine.gpu.violations.clear()
    return said


L1_NONE, L1_SYSMEMBAR, L1_MEMBAR = 0, 1, 3


@pytest.mark.parametrize("membar", [L1_NONE, L1_MEMBAR, L1_SYSMEMBAR])
def test_a_copy_of_what_a_grid_wrote(program: RmProgram, membar: int) -> None:
    touches(program, (Access.WRITE, SOURCE, 7), (Access.WRITE, SOURCE + 0x2000, 7))
    run(program, CWD_MEMBAR_TYPE=membar)
    copy(program, SOURCE, TARGET, COPY | FLUSH, 0x3000)
    said = found(program)
    if membar != L1_NONE:
        assert said == []
    else:
        assert said == [
            "a copy reads 2 pages that empty wrote, and no barrier has made that visible"
        ]


@pytest.mark.parametrize("membar", [L1_NONE, L1_MEMBAR, L1_SYSMEMBAR])
@pytest.mark.parametrize("wait", [False, True])
def test_a_release_that_the_cpu_may_wait_for(program: RmProgram, membar: int, wait: bool) -> None:
    """The work memory is the system's: a barrier for the GPU's engines is not enough."""
    touches(program, (Access.WRITE, SOURCE, 7))
    run(program, CWD_MEMBAR_TYPE=membar)
    signal(program, wait=wait)
    said = found(program)
    if wait or membar == L1_SYSMEMBAR:
        assert said == []
    else:
        assert len(said) == 1 and "a release at 0x" in said[0]
        assert "seen by the CPU before 1 pages of the system's memory that empty wrote" in said[0]
    signal(program, wait=True)
    signal(program, wait=False)
    assert found(program) == [], "the first of them had a barrier"


@pytest.mark.parametrize(("flags", "alone"), [(0, 1), (FLUSH_GPU, 1), (FLUSH, 0)])
def test_the_flush_of_a_copy(program: RmProgram, flags: int, alone: int) -> None:
    copy(program, SOURCE, TARGET, COPY | flags)
    signal(program, wait=False)
    assert len(found(program)) == alone
    touches(program, (Access.READ, TARGET, 0))
    run(program)
    said = found(program)
    assert len(said) == (0 if flags else 1)
    assert all("empty reads 1 pages that a copy wrote" in text for text in said)


@pytest.mark.parametrize(("flags", "alone"), [(0, 1), (FLUSH_GPU, 1), (FLUSH, 0)])
def test_a_release_without_a_copy_flushes_the_copies_before_it(
    program: RmProgram, flags: int, alone: int
) -> None:
    """As UVM releases (uvm_turing_ce.c): LAUNCH_DMA with DATA_TRANSFER_TYPE NONE and a flush."""
    copy(program, SOURCE, TARGET, COPY)
    address = program.work_address + SEMAPHORE
    program.method(4, 0x240, address >> 32, address & 0xFFFF_FFFF, 1)
    program.method(4, 0x300, 1 << 3 | flags)
    program.submit()
    assert program.machine.gpu.wait_idle()
    assert len(found(program)) == alone
    touches(program, (Access.READ, TARGET, 0))
    run(program)
    assert len(found(program)) == (0 if flags else 1)


def test_a_grid_s_own_release_has_a_barrier_of_its_own(program: RmProgram) -> None:
    address = program.work_address + SEMAPHORE
    version = program.facts.qmd
    names = {
        (2, 3): ("SEMAPHORE_RELEASE_ENABLE0", "RELEASE0_ADDRESS", "RELEASE_MEMBAR_TYPE"),
        (3, 0): ("RELEASE0_ENABLE", "RELEASE0_ADDRESS", "RELEASE0_MEMBAR_TYPE"),
    }
    enable, where, barrier = names.get(
        version, ("RELEASE_ENABLE", "RELEASE_SEMAPHORE0_ADDR", "RELEASE_MEMBAR_TYPE")
    )
    fields = {
        enable: 1, f"{where}_LOWER": address & 0xFFFF_FFFF, f"{where}_UPPER": address >> 32,
    }  # fmt: skip
    touches(program, (Access.WRITE, SOURCE, 7))
    run(program, **fields, CWD_MEMBAR_TYPE=L1_NONE)
    said = found(program)
    assert len(said) == 1 and "the release of empty at" in said[0]
    run(program, **fields, **{barrier: 1}, CWD_MEMBAR_TYPE=L1_NONE)
    assert found(program) == []


@pytest.mark.parametrize("how", ["nothing", "descriptor", "method", "method without data"])
def test_data_that_changes_between_grids(program: RmProgram, how: str) -> None:
    touches(program, (Access.READ, SOURCE, 0))
    run(program)
    view = program.work_map.view
    assert view is not None
    view[SOURCE : SOURCE + 4] = b"CPU!"
    fields = {"INVALIDATE_SHADER_DATA_CACHE": 1} if how == "descriptor" else {}
    if how.startswith("method"):
        program.method(0, 0x1698, 1 << 4 if how == "method" else 1 | 1 << 12)
    run(program, **fields)
    said = found(program)
    if how in ("descriptor", "method"):
        assert said == []
    else:
        assert len(said) == 1 and "global data at" in said[0]
    run(program)
    assert found(program) == [], "it is said once"


def test_what_a_grid_writes_itself_is_stale_for_the_next(program: RmProgram) -> None:
    touches(program, (Access.READ, SOURCE, 0), (Access.WRITE, SOURCE, 5), (Access.READ, SOURCE, 0))
    run(program, CWD_MEMBAR_TYPE=L1_SYSMEMBAR)
    assert found(program) == []
    touches(program, (Access.READ, SOURCE, 0))
    run(program, INVALIDATE_SHADER_DATA_CACHE=1)
    assert found(program) == []
    touches(program, (Access.WRITE, SOURCE, 6))
    run(program, CWD_MEMBAR_TYPE=L1_SYSMEMBAR)
    touches(program, (Access.READ, SOURCE, 0))
    run(program)
    assert len(found(program)) == 1


def test_memory_that_is_used_anew_owes_nothing() -> None:
    """Pages of one process: 0 to 9 are a GPU's, others the system's."""
    watch = Coherence(lambda page: page > 9)
    first, second = object(), object()
    watch.wrote(first, 0, "first", {4, 5, 12}, Scope.NOBODY)
    assert len(watch.read(second, 0, "second", {4})) == 1
    assert watch.read(first, 0, "first", {4}) == []
    watch.freed(4 * 4096, 4096)
    assert watch.read(second, 0, "second", {4}) == []
    assert len(watch.read(second, 0, "second", {4, 5})) == 1
    watch.barrier(first, Scope.GPU)
    assert watch.read(second, 0, "second", {5}) == []
    assert len(watch.read(second, 1, "another GPU", {5})) == 1
    assert watch.released([first], "x", 4) == [], "nobody but the GPU looks there"
    assert watch.released([second], "x", 13) == []
    assert len(watch.released([first], "x", 13)) == 1
    watch.gone(first)
    assert watch.read(second, 1, "another GPU", {5}) == []
    assert watch.released([first], "x", 13) == []
