"""The driver's device files in one program: opened, controlled, mapped, closed.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia/nv.c (nvidia_open, nvidia_ioctl),
nv-mmap.c (nvidia_mmap_helper), kernel-open/nvidia-uvm/uvm.c (uvm_open, uvm_ioctl).
"""

from __future__ import annotations

import errno
import itertools
import os
import re

from ugpu.hcq.errors import BadArgument, Closed, NotSupported
from ugpu.hcq.state import life
from ugpu.hcq.state.instruction import Culprit, Culprits
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv.abi.events import TOOLS_NODE
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.files import FileCalls, MapContext, OpenFile
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.mappings import DoorbellMapping, MemoryMapping
from ugpu.virtual.nvidia.memory.physical import PAGE
from ugpu.virtual.nvidia.rm.escapes import Escapes
from ugpu.virtual.nvidia.rm.mig import CAPABILITIES, access_files
from ugpu.virtual.nvidia.text_files import read_text
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile
from ugpu.virtual.nvidia.uvm.tools import ToolsFile

_DEVICE = re.compile(r"/dev/nvidia(\d+)")
_XFER = 0xD3  # NV_ESC_IOCTL_XFER_CMD


class VirtualNode:
    """One program's access to the driver; implements `hcq.transport.node.Node`.

    Closing it ends the program: all its files are closed and their objects freed. owns_machine:
    closing also switches the machine off.
    """

    code = "PTX"  # that kernels are executed from: hcq.transport.node.code_of

    def __init__(self, machine: VirtualMachine, *, owns_machine: bool = False) -> None:
        self.name = f"virtual NVIDIA driver {machine.options.driver}"
        self.machine = machine
        self.clock = machine.clock
        self.files: dict[int, OpenFile] = {}
        self._owns_machine = owns_machine
        self.gaps: list[NotSupported] = []
        self.culprits = Culprits()
        self._handles = itertools.count(100)
        self._mappings: list[MemoryMapping | DoorbellMapping] = []
        self._escapes = Escapes(machine, self)
        self._closed = False
        machine.nodes.append(self)
        life.inherits(self)

    def open(self, path: str) -> int:
        """Open a device file. Raises FileNotFoundError or PermissionError as the system does."""
        self._need_open()  # before taking the lock, which is the parent's in a forked child
        with self.machine.lock:
            self._need_open()
            gpu: VirtualGpu | None = None
            calls: FileCalls | None = None
            match = _DEVICE.fullmatch(path)
            if match is not None and int(match[1]) < len(self.machine.gpus):
                gpu = self.machine.gpus[int(match[1])]
            elif path == "/dev/nvidia-uvm":
                if self.machine.faults.take(Fault.NO_UVM):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                calls = UvmFile(self.machine, self)
            elif path == TOOLS_NODE:
                calls = ToolsFile(self.machine, self.files)
            elif path != "/dev/nvidiactl" and path not in self._capabilities():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if self.machine.faults.take(Fault.OPEN_DENIED):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            if gpu is not None and gpu.lost:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            handle = next(self._handles)
            self.files[handle] = OpenFile(handle, path, gpu, calls)
            return handle

    def _capabilities(self) -> set[str]:
        """Return the capability files of divided GPUs."""
        return {
            f"{CAPABILITIES}{minor}"
            for gpu in self.machine.gpus
            for minor in access_files(gpu).values()
        }

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        """Perform one ioctl. Raises OSError with the errno that the kernel returns."""
        self._need_open()
        with self.machine.lock:
            found = self._file(handle)
            if self.machine.faults.take(Fault.INTERRUPTED):
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR), found.path)
            if found.calls is not None:
                found.calls.ioctl(request, argument)
                return
            command, size = request & 0xFF, request >> 16 & 0x3FFF
            if size > len(argument):
                raise _error(errno.EFAULT, f"ioctl {request:#x}: cannot read {size} bytes")
            self._escapes.call(found, command, memoryview(argument)[:size])

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        """Map the memory that RM_MAP_MEMORY prepared on this file."""
        self._need_open()
        with self.machine.lock:
            found = self._file(handle)
            context = found.context
            if found.calls is not None:
                raise _error(errno.EINVAL, "mmap of UVM (managed memory) is not modelled")
            if size <= 0 or offset % PAGE:
                raise _error(
                    errno.EINVAL, f"mmap of {size} bytes at {offset:#x} is not page-aligned"
                )
            if context is None:
                raise _error(errno.EINVAL, f"{found.path}: mmap must follow RM_MAP_MEMORY")
            if offset:
                raise _error(errno.EINVAL, "mmap offset must be 0")
            if found.gpu is not None and found.gpu.lost:
                raise _error(errno.EIO, "the GPU is lost")
            if self.machine.faults.take(Fault.MAPPING_REFUSED):
                raise _error(errno.EAGAIN, "mapping creation failed")
            pages = -(-size // PAGE) * PAGE
            limit = -(-context.size // PAGE) * PAGE
            if found.gpu is not None and pages != limit:
                raise _error(
                    errno.ENXIO, f"mmap of {size} bytes, RM_MAP_MEMORY prepared {context.size}"
                )
            if pages > limit:
                raise _error(
                    errno.ERANGE, f"mmap of {size} bytes, RM_MAP_MEMORY prepared {context.size}"
                )
            mapping = self._mapping(context, size)
            self._mappings = [old for old in self._mappings if not old.closed]
            self._mappings.append(mapping)
            return mapping

    def _mapping(self, context: MapContext, size: int) -> MemoryMapping | DoorbellMapping:
        if context.backing is None:
            assert context.gpu is not None
            return DoorbellMapping(context.gpu, size, in_bar1=context.in_bar1)
        return MemoryMapping(self.machine, context.backing, context.offset, size)

    def release(self, handle: int) -> None:
        """Close one file and free its objects. Raises BadArgument if it is not open."""
        self._need_open()
        with self.machine.lock:
            found = self.files.get(handle)
            if found is None:
                raise BadArgument("this handle is not open", handle=handle)
            if found.calls is not None:
                found.calls.close()
            self._escapes.file_closed(found)
            del self.files[handle]

    def read_text(self, path: str) -> str:
        """Return the text of a file of the driver in /proc or /sys."""
        self._need_open()
        return read_text(self.machine, path)

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness."""
        self._need_open()
        with self.machine.lock:
            return self.culprits.take(address, pc)

    def another(self) -> VirtualNode:
        """See hcq.transport.node.Reopenable."""
        self._need_open()
        return VirtualNode(self.machine)

    def abandon(self) -> None:
        """Disable the node in a forked child, which has neither its threads nor its lock owners."""
        self._closed = True

    def close(self) -> None:
        """End the program. Idempotent."""
        if self._closed:
            return
        with self.machine.lock:
            if self._closed:
                return
            # Release UVM files before others: they hold the address spaces and channels that
            # clients free. Release the files that watch UVM files first: they hold these.
            order = (ToolsFile, UvmFile, type(None))
            for found in sorted(
                self.files.values(), key=lambda file: order.index(type(file.calls))
            ):
                self.release(found.handle)
            for mapping in self._mappings:
                mapping.close()
            self._mappings = []
            self._closed = True
            self.machine.nodes.remove(self)
        if self._owns_machine:
            self.machine.close()

    def has_open(self, gpu: VirtualGpu) -> bool:
        """Return whether this program has the GPU's device file open."""
        return any(found.gpu is gpu for found in self.files.values())

    def _need_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name}: the process has ended")

    def _file(self, handle: int) -> OpenFile:
        self._need_open()
        found = self.files.get(handle)
        if found is None:
            raise _error(errno.EBADF, f"handle {handle}")
        return found


def _error(code: int, why: str) -> OSError:
    return OSError(code, f"{os.strerror(code)}: {why}")
