"""Two versions of a kernel: the first runs at once, the second takes its place in what is recorded
and is kept on disk; failures and deaths leave the first."""

from __future__ import annotations

import io
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.codegen.process import behind as queue
from ugpu.compiler.codegen.process.behind import Behind, Order, behind
from ugpu.compiler.codegen.process.children import LIMIT_S, Child, Compiled
from ugpu.compiler.runtime.kernels.progress import CLEAR, Progress
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.hcq.cpu.program import CpuProgram
from ugpu.hcq.device.device import core_of
from ugpu.hcq.errors import BadCodeObject, Closed, CompileError, UgpuError
from ugpu.hcq.state.config import setting

SIDE = 48
ROOT = Path(__file__).parents[4]


@pytest.fixture
def cpu(tmp_path: Path) -> Iterator[hcq.Device]:
    with setting("UGPU_TIERS", "1"), hcq.open("cpu") as device:
        use_cache(device, tmp_path / "kernels")
        yield device
        behind().wait()


def _arrays(device: hcq.Device) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    pair = [rng.standard_normal((SIDE, SIDE), np.float32) for _ in range(2)]
    return Tensor(pair[0], device=device).realize(), Tensor(pair[1], device=device).realize()


def _work(a: Tensor, b: Tensor) -> Tensor:
    return ((a @ b).relu() + a).max(1)


def _compiled(order: Order) -> bytes:
    child = Child()
    try:
        return child.compile(order.text, order.target).image
    finally:
        child.close()


