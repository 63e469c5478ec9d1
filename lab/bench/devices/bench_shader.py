"""The virtual shader cores of both instruction sets: a memory loop with page checks on, contiguous
and scattered lanes, and a kernel that spills. Rates are those of one thread by processor time."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import CODE, KERNARGS, Machine
from tests.support.amd.isa.gfx_spilling import LIVE, ROW, live_values, loop_length, spilling_kernel
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Dispatch, Ending

# The loop, as LLVM 19's assembler encodes it:
#   s_load_b256 s[4:11], s[0:1], null ; s_load_b64 s[12:13], s[0:1], 0x20
#   v_lshlrev_b32 v0, 2, v0 ; s_waitcnt lgkmcnt(0)
#   global_load_b32 v0, v0, s[12:13] ; s_waitcnt vmcnt(0)       the lane's offset
#   s_and_b32 s2, s2, 1 ; s_lshl_b32 s2, s2, 18 ; v_add_nc_u32 v0, s2, v0
#                                    groups alternate between two places, so that threads share none
# loop:
#   global_load_b32 v1, v0, s[4:5] ; global_load_b32 v2, v0, s[6:7] ; s_waitcnt vmcnt(0)
#   v_add_f32 v3, v1, v2 ; v_fma_f32 v3, v3, v1, v2 ; global_store_b32 v0, v3, s[8:9]
#   v_add_nc_u32 v0, 0x80, v0
#   s_add_i32 s10, s10, -1 ; s_cmp_lg_u32 s10, 0 ; s_cbranch_scc1 loop
#   s_endpgm
_LOOP = (
    0xF40C0100, 0xF8000000, 0xF4040300, 0xF8000020, 0x30000082, 0xBF89FC07, 0xDC520000, 0x000C0000,
    0xBF8903F7, 0x8B028102, 0x84029202, 0x4A000002,
    0xDC520000, 0x01040000, 0xDC520000, 0x02060000, 0xBF8903F7, 0x06060501, 0xD6130003, 0x040A0303,
    0xDC6A0000, 0x00080300, 0x4A0000FF, 0x00000080, 0x810AC10A, 0xBF07800A, 0xBFA2FFF1,
    0xBFB00000,
)  # fmt: skip
# The same of gfx12, as LLVM 22 encodes it:
#   s_load_b64 s[2:3], s[0:1], 0x20 ; v_lshlrev_b32 v0, 2, v0 ; s_wait_kmcnt 0
#   global_load_b32 v0, v0, s[2:3] ; s_load_b128 s[4:7], s[0:1], 0 ; s_load_b96 s[0:2], s[0:1], 0x10
#   s_lshl_b32 s3, ttmp9, 18 ; s_and_b32 s3, s3, 0x40000 ; s_wait_loadcnt 0
#   v_add_nc_u32 v0, s3, v0 ; s_wait_kmcnt 0
# loop:
#   global_load_b32 v1, v0, s[4:5] ; global_load_b32 v2, v0, s[6:7] ; s_wait_loadcnt 0
#   v_add_f32 v3, v1, v2 ; v_fmac_f32 v2, v3, v1 ; global_store_b32 v0, v2, s[0:1]
#   v_add_nc_u32 v0, 0x80, v0
#   s_add_co_i32 s2, s2, -1 ; s_cmp_lg_u32 s2, 0 ; s_cbranch_scc1 loop
#   s_endpgm
_LOOP_GFX12 = (
    0xF4002080, 0xF8000020, 0x30000082, 0xBFC70000,
    0xEE050002, 0x00000000, 0x00000000, 0xF4004100, 0xF8000000, 0xF400A000, 0xF8000010,
    0x84039275, 0x8B03FF03, 0x00040000, 0xBFC00000,
    0x4A000003, 0xBFC70000,
    0xEE050004, 0x00000001, 0x00000000, 0xEE050006, 0x00000002, 0x00000000, 0xBFC00000,
    0x06060501, 0x56040303, 0xEE068000, 0x01000000, 0x00000000,
    0x4A0000FF, 0x00000080,
    0x8102C102, 0xBF078002, 0xBFA2FFEF,
    0xBFB00000,
)  # fmt: skip
_LOOPS = {"gfx11": _LOOP, "gfx12": _LOOP_GFX12}
_CPUS = {"gfx11": "gfx1100", "gfx12": "gfx1201"}  # as LLVM calls them
_PER_TURN = 10  # instructions of the loop's body, the waits included
_TURNS = 512
_RSRC1 = 0 | 0xF0 << 12  # 8 vector registers; denormals kept
_RSRC2 = 2 << 1 | 1 << 7  # two user SGPRs: the argument block; then the group's number
_PLACE = 1 << 18  # bytes from one place of work to the other


def _offsets(kind: str) -> NDArray[np.uint32]:
    lane = np.arange(32, dtype=np.uint32)
    if kind == "contiguous":
        return lane * np.uint32(4)
    if kind == "permuted":  # all in the same 128 bytes, in no order
        return np.random.default_rng(1).permutation(lane) * np.uint32(4)
    return lane * np.uint32(4096 + 64)  # every lane in a page of its own


def measure_loop(kind: str, workers: int, seconds: float = 1.0, name: str = "gfx11") -> float:
    """Return wave instructions per second; checks the result as well. name: instruction set."""
    machine = Machine(GfxCore(workers, target=target(name)))
    offsets = _offsets(kind)
    size = (int(offsets.max()) + _PLACE) // 4 + 1 + 32 * _TURNS
    rng = np.random.default_rng(2)
    a, b = (rng.random(size, np.float32) for _ in range(2))
    addresses, views = zip(
        *(machine.place(array) for array in (a, b, np.zeros(size, np.float32), offsets)),
        strict=True,
    )
    block = struct.pack("<QQQQQ", *addresses[:3], _TURNS, addresses[3])
    machine.memory.map(KERNARGS, np.frombuffer(block.ljust(4096, b"\0"), np.uint8), False)
    code = np.array(_LOOPS[name], np.uint32)
    machine.memory.map(CODE, code, writable=False, executable=True)
    groups = 1000
    arguments: dict[str, Any] = {
        "code_address": CODE, "threads": (32, 1, 1), "rsrc1": _RSRC1, "rsrc2": _RSRC2, "rsrc3": 0,
        "user_data": [KERNARGS & 0xFFFFFFFF, KERNARGS >> 32, *[0] * 14], "wave32": True,
    }  # fmt: skip
    dispatch = Dispatch(groups=(groups, 1, 1), **arguments)
    _run(machine, dispatch)
    touched = (offsets[:, None] // 4 + 32 * np.arange(_TURNS)).reshape(-1)
    touched = np.concatenate([touched, touched + _PLACE // 4])
    wanted = (a + b) * a + b
    if not np.allclose(views[2][touched], wanted[touched], rtol=1e-5):
        raise AssertionError(f"the {kind} loop computes something else")
    best = _best(machine, dispatch, seconds)
    machine.core.close()
    return groups * _TURNS * _PER_TURN / best


def _best(machine: Machine, dispatch: Dispatch, seconds: float) -> float:
    """Return the least processor time of the runs of a dispatch within some time."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        _run(machine, dispatch)
        best = min(best, time.process_time() - start)
    return best


