"""Compiling in child processes: LLVM may end its process, never ours."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pci import descriptors
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.located import Emitted
from ugpu.compiler.codegen.process import children, worker
from ugpu.compiler.codegen.process.children import Child, Children, shared
from ugpu.compiler.codegen.process.complaints import brief, locate
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import CompileError
from ugpu.hcq.objects import child as process
from ugpu.hcq.state.target import ptx_target

TARGET = ptx_target("sm_75")
GOOD = "define ptx_kernel void @good() {\n ret void\n}\n"
# an instruction that sm_75 has not: the back end ends the process
ABORTS = """
define ptx_kernel void @aborts(ptr addrspace(1) %p) {
 %r = call <4 x i32> @llvm.nvvm.tcgen05.ld.16x64b.x4(ptr addrspace(6) null, i1 false)
 store <4 x i32> %r, ptr addrspace(1) %p
 ret void
}
declare <4 x i32> @llvm.nvvm.tcgen05.ld.16x64b.x4(ptr addrspace(6), i1)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(limit_s=60)
    yield made
    made.close()


def test_a_child_compiles_again_and_again(child: Child) -> None:
    first = child.compile(GOOD, TARGET)
    assert b".entry good" in first.image and first.seconds > 0
    running = child.worker.process
    assert child.compile(GOOD, TARGET).image == first.image
    assert child.worker.process is running


def test_an_abort_of_llvm_is_an_error_and_the_next_kernel_compiles(child: Child) -> None:
    child.compile(GOOD, TARGET)
    running = child.worker.process
    assert running is not None
    with pytest.raises(CompileError, match=r"SIGABRT.*LLVM ERROR: tcgen05"):
        child.compile(ABORTS, TARGET)
    assert running.returncode == -signal.SIGABRT
    assert b".entry good" in child.compile(GOOD, TARGET).image


@pytest.mark.parametrize(
    ("text", "says"),
    [("nonsense", "top-level entity"), ("define void @f() {\n call void @g()\n}", "expected")],
)
def test_code_that_llvm_refuses(child: Child, text: str, says: str) -> None:
    with pytest.raises(CompileError, match=says):
        child.compile(text, TARGET)
    assert child.worker.process is not None and child.worker.process.poll() is None


def test_a_child_that_does_not_answer_is_killed(child: Child) -> None:
    child.compile(GOOD, TARGET)
    running = child.worker.process
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)
    child.limit_s = 0.05
    with pytest.raises(CompileError, match="exceeded its time limit"):
        child.compile(GOOD, TARGET)
    assert running.returncode == -signal.SIGKILL
    child.limit_s = 60
    assert child.compile(GOOD, TARGET).image


