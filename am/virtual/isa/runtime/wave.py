"""The native loop over workgroups and waves, and the wave's initial registers.

Source of the initial registers: LLVM AMDGPUUsage, "Initial kernel execution state", gfx11.
"""

from __future__ import annotations

from am.virtual.isa.runtime import layout
from am.virtual.isa.runtime.calls import PREFIX
from hcq.emu.crew import TAKE_GROUP
from hcq.emu.text import field


def _set_scalar_from(slot: int, name: str, value: str) -> str:
    return (
        field(f"slot.{name}", slot, "i32")
        + f"  %at.{name} = getelementptr i32, ptr %state, i32 %slot.{name}\n"
        + f"  store i32 {value}, ptr %at.{name}\n"
    )


def _float_mode_ir(on_x86: bool) -> str:
    """Return the entry point, which sets the host's floating-point mode around the groups.

    Only for x86 do we know how; elsewhere denormals are always kept.
    """
    if not on_x86:
        return f"""
define i32 @{PREFIX}launch(ptr %context, ptr %kernel) {{
  %code = call i32 @launch_groups(ptr %context, ptr %kernel)
  ret i32 %code
}}
"""
    return f"""
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)

define i32 @{PREFIX}launch(ptr %context, ptr %kernel) {{
entry:
  %saved = getelementptr i8, ptr %context, i64 {layout.SAVED_MXCSR}
  %wanted = getelementptr i8, ptr %context, i64 {layout.MXCSR}
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  call void @llvm.x86.sse.ldmxcsr(ptr %wanted)
  %code = call i32 @launch_groups(ptr %context, ptr %kernel)
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret i32 %code
}}
"""


def launcher_ir(on_x86: bool) -> str:
    """Return the IR of `launch(context, kernel)`: run workgroups until none is left or one halts.

    Waves of a group run one after another, each to its next barrier or its end. Returns a code of
    `layout`. After UNKNOWN_CODE, with RESUME_GROUP set, a second call
    goes on with that group's waves where they were.
    """
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{_float_mode_ir(on_x86)}

