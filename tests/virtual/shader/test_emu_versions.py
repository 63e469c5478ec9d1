"""A translated kernel's two versions: equal results and wave states, on disk, and failures."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ugpu.hcq.errors import CompileError, UgpuError
from ugpu.hcq.objects import jit, recompile
from ugpu.hcq.state.config import setting
from ugpu.virtual.shader import library, versions
from ugpu.virtual.shader.entry import OFTEN, Entry

IR = "define i32 @f(i32 %x) {\n  %y = mul i32 %x, 3\n  ret i32 %y\n}\n"


class Held(recompile.Recompile):
    """A queue whose orders are carried out when the test says so, by a real child."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[recompile.Order] = []

    def submit(self, order: recompile.Order) -> None:
        self.held.append(order)

    def finish(self) -> None:
        child = self.child()
        while self.held:
            self.carry_out(child, self.held.pop(0))
        child.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    queue = Held()
    monkeypatch.setattr(recompile.SHARED, "queue", queue)
    with setting("UGPU_TIERS", "1"):
        yield queue


def _versions(folder: Path) -> versions.Versions:
    return versions.Versions((), jit.ObjectCache(folder), "f")


def test_the_second_version_is_made_after_a_few_launches(held: Held, tmp_path: Path) -> None:
    code = _versions(tmp_path).code(lambda: IR, "kernel")
    first = code.address
    for _ in range(versions.OFTEN - 1):
        code.launched(0.0)
    assert not held.held
    code.launched(0.0)
    code.launched(0.0)
    assert len(held.held) == 1
    held.finish()
    assert code.address != first == code.mark

    def unused() -> str:
        raise AssertionError("the second version was not kept on disk")

    again = _versions(tmp_path).code(unused, "kernel")
    for _ in range(versions.OFTEN):
        again.launched(1.0)
    assert not held.held


def test_one_long_launch_is_enough_and_a_lost_second_version_is_begun_again(
    held: Held, tmp_path: Path
) -> None:
    for _ in range(2):
        code = _versions(tmp_path).code(lambda: IR, "kernel")
        code.launched(2 * versions.LONG_S)
        assert len(held.held) == 1
        held.held.clear()  # the process ended


def test_without_tiers_the_second_version_runs_at_once(held: Held, tmp_path: Path) -> None:
    _versions(tmp_path).code(lambda: IR, "kernel")
    with setting("UGPU_TIERS", "0"):
        code = _versions(tmp_path).code(lambda: IR, "kernel")
    code.launched(1.0)
    assert not held.held


@pytest.mark.parametrize("ir", ["nonsense", "define void @f() {\n call void @g()\n}"])
def test_a_failure_keeps_the_first_version(
    held: Held, tmp_path: Path, ir: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = iter([IR, IR, ir, ir])
    made = _versions(tmp_path)
    codes = [made.code(lambda: next(texts), name) for name in ("one", "two")]
    for code in codes:
        code.launched(1.0)
    with caplog.at_level(logging.WARNING):
        held.finish()
    assert len(caplog.records) == 1 and "LLVM rejected the code" in caplog.text
    assert all(code.address == code.mark for code in codes)


def test_a_child_that_dies_is_an_error(tmp_path: Path) -> None:
    child = recompile.Child()
    done: list[bytes | UgpuError] = []
    queue = recompile.Recompile(1)

    def ends() -> str:
        child.process.start()
        child.interrupt()
        return IR

    queue.carry_out(child, recompile.Order(ends, jit.LIMITED, 1, done.append))
    child.close()
    assert isinstance(done[0], CompileError) and "SIGKILL" in str(done[0])


def test_functions_of_a_library_are_compiled_when_code_calls_them(tmp_path: Path) -> None:
    text = (
        "@lib_table = internal constant [2 x i32] [i32 5, i32 7]\n"
        "define internal i32 @lib_own(i32 %x) {\n  %p = getelementptr i32, ptr @lib_table,"
        " i32 %x\n  %y = load i32, ptr %p\n  ret i32 %y\n}\n"
        "define i32 @lib_inner(i32 %x) {\n  %y = call i32 @lib_own(i32 %x)\n  ret i32 %y\n}\n"
        "define i32 @lib_outer(i32 %x) {\n  %y = call i32 @lib_inner(i32 %x)\n  ret i32 %y\n}\n"
        "define i32 @lib_unused(i32 %x) {\n  this is not LLVM IR\n}\n"
    )
    names = ["lib_inner", "lib_outer", "lib_unused"]
    made = library.Library((), tmp_path, "test", [(lambda: (text, set()), names)])
    calls = "declare i32 @lib_outer(i32)\ndefine i32 @f() {\n  %y = call i32 @lib_outer(i32 1)\n"
    code = jit.Loaded(jit.compile_object(calls + "  ret i32 %y\n}\n", jit.LIMITED, 0))
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(code.address("f"))() == 7
    assert made.address("lib_outer") and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(RuntimeError, match="expected instruction"):
        made.address("lib_unused")


CALLED = (
    "define internal i32 @two_own(i32 %x) {\n  %y = mul i32 %x, 5\n  ret i32 %y\n}\n"
    "define i32 @two_inner(i32 %x) {\n  %y = call i32 @two_own(i32 %x)\n  ret i32 %y\n}\n"
    "define i32 @two_outer(i32 %x) {\n  %y = call i32 @two_inner(i32 %x)\n  ret i32 %y\n}\n"
)
CALLS = (
    "declare i32 @two_outer(i32)\n"
    "define i32 @f(i32 %x) {\n  %y = call i32 @two_outer(i32 %x)\n  ret i32 %y\n}\n"
)


def _called(folder: Path) -> library.Library:
    return library.Library(
        (), folder, "two", [(lambda: (CALLED, set()), ["two_inner", "two_outer"])]
    )


def _result(code: versions.Code) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(code.address)(3))


