"""How dispatches end that cannot go on, and rules that code breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.ir3_machine import CODE, map_code, processors
from tests.support.adreno.ir3_text import (
    END,
    NOPS,
    OUT,
    constants,
    i,
    k,
    mov,
    r,
    run,
    stored,
    words,
)
from tests.support.shader_memory import PAGE, ArrayMemory
from ugpu.hcq.objects import jit
from ugpu.hcq.state.config import Config
from ugpu.virtual.adreno.shader import Accessing, Dispatch, Ending
from ugpu.virtual.adreno.sp.processors import Processors
from ugpu.virtual.shader.memory import Abort, Access

SS, SY = 1 << 44, 1 << 60


class Reporting(ArrayMemory):
    """Asks who accesses where a page is missing; ends the launch then, if it shall."""

    def __init__(self, abort: Abort | None = None) -> None:
        super().__init__()
        self.seen: list[Accessing] = []
        self._ends = abort

    def refill(
        self, tlb: NDArray[np.uint64], address: int, access: Access,
        who: Callable[[], Accessing] | None = None,
    ) -> int:  # fmt: skip
        before = len(self.faults)
        host = super().refill(tlb, address, access)
        if len(self.faults) > before and who is not None:
            self.seen.append(who())
            if self._ends is not None:
                self._ends.set()
        return host


def test_a_store_to_an_unmapped_page_names_instruction_and_lane() -> None:
    memory = Reporting()
    memory.map(OUT, np.zeros(1024, np.uint32))  # threads 0 to 1023 of two groups fit
    stride = i("shl.b", DST=r(3), SRC1=0, SRC2=k(7), FULL=1)  # 128 words from thread to thread
    code = [stride, mov(r(5), 1), *stored(r(5), at=r(3))]
    outcome, _ = run(words(*code, END), memory=memory)
    assert outcome.ending is Ending.DONE
    assert {address // PAGE for address, _ in memory.faults} == {
        (OUT + 512 * lane) // PAGE for lane in range(8, 64)
    }
    first = memory.seen[0]
    assert first.pc == CODE + 8 * 5 and first.text.startswith("stg.u32")
    assert (first.lane, first.group, first.wave) == (8, (0, 0, 0), 0)
    assert all(access is Access.WRITE for _, access in memory.faults)


def test_a_read_only_page_refuses_stores_alone() -> None:
    memory = ArrayMemory()
    memory.map(OUT, np.arange(64, dtype=np.uint32), writable=False)
    code = [mov(r(5), 1), *stored(r(5))]
    run(words(*code, END), memory=memory)
    assert {access for _, access in memory.faults} == {Access.WRITE}


def test_a_fault_may_end_the_launch() -> None:
    abort = Abort()
    memory = Reporting(abort)
    code = [mov(r(5), 1), *stored(r(5)), i("jump", IMMED=0)]
    code[-1] = i("jump", IMMED=-len(code) + 1)
    map_code(memory, words(*code, END))
    dispatch = Dispatch(
        gpu_id=630, code_address=CODE, code_size=128, groups=(1, 1, 1), threads=(64, 1, 1),
        thread_register=0, constants=constants(),
    )  # fmt: skip
    assert processors().launch(dispatch, memory, abort).ending is Ending.ABORTED
    assert memory.seen


def test_a_kernel_that_does_not_end_is_aborted() -> None:
    memory, abort = ArrayMemory(), Abort()
    map_code(memory, words(i("jump", IMMED=0), END))
    dispatch = Dispatch(
        gpu_id=630, code_address=CODE, code_size=128, groups=(1, 1, 1), threads=(64, 1, 1)
    )
    found = []
    thread = threading.Thread(
        target=lambda: found.append(processors().launch(dispatch, memory, abort))
    )
    thread.start()
    abort.set()
    thread.join()
    assert found[0].ending is Ending.ABORTED


def test_what_a_refill_raises_comes_out_of_launch() -> None:
    class Broken(ArrayMemory):
        def refill(self, *_: object) -> int:
            raise OSError("the backing file is gone")

    code = words(mov(r(5), 1), *stored(r(5)), END)
    with pytest.raises(OSError, match="backing file"):
        run(code, memory=Broken())
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros(64, np.uint32))
    assert run(code, memory=memory)[0].ending is Ending.DONE  # the processors go on
    assert out.all()


def test_what_is_not_implemented_is_named() -> None:
    code = [mov(r(5), 1), i("kill", COMP1=0), END]
    outcome, _ = run(words(*code))
    assert (outcome.ending, outcome.pc, outcome.lane) == (Ending.NOT_IMPLEMENTED, CODE + 8, 0)
    assert outcome.detail == "kill is not implemented" and outcome.text.startswith("kill")


def test_what_is_not_implemented_and_not_reached_does_no_harm() -> None:
    code = [i("jump", IMMED=2), i("kill", COMP1=0), END]
    assert run(words(*code))[0].ending is Ending.DONE


def test_a_register_beyond_the_footprint() -> None:
    outcome, _ = run(words(mov(r(5), 1), END), full_registers=2)
    assert outcome.ending is Ending.NOT_IMPLEMENTED
    assert "r5" in outcome.text


def test_words_that_are_no_instruction() -> None:
    word = 0xFBC2100000000000  # lock, of generation 7
    outcome, _ = run(words(mov(r(5), 1), word, END))
    assert (outcome.ending, outcome.word) == (Ending.ILLEGAL_INSTRUCTION, word)
    assert run(words(mov(r(5), 1), word, END), "a740")[0].ending is Ending.DONE


def test_code_that_does_not_end() -> None:
    outcome, _ = run(words(*(mov(r(5), 1) for _ in range(16))))
    assert (outcome.ending, outcome.pc) == (Ending.CODE_END, CODE + 128)


def test_code_that_is_not_mapped() -> None:
    outcome, _ = run(words(mov(r(5), 1), END), code_address=CODE + (1 << 30))
    assert (outcome.ending, outcome.pc) == (Ending.FETCH_FAULT, CODE + (1 << 30))


def test_code_that_has_changed_is_translated_anew() -> None:
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros(64, np.uint32))
    for value in (3, 4, 3):
        run(words(mov(r(5), value), *stored(r(5)), END), memory=memory)
        assert set(out.tolist()) == {value}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"threads": (0, 1, 1)}, "1 to 1024 threads"), ({"threads": (33, 32, 1)}, "1024"),
        ({"thread_size": 32}, "waves of 64 or 128"), ({"local_size": 1 << 17}, "local memory"),
        ({"gpu_id": 540}, "generation 6 or 7"), ({"code_size": 0}, "length of 0"),
        ({"code_address": CODE + 8}, "multiple of 32"), ({"half_registers": 65}, "footprint"),
        ({"private_size": 512, "private_stride": 1024}, "private memory"),
        ({"full_registers": 65}, "footprint"), ({"constants": np.zeros(4096, np.uint32)}, "words"),
    ],
)  # fmt: skip
def test_dispatches_that_cannot_be(change: dict[str, object], why: str) -> None:
    outcome, _ = run(words(END), **change)
    assert outcome.ending is Ending.BAD_DISPATCH and why in outcome.detail


def test_a_grid_of_no_groups_does_nothing() -> None:
    assert run(words(END), groups=(4, 0, 1))[0].ending is Ending.DONE


def test_private_memory_of_each_thread() -> None:
    """Each thread stores its number at 4 and loads it; the layouts differ in memory."""
    base = 0x7000_0000
    for per_wave in (False, True):
        memory = ArrayMemory()
        out = memory.map(OUT, np.zeros(128, np.uint32))
        private = memory.map(base, np.zeros(2048, np.uint32))
        code = [
            mov(r(4), 0), i("stp", SRC=0, DST=r(4), OFF_LO=4, SIZE=1, TYPE=3), SS,
            i("ldp", DST=r(5), SRC=r(4), OFF=4, SIZE=1, TYPE=3), SY, *stored(r(5)), END,
        ]  # fmt: skip
        outcome, _ = run(
            words(*code), memory=memory, threads=(128, 1, 1), private_base=base,
            private_size=16, private_stride=8192, private_per_wave=per_wave,
        )  # fmt: skip
        assert outcome.ending is Ending.DONE and not memory.faults
        assert out.tolist() == list(range(128))
        second = 256 + 64 if per_wave else 4 * 64 + 1  # the word at 4 of thread 64
        assert private[second] == 64 and private[second + (1 if per_wave else 4)] == 65


# ---- rules ---------------------------------------------------------------------------------------

LOAD = i("ldg", SRC1=r(3), SIZE=1, DST=r(5), TYPE=3, OFF=0)
USE = i("add.u", DST=r(6), SRC1=r(5), SRC2=k(1), FULL=1)
RCP = i("rcp", DST=r(5), SRC=r(4), FULL=1)


def rules(*code: int, chip: str = "a630") -> tuple[str, ...]:
    memory = ArrayMemory()
    memory.map(0, np.zeros(64, np.uint32))
    start = [mov(r(3), 0), mov(r(3, "y"), 0), mov(r(4), 0)]
    outcome, _ = run(words(*start, NOPS, *code, END), chip, memory)
    assert outcome.ending is Ending.DONE, outcome
    return outcome.violations


@pytest.mark.parametrize(("late", "flag", "name"), [(LOAD, SY, "(sy)"), (RCP, SS, "(ss)")])
def test_results_must_be_waited_for(late: int, flag: int, name: str) -> None:
    (found,) = rules(late, USE)
    assert f"expected {name}: " in found and "add.u r6.x" in found
    assert "may still be writing r5.x" in found
    assert rules(late, USE | flag) == () and rules(late, flag, USE) == ()
    assert rules(late, flag ^ SS ^ SY, USE) != ()  # the other flag does not do


def test_a_result_must_not_be_overwritten_before_it_comes() -> None:
    assert "r5.x" in rules(LOAD, mov(r(5), 1))[0]
    assert rules(LOAD, SY | mov(r(5), 1)) == ()


def test_sources_are_taken_late() -> None:
    store = i("stg", DST_OFF=0, SRC1=r(3), SRC3=r(4), SIZE=1, TYPE=3)
    (found,) = rules(store, mov(r(4), 1))
    assert "expected (ss): stg" in found and "may still be reading r4.x" in found
    assert rules(store, SS | mov(r(4), 1)) == ()
    assert rules(LOAD, mov(r(3), 1)) != () and rules(LOAD, SY | mov(r(3), 1)) == ()


def test_half_of_a_register_counts() -> None:
    half = i("add.u", DST=2 * r(6), SRC1=2 * r(5) + 1, SRC2=k(1), FULL=0)
    assert "r5.x" in rules(RCP, half)[0]
    other = i("add.u", DST=2 * r(6), SRC1=2 * r(5) + 2, SRC2=k(1), FULL=0)
    assert rules(RCP, other) == ()


def test_both_ways_to_a_join_count() -> None:
    """Only one way loads; a wait on the other does not help."""
    test = i("cmps.u", DST=62 * 4, SRC1=0, SRC2=k(5), COND=0, FULL=1)
    code = [test, NOPS, i("br", IMMED=2), LOAD]
    assert rules(*code, USE) != () and rules(*code, SY | USE) == ()
    waits_on_one = [test, NOPS, i("br", IMMED=3), LOAD, SY, USE]
    assert rules(*waits_on_one) == ()


def test_a_loop_counts_from_its_end_to_its_begin() -> None:
    count = i("sub.u", DST=r(4), SRC1=r(4), SRC2=k(1), FULL=1)
    test = i("cmps.s", DST=62 * 4, SRC1=r(4), SRC2=k(0), COND=2, FULL=1)
    code = [mov(r(5), 0), NOPS, USE, count, NOPS, test, NOPS, LOAD, i("br", IMMED=-6)]
    assert "add.u" in rules(*code)[0]


def test_the_scalar_unit_of_generation_7() -> None:
    """Shared registers: on generation 6 every use waits, on 7 the scalar unit's own do not."""
    shared = 48 * 4
    first = i("mov-immed", DST=shared, SRC_TYPE=3, DST_TYPE=3, SRC=5)
    second = i("add.u", DST=shared + 1, SRC1=shared, SRC2=k(1), FULL=1)
    vector = i("add.u", DST=r(6), SRC1=shared, SRC2=k(1), FULL=1)
    assert rules(first, second) != () and rules(first, second, chip="a740") == ()
    assert rules(first, vector, chip="a740") != ()
    assert rules(first, SS | vector, chip="a740") == ()


