"""The native functions shared by all kernels: lane memory, atomics, the launch loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ugpu.hcq.objects import jit
from ugpu.virtual import shader as emu
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.shader import atomics, context
from ugpu.virtual.shader import math as emu_math
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.lanes.functions import LANE_MEMORY
from ugpu.virtual.shader.library import Library, Part
from ugpu.virtual.shader.native import Native, joined
from ugpu.virtual.shader.text import PASS, field
from ugpu.virtual.shader.threads.waves import Waves, launcher_ir

SOURCES = (Path(__file__).parent.parent, emu.PACKAGE)
LAUNCH = PREFIX + "ir3_launch"
_HOSTS = PREFIX + "ir3_hosts"


def _hosts() -> tuple[str, set[str]]:
    """Define ir3_hosts(context, addresses, lanes): the host addresses of aligned words to be
    changed."""
    wide = f"<{PASS} x i64>"
    n = Native(_HOSTS, wide, ("ptr", "context"), (wide, "addresses"), ("i32", "lanes"))
    own, addresses, lanes = n.given
    listed = own.byte(context.ADDRESSES)
    n.store(addresses, listed, 64)
    with n.each_lane(lanes) as lane:
        at = listed.byte(lane.to("i64") << 3)
        address = n.load("i64", at) & ((1 << 64) - 4)
        n.store(n.call("i64", PREFIX + "translate_write", own, address), at)
    n.give(n.load(wide, listed, 64))
    return joined([n])


# The loop over waves stores group, number and lanes of a wave in its state.
_ENTRY = field("execs", layout.EXECS, "ptr")
_BEGIN = f"""
  %to.x = getelementptr i8, ptr %state, i64 {layout.GROUP_X}
  store i32 %x, ptr %to.x
  %to.y = getelementptr i8, ptr %state, i64 {layout.GROUP_Y}
  store i32 %y, ptr %to.y
  %to.z = getelementptr i8, ptr %state, i64 {layout.GROUP_Z}
  store i32 %z, ptr %to.z
  %to.w = getelementptr i8, ptr %state, i64 {layout.NUMBER}
  store i32 %w, ptr %to.w
  %exec.from = getelementptr i128, ptr %execs, i64 %w64
  %exec.lanes = load i128, ptr %exec.from, align 16
  %exec.to = getelementptr i8, ptr %state, i64 {layout.EXEC}
  store i128 %exec.lanes, ptr %exec.to, align 16
  br label %init.end
"""
_BEFORE = f"""
  %running.to = getelementptr i8, ptr %context, i64 {layout.RUNNING}
  store ptr %k.state, ptr %running.to
"""


def _launcher() -> tuple[str, set[str]]:
    return launcher_ir(Waves(
        name=LAUNCH, resume=layout.RESUME, done=layout.DONE, entry=_ENTRY, begin=_BEGIN,
        before=_BEFORE, needs=frozenset(), x86_mode=jit.on_x86(),
    ))  # fmt: skip


_PARTS: tuple[Part, ...] = (
    *LANE_MEMORY, atomics.part(PREFIX, context.IO, (32, 64)), emu_math.part(PREFIX),
    (_hosts, [_HOSTS]), (_launcher, ()),
)  # fmt: skip


@cache
def functions(folder: Path | None) -> Library:
    """Return the functions, of which LAUNCH runs a dispatch; offer them to the linker."""
    return Library(SOURCES, folder, "runtime", _PARTS)
