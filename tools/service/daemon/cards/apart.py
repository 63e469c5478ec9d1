"""A device in a process of its own, for one lease. It is used if a driver cannot isolate holders in
one process (`Driver.sole_holder`), but another process can open the device too: kernels of such a
device run in the driver's process, so that ugpud's own is not one of them.

The process is a ugpud with this device and one client (tools.service.daemon.cards.inner). The
client is the daemon, which drives the device over their connection as other clients do
(hcq.remote). The process ends with the connection. Kernels that disturb it end no other lease, and
it is confined (tools.service.daemon.cards.confinement.sandbox): it reaches no file, no other
process and no network.
"""

from __future__ import annotations

import functools
import json
import logging
import signal
import socket
import threading

from ugpu.hcq.device.core import Core
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.channel import Disconnected
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.driver import RemoteDriver
from ugpu.hcq.remote.request import Grant, LeaseRequest
from ugpu.hcq.state import threads
from ugpu.hcq.work.buffer import Buffer
from ugpu.tools.service.daemon.cards import forks
from ugpu.tools.service.daemon.cards.forks import Worker
from ugpu.tools.service.daemon.config import DeviceSettings

log = logging.getLogger(__name__)

# TIMEOUT: for the exit of a process whose device has been closed; then it is killed
ENDS_S = 10.0
GONE_S = 2.0  # TIMEOUT: from the end of the connection to that of its process, on a busy host
OWN = 1 << 20  # bytes beyond the holder's, for the daemon's timelines
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class ApartDriver(RemoteDriver):
    """The daemon's side of the process. Owns the process."""

    def __init__(self, name: str, connection: Connection, grant: Grant, process: Worker) -> None:
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
            status = _reap(self.process)
            if status and status != -signal.SIGKILL:
                log.warning("%s: its process ended with status %d", self.name, status)


def open_apart(settings: DeviceSettings, name: str, memory: int) -> Device:
    """Open a device in a new process; closing the device ends the process. memory: bytes available
    to it. HostError if the process cannot be started; errors of opening the device are raised."""
    facts = json.dumps([settings.name, settings.options, memory + OWN]).encode()
    ours, theirs = socket.socketpair()
    process: Worker | None = None
    try:
        with theirs:
            process = forks.worker(facts, theirs)
        connection = Connection(Address(f"process {process.pid} of {name}", connected=ours))
        worker = process
        connection.explain = lambda error: _explained(name, worker, error)
        try:
            reply = connection.call("lease", LeaseRequest().to_map())
            grant = Grant.from_map(reply.arguments[0])
            return Device(ApartDriver(name, connection, grant, process))
        except BaseException:
            connection.close()
            raise
    except BaseException:
        ours.close()
        if process is not None:
            process.kill()
            process.wait(ENDS_S)
        raise


class Processes:
    """The processes of a device's leases. After the first lease, one is opened ahead for the next
    one, which then need not wait for its start. Thread-safe."""

    def __init__(self, settings: DeviceSettings, name: str, memory: int) -> None:
        """memory: bytes available to each; the daemon keeps each lease within its quota."""
        forks.warm()
        self._open = functools.partial(open_apart, settings, name, memory)
        self._name = name
        self._lock = threading.Lock()
        self._next: Device | None = None
        self._opening: threading.Thread | None = None
        self._closed = False
        self._cores: list[Core] = []  # of leases, the last of which may be over
        self._launches = 0  # of leases before them

    def take(self) -> Device:
        """Return an open device, which the caller closes. Raises as `open_apart`."""
        device = self._ahead()
        if device is None:
            device = self._open()
        with self._lock:
            self._launches += sum(core.launches for core in self._cores if core.closed)
            self._cores = [*(core for core in self._cores if not core.closed), core_of(device)]
            if self._opening is None and self._next is None and not self._closed:
                name = f"{self._name} ahead"
                self._opening = threading.Thread(target=self._open_ahead, name=name)
                threads.start(self._opening)
        return device

    def launches(self) -> int:
        """Return the number of kernels that all leases have submitted."""
        with self._lock:
            return self._launches + sum(core.launches for core in self._cores)

    def _ahead(self) -> Device | None:
        """Return the device that was opened ahead, if its process lives."""
        with self._lock:
            device, self._next = self._next, None
        if device is None:
            return None
        driver = device.driver
        assert isinstance(driver, ApartDriver)
        try:
            driver.connection.call("leases")  # it may have ended meanwhile
        except UgpuError as error:
            log.info("%s: the process of the next lease has ended: %s", self._name, error)
            device.close()
            return None
        return device

    def _open_ahead(self) -> None:
        device: Device | None = None
        try:
            device = self._open()
        except UgpuError as error:
            log.warning("%s: no process was started ahead: %s", self._name, error)
        with self._lock:
            self._opening = None
            if not self._closed:
                self._next, device = device, None
        if device is not None:
            device.close()

    def close(self) -> None:
        """End the process that no lease has taken. Idempotent."""
        with self._lock:
            self._closed = True
            opening, device, self._next = self._opening, self._next, None
        if opening is not None:
            opening.join()
        if device is not None:
            device.close()


def _explained(name: str, process: Worker, error: UgpuError) -> UgpuError:
    """Return the reason why a connection ended: how its process did."""
    status = process.wait(GONE_S) if isinstance(error, Disconnected) else None
    if not status or status > 0:
        return error
    why = "a kernel accessed memory that it does not have, or ran an invalid instruction"
    return ended_by(name, process.pid, status, why)


def ended_by(name: str, pid: int, status: int, why: str) -> DeviceLost:
    """Return the error for a process that a signal ended. status: the signal, negative; why: it
    gets signals of faults."""
    ended = signal.Signals(-status)
    cause = why if ended in _FAULTS else "the system or an operator ended it"
    text = f"{name}: its process was ended by {ended.name}: {cause}"
    return DeviceLost(text, signal=ended.name, pid=pid)


def _reap(process: Worker) -> int:
    """Return the exit status of a process that is about to end; negative: a signal."""
    status = process.wait(ENDS_S)
    if status is None:
        process.kill()
        status = process.wait(ENDS_S)
    return -signal.SIGKILL if status is None else status