class Held(Behind):
    """A queue whose kernels are compiled when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[Order] = []

    def submit(self, order: Order) -> None:
        self.held.append(order)

    def finish(self, fault: UgpuError | None = None) -> None:
        while self.held:
            order = self.held.pop(0)
            order.done(fault or _compiled(order))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(queue.SHARED, "queue", made)
    return made


def test_the_second_version_takes_the_place_of_the_first_in_a_replay(
    cpu: hcq.Device, held: Held, tmp_path: Path
) -> None:
    a, b = _arrays(cpu)
    replayed = jit(_work)
    with kernel_log() as kernels:
        results = [replayed(a, b).numpy() for _ in range(3)]
    programs = [each for each in core_of(cpu).programs if isinstance(each, CpuProgram)]
    assert held.held and len(held.held) == len({each.name for each in kernels})
    while held.held:  # one after the other
        order = held.held.pop(0)
        order.done(_compiled(order))
        results.append(replayed(a, b).numpy())
    assert all(each.replacements for each in programs)
    assert all(np.array_equal(each, results[0]) for each in results)

    use_cache(cpu, tmp_path / "kernels")  # as another process finds it
    with kernel_log() as again:
        assert np.array_equal(_work(a, b).numpy(), results[0])
    assert all(each.from_disk for each in again) and not held.held


def test_a_first_version_is_found_on_disk_and_its_second_begun_again(
    cpu: hcq.Device, held: Held, tmp_path: Path
) -> None:
    a, b = _arrays(cpu)
    before = _work(a, b).numpy()
    lost = len(held.held)
    held.held.clear()  # the process ended
    use_cache(cpu, tmp_path / "kernels")
    with kernel_log() as kernels:
        assert np.array_equal(_work(a, b).numpy(), before)
    assert all(each.from_disk for each in kernels) and len(held.held) == lost > 0


def test_a_failure_keeps_the_first_version_and_is_reported_once(
    cpu: hcq.Device, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = _arrays(cpu)
    before = _work(a, b).numpy()
    (a + b).exp().sum(0).numpy()
    assert len(held.held) > 1
    with caplog.at_level(logging.WARNING):
        held.finish(CompileError("LLVM ended its process (SIGKILL)"))
    assert len(caplog.records) == 1 and "runs slower" in caplog.text
    assert np.array_equal(_work(a, b).numpy(), before)


def test_a_child_that_dies_keeps_the_first_version(
    cpu: hcq.Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Dying(Child):
        def compile(self, text: str, target: hcq.TargetSpec, *, first: bool = False) -> Compiled:
            self.worker.start()
            assert self.worker.process is not None
            os.kill(self.worker.process.pid, signal.SIGKILL)
            return super().compile(text, target, first=first)

    own = Behind(1)
    monkeypatch.setattr(queue.SHARED, "queue", own)
    monkeypatch.setattr(queue, "Child", Dying)
    a, b = _arrays(cpu)
    before = _work(a, b).numpy()
    own.wait()
    assert "SIGKILL" in caplog.text
    assert np.array_equal(_work(a, b).numpy(), before)
    own.close()


def test_a_queue_that_is_closed_ends_its_child_and_drops_the_rest() -> None:
    own = Behind(1)
    done: list[bytes | UgpuError] = []
    with hcq.open("cpu") as device:
        target = device.target
    endless = "define void @f() {\n" + '  call void asm "nop", ""()\n' * 200_000 + "  ret void\n}\n"
    for _ in range(3):
        own.submit(Order(endless, target, done.append))
    own.close()
    own.submit(Order(endless, target, done.append))
    own.wait()
    assert not done
    assert not any(thread.is_alive() for _, thread in own._threads)
    assert all(child.worker.process is None for child, _ in own._threads)


def test_a_closed_device_takes_no_second_version(
    cpu: hcq.Device, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    with hcq.open("cpu") as other:
        use_cache(other, None)
        a, b = _arrays(other)
        _work(a, b).numpy()
    held.finish()
    assert not caplog.records


def test_other_kernels_are_refused_as_replacements(cpu: hcq.Device, held: Held) -> None:
    a, b = _arrays(cpu)
    before = _work(a, b).numpy()
    first, other = held.held[0], len(held.held)
    (a - b).sqrt().numpy()
    loaded = [each for each in core_of(cpu).programs if isinstance(each, CpuProgram)]
    programs = {name: each for each in loaded for name in each}
    name = next(name for name in programs if f"@{name}(" in first.text)
    foreign = _compiled(held.held[other])
    for image in (foreign, b"not an object"):
        with pytest.raises(BadCodeObject):
            programs[name].replace(image)
    assert not programs[name].replacements
    assert np.array_equal(_work(a, b).numpy(), before)
    programs[name].close()
    with pytest.raises(Closed):
        programs[name].replace(foreign)


def test_the_setting_turns_it_off(cpu: hcq.Device, held: Held) -> None:
    with setting("UGPU_TIERS", "0"):
        a, b = _arrays(cpu)
        _work(a, b).numpy()
    assert not held.held


def test_sums_that_may_be_reordered_have_no_first_version(cpu: hcq.Device, held: Held) -> None:
    a, _ = _arrays(cpu)
    a.sum(1).numpy()
    assert not held.held


class Terminal(io.StringIO):
    """Whatever is awaited ends once a line is shown."""

    awaited: Future[None]

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if not self.awaited.done():
            self.awaited.set_result(None)


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_long_compilation_shows_a_line_on_a_terminal_only(stream: io.StringIO) -> None:
    now = 0.0
    slow: Future[None] = Future()
    if isinstance(stream, Terminal):
        stream.awaited = slow
    with Progress(3, stream, lambda: now) as progress:
        progress.await_one(None)
        now = 2.0
        progress.await_one(slow)
    shown = stream.getvalue()
    if stream.isatty():
        assert "1 of 3" in shown and shown.endswith(CLEAR)
    else:
        assert not shown


def test_the_end_of_a_program_awaits_no_second_version(tmp_path: Path) -> None:
    """Its children end with it, and what they have not compiled is begun again."""
    code = (
        "import numpy as np\n"
        "from ugpu.compiler import Tensor\n"
        "from ugpu.compiler.codegen.process.behind import Order, behind\n"
        "x = Tensor(np.ones((40, 40), np.float32))\n"
        "(x @ x).numpy()\n"
        "endless = 'define void @f(ptr %p) {\\n' + '  store volatile i8 1, ptr %p\\n' * 400000\n"
        "order = Order(endless + '  ret void\\n}\\n', x.device.target, print)\n"
        "for _ in range(9):\n"
        "    behind().submit(order)\n"
        "while not (process := behind()._threads[0][0].worker.process):\n"
        "    pass\n"
        "print(process.pid)\n"
    )
    with setting("UGPU_TIERS", "1"), setting("UGPU_CACHE", str(tmp_path)):
        said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    pid = int(said.split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_nobody_awaits_is_ended_by_the_system() -> None:
    child = Child()
    with hcq.open("cpu") as device:
        child.compile("define void @f() {\n  ret void\n}\n", device.target)
    assert child.worker.process is not None
    soft, _ = resource.prlimit(child.worker.process.pid, resource.RLIMIT_CPU)
    child.close()
    assert 0 < soft <= 3 * LIMIT_S
