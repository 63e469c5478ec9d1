"""A crowd at one ugpud: idle connections and busy clients on virtual cards, what they wait and what
memory they take."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from pathlib import Path

from tests.support.service.daemon import DaemonProcess, scaled
from ugpu import hcq
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.wire import VERSION, Limits, Message

DEVICE, CARDS = "virtual:navi31", 8
IDLE, BUSY, ROUNDS = 1000, 50, 4


def _resident(process: int) -> float:
    """Megabytes of a process's memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _idle(path: str) -> Channel:
    """A client that has said who it is, and nothing since."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    channel = Channel(made, Limits())
    channel.send(Message("hello", [VERSION, None, 0], 1))
    reply = channel.receive(60)
    assert reply is not None and reply.operation == "reply", reply
    return channel


class _Busy:
    """A client that takes a card, runs a kernel and gives it back, again and again."""

    def __init__(self, path: str) -> None:
        self.waits: list[float] = []
        self.errors: list[str] = []
        self._path = path
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            try:
                with hcq.lease(DEVICE, daemon=self._path, wait_s=600) as gpu:
                    self.waits.append(time.perf_counter() - begin)
                    if not scaled(gpu):
                        self.errors.append("a wrong result")
            except hcq.UgpuError as error:
                self.errors.append(str(error))


def measure() -> list[dict[str, object]]:
    """Return memory beside the models', errors, and the wait for a lease."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with DaemonProcess([DEVICE], count=CARDS) as daemon:
        first = [hcq.lease(DEVICE, daemon=daemon.socket, wait_s=60) for _ in range(CARDS)]
        for gpu in first:
            assert scaled(gpu)  # a model translates a program when it is first launched
        for gpu in first:
            gpu.close()
        before = _resident(daemon.process.pid)
        idle = [_idle(daemon.socket) for _ in range(IDLE)]
        quiet = _resident(daemon.process.pid)
        busy = [_Busy(daemon.socket) for _ in range(BUSY)]
        for each in busy:
            each.thread.start()
        most = quiet
        for each in busy:
            while each.thread.is_alive():
                each.thread.join(0.2)
                most = max(most, _resident(daemon.process.pid))
        for channel in idle:
            channel.close()
            channel.release()
        waits = sorted(wait for each in busy for wait in each.waits)
        errors = [error for each in busy for error in each.errors]
    name = f"ugpud: {IDLE} idle and {BUSY} busy clients on {CARDS} {DEVICE}"
    rows: list[tuple[str, float, str]] = [
        ("errors", len(errors), ""),
        ("leases", len(waits), ""),
        ("memory of the idle", quiet - before, "MB"),
        ("memory of all, at most", most - before, "MB"),
        ("wait for a lease, p50", waits[len(waits) // 2], "s"),
        ("wait for a lease, p99", waits[len(waits) * 99 // 100], "s"),
    ]
    return [{"name": f"{name}: {what}", "value": value, "unit": unit} for what, value, unit in rows]
