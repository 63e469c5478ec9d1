"""The resources of a lease's holder on a device: memory, programs, and its work (Work).

The connection's thread calls all methods but `close`.
"""

from __future__ import annotations

import bisect
import itertools
import logging

from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, OutOfMemory, UgpuError
from ugpu.hcq.remote.wire import CHUNK, Bytes
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Kernel, Program
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.hcq.work.timeline import SIZE, Timeline
from ugpu.tools.service.daemon.clients.access import Lane, Spot
from ugpu.tools.service.daemon.clients.incidents import Incidents
from ugpu.tools.service.daemon.clients.work import Notify, Work

log = logging.getLogger(__name__)

GRANULE = 4096  # bytes; allocations are multiples of this
MOST_OBJECTS = 1 << 16  # buffers, and as many programs, per client


class Holder:
    """The device's side of one lease with queues. tenant: the device belongs to this lease alone
    (hcq.device.driver, open_tenant) and is closed with it."""

    def __init__(
        self,
        device: Device,
        quota: int,
        notify: Notify,
        incidents: Incidents,
        *,
        tenant: bool = False,
    ) -> None:
        self.device = device
        self.tenant = tenant
        self.core = core_of(device)
        self.target = device.target
        self.quota = quota
        self.used = 0
        self.loaded = False  # a program was loaded: kernels may have run
        self._starts: list[int] = []  # sorted addresses of buffers
        self._buffers: dict[int, Buffer] = {}
        self._addresses: dict[int, int] = {}  # by the client's number
        self._numbers = itertools.count(1)  # of memory and programs
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, Kernel] = {}
        driver = self.core.driver
        copies = list(driver.hardware_queues(QueueKind.COPY))
        spare = copies.pop() if len(copies) > 1 else copies[-1]
        self._lane = Lane(self.core, spare)
        self._spare = spare
        hardware = [*driver.hardware_queues(QueueKind.COMPUTE), *copies]
        self.work = Work(device, hardware, self, notify, incidents)

    # ---- memory ------------------------------------------------------------------------------

    def allocate(self, size: int, placement: str) -> list[int]:
        """Return number and address of zeroed memory; OutOfMemory beyond the quota."""
        try:
            where = Placement(placement)
        except ValueError:
            raise BadArgument(f"placement must be device or host, got {placement!r}") from None
        whole = max(1, -(-size // GRANULE)) * GRANULE
        if self.used + whole > self.quota:
            raise OutOfMemory(
                "the lease has no memory left", size=size, limit=self.quota, used=self.used
            )
        if len(self._buffers) >= MOST_OBJECTS:
            raise OutOfMemory("the lease has too many buffers", limit=MOST_OBJECTS)
        buffer = self.device.alloc(whole, placement=where)
        try:
            self._scrub(buffer)
        except BaseException:
            buffer.drop()
            raise
        address = int(buffer.address)
        bisect.insort(self._starts, address)
        self._buffers[address] = buffer
        number = next(self._numbers)
        self._addresses[number] = address
        self.used += whole
        return [number, address]

    def free(self, number: int) -> None:
        """Free memory once the work submitted so far has ended. An unknown number is ignored,
        because a client whose connection broke may send the request twice."""
        address = self._addresses.pop(number, None)
        if address is None:
            return
        buffer = self._buffers.pop(address)
        self._starts.remove(address)
        self.used -= buffer.size
        buffer.drop()

    def write(self, address: int, data: Bytes) -> None:
        """Store bytes."""
        part = self._part(address, len(data))
        view = memoryview(data)
        if part.view is not None:
            part.view[:] = view
            self.core.driver.notify_memory_written()
        elif len(view) and not self.core.driver.write_memory(part, view):
            self._lane.send(part, view)

    def read(self, address: int, size: int) -> Bytes:
        """Return bytes. Raises a failure of work whose results they may be."""
        data = self._read(address, size)
        self.work.check()
        return data

    def _read(self, address: int, size: int) -> Bytes:
        part = self._part(address, size)
        if part.view is not None:
            return bytes(part.view)
        out = memoryview(bytearray(size))
        if size and not self.core.driver.read_memory(part, out):
            self._lane.receive(part, out)
        return out

    def check(self, address: int, size: int) -> None:
        """Raise BadArgument unless the bytes are memory of the lease."""
        self._owner(address, size)

    def _owner(self, address: int, size: int) -> Buffer:
        position = bisect.bisect_right(self._starts, address) - 1
        if position >= 0:
            buffer = self._buffers[self._starts[position]]
            if address + size <= int(buffer.address) + buffer.size:
                return buffer
        raise BadArgument(
            f"{size} bytes at {address:#x} are outside the memory of this lease", address=address
        )

    def _part(self, address: int, size: int) -> Buffer:
        buffer = self._owner(address, size)
        start = address - int(buffer.address)
        return buffer[start : start + size]

    def _scrub(self, buffer: Buffer) -> None:
        """Overwrite data that may belong to another holder."""
        if buffer.view is not None:
            zeros = bytes(min(buffer.size, CHUNK))
            for start in range(0, buffer.size, CHUNK):
                end = min(start + CHUNK, buffer.size)
                buffer.view[start:end] = zeros[: end - start]
            return
        queue = Queue(self._spare).fill(buffer, 0)
        queue.timeline.wait(queue.submit())

    # ---- programs ----------------------------------------------------------------------------

    def load(self, image: Bytes) -> list[object]:
        """Return number, address, size, and kernels: handle, sizes, declared arguments."""
        if len(self._programs) >= MOST_OBJECTS:
            raise OutOfMemory("the lease has too many programs", limit=MOST_OBJECTS)
        program = self.device.load(bytes(image))
        self.loaded = True
        number = next(self._numbers)
        self._programs[number] = program
        kernels: list[object] = []
        for index, kernel in enumerate(program.values()):
            handle = number << 24 | index
            self._kernels[handle] = kernel
            declared = kernel.arguments
            arguments = declared and [
                [a.offset, a.size, a.name, a.is_address, a.kind] for a in declared
            ]
            kernels.append(
                [
                    kernel.name,
                    handle,
                    kernel.kernarg_size,
                    None if declared is None else arguments or [],
                    kernel.local_size,
                    kernel.private_size,
                ]
            )
        memory = program.memory
        place = (0, 0) if memory is None else (int(memory.address), memory.size)
        return [number, *place, kernels]

    def unload(self, number: int) -> None:
        """Free a program, as `free` does. Its kernels cannot be launched any more."""
        program = self._programs.pop(number, None)
        if program is None:
            return
        for handle in [each for each in self._kernels if each >> 24 == number]:
            del self._kernels[handle]
        program.closed = True
        if program.memory is not None:
            program.memory.drop()

    def kernel(self, handle: int) -> Kernel:
        """See Scope."""
        found = self._kernels.get(handle)
        if found is None:
            raise BadArgument("this lease does not contain this kernel", kernel=handle)
        return found

    # ---- queues ------------------------------------------------------------------------------

    def timeline(self, address: int) -> Timeline:
        """See Scope."""
        return self.work.timeline(address) or Spot(self.core, self._part(address, SIZE))

    def watch(self, address: int, value: int, limit_s: float) -> bool:
        """Wait until memory of the lease holds at least `value`; return whether it does within
        `limit_s`. In a thread of its own."""
        part = self._part(address, 8)
        deadline = self.core.driver.clock.deadline(limit_s)
        while True:
            if self.work.stopped or self.work.failed is not None:
                return False
            view = part.view
            data = bytes(self._read(address, 8) if view is None else view[:8])
            self.work.check()
            found = int.from_bytes(data, "little")
            if found >= value:
                return True
            if deadline.expired():
                return False
            self.device.driver.pause(min(deadline.pause_s, 1e-3))

    # ---- the end -----------------------------------------------------------------------------

    def close(self, drain_s: float) -> bool:
        """Stop submissions and wait for the work for up to `drain_s`. Return whether the device is
        as it was before: False if work hangs or the device has failed."""
        self.work.stop()
        clean = self.device.failure is None
        try:
            if clean:
                self.device.synchronize(limit_s=drain_s)
        except UgpuError as error:
            log.info("%s: a lease ended with unfinished work: %s", self.device.name, error)
            clean = False
        return clean

    def free_all(self) -> None:
        """Free all objects of the lease. The device must be working and idle, or closed."""
        self.work.free()
        self._kernels.clear()
        programs, buffers = list(self._programs.values()), list(self._buffers.values())
        self._programs.clear()
        self._buffers.clear()
        self._starts.clear()
        self._addresses.clear()
        self.used = 0
        closes = [program.close for program in programs]
        closes += [buffer.close for buffer in buffers]
        for close in (*closes, self._lane.close):
            try:
                close()
            except UgpuError as error:
                log.warning("%s: freeing a lease's memory: %s", self.device.name, error)
        if self.tenant:
            self.device.close()
