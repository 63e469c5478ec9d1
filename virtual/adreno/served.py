"""The virtual device file for other programs: a preload library sends calls over a UNIX socket.

Each thread of a program has its own connection, so that a call that blocks delays no other thread.
The memory file stands for the device in that program, which maps it itself. Structures that
arguments point to are copied from and to the program's memory; the model must have permission to do
this (same user, and its child or a program that allows it). A program ends when its first
connection does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from pathlib import Path

from ugpu.hcq.state.threads import start
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.node import DEVICE, VirtualNode
from ugpu.virtual.node.process import ProcessMemory

_HEAD = struct.Struct("<Q")
_REPLY = struct.Struct("<q")
_LARGEST = 8 + (1 << 14)


class Served:
    """A machine behind a socket at `path`, until `close` (idempotent), which leaves the machine
    running."""

    def __init__(self, machine: VirtualMachine, path: Path) -> None:
        self.machine = machine
        self._nodes: dict[int, tuple[VirtualNode, int]] = {}  # by process
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._lines: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="virtual-kgsl", daemon=True)
        start(self._thread)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._lines.append(line)
            start(threading.Thread(target=self._serve, args=(line,), daemon=True))

    def _serve(self, line: socket.socket) -> None:
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("iii", raw)[0]
        with line, contextlib.suppress(OSError):
            if line.recv(1) == b"O":
                node = VirtualNode(self.machine, memory=ProcessMemory(pid))
                self._nodes[pid] = node, node.open(DEVICE)
                try:
                    socket.send_fds(line, [b"k"], [self.machine.memory.fd])
                    line.recv(1)  # only the end of the connection arrives
                finally:
                    del self._nodes[pid]
                    node.close()
            else:
                line.send(b"k")
                self._calls(line, *self._nodes[pid])

    def _calls(self, line: socket.socket, node: VirtualNode, handle: int) -> None:
        while message := line.recv(_LARGEST):
            request = _HEAD.unpack_from(message)[0]
            argument, failed = bytearray(message[8:]), 0
            try:
                node.ioctl(handle, request, argument)
            except OSError as error:
                failed = error.errno or 5
            line.send(_REPLY.pack(failed) + argument)

    def close(self) -> None:
        """Stop listening and end the programs."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def socket_path(folder: Path) -> Path:
    """Return the path for a socket in a folder; paths of sockets must be short."""
    return folder / f"kgsl-{os.getpid()}"
