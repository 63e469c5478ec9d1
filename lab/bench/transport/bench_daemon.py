"""What ugpud costs: round trips, also over a connection that breaks, replays beside the same device
in this process, and copies over TLS beside a TLS socket alone."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.kernels import contract_object
from tests.support.service.daemon import ROOT, DaemonProcess
from ugpu import hcq
from ugpu.hcq.device.device import Device

DEVICE = "virtual:navi31"
SIZE = 64 << 20
TURNS, REPLAYS, RESUMED = 5, 400, 40
# Sends SIZE bytes for each "o" and takes as many for each "i", one MiB at a time.
RAW = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
size, piece = int(sys.argv[2]), bytearray(1 << 20)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    plain = server.accept()[0]
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(plain, server_side=True) as made:
        while (order := made.recv(1)):
            left = size
            while left > 0:
                if order == b"o":
                    made.sendall(piece)
                    left -= len(piece)
                else:
                    left -= made.recv_into(piece)
            if order == b"i":
                made.sendall(b"k")
"""


def _best(run: Callable[[], object], turns: int) -> float:
    """Seconds of the best turn."""
    taken = []
    for _ in range(turns):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _replays(device: Device, kernels: int) -> float:
    """Seconds of a replay of so many small kernels, with its end waited for."""
    program = device.load(contract_object(device.target))
    with device.alloc(256) as source, device.alloc(256) as result:
        with device.capture() as graph, device.queue() as queue:
            arguments = (result, source, np.uint32(64), np.uint32(3))
            for _ in range(kernels):
                queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)

        def run() -> None:
            graph.replay()
            graph.wait()

        found = _best(run, REPLAYS)
        graph.close()
        return found


@contextmanager
def _raw(folder: Path) -> Iterator[ssl.SSLSocket]:
    """A TLS connection to another process that does nothing else."""
    words = [sys.executable, "-c", RAW, str(folder / "both.pem"), str(SIZE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as made:
            yield made


def _raw_out(made: ssl.SSLSocket) -> None:
    made.sendall(b"o")
    left, piece = SIZE, bytearray(1 << 20)
    while left > 0:
        left -= made.recv_into(piece)


def _raw_in(made: ssl.SSLSocket) -> None:
    made.sendall(b"i")
    for _ in range(SIZE >> 20):
        made.sendall(bytes(1 << 20))
    made.recv(1)


def _copies(folder: Path) -> list[dict[str, object]]:
    import trustme  # extra dev

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    certificate.write_to_path(str(folder / "both.pem"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = f'"{folder}/both.pem"'
    tcp = f'[tcp]\nlisten = "127.0.0.1:{port}"\ncertificate = {both}\nkey = {both}'
    with DaemonProcess(["cpu"], tcp) as daemon, _raw(folder) as raw:
        words = [
            sys.executable,
            "-m",
            "ugpu.tools.service.daemon.main",
            "--config",
            str(daemon.config),
        ]
        words += ["token", "create", "--name", "bench", "--role", "use"]
        made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        token = next(word for word in made.stdout.split() if word.startswith("ugpu_"))
        where, ca = f"tls://127.0.0.1:{port}", str(folder / "ca.pem")
        with hcq.lease(daemon=where, token=token, authority=ca) as gpu, gpu.alloc(SIZE) as buffer:
            host = np.ones(SIZE, np.uint8)
            pairs: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
                ("in", lambda: buffer.copy_from(host), lambda: _raw_in(raw)),
                ("out", lambda: buffer.copy_to(host), lambda: _raw_out(raw)),
            ]
            return [
                _row(f"ugpud: copy {name}, TLS on loopback", _best(run, TURNS), _best(peer, TURNS))
                for name, run, peer in pairs
            ]


def _resumed(gpu: Any) -> float:
    """Seconds of a round trip whose connection breaks first, and is made again."""
    connection = gpu.driver.connection

    def run() -> None:
        before = connection.resumed
        connection._session.channel.close()
        connection.call("leases")
        assert connection.resumed == before + 1

    return _best(run, RESUMED)


def _row(name: str, seconds: float, peer_s: float) -> dict[str, object]:
    rate, peer = SIZE / seconds / 1e9, SIZE / peer_s / 1e9
    return {
        "name": name, "value": rate, "unit": "GB/s", "peer": "the TLS socket alone",
        "peer_value": peer, "ratio": rate / peer,
    }  # fmt: skip


def measure() -> list[dict[str, object]]:
    """Return a round trip, replays of 1 and 20 kernels, copies."""
    rows: list[dict[str, object]] = []
    with hcq.open(DEVICE) as own:
        alone = {kernels: _replays(own, kernels) for kernels in (1, 20)}
    with DaemonProcess([DEVICE]) as daemon, hcq.lease(daemon=daemon.socket) as gpu:
        trip = _best(lambda: gpu.driver.connection.call("leases"), REPLAYS)
        rows.append({"name": "ugpud: round trip, UNIX socket", "value": 1e3 * trip, "unit": "ms"})
        again = 1e3 * _resumed(gpu)
        name = "ugpud: round trip over a connection that breaks, UNIX socket"
        rows.append({"name": name, "value": again, "unit": "ms"})
        for kernels, here in alone.items():
            there = _replays(gpu, kernels)
            rows.append(
                {
                    "name": f"ugpud: replay of {kernels} small kernels, {DEVICE}",
                    "value": 1e3 * there, "unit": "ms", "peer": "in process",
                    "peer_value": 1e3 * here, "ratio": (there - trip) / here,
                }
            )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ugpu-") as folder:
        rows += _copies(Path(folder))
    return rows
