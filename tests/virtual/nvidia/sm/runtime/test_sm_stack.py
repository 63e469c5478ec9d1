"""Kernels of so much code that their frame passes what threads usually have as stack."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.objects import jit, stack
from ugpu.virtual.shader.threads.crew import Crew

VALUES = 1000  # live at once, 128 bytes each


def wide(values: int) -> str:
    """A kernel in which each thread loads so many words, from its own place on, and then adds them
    up in another block, last first. No sum is the number with which it would do so again."""
    loads = "".join(f"ld.global.u32 %v{n}, [%rd2+{4 * n}];\n" for n in range(values))
    adds = "".join(f"add.u32 %r1, %r1, %v{n};\n" for n in reversed(range(values)))
    return body(
        2,
        f".reg .u32 %v<{values}>;\n mul.wide.u32 %rd3, %t, 4; add.s64 %rd2, %rd0, %rd3;\n{loads}"
        f"$sum: mov.u32 %r1, 0;\n{adds} setp.eq.u32 %p1, %r1, 0xFFFFFFFF; @%p1 bra $sum;\n"
        "add.s64 %rd2, %rd1, %rd3; st.global.u32 [%rd2], %r1;",
    )


def test_a_frame_beyond_a_usual_stack_is_run_on_a_deep_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "USUAL", 16 << 10)
    bench = Bench()
    seen = []
    work = bench.units._work

    def watched(*arguments: Any) -> Any:
        seen.append(threading.current_thread())
        return work(*arguments)

    monkeypatch.setattr(bench.units, "_work", watched)
    values = (np.arange(VALUES + 31) * 7919 % 1009).astype(np.uint32)
    source, _ = bench.array(values)
    target, out = bench.array(np.zeros(32, np.uint32))
    bench.good(wide(VALUES), source, target)
    assert out.tolist() == [values[n : n + VALUES].sum() for n in range(32)]
    assert len(seen) == 1 and seen[0] is not threading.current_thread()


@pytest.mark.skipif(not jit.on_x86(), reason="frames are read from x86-64 code")
def test_a_deep_thread_has_room_for_the_deepest_frame() -> None:
    """Each page of the frame is written, from the end that is reached first on."""
    count = stack.DEEPEST // 4096
    image = jit.compile_object(
        f"""
        define i32 @f() {{
        entry:
          %room = alloca [{stack.DEEPEST - 4096} x i8]
          br label %next
        next:
          %n = phi i64 [ {count - 1}, %entry ], [ %less, %next ]
          %less = sub i64 %n, 1
          %at = mul i64 %less, 4096
          %page = getelementptr i8, ptr %room, i64 %at
          store volatile i8 1, ptr %page
          %more = icmp ugt i64 %less, 0
          br i1 %more, label %next, label %end
        end:
          ret i32 42
        }}
        """,
        jit.LIMITED, 0,
    )  # fmt: skip
    assert stack.USUAL < stack.frame_of(image, "f") <= stack.DEEPEST
    code = jit.Loaded(image)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(code.address("f"))
    crew = Crew([None, None], "deep")
    assert crew.run(2, lambda _, number: function() + number, here=False) == [42, 43]
    crew.close()


def test_a_frame_beyond_every_stack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "DEEPEST", 16 << 10)
    bench = Bench()
    source, _ = bench.array(np.zeros(VALUES + 31, np.uint32))
    target, out = bench.array(np.ones(32, np.uint32))
    with pytest.raises(NotSupported, match="too much code"):
        bench.launch(wide(VALUES), source, target)
    assert (out == 1).all()


@pytest.mark.skipif(not jit.on_x86(), reason="frames are read from x86-64 code")
@pytest.mark.parametrize("size", [8, 4096, 1 << 20])
def test_frames_are_read_from_code(size: int) -> None:
    image = jit.compile_object(
        f"""
        declare void @seen(ptr)
        define void @f() {{
          %room = alloca [{size} x i8], align 64
          call void @seen(ptr %room)
          call void @seen(ptr %room)
          ret void
        }}
        """,
        jit.LIMITED, 0,
    )  # fmt: skip
    frame = stack.frame_of(image, "f")
    assert frame < 256 if size == 8 else size <= frame < size + 256
    with pytest.raises(KeyError):
        stack.frame_of(image, "g")