def test_a_second_version_calls_second_versions_of_functions(held: Held, tmp_path: Path) -> None:
    functions = _called(tmp_path)
    made = versions.Versions((), jit.ObjectCache(tmp_path), "f", functions)
    code = made.code(lambda: CALLS, "calls")
    first = [functions.address(name, quick=True) for name in ("two_inner", "two_outer")]
    assert _result(code) == 15 and not functions._code
    code.launched(1.0)
    assert len(held.held) == 3  # the functions first
    stored = len(list(tmp_path.iterdir()))
    held.finish()
    assert code.address != code.mark and _result(code) == 15
    assert sorted(functions._code) == ["two_inner", "two_outer"]
    assert len(list(tmp_path.iterdir())) == stored + 3
    after = [functions.address(name, quick=True) for name in ("two_inner", "two_outer")]
    assert not set(first) & set(after)

    again = _called(tmp_path)  # as another process finds it
    assert again.address("two_outer", quick=True) and not again._first


def test_first_versions_that_are_missing_are_one_module(held: Held, tmp_path: Path) -> None:
    functions = _called(tmp_path)
    functions.addresses(["two_outer"], quick=True)
    assert sorted(functions._first) == ["two_inner", "two_outer"]
    assert len(set(functions._first.values())) == len(list(tmp_path.iterdir())) == 1
    other = _called(tmp_path)
    other.addresses(["two_inner"], quick=True)
    other.addresses(["two_outer"], quick=True)  # calls the one that is loaded
    assert len(set(other._first.values())) == 2


def test_a_function_without_a_second_version_is_compiled_for_the_kernel_that_calls_it(
    held: Held, tmp_path: Path
) -> None:
    functions = _called(tmp_path)
    made = versions.Versions((), jit.ObjectCache(tmp_path), "f", functions)
    code = made.code(lambda: CALLS, "calls")
    code.launched(1.0)
    for order in held.held[:2]:
        order.done(CompileError("LLVM ended its process (SIGKILL)"))
    del held.held[:2]
    held.finish()
    assert code.address != code.mark and _result(code) == 15
    assert sorted(functions._code) == ["two_inner", "two_outer"]


def test_without_tiers_functions_have_one_version(tmp_path: Path) -> None:
    with setting("UGPU_TIERS", "0"):
        functions = _called(tmp_path)
        assert functions.address("two_outer", quick=True) == functions.address("two_outer")
        assert not functions._first


def test_a_launcher_has_a_second_version_after_many_calls(held: Held, tmp_path: Path) -> None:
    ir = "define i32 @nvsm_sum(ptr %a, ptr %b) {\n  %x = ptrtoint ptr %a to i32\n" \
         "  %y = ptrtoint ptr %b to i32\n  %z = add i32 %x, %y\n  ret i32 %z\n}\n"  # fmt: skip
    functions = library.Library((), tmp_path, "sums", ((lambda: (ir, set()), ["nvsm_sum"]),))
    launcher = Entry(functions, "nvsm_sum")
    for number in range(OFTEN - 1):
        assert launcher(number, 5) == number + 5
    assert not held.held
    assert launcher(1, 2) == launcher(3, 0) == 3
    (order,) = held.held
    assert (order.passes, order.optimise) == (jit.FULL, 1)
    held.finish()
    assert functions.improved("nvsm_sum")
    assert launcher(40, 2) == 42
    assert not functions.improved("nvsm_sum")  # it has been loaded
    assert functions.address("nvsm_sum") == functions.address("nvsm_sum", quick=True)
