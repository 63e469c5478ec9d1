"""A device in a process of its own, for one shared lease. It is used if a driver cannot isolate
holders in one process (`Driver.sole_holder`), but another process can open the device too.

The process is a ugpud with this device and one client (tools.daemon.inner). The client is the
daemon, which drives the device over their connection as other clients do (hcq.remote). The process
ends with the connection. Kernels that disturb it end no other lease. It is not a sandbox: it has
the rights of ugpud's user.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys

from hcq.buffer import Buffer
from hcq.device import Device
from hcq.errors import HostError
from hcq.remote.address import Address
from hcq.remote.connection import Connection
from hcq.remote.driver import RemoteDriver
from hcq.remote.request import Grant, LeaseRequest

from .config import DeviceSettings

log = logging.getLogger(__name__)

_START = "import sys; sys.path[:] = {path!r}; from tools.daemon.inner import main; main()"
# TIMEOUT: for the exit of a process whose device has been closed; then it is killed
ENDS_S = 10.0
OWN = 1 << 20  # bytes beyond the holder's, for the daemon's timelines


class ApartDriver(RemoteDriver):
    """The daemon's side of the process. Owns the process."""

    def __init__(
        self, name: str, connection: Connection, grant: Grant, process: subprocess.Popen[bytes]
    ) -> None:
        self.process = process
        super().__init__(name, connection, grant)

    def write_memory(self, buffer: Buffer, data: memoryview) -> bool:
        self.write(int(buffer.address), data)
        return True

    def read_memory(self, buffer: Buffer, out: memoryview) -> bool:
        self.read(int(buffer.address), len(out), out)
        return True

    def shutdown(self) -> None:
        try:
            super().shutdown()
        finally:
            code = _reap(self.process)
            if code:
                log.warning("%s: its process ended with status %d", self.name, code)


def open_apart(settings: DeviceSettings, name: str, memory: int, drain_s: float) -> Device:
    """Open a device in a new process; closing the device ends the process. memory: bytes available
    to it. HostError if the process cannot be started; errors of opening the device are raised."""
    ours, theirs = socket.socketpair()
    code = _START.format(path=sys.path)
    facts = json.dumps([settings.name, settings.options, memory + OWN, drain_s])
    process = None
    try:
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(number), facts],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[number],
                start_new_session=True,  # Ctrl-C reaches only ugpud, which ends its leases
            )  # fmt: skip
        connection = Connection(Address(f"process {process.pid} of {name}", made=ours))
        try:
            reply = connection.call("lease", LeaseRequest().to_map())
            grant = Grant.from_map(reply.arguments[0])
            return Device(ApartDriver(name, connection, grant, process))
        except BaseException:
            connection.close()
            raise
    except BaseException as error:
        ours.close()
        if process is not None:
            process.kill()
            process.wait()
        if isinstance(error, OSError):
            raise HostError(f"cannot start a process for {name}: {error}") from None
        raise


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process that is about to end; negative: a signal."""
    try:
        return process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
