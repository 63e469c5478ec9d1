"""A wave's initial registers, for the loop over groups and waves of `virtual.shader.threads.waves`.

Source: LLVM AMDGPUUsage, "Initial kernel execution state", gfx11 and
gfx12.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import field
from ugpu.virtual.shader.threads.waves import Waves, launcher_ir

NAME = PREFIX + "launch"


def _set_scalar_from(slot: int, name: str, value: str) -> str:
    return (
        field(f"slot.{name}", slot, "i32")
        + f"  %at.{name} = getelementptr i32, ptr %state, i32 %slot.{name}\n"
        + f"  store i32 {value}, ptr %at.{name}\n"
    )


_ENTRY = f"""
{field("template", layout.SGPR_TEMPLATE, "ptr")}{field("vgprs", layout.VGPR_TEMPLATE, "ptr")}
{field("execs", layout.EXEC_TEMPLATE, "ptr")}{field("wave.shift", layout.WAVE_SHIFT, "i64")}
  ; A wave of several passes has as many files of vector registers.
  %v.shift = sub i64 %wave.shift, 5
  %v.passes = shl i64 1, %v.shift
  %v.files = sub i64 %stride, {layout.STATE_VGPR}
  %v.file = lshr i64 %v.files, %v.shift
"""
_BEGIN = f"""
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr %template, i64 512, i1 false)
{_set_scalar_from(layout.SLOT_X, "x", "%x")}{_set_scalar_from(layout.SLOT_Y, "y", "%y")}
{_set_scalar_from(layout.SLOT_Z, "z", "%z")}
  %number.at = shl i32 %w, {layout.WAVE_BIT}
  %number = or i32 %number.at, {layout.WAVE_YZ}
{_set_scalar_from(layout.SLOT_WAVE, "wave", "%number")}
  %first = icmp eq i32 %w, 0
  %first.bit = select i1 %first, i32 -2147483648, i32 0
  %info = or i32 %first.bit, %waves
{_set_scalar_from(layout.SLOT_INFO, "info", "%info")}
  %exec.p = getelementptr i64, ptr %execs, i32 %w
  %exec = load i64, ptr %exec.p
  %exec.to = getelementptr i8, ptr %state, i64 {4 * layout.SGPR_EXEC}
  store i64 %exec, ptr %exec.to
  %scc = getelementptr i8, ptr %state, i64 {layout.STATE_SCC}
  store i32 0, ptr %scc
  %v.to.first = getelementptr i8, ptr %state, i64 {layout.STATE_VGPR}
  %v.number.first = shl i64 %w64, %v.shift
  br label %v.init
v.init:
  %v.number = phi i64 [ %v.number.first, %init ], [ %v.number.next, %v.init ]
  %v.to = phi ptr [ %v.to.first, %init ], [ %v.to.next, %v.init ]
  %v.left = phi i64 [ %v.passes, %init ], [ %v.left.next, %v.init ]
  %v.from = getelementptr [{layout.REGISTER} x i8], ptr %vgprs, i64 %v.number
  call void @llvm.memcpy.p0.p0.i64(ptr %v.to, ptr %v.from, i64 {layout.REGISTER}, i1 false)
  %v.to.next = getelementptr i8, ptr %v.to, i64 %v.file
  %v.number.next = add i64 %v.number, 1
  %v.left.next = sub i64 %v.left, 1
  %v.more = icmp ne i64 %v.left.next, 0
  br i1 %v.more, label %v.init, label %init.end
"""
_BEFORE = f"""
{field("scratch", layout.SCRATCH, "i64")}{field("scratch.wave", layout.SCRATCH_WAVE, "i64")}
  %s.offset = mul i64 %k64, %scratch.wave
  %s.base = add i64 %scratch, %s.offset
  %s.to = getelementptr i8, ptr %context, i64 {layout.WAVE_SCRATCH}
  store i64 %s.base, ptr %s.to
"""


def wave_launcher_ir(x86_mode: bool) -> tuple[str, set[str]]:
    """Return the IR of `launch(context, kernel)` and the declarations it needs."""
    needs = frozenset({"declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"})
    return launcher_ir(Waves(
        name=NAME, resume=layout.STATE_RESUME, done=layout.STATE_DONE, entry=_ENTRY, begin=_BEGIN,
        before=_BEFORE, needs=needs, x86_mode=x86_mode,
    ))  # fmt: skip
