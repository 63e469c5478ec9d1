"""How late a user of ugpud is served while strangers, permitted attackers and other users do their
worst: one request is a new connection, "hello" and the list of devices. The attackers share the
processors with ugpud, so what each stranger costs ugpud itself is measured apart."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.service.daemon import ROOT, DaemonProcess
from tests.support.service.raw_client import Raw, frame

SECONDS = 5.0  # of each attack
STRANGERS = 1500  # whose cost is measured
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Attack:
    """A process whose threads repeat what an attacker does until `stop`."""

    def __init__(self, do: Callable[[], None], threads: int) -> None:
        self._do = do
        self._process = multiprocessing.get_context("fork").Process(
            target=self._run, args=(threads,), daemon=True
        )
        self._process.start()

    def _run(self, count: int) -> None:
        threads = [threading.Thread(target=self._repeat) for _ in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _repeat(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):
                self._do()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _crowd(port: int, data: bytes) -> Callable[[], None]:
    """300 connections at a time that send a part of a request, and nothing more."""

    def do() -> None:
        with contextlib.ExitStack() as undo:
            for _ in range(300):
                made = undo.enter_context(socket.create_connection(("127.0.0.1", port), 5))
                made.sendall(data)
            time.sleep(0.5)

    return do


def _deaf(path: str, token: str) -> Callable[[], None]:
    """A client that asks and reads nothing, and requests devices that others hold."""

    def do() -> None:
        with Raw(path) as made:
            made.hello(token)
            made.socket.settimeout(0.2)
            made.post("lease", {"device": "*", "wait_s": 100.0}, call=9)
            for call in range(10, 2000):
                made.post("release", None, call=call)

    return do


def _large(path: str, token: str) -> Callable[[], None]:
    """A client that announces 64 MiB, and sends a megabyte of nested lists."""

    def do() -> None:
        with Raw(path) as made:
            made.hello(token)
            made.socket.sendall(frame("devices", announced=64 << 20, sequence=1))
            made.until_closed()

    return do


def _guesses(path: str) -> Callable[[], None]:
    """Wrong tokens, one after the other."""

    def do() -> None:
        with Raw(path) as made:
            made.hello("ugpu_" + "A" * 43)

    return do


def _late(path: str, seconds: float) -> tuple[float, int]:
    """Return the longest time until a new client has its reply, and the number of clients."""
    worst, count, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        with Raw(path) as made:
            kind, _ = made.hello()
            assert kind == "reply"
            assert made.call("devices")[0] == "reply"
        worst = max(worst, time.perf_counter() - begin)
        count += 1
    return worst, count


def _processor_s(pid: int) -> float:
    """Return the processor time of a process and its threads: proc(5), stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return TICK_S * (int(fields[11]) + int(fields[12]))


def _cost(attack: Callable[[], None], count: int, pid: int) -> float:
    """Return the processor time of ugpud for each of the strangers that `attack` makes, `count` at
    a time; the first time is not measured."""
    attack()
    before, rounds = _processor_s(pid), -(-STRANGERS // count)
    for _ in range(rounds):
        attack()
    return (_processor_s(pid) - before) / (rounds * count)


def _token(daemon: DaemonProcess, name: str) -> str:
    words = [sys.executable, "-m", "ugpu.tools.service.daemon.main", "--config", str(daemon.config)]
    words += ["token", "create", "--name", name, "--role", "use"]
    made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return made.stdout.strip()


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
        return port


def _rows(folder: Path) -> Iterator[dict[str, object]]:
    import trustme  # extra dev

    issued = trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    issued.write_to_path(str(folder / "both.pem"))
    both, tls, page = f'"{folder}/both.pem"', _free(), _free()
    more = (
        f'[tcp]\nlisten = "127.0.0.1:{tls}"\ncertificate = {both}\nkey = {both}\n'
        f'[page]\nlisten = "127.0.0.1:{page}"'
    )
    with DaemonProcess(["cpu"], more) as daemon, contextlib.ExitStack() as undo:
        path, token = daemon.socket, _token(daemon, "attacker")
        holder = undo.enter_context(Raw(path))
        holder.hello()
        assert holder.call("lease", {"device": "cpu"})[0] == "reply"
        attacks: dict[str, tuple[Callable[[], None], int] | None] = {
            "nobody": None,
            "600 silent TLS connections": (_crowd(tls, b""), 2),
            "600 half TLS handshakes": (_crowd(tls, b"\x16\x03\x01\x02\x00\x01"), 2),
            "600 half HTTP requests": (_crowd(page, HALF), 2),
            "4 clients that read nothing and wait for a device": (_deaf(path, token), 4),
            "4 clients with headers of 64 MiB": (_large(path, token), 4),
            "4 clients with wrong tokens": (_guesses(path), 4),
        }
        for name, attack in attacks.items():
            running = None if attack is None else Attack(*attack)
            worst, count = _late(path, SECONDS)
            if running is not None:
                running.stop()
            what = f"ugpud beside {name}: the latest of {count} new clients"
            yield {"name": what, "value": 1e3 * worst, "unit": "ms"}
        kinds = {
            "a silent TLS connection": (_crowd(tls, b""), 300),
            "half a TLS handshake": (_crowd(tls, b"\x16\x03\x01\x02\x00\x01"), 300),
            "half an HTTP request": (_crowd(page, HALF), 300),
            "a wrong token": (_guesses(path), 1),
        }
        for name, (do, count) in kinds.items():
            cost_s = _cost(do, count, daemon.process.pid)
            what = f"ugpud's processor time for {name}"
            yield {"name": what, "value": 1e3 * cost_s, "unit": "ms"}


def measure() -> list[dict[str, object]]:
    """Return the longest time until a new local client is served, beside each attack."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return list(_rows(Path(folder)))