define internal i32 @launch_groups(ptr %context, ptr %kernel) noinline {{
entry:
  ; Kernels spill to the stack: where it begins within a page makes them up to a fifth slower.
  %page = alloca i8, align 4096
  store volatile i8 0, ptr %page
{field("abort", layout.ABORT, "ptr")}{field("stop", layout.STOP, "ptr")}
{field("counter", layout.COUNTER, "ptr")}
{field("total", layout.TOTAL, "i64")}{field("waves", layout.WAVES, "i32")}
{field("nx", layout.GROUPS_X, "i32")}{field("ny", layout.GROUPS_Y, "i32")}
{field("template", layout.SGPR_TEMPLATE, "ptr")}{field("vgprs", layout.VGPR_TEMPLATE, "ptr")}
{field("execs", layout.EXEC_TEMPLATE, "ptr")}{field("states", layout.STATES, "ptr")}
{field("stride", layout.STATE_STRIDE, "i64")}{field("resume.group", layout.RESUME_GROUP, "i64")}
{field("wave.shift", layout.WAVE_SHIFT, "i64")}
  ; A wave of several passes has as many files of vector registers.
  %v.shift = sub i64 %wave.shift, 5
  %v.passes = shl i64 1, %v.shift
  %v.files = sub i64 %stride, {layout.STATE_VGPR}
  %v.file = lshr i64 %v.files, %v.shift
  %nx64 = zext i32 %nx to i64
  %ny64 = zext i32 %ny to i64
  %resuming = icmp ne i64 %resume.group, -1
  br i1 %resuming, label %go.on, label %next.group
go.on:
  store i64 -1, ptr %resume.group.p
{field("resume.wave", layout.HALT_WAVE, "i32")}
{field("resume.waiting", layout.RESUME_WAITING, "i32")}
  br label %passes
next.group:
  %asked = load atomic i32, ptr %abort monotonic, align 4
  %halted = load atomic i32, ptr %stop monotonic, align 4
  %either = or i32 %asked, %halted
  %stopped = icmp ne i32 %either, 0
  br i1 %stopped, label %aborted, label %take
{TAKE_GROUP}  br label %init
init:
  %w = phi i32 [ 0, %begin ], [ %w.next, %init.end ]
  %w64 = zext i32 %w to i64
  %offset = mul i64 %w64, %stride
  %state = getelementptr i8, ptr %states, i64 %offset
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr %template, i64 512, i1 false)
{_set_scalar_from(layout.SLOT_X, "x", "%x")}{_set_scalar_from(layout.SLOT_Y, "y", "%y")}
{_set_scalar_from(layout.SLOT_Z, "z", "%z")}
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
  %resume.to = getelementptr i8, ptr %state, i64 {layout.STATE_RESUME}
  store i32 0, ptr %resume.to
  %done.to = getelementptr i8, ptr %state, i64 {layout.STATE_DONE}
  store i32 0, ptr %done.to
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
init.end:
  %w.next = add i32 %w, 1
  %w.more = icmp ult i32 %w.next, %waves
  br i1 %w.more, label %init, label %passes
passes:
  %group = phi i64 [ %resume.group, %go.on ], [ %g, %init.end ], [ %group, %pass.end ]
  %k.start = phi i32 [ %resume.wave, %go.on ], [ 0, %init.end ], [ 0, %pass.end ]
  %waiting.start = phi i32 [ %resume.waiting, %go.on ], [ 0, %init.end ], [ 0, %pass.end ]
  br label %wave
wave:
  %k = phi i32 [ %k.start, %passes ], [ %k.next, %wave.end ]
  %waiting = phi i32 [ %waiting.start, %passes ], [ %waiting.next, %wave.end ]
  %k64 = zext i32 %k to i64
  %k.offset = mul i64 %k64, %stride
  %k.state = getelementptr i8, ptr %states, i64 %k.offset
  %k.done.p = getelementptr i8, ptr %k.state, i64 {layout.STATE_DONE}
  %k.done = load i32, ptr %k.done.p
  %is.done = icmp ne i32 %k.done, 0
  br i1 %is.done, label %wave.end, label %run
run:
{field("scratch", layout.SCRATCH, "i64")}{field("scratch.wave", layout.SCRATCH_WAVE, "i64")}
  %s.offset = mul i64 %k64, %scratch.wave
  %s.base = add i64 %scratch, %s.offset
  %s.to = getelementptr i8, ptr %context, i64 {layout.WAVE_SCRATCH}
  store i64 %s.base, ptr %s.to
  %code = call i32 %kernel(ptr %context, ptr %k.state)
  switch i32 %code, label %halt [
    i32 {layout.FINISHED}, label %ended
    i32 {layout.AT_BARRIER}, label %barrier
    i32 {layout.JUMPED}, label %run
  ]
ended:
  store i32 1, ptr %k.done.p
  br label %wave.end
barrier:
  %waiting.one = add i32 %waiting, 1
  br label %wave.end
wave.end:
  %waiting.next = phi i32 [ %waiting, %wave ], [ %waiting, %ended ], [ %waiting.one, %barrier ]
  %k.next = add i32 %k, 1
  %k.more = icmp ult i32 %k.next, %waves
  br i1 %k.more, label %wave, label %pass.end
pass.end:
  %again = icmp ne i32 %waiting.next, 0
  br i1 %again, label %passes, label %next.group
halt:
  %h.group = getelementptr i8, ptr %context, i64 {layout.HALT_GROUP}
  store i64 %group, ptr %h.group
  %h.wave = getelementptr i8, ptr %context, i64 {layout.HALT_WAVE}
  store i32 %k, ptr %h.wave
  %h.waiting = getelementptr i8, ptr %context, i64 {layout.RESUME_WAITING}
  store i32 %waiting, ptr %h.waiting
  ret i32 %code
aborted:
  ret i32 {layout.ABORTED}
finished:
  ret i32 {layout.FINISHED}
}}
"""
