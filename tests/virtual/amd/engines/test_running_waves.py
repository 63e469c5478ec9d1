"""Waves of kernels that still run, as SQ_IND_INDEX and SQ_IND_DATA show them."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ugpu
from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import check_runs
from tests.support.kernels import compile_ir
from tests.support.waiting import until
from ugpu.am.device.device import AmDevice
from ugpu.am.failure import evidence, inspect, report
from ugpu.am.failure.evidence import gather
from ugpu.am.offline import chip as window
from ugpu.am.units.gfx import Gfx
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.work.program import Program
from ugpu.tools import cli
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.shader import Dispatch

# ixSQ_WAVE_*, gc_11_0_0_offset.h; scalar registers follow 0x200: EXEC_LO, s126, is 0x27E.
STATUS, PC_LO, SCALARS, EXEC_LO = 0x102, 0x108, 0x200, 0x27E


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waves and all their registers are read, also on a busy machine."""
    monkeypatch.setattr(report, "_WAVES_LIMIT_S", None)
    for name in ("_WAVES_LIMIT_S", "_WORDS_LIMIT_S"):
        monkeypatch.setattr(evidence, name, None)


def array_of(chip: Any) -> Any:
    """The chip's shader array."""
    return chip.gfx.mec.array


def start(chip: Chip, device: AmDevice, program: Program, out: Any, **shape: Any) -> None:
    array = array_of(chip)
    launches = array.launches
    with device.queue() as queue:
        queue.launch(program["forever"], args=(out,), **shape)
    until(lambda: array.launches > launches, "the launch")
    entry = program["forever"].address

    def loops() -> bool:
        return any(wave["pc"] != entry for wave in inspect.waves(device.chip))

    until(loops, "a wave that has come round")


def hang(device: AmDevice) -> DeviceHang:
    with pytest.raises(DeviceHang) as caught:
        device.synchronize(limit_s=0.05)
    device.reset()
    return caught.value


def test_a_wave_that_runs_shows_where_it_is_and_its_registers(chip: Chip, device: AmDevice) -> None:
    program, out = device.load(faulty_object()), device.alloc(4096)
    start(chip, device, program, out, grid=(1,), block=(20,))
    entry = program["forever"].address
    (wave,) = inspect.waves(device.chip)
    assert wave["place"] == [0, 0, 0, 0, 0]
    values: Any = wave["registers"]
    assert values["EXEC_LO"] == (1 << 20) - 1
    assert values["STATUS"] >> 16 & 1 and not values["STATUS"] >> 13 & 1  # VALID, not HALT
    pc: Any = wave["pc"]
    # The loop's own branch: a word of s_cbranch (RDNA3 ISA: SOPP, 0xBFA00000 and its opcode)
    driver: Any = device.driver
    base, code = driver.programs.code_at(pc)
    word = int.from_bytes(code[pc - base : pc - base + 4], "little")
    assert entry < pc < entry + 256 and word >> 23 == 0b101111111
    gfx = Gfx(device.chip, Nbio(device.chip))
    pairs = []
    with gfx.aim(0, 0, 0, 0):
        for number in range(16):
            device.chip.gc.SQ_IND_INDEX.write(WAVE_ID=0, INDEX=SCALARS + number)
            pairs.append(int(device.chip.gc.SQ_IND_DATA.read()))
    words = [low | high << 32 for low, high in itertools.pairwise(pairs)]
    assert int(out.address) in words  # the loop polls the buffer through a scalar pair
    with gfx.aim(1, 0, 0, 0):
        assert gfx.wave_register(0, "VALID_AND_IDLE") == 0
    error = hang(device)
    assert (error.facts["kernel"], error.facts["offset"]) == ("forever", pc - entry)
    assert error.facts["exec"] == (1 << 20) - 1
    assert not list(inspect.waves(device.chip))
    check_runs(device, program, out, 3)


def test_reads_of_wave_data_go_on_to_the_next_register_where_asked(
    chip: Chip, device: AmDevice
) -> None:
    """As wave_read_regs does (Linux 6.12 gfx_v11_0.c): one index, then a read per register."""
    program, out = device.load(faulty_object()), device.alloc(4096)
    start(chip, device, program, out, grid=(1,), block=(20,))
    gc, gfx = device.chip.gc, Gfx(device.chip, Nbio(device.chip))
    with gfx.aim(0, 0, 0, 0):
        gc.SQ_IND_INDEX.write(WAVE_ID=0, INDEX=EXEC_LO - 1, AUTO_INCR=1)
        gc.SQ_IND_DATA.read()
        assert int(gc.SQ_IND_DATA.read()) == (1 << 20) - 1
        after = gc.SQ_IND_INDEX.read()
        assert (after.WAVE_ID, after.INDEX, after.AUTO_INCR) == (0, EXEC_LO + 1, 1)
        gc.SQ_IND_INDEX.write(WAVE_ID=0, INDEX=EXEC_LO)
        assert [int(gc.SQ_IND_DATA.read()) for _ in range(2)] == [(1 << 20) - 1] * 2
        assert gc.SQ_IND_INDEX.read().INDEX == EXEC_LO
    hang(device)


def test_groups_lie_on_the_shader_engines_in_turns(chip: Chip, device: AmDevice) -> None:
    program, out = device.load(faulty_object()), device.alloc(4096)
    start(chip, device, program, out, grid=(2,), block=(64,))
    places: Any = [wave["place"] for wave in inspect.waves(device.chip)]
    assert places and all(place[1:4] == [0, 0, 0] for place in places)
    assert {place[0] for place in places} <= {0, 1}
    hang(device)


