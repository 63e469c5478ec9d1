"""Leases of `cpu`, each in a process of its own: what kernels do to it ends no other."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import compile_ir, contract_object
from tests.support.service.daemon import Running, scaled, settings_text
from tests.support.waiting import until
from ugpu.hcq.errors import DeviceHang, DeviceLost, HostError, OutOfMemory, UgpuError
from ugpu.tools.service.daemon.cards import forks
from ugpu.tools.service.daemon.cards.apart import ApartDriver, Processes
from ugpu.tools.service.daemon.cards.forks import Worker
from ugpu.tools.service.daemon.clients.service import Service
from ugpu.tools.service.daemon.config import DeviceSettings, parse

SECRET = 0x5EC2E75
PEEK = """
target triple = "{triple}"
@peek.ugpu = constant {{ i32, i32, [19 x i8] }} {{ i32 2, i32 16,
  [19 x i8] c"ptr out, i64 place\\00" }}
define void @peek(ptr %kernarg, ptr %launch) {{
  %out = load ptr, ptr %kernarg
  %at = getelementptr i8, ptr %kernarg, i64 8
  %place = load ptr, ptr %at
  %word = load volatile i32, ptr %place
  store i32 %word, ptr %out
  ret void
}}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("a")
    more = 'memory = "1G"\nshares = 3\n'
    made = Running(parse(settings_text(folder, ["cpu"], "[lease]\ndrain_s = 0.2\n") + more))
    yield made
    made.close()


def share(running: Running, **options: Any) -> Any:
    return running.lease("cpu", shared=True, wait_s=60, **{"memory": "64M", **options})


def processes(running: Running) -> list[Worker]:
    """Of the leases that are held."""
    with running.daemon.lock:
        holders = [client.holder for client in running.daemon.clients if client.holder is not None]
    drivers = [each.device.driver for each in holders if isinstance(each, Service)]
    return [driver.process for driver in drivers if isinstance(driver, ApartDriver)]


def idle_ahead(running: Running) -> Any:
    """The process that waits for the next lease; None while there is none."""
    processes = running.daemon.owned[0]._processes
    device = None if processes is None else processes._next
    return device and device.driver.process  # type: ignore[attr-defined]


def peek(gpu: Any, address: int) -> int:
    """What a kernel reads at an address."""
    image = compile_ir(PEEK.format(triple=gpu.target.triple), gpu.target.triple, gpu.target.cpu)
    with gpu.load(image) as program, gpu.alloc(64) as out:
        with gpu.queue() as queue:
            arguments = (out, np.uint64(address))
            queue.launch(program["peek"], grid=(1,), block=(1,), args=arguments)
        gpu.synchronize()
        return int(out.numpy(np.uint32)[0])


def test_each_lease_has_a_process_that_ends_with_it(running: Running) -> None:
    with share(running) as one, share(running) as other:
        held = processes(running)
        assert len({process.pid for process in held}) == 2
        with one.alloc(1 << 20) as buffer:
            values = np.arange(1 << 18, dtype=np.uint32)
            buffer.copy_from(values)
            assert (buffer.numpy(np.uint32) == values).all()
        assert scaled(one) and scaled(other)
    until(lambda: None not in [process.poll() for process in held], "both processes have ended")
    with running.lease("cpu", wait_s=60) as alone:
        assert scaled(alone) and len(processes(running)) == 1


def test_a_kernel_that_reads_anothers_address_ends_at_most_its_own_lease(running: Running) -> None:
    """The page is not mapped in its process, or is its own memory."""
    with share(running) as one:
        with share(running) as other:
            secret = one.alloc(16 << 20)[(16 << 20) - 4096 :]
            secret.fill(SECRET)
            address = int(secret.address)
            assert peek(one, address) == SECRET
            with contextlib.suppress(DeviceLost):
                assert peek(other, address) != SECRET
            with pytest.raises(DeviceLost):
                peek(other, 0)  # ends its process
        assert scaled(one) and (secret.numpy(np.uint32) == SECRET).all()
        with share(running) as third:
            assert scaled(third)
    assert not running.daemon.owned[0].card.unclean


def test_a_kernel_that_hangs_ends_with_its_process(running: Running) -> None:
    with share(running) as one:
        held = {*processes(running)}
        with share(running) as other:
            (process,) = set(processes(running)) - held
            flag = other.alloc(64)
            flag.fill(0)
            queue = other.queue()
            program = other.load(contract_object(other.target))
            queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
            with pytest.raises(DeviceHang):
                queue.timeline.wait(queue.submit(), limit_s=0.2)
            assert scaled(one)
        until(lambda: process.poll() == -signal.SIGKILL, "its process has been ended")
        assert scaled(one)


def test_the_whole_quota_is_the_holders(running: Running) -> None:
    with share(running) as gpu:
        with gpu.alloc(64 << 20) as all_of_it:
            all_of_it.fill(1)
            gpu.synchronize()
            with pytest.raises(OutOfMemory):
                gpu.alloc(1)
        assert scaled(gpu)


def test_a_process_that_cannot_be_started_is_that_leases_error(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with share(running):
        pass  # the first lease starts the process of the next one
    with monkeypatch.context() as planted:
        until(lambda: idle_ahead(running) is not None, "the process of the next lease is there")
        idle_ahead(running).kill()
        planted.setattr(forks, "_server", None)
        planted.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(HostError, match="cannot start the fork server"):
            share(running)
        planted.undo()
        planted.setattr(forks, "_server", None)
        planted.setattr(forks, "_START", "")
        with pytest.raises(UgpuError):
            share(running)
    with share(running) as gpu:
        assert scaled(gpu)


def test_a_process_that_is_killed_loses_its_lease_alone(running: Running) -> None:
    with share(running) as one:
        (process,) = processes(running)
        with share(running) as other:
            process.kill()
            with pytest.raises(DeviceLost):
                scaled(one)
            assert scaled(other)
    with share(running) as gpu:
        assert scaled(gpu)


def test_a_lease_taken_while_a_process_is_opened_ahead_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one ahead is there when the second lease has opened its own: none is opened besides."""
    found = Processes(DeviceSettings("cpu"), "cpu", 1 << 20)
    opened: list[Any] = []
    second, real = threading.Event(), found._open

    def opening() -> Any:
        number = len(opened)
        opened.append(None)
        if number == 1:  # ahead of the second lease
            assert second.wait(60)
        elif number == 2:  # the second lease's own
            second.set()
            until(lambda: found._next is not None, "the one ahead is there")
        opened[number] = real()
        return opened[number]

    monkeypatch.setattr(found, "_open", opening)
    with found.take():
        until(lambda: len(opened) == 2, "the next one is opened")
        with found.take():
            pass
    found.close()
    assert len(opened) == 3 and all(device.closed for device in opened)


def test_a_daemon_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Each ends with its connection."""
    text = (
        "import sys; from ugpu.tools.service.daemon.cards.apart import *;"
        "gpu = open_apart(DeviceSettings('cpu'), 'cpu', 1 << 20);"
        "print(gpu.driver.process.pid, flush=True); sys.stdin.read()"
    )
    outer = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert outer.stdout is not None
    inner = Path("/proc") / outer.stdout.readline().strip()
    assert inner.exists()
    outer.kill()
    outer.communicate()
    until(lambda: not inner.exists() or "Z" in _state(inner), "the process has ended")


def _state(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
