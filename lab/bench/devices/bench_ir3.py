"""The virtual shader processors of Adreno: a memory loop with page checks on."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.adreno.ir3_machine import CODE, map_code
from tests.support.adreno.ir3_text import END, c, i, k, r, spaced, words
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.adreno.shader import Dispatch, Ending
from ugpu.virtual.adreno.sp.processors import Processors
from ugpu.virtual.shader.memory import Abort

A, B, OUT, OFFSETS = (0x1_0000_0000 + n * 0x0400_0000 for n in range(4))
TURNS, GROUPS = 512, 500
SS, SY, P0 = 1 << 44, 1 << 60, 62 * 4
LANES = 64


def moved(target: int, constant: int) -> int:
    return i("mov-const", DST=target, SRC_TYPE=3, DST_TYPE=3, SRC=constant)


def code() -> tuple[bytes, int]:
    """r2, r3, r4: addresses in a, b and out; and the instructions of a turn, without those that
    wait for results."""
    start = [
        i("shl.b", DST=r(1), SRC1=0, SRC2=k(2), FULL=1),
        i("add.u", DST=r(1), SRC1=r(1), SRC2=c(6), FULL=1), moved(r(1, "y"), 7),
        i("ldg", DST=r(5), SRC1=r(1), SIZE=1, TYPE=3, OFF=0),
    ]  # fmt: skip
    for n in range(3):
        add = i("add.u", DST=r(2 + n), SRC1=r(5), SRC2=c(2 * n), FULL=1)
        start += [SY | add if n == 0 else add, moved(r(2 + n, "y"), 2 * n + 1)]
    start.append(moved(r(7), 8))
    step = [i("add.u", DST=r(2 + n), SRC1=r(2 + n), SRC2=k(4 * LANES), FULL=1) for n in range(3)]
    body = [
        i("ldg", DST=r(5), SRC1=r(2), SIZE=1, TYPE=3, OFF=0),
        i("ldg", DST=r(5, "y"), SRC1=r(3), SIZE=1, TYPE=3, OFF=0),
        SY | i("add.f", DST=r(6), SRC1=r(5), SRC2=r(5, "y"), FULL=1),
        i("mad.f32", DST=r(6), SRC1=r(6), SRC2=r(5), SRC3=r(5, "y")),
        i("stg", DST_OFF=0, SRC1=r(4), SRC3=r(6), SIZE=1, TYPE=3),
        SS | step[0], *step[1:],
        i("sub.u", DST=r(7), SRC1=r(7), SRC2=k(1), FULL=1),
        i("cmps.u", DST=P0, SRC1=r(7), SRC2=k(0), COND=5, FULL=1),
    ]  # fmt: skip
    turn = spaced(body)
    turn.append(i("br", IMMED=-len(turn)))
    return words(*spaced(start), *turn, END), len(body) + 1


def lane_offsets(kind: str) -> NDArray[np.uint32]:
    lane = np.arange(LANES, dtype=np.uint32)
    if kind == "contiguous":
        return lane * np.uint32(4)
    if kind == "permuted":  # all in the same 256 bytes, in no order
        return np.random.default_rng(1).permutation(lane) * np.uint32(4)
    return lane * np.uint32(4096 + 64)  # every lane in a page of its own


def measure_loop(kind: str, seconds: float = 1.0, gpu: int = 630) -> float:
    """Return wave instructions per second of processor time on one thread; checks the result as
    well."""
    memory, cores = ArrayMemory(), Processors(workers=1)
    given = lane_offsets(kind)
    size = int(given.max()) // 4 + 1 + LANES * TURNS
    rng = np.random.default_rng(2)
    a, b = (rng.random(size, np.float32) for _ in range(2))
    memory.map(A, a, writable=False)
    memory.map(B, b, writable=False)
    out = memory.map(OUT, np.zeros(size, np.float32))
    memory.map(OFFSETS, given)
    binary, instructions = code()
    map_code(memory, binary)
    constants = [word for at in (A, B, OUT, OFFSETS) for word in (at & 0xFFFFFFFF, at >> 32)] + [
        TURNS
    ]
    facts: dict[str, Any] = {
        "gpu_id": gpu,
        "code_address": CODE,
        "code_size": len(binary) + 127 & -128,
    }
    dispatch = Dispatch(
        groups=(GROUPS, 1, 1), threads=(LANES, 1, 1), thread_register=0, constants=constants,
        full_registers=8, **facts,
    )  # fmt: skip
    best, end = float("inf"), time.process_time() + seconds
    while best == float("inf") or time.process_time() < end:
        start = time.process_time()  # of all threads: other programs do not count
        outcome = cores.launch(dispatch, memory, Abort())
        best = min(best, time.process_time() - start)
        if outcome.ending is not Ending.DONE or outcome.violations or memory.faults:
            raise AssertionError(f"{outcome}, faults {memory.faults[:3]}")
    touched = (given[:, None] // 4 + LANES * np.arange(TURNS)).reshape(-1)
    if not np.allclose(out[touched], ((a + b) * a + b)[touched], rtol=1e-5):
        raise AssertionError(f"the {kind} loop computes something else")
    cores.close()
    return GROUPS * TURNS * instructions / best


def measure() -> list[dict[str, object]]:
    """Measure the loop on one thread."""
    names = {
        "contiguous": "contiguous lanes", "permuted": "scattered lanes",
        "pages": "scattered lanes, each in its own page",
    }  # fmt: skip
    results: list[dict[str, object]] = []
    cases = [(kind, title, 630) for kind, title in names.items()]
    cases += [("contiguous", names["contiguous"], gpu) for gpu in (660, 740, 750)]
    for kind, title, gpu in cases:
        rate = measure_loop(kind, gpu=gpu) / 1e6
        name = f"ir3 memory loop of a{gpu}, wave of {LANES}, {title}, 1 thread, processor time"
        results.append({"name": name, "value": round(rate, 1), "unit": "M wave-instr/s"})
    return results