def test_looking_changes_no_result(chip: Chip, device: AmDevice) -> None:
    left, right = (np.random.default_rng(n).random((192, 192), np.float32) for n in (1, 2))
    one, two = (ugpu.Tensor(values, device=device) for values in (left, right))
    before = (one @ two).numpy()
    ended, seen = threading.Event(), [0]

    def look() -> None:
        array = array_of(chip)
        while not ended.is_set():
            with chip.lock:
                for part in array._parts:
                    part.looked_at = float("-inf")
                found = [wave for _, wave in array.waves()]
            seen[0] += len(found)
            assert all(isinstance(wave.dispatch, Dispatch) for wave in found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        results = []
        while seen[0] < 3:
            results.append((one @ two).numpy())
    finally:
        ended.set()
        thread.join()
    assert all(np.array_equal(before, result) for result in results)


TRIPLE = "amdgcn-amd-amdhsa"
VECTORS = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @forever(ptr addrspace(1) %out) #0 {
entry:
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %at = add i32 %lane, 64
  %from = getelementptr i32, ptr addrspace(1) %out, i32 %at
  %known = load volatile i32, ptr addrspace(1) %from
  br label %loop
loop:
  %seen = load volatile i32, ptr addrspace(1) %out
  %more = icmp eq i32 %seen, 0
  br i1 %more, label %loop, label %end
end:
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %lane
  store i32 %known, ptr addrspace(1) %p
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="1,1024" }
"""


def waited_for(out: Any) -> NDArray[np.uint32]:
    """Fill memory with words to tell apart; of the first, 0, the kernels' loops await a change."""
    pattern = np.arange(1024, dtype=np.uint32) * 3 + 0x5EED
    pattern[0] = 0
    out.copy_from(pattern)
    return pattern


@pytest.mark.parametrize("features", ["", "+wavefrontsize64"], ids=["wave32", "wave64"])
def test_vector_registers_that_a_running_wave_reads_again(
    chip: Chip, device: AmDevice, features: str
) -> None:
    """What the kernel stores behind its loop lies in one of them, lane by lane."""
    lanes = 64 if features else 32
    text = VECTORS.replace(
        "attributes #0 = {", f'attributes #0 = {{ "target-features"="{features}"'
    )
    program, out = device.load(compile_ir(text, TRIPLE, "gfx1100")), device.alloc(4096)
    pattern = waited_for(out)
    start(chip, device, program, out, grid=(1,), block=(lanes,))
    (wave,) = inspect.waves(device.chip)
    gfx = Gfx(device.chip, Nbio(device.chip))
    with gfx.aim(0, 0, 0, 0):
        scalars = gfx.wave_scalars(0)
        vectors = gfx.wave_vectors(0, lanes, 16)
        assert gfx.wave_register(0, "PC_LO") == int(str(wave["pc"])) & 0xFFFF_FFFF
    assert scalars[126] == 0xFFFF_FFFF and len(scalars) == 128
    assert pattern[64 : 64 + lanes].tolist() in vectors
    hang(device)


def test_a_bundle_and_ugpu_waves_show_registers(
    chip: Chip, device: AmDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = device.load(compile_ir(VECTORS, TRIPLE, "gfx1100")), device.alloc(4096)
    pattern = waited_for(out)
    start(chip, device, program, out, grid=(1,), block=(32,))
    (live,) = window.look(device.chip, "waves")
    assert live["scalars"][126] == 0xFFFF_FFFF and pattern[64:96].tolist() in live["vectors"]
    evidence = gather(device.driver, DeviceHang("it does not end"))
    path = bundle.write(tmp_path, "card", DeviceHang("it does not end"), evidence)
    (kept,) = json.loads(evidence.parts["waves.json"])
    assert kept["kernel"] == "forever" and pattern[64:96].tolist() in kept["vectors"]
    assert cli.main(["waves", "--registers", str(path)]) == 0
    said = capsys.readouterr().out
    assert "s126 0xffffffff" in said and f"{pattern[64]:#x}  {pattern[65]:#x}" in said
    assert cli.main(["waves", str(path)]) == 0 and "s126" not in capsys.readouterr().out
    hang(device)


BARRIER = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @forever(ptr addrspace(1) %out) #0 {
entry:
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %at = add i32 %thread, 64
  %from = getelementptr i32, ptr addrspace(1) %out, i32 %at
  %known = load volatile i32, ptr addrspace(1) %from
  %second = icmp uge i32 %thread, 32
  br i1 %second, label %loop, label %met
loop:
  %seen = load volatile i32, ptr addrspace(1) %out
  %more = icmp eq i32 %seen, 0
  br i1 %more, label %loop, label %met
met:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %thread
  store i32 %known, ptr addrspace(1) %p
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="64,64" }
"""


def test_a_wave_that_waits_at_a_barrier_is_shown(chip: Chip, device: AmDevice) -> None:
    program, out = device.load(compile_ir(BARRIER, TRIPLE, "gfx1100")), device.alloc(4096)
    pattern = waited_for(out)
    start(chip, device, program, out, grid=(1,), block=(64,))
    waves: Any = window.look(device.chip, "waves")
    assert [wave["place"][-1] for wave in waves] == [0, 1]
    waits, loops = waves
    assert [wave["registers"]["STATUS"] >> 12 & 1 for wave in waves] == [1, 0]
    entry = program["forever"].address
    assert waits["pc"] > loops["pc"] > entry, "behind the barrier, and at the loop's branch"
    assert pattern[64:96].tolist() in waits["vectors"]
    assert pattern[96:128].tolist() in loops["vectors"]
    hang(device)