def measure_spills(name: str, seconds: float = 1.0) -> float:
    """Return wave instructions per second, of one thread, of a kernel that spills half of the
    values that it keeps live; checks the result as well."""
    turns, groups = 200, 8
    compiled = compile_ir(spilling_kernel(), cpu=_CPUS[name])
    machine = Machine(GfxCore(1, target=target(name)))
    kernel = machine.load(compiled.image)
    values = np.random.default_rng(1).random((LIVE, ROW), np.float32)
    to, out = machine.place(np.zeros_like(values))
    source, _ = machine.place(values)
    dispatch = machine.dispatch(
        kernel, struct.pack("<QQI", to, source, turns), (groups, 1, 1), (ROW, 1, 1)
    )
    _run(machine, dispatch)
    if not np.allclose(out, live_values(values, turns), rtol=1e-4):
        raise AssertionError("the kernel that spills computes something else")
    best = _best(machine, dispatch, seconds)
    machine.core.close()
    waves = groups * ROW // 32
    return waves * turns * loop_length(compiled) / best


def _run(machine: Machine, dispatch: Dispatch) -> None:
    outcome = machine.core.run(dispatch, machine.memory, machine.abort)
    if outcome.ending is not Ending.DONE or machine.memory.faults:
        raise AssertionError(f"{outcome}, faults {machine.memory.faults[:3]}")


def measure() -> list[dict[str, object]]:
    """Measure the loop on one thread."""
    results: list[dict[str, object]] = []

    def add(title: str, name: str, rate: float) -> None:
        where = "" if name == "gfx11" else f" of {name}"
        results.append({
            "name": f"shader {title}{where}, 1 thread", "value": round(rate / 1e6, 1),
            "unit": "M wave-instr/s",
        })  # fmt: skip

    names = {
        "contiguous": "contiguous lanes",
        "permuted": "scattered lanes",
        "pages": "scattered lanes, each in its own page",
    }
    for kind, title in names.items():
        for name in _LOOPS:
            add(f"memory loop, {title}", name, measure_loop(kind, workers=1, name=name))
    for name in _LOOPS:
        add(f"kernel that spills, {LIVE} live registers", name, measure_spills(name))
    return results
