"""Registers of waves that have halted, through SQ_IND_INDEX and SQ_IND_DATA."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import compile_ir
from tests.support.waiting import until
from ugpu.am.device.device import AmDevice
from ugpu.am.failure import inspect, report
from ugpu.am.units.gfx import Gfx
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.errors import DeviceHang, IllegalInstruction

TRIPLE = "amdgcn-amd-amdhsa"
# After a load that each lane keeps, lanes below %some stop.
HALTS = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @halts(ptr addrspace(1) %out, i32 %some) #0 {
entry:
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %at = add i32 %lane, 64
  %from = getelementptr i32, ptr addrspace(1) %out, i32 %at
  %known = load volatile i32, ptr addrspace(1) %from
  %stops = icmp ult i32 %lane, %some
  br i1 %stops, label %stop, label %end
stop:
  call void @llvm.amdgcn.s.sleep(i32 84)
  br label %end
end:
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %lane
  store i32 %known, ptr addrspace(1) %p
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.sleep(i32)
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="1,1024" FEATURES }
"""
# Encodings, RDNA3 ISA document, SOPP: s_sleep stands in the kernel; no instruction; s_sethalt 1.
SLEEP, ILLEGAL, SET_HALT = 0xBF830054, 0xF7FFFFFF, 0xBF820001
HALT, FATAL_HALT, EXECZ = 1 << 13, 1 << 23, 1 << 9  # SQ_WAVE_STATUS, gc_11_0_0_sh_mask.h


def status_of(wave: dict[str, Any]) -> int:
    status: int = wave["registers"]["STATUS"]
    return status


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("instruction", [ILLEGAL, SET_HALT], ids=["illegal", "sethalt"])
def test_a_halted_wave_shows_all_registers(
    device: AmDevice, monkeypatch: pytest.MonkeyPatch, instruction: int, lanes: int
) -> None:
    feature = '"target-features"="+wavefrontsize64"' if lanes == 64 else ""
    image = compile_ir(HALTS.replace("FEATURES", feature), TRIPLE, "gfx1100")
    assert image.count(SLEEP.to_bytes(4, "little")) == 1
    image = image.replace(SLEEP.to_bytes(4, "little"), instruction.to_bytes(4, "little"))
    program, out = device.load(image), device.alloc(4096)
    pattern = np.arange(1024, dtype=np.uint32) * 3 + 0x5EED
    out.copy_from(pattern)
    monkeypatch.setattr(report, "_WAVES_LIMIT_S", None)  # also on a busy machine
    with device.queue() as queue:
        queue.launch(program["halts"], grid=(1,), block=(lanes,), args=(out, np.uint32(20)))
    until(lambda: any(status_of(one) & HALT for one in inspect.waves(device.chip)), "its halt")
    with pytest.raises((DeviceHang, IllegalInstruction)) as caught:
        device.synchronize(limit_s=5.0 if instruction == ILLEGAL else 0.2)
    (wave,) = inspect.waves(device.chip)
    inspect.wave_words(device.chip, wave)
    values: Any = wave["registers"]
    assert values["EXEC_LO"] == (1 << 20) - 1 and values["EXEC_HI"] == 0
    status = values["STATUS"]
    assert status & HALT and bool(status & FATAL_HALT) == (instruction == ILLEGAL)
    assert not status & EXECZ
    words: Any = wave["vectors"]
    assert pattern[64 : 64 + lanes].tolist() in words, "also lanes that are switched off"
    assert len(words) == 4 * ((values["GPR_ALLOC"] >> 12 & 0xFF) + 1)
    scalars: Any = wave["scalars"]
    pairs = [low | high << 32 for low, high in itertools.pairwise(scalars)]
    assert scalars[126] == (1 << 20) - 1 and int(out.address) in pairs
    entry = program["halts"].address
    pc: Any = wave["pc"]
    assert entry < pc < entry + 256 and caught.value.facts["pc"] == pc
    assert str(caught.value.facts["instruction"]).startswith(f"{instruction:#010x}")
    gfx = Gfx(device.chip, Nbio(device.chip))
    with gfx.aim(0, 0, 0, 0):
        assert gfx.wave_register(0, "PC_LO") == pc & 0xFFFF_FFFF
    device.reset()
    assert not list(inspect.waves(device.chip))