def test_each_register_of_the_scalar_unit_has_its_width() -> None:
    """A conversion waits for a half that was written as a whole, not where it writes a whole."""
    shared = 48 * 4
    whole = i("mov-immed", DST=shared + 8, SRC_TYPE=3, DST_TYPE=3, SRC=5)
    half = i("mov-immed", DST=shared, SRC_TYPE=2, DST_TYPE=2, SRC=5)
    widened = i("mov-gpr", DST=shared + 8, SRC_TYPE=2, DST_TYPE=3, SRC=shared)
    of_a_whole = i("mov-gpr", DST=shared, SRC_TYPE=2, DST_TYPE=3, SRC=shared + 16)
    assert rules(whole, half, widened, chip="a740") == ()
    assert "(ss)" in rules(whole, of_a_whole, chip="a740")[0]  # hr52.x is half of r50.x
    again = i("mov-immed", DST=shared, SRC_TYPE=3, DST_TYPE=3, SRC=1)
    assert "(ss)" in rules(half, again, chip="a740")[0]


def test_constants_that_the_code_stores() -> None:
    store = i("stc", DST=8, SRC=r(4), SIZE=1, TYPE=3)
    use = i("add.u", DST=r(6), SRC1=0x1008, SRC2=k(1), FULL=1)
    assert "the constant file" in rules(store, use)[0] and rules(store, SS | use) == ()


