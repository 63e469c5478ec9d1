"""The device file in one program: opened, controlled, mapped, closed. This module models KGSL's
file; virtual.adreno.msm.node models msm's.

Source: Android msm kernel (msm-4.19), drivers/gpu/msm/kgsl.c: kgsl_open, kgsl_release, kgsl_mmap.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
from typing import Protocol

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprit
from ugpu.virtual.adreno.kgsl.calls import Calls
from ugpu.virtual.adreno.kgsl.context import Context
from ugpu.virtual.adreno.kgsl.refusal import strike
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.memory.objects import FILE_SIZE, PAGE, MemoryObject
from ugpu.virtual.adreno.memory.space import AddressSpace
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.shader import Accessing
from ugpu.virtual.node.mapping import Mapping
from ugpu.virtual.node.node import DeviceNode, block_of
from ugpu.virtual.node.process import ProcessMemory, UserMemory
from ugpu.virtual.node.refusal import missing, refused

DEVICE = "/dev/kgsl-3d0"


class Ioctls(Protocol):
    """The calls of a kernel driver: makes one ioctl; OSError where it is refused."""

    def call(self, request: int, argument: memoryview) -> None: ...


class MemoryMapping(Mapping):
    """Pages of an object in this process."""

    def __init__(self, node: VirtualNode, found: MemoryObject, size: int) -> None:
        self._node, self._found = node, found
        self._map: mmap.mmap | None = mmap.mmap(node.machine.memory.fd, size, offset=found.offset)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        super().__init__(size, address, memoryview(self._map))
        found.holds += 1

    def _unmapped(self) -> None:
        with self._node.machine.lock:
            self._map = None
            self._node.drop(self._found)


class VirtualNode(DeviceNode[VirtualMachine, str]):
    """One program's view of the driver; implements `hcq.transport.node.Node`. Its last file that is
    closed frees its contexts and memory.

    memory: the program's, where it is not this process; such a program maps the memory file itself.
    """

    driver = "KGSL"
    path = DEVICE

    def __init__(
        self,
        machine: VirtualMachine,
        *,
        owns_machine: bool = False,
        memory: UserMemory | None = None,
    ) -> None:
        name = f"virtual {self.driver} with {machine.facts.name}"
        super().__init__(name, machine, owns_machine=owns_machine)
        self.is_here = memory is None
        self.memory: UserMemory = memory or ProcessMemory()
        self.space = self._new_space()
        self.objects: dict[int, MemoryObject] = {}
        self.counters: list[tuple[int, int]] = []  # (group, event) of performance counters
        self._calls = self._new_calls()

    def _new_space(self) -> AddressSpace:
        return AddressSpace(self.machine.lock)

    def _new_calls(self) -> Ioctls:
        return Calls(self)

    @property
    def halts_at_page_faults(self) -> bool:
        """Return whether a page fault of a shader ends the submission."""
        return self.machine.options.halt_on_page_fault

    @property
    def gaps(self) -> list[NotSupported]:
        """See hcq.transport.node.take_gap."""
        return self.machine.gaps

    def open(self, path: str) -> int:
        """Open the device file; FileNotFoundError as the system raises it."""
        self._need_open()
        if path != self.path or Planted.VANISHED in self.machine.plan.standing:
            raise missing(path)
        strike(self.machine, "open")
        with self.machine.lock:
            handle = next(self._handles)
            self.files[handle] = path
            return handle

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        """Make one ioctl; OSError with the errno that the kernel returns."""
        self._file(handle)
        block = block_of(request, argument)
        try:
            self._calls.call(request, block)
        except OSError as error:
            with self.machine.lock:
                self.machine.refused.append(f"ioctl {request:#x}: {error.strerror}")
            raise

    def _map(self, file: str, size: int, offset: int) -> Mapping:
        """Map an object. offset: its id << 12 (or its GPU address)."""
        found = self._mappable(offset, size)
        strike(self.machine, "mmap")
        mapping = MemoryMapping(self, found, size)
        self._mapped(found, mapping)
        return mapping

    def _mappable(self, offset: int, size: int) -> MemoryObject:
        """Return the object for an mmap; OSError where it may not be mapped that way."""
        found = self.objects.get(offset >> 12) or self.space.find(offset)
        if size <= 0 or offset % PAGE or found is None or not found.id_valid:
            raise refused(errno.EINVAL, f"mmap of {size} bytes at {offset:#x}: no such object")
        if found.offset < 0:
            raise refused(errno.EINVAL, f"mmap of imported memory (id {found.id})")
        if -(-size // PAGE) * PAGE != found.mapped_size:
            raise refused(errno.EINVAL, f"mmap of {size} bytes, the object has {found.mapped_size}")
        return found

    def _mapped(self, found: MemoryObject, mapping: MemoryMapping) -> None:
        if not found.gpuaddr:  # KGSL_MEMFLAGS_USE_CPU_MAP
            found.gpuaddr = mapping.address
            self.space.insert(found)

    def drop(self, found: MemoryObject) -> None:
        """Drop one reference to an object; the last one unmaps it from the GPU. Under the lock."""
        if found.holds == 1:
            self.space.remove(found)
            if self.objects.get(found.id) is found:  # an id may have been reused
                del self.objects[found.id]
        self.machine.release(found)

    def destroy(self, context: Context) -> None:
        """Destroy a context; its queued submissions never run. Under the machine's lock."""
        context.detached = True
        self.machine.engine.stop_context(context)
        self.machine.contexts.pop(context.id, None)
        context.retire(context.queued)
        self.machine.engine.changed.notify_all()

    def _file_closed(self, handle: int, file: str) -> None:
        if not self.files:
            self._end_program()

    def _close_files(self) -> None:
        self.files.clear()
        self._end_program()

    def _end_program(self) -> None:
        while self.counters:
            self.machine.counters.put(*self.counters.pop())
        for context in [found for found in self.machine.contexts.values() if found.node is self]:
            self.destroy(context)
        for found in list(self.objects.values()):
            if found.id_valid:
                found.id_valid = False
                self.drop(found)

    def read_text(self, path: str) -> str:
        """Return the text of a file of the driver in /proc or /sys."""
        self._need_open()
        known = self._texts()
        known["/proc/meminfo"] = f"MemTotal: {FILE_SIZE >> 10} kB\n"
        if path not in known:
            raise missing(path)
        return known[path]

    def _texts(self) -> dict[str, str]:
        return {
            "/sys/class/kgsl/kgsl-3d0/gpu_model": f"Adreno{self.machine.facts.name[1:]}\n",
            "/sys/class/kgsl/kgsl-3d0/gpu_busy_percentage": "0 %\n",
        }

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness."""
        with self.machine.lock:
            for number, (at, who) in reversed(list(enumerate(self.machine.culprits))):
                assert isinstance(who, Accessing)
                if who.pc == pc or (address is not None and at // PAGE == address // PAGE):
                    del self.machine.culprits[: number + 1]
                    return Culprit(at, who.pc, who.text)
        return None

    def _file(self, handle: int) -> str:
        file = super()._file(handle)
        if Planted.VANISHED in self.machine.plan.standing:
            raise refused(errno.ENODEV, "the device node has vanished")
        return file
