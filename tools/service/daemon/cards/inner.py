"""The processes of the fork server (tools.service.daemon.cards.forks): the server, and its workers.

A worker for a lease of `cpu` is a ugpud with one device and one client, whose connection is passed
to it. Once the device is open it confines itself
(tools.service.daemon.cards.confinement.sandbox). It ends when the client disconnects. A worker for
a card is tools.service.daemon.cards.host.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

from ugpu import hcq
from ugpu.hcq.errors import HostError, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.wire import STRANGER, Message
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.log import configure
from ugpu.tools.service.daemon.cards import host
from ugpu.tools.service.daemon.cards.confinement.sandbox import confine
from ugpu.tools.service.daemon.cards.forks import MOST
from ugpu.tools.service.daemon.clients.leases import Policy
from ugpu.tools.service.daemon.clients.peers import peer_of
from ugpu.tools.service.daemon.config import DeviceSettings, Settings
from ugpu.tools.service.daemon.daemon import Daemon

_FOREVER_S = 1e9  # the outer daemon's lease has the limit
# TIMEOUT: for work under way when the connection ends. The outer daemon has waited for it before,
# unless it was killed.
DRAIN_S = 1.0
# TIMEOUT: for threads that have been joined and that the kernel has not ended yet, on a busy host
_THREADS_END_S = 10.0


def main() -> None:
    """Fork workers until the socket, whose descriptor is the argument, is closed."""
    configure("warning")
    for number in (signal.SIGINT, signal.SIGTERM):  # ugpud gets them too, and ends its workers
        signal.signal(number, signal.SIG_IGN)
    _warm_up()
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()


def _warm_up() -> None:
    """Open and close the device that workers have, so that each finds its code loaded. HostError if
    a thread is left: it would not exist in a worker, nor would what it does or the locks it has."""
    with hcq.open("cpu", threads=1) as device:
        device.synchronize()
    clock = Clock()
    limit = clock.now() + _THREADS_END_S
    while (threads := len(os.listdir("/proc/self/task"))) != 1 and clock.now() < limit:
        clock.sleep(0.005)
    if threads != 1:
        raise HostError(f"the fork server must have one thread, it has {threads}")


class ForkServer:
    """The server's side. It has no threads: they would not exist in its children."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the other side closes the socket."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.fd, *key.data)
                elif not self._take():
                    return

    def _take(self) -> bool:
        text, descriptors, _, _ = socket.recv_fds(self._requests, MOST, 2)
        if not text:
            return False
        connection, reports = (socket.socket(fileno=number) for number in descriptors)
        folder = tempfile.mkdtemp(prefix="ugpud-")
        pid = os.fork()
        if not pid:
            status = 1
            try:
                self._requests.close()
                self._selector.close()
                reports.close()
                facts = json.loads(text)
                if isinstance(facts, dict):
                    host.serve(connection, facts)
                else:
                    serve(connection, facts, Path(folder))
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)  # a normal exit would wait for threads in hung kernels
        connection.close()
        handle = os.pidfd_open(pid)
        with contextlib.suppress(OSError):  # ugpud is gone
            socket.send_fds(reports, [str(pid).encode()], [handle])
        self._selector.register(handle, selectors.EVENT_READ, (pid, reports, folder))
        return True

    def _reap(self, handle: int, pid: int, reports: socket.socket, folder: str) -> None:
        self._selector.unregister(handle)
        os.close(handle)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):
            reports.send(str(status).encode())
        reports.close()
        shutil.rmtree(folder, ignore_errors=True)  # a worker's history, which it may be writing


def serve(
    connection: socket.socket, facts: tuple[str, dict[str, object], int], folder: Path
) -> None:
    """Serve one connection to its end. facts: the device's name, options and memory."""
    name, options, memory = facts
    settings = Settings(
        devices=(DeviceSettings(name, memory=memory, options=options, shares=0, inside=True),),
        socket=folder, state=folder, clients=1, rest_s=0, drain_s=DRAIN_S,
        grace_s=0, policy=Policy(_FOREVER_S, _FOREVER_S),
    )  # fmt: skip
    daemon = Daemon(settings)
    daemon.start()
    daemon.wait_until_booted()
    channel = Channel(connection, STRANGER)
    logging.getLogger(
        "ugpu.tools.base.ledger"
    ).disabled = True  # a confined process cannot write its history
    try:
        confine()
    except UgpuError as error:
        channel.send(Message("error", failures.to_wire(error)))
        channel.farewell()
        raise
    daemon.serve(channel, peer_of(connection))
    daemon.wait_until_left()