def test_the_limit_is_of_processor_time(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy host: the process gets no processor for longer than its limit, and goes on."""
    child.compile(GOOD, TARGET)
    running = child.worker.process
    assert running is not None
    looks = iter(range(1 << 30))

    def unused(pid: int) -> float:
        if next(looks) == 2 * process.SLICES:
            os.kill(pid, signal.SIGCONT)
        return 0.0

    monkeypatch.setattr(process, "IDLE", 1e6)
    monkeypatch.setattr(process, "_processor_time", unused)
    os.kill(running.pid, signal.SIGSTOP)
    child.limit_s = 0.05
    assert child.compile(GOOD, TARGET).image and child.worker.process is running
    assert next(looks) > 2 * process.SLICES


def test_a_child_that_left_for_want_of_work_is_replaced(child: Child) -> None:
    child.compile(GOOD, TARGET)
    running, channel = child.worker.process, child.worker.channel
    assert running is not None and channel is not None
    channel.shutdown(socket.SHUT_WR)  # as seen from there, there is nothing to come
    assert running.wait(60) == 0
    assert child.compile(GOOD, TARGET).image
    assert child.worker.process is not running


def test_a_worker_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker.serve(theirs)  # returns


def test_a_worker_survives_a_request_that_is_cut_short() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(process.LENGTH.pack(1000) + b"too little")
        ours.shutdown(socket.SHUT_WR)
        worker.serve(theirs)


def test_failures_name_the_kernel_and_keep_its_ir(tmp_path: Path) -> None:
    pool = Children(2)
    try:
        asked = [pool.submit(ABORTS, TARGET, f"kernel_{n}", tmp_path / "failed") for n in range(2)]
        fine = pool.submit(GOOD, TARGET, "good", tmp_path / "failed")
        for number, future in enumerate(asked):
            with pytest.raises(CompileError, match=f"kernel=kernel_{number}") as caught:
                future.result()
            assert caught.value.ir == ABORTS
            assert (tmp_path / "failed" / f"kernel_{number}.ll").read_text() == ABORTS
        assert b".entry good" in fine.result().image
        assert not (tmp_path / "failed" / "good.ll").exists()
    finally:
        pool.close()


def test_the_folder_of_failures_is_bounded(tmp_path: Path) -> None:
    for number in range(children.KEPT + 5):
        path = children._kept("text", f"k{number}", tmp_path)
        assert path is not None
        os.utime(path, (number, number))
    assert len(list(tmp_path.iterdir())) <= children.KEPT + 1
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert children._kept("text", "k", blocked / "folder") is None


def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = descriptors.settled()
    pool = Children(1)
    pool.submit(GOOD, TARGET, "good").result()
    (child,) = pool.all
    running = child.worker.process
    assert running is not None
    pool.close()
    assert running.poll() is not None
    assert descriptors.leaked(before) == 0


def test_a_forked_process_gets_children_of_its_own() -> None:
    shared().submit(GOOD, TARGET, "good").result()
    ours = shared()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = shared() is not ours and b"good" in shared().submit(GOOD, TARGET, "g").result().image
        shared().close()
        os.write(write, b"1" if own else b"0")
        os._exit(0)
    os.close(write)
    said = os.read(read, 1)
    os.close(read)
    os.waitpid(pid, 0)
    assert said == b"1"
    assert shared() is ours


def test_a_tensor_whose_kernel_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top: the run fails with the kernel's name, nothing is lost, other work goes on."""
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        tensor = Tensor([1.0, 2.0, 3.0], device=device).realize()

        result = tensor * 3
        with monkeypatch.context() as patched:
            patched.setattr(
                "ugpu.compiler.runtime.kernels.programs.emitted", lambda *_: Emitted(ABORTS, 0, ())
            )
            patched.setattr(device.driver, "target", TARGET)
            with pytest.raises(CompileError, match="mul_3_") as caught:
                result.realize()
        assert caught.value.ir == ABORTS
        assert list((tmp_path / "failed-kernels").iterdir())
        assert result.numpy().tolist() == [3.0, 6.0, 9.0]


def test_kernels_of_a_run_are_compiled_side_by_side() -> None:
    pool = Children(2)
    try:
        threads: set[str] = set()
        both = threading.Barrier(2, timeout=60)

        class Waiting(Child):
            def compile(
                self, text: str, target: hcq.TargetSpec, *, first: bool = False
            ) -> children.Compiled:
                threads.add(threading.current_thread().name)
                both.wait()
                return super().compile(text, target, first=first)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(children, "Child", Waiting)
            asked = [pool.submit(GOOD, TARGET, "good") for _ in range(2)]
            assert all(b"good" in future.result().image for future in asked)
        assert len(threads) == 2
    finally:
        pool.close()


# ---- anybody's IR ------------------------------------------------------------------------------

OTHERS_INTRINSIC = """define void @k(ptr %p) {
 %r = call i32 @llvm.amdgcn.workitem.id.x()
 store i32 %r, ptr %p
 ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
"""
NOT_DOMINATED = """define i32 @f(i1 %c) {
entry:
 br i1 %c, label %a, label %b
a:
 %x = add i32 1, 2
 br label %b
b:
 ret i32 %x
}
"""
ASSEMBLY = """define void @f() {
 call void asm sideeffect "nop", "{r99}"(i32 1)
 ret void
}
"""


@pytest.mark.parametrize(
    ("text", "line", "code", "says"),
    [
        (OTHERS_INTRINSIC, 2, "%r = call i32 @llvm.amdgcn.workitem.id.x()", "Cannot select"),
        ("define void @f() {\n ret i32 %x\n}\n", 2, "ret i32 %x", "result type 'void'"),
        ("define i32 @f() {\n %x = add i32 1, 2.0\n}", 2, "%x = add i32 1, 2.0", "constant"),
        (NOT_DOMINATED, 5, "%x = add i32 1, 2", "does not dominate"),
        (ASSEMBLY, 2, 'call void asm sideeffect "nop", "{r99}"(i32 1)', "allocate input reg"),
        ("words", 1, "words", "top-level entity"),
    ],
)
def test_ir_that_llvm_cannot_take_is_an_error_with_its_line(
    text: str, line: int, code: str, says: str, cpu: Device
) -> None:
    with pytest.raises(CompileError, match=says) as caught:
        compile_text(text, cpu.target)
    assert (caught.value.facts["line"], caught.value.facts["code"]) == (line, code)
    assert caught.value.ir == text and "\n" not in str(caught.value)
    assert b"fine" in compile_text(GOOD_HERE, cpu.target), "the process goes on"


GOOD_HERE = "define void @fine(ptr %p) {\n store i32 1, ptr %p\n ret void\n}\n"


def test_words_that_point_nowhere_name_no_line() -> None:
    assert locate("define void @f() {\n ret void\n}", "LLVM ERROR: out of memory") == {}
    assert locate("", "<string>:9:1: error: gone") == {}
    assert brief("") == "it printed no message"


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_words_are_borne(text: str, said: str) -> None:
    found = locate(text, said)
    assert not found or 1 <= int(str(found["line"])) <= len(text.splitlines())
    brief(said)
