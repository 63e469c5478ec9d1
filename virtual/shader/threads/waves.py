"""The native loop over groups and waves: the waves of a group run one after another, each to its
next barrier or its end.

For cores whose waves have masks: a wave waits as a whole, and a group continues when all its waves
wait. (This does not work if the lanes of a wave progress independently; see
`virtual.nvidia.sm.runtime.launch.launcher`.) The worker context has the fields below, and each wave
has a state of STATE_STRIDE bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.shader import context
from ugpu.virtual.shader.text import field

# LLVM IR that takes the next group of a launch: number %g of %total, by a %counter that the crew's
# threads share, at (%x, %y, %z) of a grid of %nx64 by %ny64 and so on. Begins at the label `take`,
# and branches to `finished` if none is left.
_TAKE_GROUP = """\
take:
  %g = atomicrmw add ptr %counter, i64 1 monotonic
  %any = icmp ult i64 %g, %total
  br i1 %any, label %begin, label %finished
begin:
  %gx = urem i64 %g, %nx64
  %gyz = udiv i64 %g, %nx64
  %gy = urem i64 %gyz, %ny64
  %gz = udiv i64 %gyz, %ny64
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
"""

# Return values of a kernel's native function; other numbers end the launch.
FINISHED = 0
AT_BARRIER = 1
ABORTED = 3
JUMPED = 5  # call it again: it continues elsewhere


@dataclass(frozen=True)
class Waves:
    """The parts that differ between cores.

    name: of the launch function. resume, done: offsets in a wave's state of the place where it
    continues (u32, 0 at its beginning), and of whether it has ended (u32). entry: lines before the
    first group. begin: lines that give a wave %w (%w64) of %waves its first registers in %state,
    for the group at %x, %y, %z; they end with a branch to %init.end. before: lines before a wave
    %k64 runs. needs: declarations of these lines. x86_mode: the host is an x86, whose
    floating-point control is set to MXCSR meanwhile; elsewhere denormals are kept.
    """

    name: str
    resume: int
    done: int
    entry: str
    begin: str
    before: str
    needs: frozenset[str]
    x86_mode: bool


def _entry_point(waves: Waves) -> str:
    if not waves.x86_mode:
        return f"""
define i32 @{waves.name}(ptr %context, ptr %kernel) {{
  %code = call i32 @launch_groups(ptr %context, ptr %kernel)
  ret i32 %code
}}
"""
    return f"""
define i32 @{waves.name}(ptr %context, ptr %kernel) {{
entry:
  %saved = getelementptr i8, ptr %context, i64 {context.SAVED_MXCSR}
  %wanted = getelementptr i8, ptr %context, i64 {context.MXCSR}
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  call void @llvm.x86.sse.ldmxcsr(ptr %wanted)
  %code = call i32 @launch_groups(ptr %context, ptr %kernel)
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret i32 %code
}}
"""


def launcher_ir(waves: Waves) -> tuple[str, set[str]]:
    """Return the IR of `launch(context, kernel)` and the declarations it needs: run groups until
    none is left or a wave cannot continue. Returns FINISHED, ABORTED or the kernel's return value.

    With RESUME_GROUP set a second call continues with that group's waves where they were.
    """
    text = f"""
{_entry_point(waves)}
define internal i32 @launch_groups(ptr %context, ptr %kernel) noinline {{
entry:
  ; Kernels spill to the stack: where it begins within a page makes them up to a fifth slower.
  %page = alloca i8, align 4096
  store volatile i8 0, ptr %page
{field("abort", context.ABORT, "ptr")}{field("stop", context.STOP, "ptr")}
{field("counter", context.COUNTER, "ptr")}
{field("total", context.TOTAL, "i64")}{field("waves", context.WAVES, "i32")}
{field("nx", context.GROUPS_X, "i32")}{field("ny", context.GROUPS_Y, "i32")}
{field("states", context.STATES, "ptr")}{field("stride", context.STATE_STRIDE, "i64")}
{field("resume.group", context.RESUME_GROUP, "i64")}
{waves.entry}
  %nx64 = zext i32 %nx to i64
  %ny64 = zext i32 %ny to i64
  %resuming = icmp ne i64 %resume.group, -1
  br i1 %resuming, label %go.on, label %next.group
go.on:
  store i64 -1, ptr %resume.group.p
{field("resume.wave", context.HALT_WAVE, "i32")}
{field("resume.waiting", context.RESUME_WAITING, "i32")}
  br label %passes
next.group:
  %asked = load atomic i32, ptr %abort monotonic, align 4
  %halted = load atomic i32, ptr %stop monotonic, align 4
  %either = or i32 %asked, %halted
  %stopped = icmp ne i32 %either, 0
  br i1 %stopped, label %aborted, label %take
{_TAKE_GROUP}  br label %init
init:
  %w = phi i32 [ 0, %begin ], [ %w.next, %init.end ]
  %w64 = zext i32 %w to i64
  %offset = mul i64 %w64, %stride
  %state = getelementptr i8, ptr %states, i64 %offset
  %resume.to = getelementptr i8, ptr %state, i64 {waves.resume}
  store i32 0, ptr %resume.to
  %done.to = getelementptr i8, ptr %state, i64 {waves.done}
  store i32 0, ptr %done.to
{waves.begin}
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
  %k.done.p = getelementptr i8, ptr %k.state, i64 {waves.done}
  %k.done = load i32, ptr %k.done.p
  %is.done = icmp ne i32 %k.done, 0
  br i1 %is.done, label %wave.end, label %run
run:
  %h.group = getelementptr i8, ptr %context, i64 {context.HALT_GROUP}
  store i64 %group, ptr %h.group
  %h.wave = getelementptr i8, ptr %context, i64 {context.HALT_WAVE}
  store i32 %k, ptr %h.wave
{waves.before}
  %code = call i32 %kernel(ptr %context, ptr %k.state)
  switch i32 %code, label %halt [
    i32 {FINISHED}, label %ended
    i32 {AT_BARRIER}, label %barrier
    i32 {JUMPED}, label %run
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
  %h.waiting = getelementptr i8, ptr %context, i64 {context.RESUME_WAITING}
  store i32 %waiting, ptr %h.waiting
  ret i32 %code
aborted:
  ret i32 {ABORTED}
finished:
  ret i32 {FINISHED}
}}
"""
    needed = set(waves.needs)
    if waves.x86_mode:
        needed |= {f"declare void @llvm.x86.sse.{name}(ptr)" for name in ("ldmxcsr", "stmxcsr")}
    return text, needed
