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
from ugpu.hcq.state.text import one_line
from ugpu.tools.service.daemon.cards import host
from ugpu.tools.service.daemon.cards.confinement.sandbox import confine
from ugpu.tools.service.daemon.cards.forks import MOST
from ugpu.tools.service.daemon.clients.leases import Policy
from ugpu.tools.service.daemon.clients.peers import peer_of
from ugpu.tools.service.daemon.config import DeviceSettings, Settings
from ugpu.tools.service.daemon.daemon import Daemon

MOST_SHOWN = 64 << 10  # bytes of what a worker writes to its standard error
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


class _Child:
    """A worker, to the server. It may be one whose kernels write to its standard error: each line
    of that is escaped and shown as the worker's, and only the first MOST_SHOWN bytes.

    Attributes:
        handle: a pidfd.
        reports: where its status goes.
        text: the reading end of its standard error.
    """

    def __init__(self, pid: int, reports: socket.socket, text: int, folder: str) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)
        self.reports = reports
        self.text = text
        self._folder = folder
        self._shown = 0

    def report(self) -> None:
        """Report the number of the process."""
        with contextlib.suppress(OSError):  # ugpud is gone
            socket.send_fds(self.reports, [str(self.pid).encode()], [self.handle])

    def show(self) -> bool:
        """Repeat what it has written since. Return False at the end."""
        written = os.read(self.text, 4096)
        left = MOST_SHOWN - self._shown
        self._shown += len(written)
        shown = written[: max(0, left)].decode("utf-8", "backslashreplace")
        for line in shown.splitlines():
            print(f"process {self.pid}: {one_line(line)}", file=sys.stderr, flush=True)
        if 0 < left <= len(written):
            print(f"process {self.pid}: what it writes from now on is dropped", file=sys.stderr)
        return bool(written)

    def reap(self) -> None:
        """Report the status of the process, which has ended."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(OSError):
            self.reports.send(str(status).encode())
        shutil.rmtree(self._folder, ignore_errors=True)  # its history, which it may be writing

    def close(self) -> None:
        """Close the descriptors of a process that has ended, or of another one's child."""
        os.close(self.handle)
        self.reports.close()


class ForkServer:
    """The server's side. It has no threads: they would not exist in its children."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: set[_Child] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the other side closes the socket."""
        while True:
            for key, _ in self._selector.select():
                child = key.data
                if child is None:
                    if not self._take():
                        return
                elif key.fd == child.handle:
                    self._selector.unregister(key.fd)
                    self._children.discard(child)
                    child.reap()
                    child.close()
                elif not child.show():
                    self._selector.unregister(key.fd)
                    os.close(key.fd)

    def _take(self) -> bool:
        text, descriptors, _, _ = socket.recv_fds(self._requests, MOST, 2)
        if not text:
            return False
        connection, reports = (socket.socket(fileno=number) for number in descriptors)
        folder = tempfile.mkdtemp(prefix="ugpud-")
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.dup2(writing, sys.stderr.fileno())
                os.close(writing)
                os.close(reading)
                reports.close()
                self._leave()
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
        os.close(writing)
        child = _Child(pid, reports, reading, folder)
        self._children.add(child)
        child.report()
        self._selector.register(child.handle, selectors.EVENT_READ, child)
        self._selector.register(reading, selectors.EVENT_READ, child)
        return True

    def _leave(self) -> None:
        """In a new process: close what is the server's. With the descriptors of other workers, a
        kernel could report that they have ended."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None and key.fd == key.data.text:
                os.close(key.fd)
        for child in self._children:
            child.close()
        self._selector.close()
        self._requests.close()


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
        confine(memory)
    except UgpuError as error:
        channel.send(Message("error", failures.to_wire(error)))
        channel.farewell()
        raise
    daemon.serve(channel, peer_of(connection))
    daemon.wait_until_left()