def test_several_workers_share_a_grid() -> None:
    cores = Processors(workers=3)
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros(64 * 200, np.uint32))
    add = i("mul.u24", DST=r(4), SRC1=48 * 4, SRC2=k(64), FULL=1)
    number = i("add.u", DST=r(4), SRC1=r(4), SRC2=0, FULL=1)
    code = words(add, number, *stored(r(4), at=r(4)), END)
    map_code(memory, code)
    dispatch = Dispatch(
        gpu_id=630, code_address=CODE, code_size=128, groups=(200, 1, 1), threads=(64, 1, 1),
        thread_register=0, group_register=48 * 4, constants=constants(),
    )  # fmt: skip
    outcome = cores.launch(dispatch, memory, Abort())
    cores.close()
    assert outcome.ending is Ending.DONE
    assert np.array_equal(out, np.arange(64 * 200))
    assert cores.launch(replace(dispatch, groups=(1, 1, 1)), memory, Abort()).ending is Ending.DONE
    cores.close()


def test_native_code_is_kept_over_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processors with the same folder compile nothing; a folder of its own does."""
    made: list[int] = []
    real = jit.compile_object

    def counted(ir: str, passes: int, optimise: int) -> bytes:
        made.append(len(ir))
        return real(ir, passes, optimise)

    monkeypatch.setattr(jit, "compile_object", counted)
    monkeypatch.setattr("ugpu.hcq.disk.objects.config", Config)  # nothing of other runs
    code = words(mov(r(5), 0x12345), *stored(r(5)), END)
    dispatch = Dispatch(
        gpu_id=630, code_address=CODE, code_size=128, groups=(1, 1, 1), threads=(64, 1, 1),
        thread_register=0, constants=constants(),
    )  # fmt: skip
    counts = []
    for _ in range(2):
        memory, cores = ArrayMemory(), Processors(workers=1, cache=tmp_path)
        memory.map(OUT, np.zeros(64, np.uint32))
        map_code(memory, code)
        for _ in range(2):
            assert cores.launch(dispatch, memory, Abort()).ending is Ending.DONE
        cores.close()
        counts.append(len(made))
    assert counts[0] >= 1 and counts[1] == counts[0]
