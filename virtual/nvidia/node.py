"""The driver's device files in one program: opened, controlled, mapped, closed.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia/nv.c (nvidia_open, nvidia_ioctl),
nv-mmap.c (nvidia_mmap_helper), kernel-open/nvidia-uvm/uvm.c (uvm_open, uvm_ioctl).
"""

from __future__ import annotations

import errno
import os
import re

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprit, Culprits
from ugpu.nv.abi.events import TOOLS_NODE
from ugpu.virtual.node.mapping import Mapping
from ugpu.virtual.node.node import DeviceNode, block_of
from ugpu.virtual.node.refusal import missing, refused
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.files import FileCalls, OpenFile
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.mappings import DoorbellMapping, MemoryMapping
from ugpu.virtual.nvidia.memory.physical import PAGE
from ugpu.virtual.nvidia.rm.escapes import Escapes
from ugpu.virtual.nvidia.rm.mig import CAPABILITIES, access_files
from ugpu.virtual.nvidia.text_files import read_text
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile
from ugpu.virtual.nvidia.uvm.tools import ToolsFile

_DEVICE = re.compile(r"/dev/nvidia(\d+)")


class VirtualNode(DeviceNode[VirtualMachine, OpenFile]):
    """One program's access to the driver; implements `hcq.transport.node.Node`."""

    code = "PTX"  # that kernels are executed from: hcq.transport.node.code_of

    def __init__(self, machine: VirtualMachine, *, owns_machine: bool = False) -> None:
        self.gaps: list[NotSupported] = []
        self.culprits = Culprits()
        self._escapes = Escapes(machine, self)
        super().__init__(
            f"virtual NVIDIA driver {machine.options.driver}", machine, owns_machine=owns_machine
        )

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
                    raise missing(path)
                calls = UvmFile(self.machine, self)
            elif path == TOOLS_NODE:
                calls = ToolsFile(self.machine, self.files)
            elif path != "/dev/nvidiactl" and path not in self._capabilities():
                raise missing(path)
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
            self._escapes.call(found, request & 0xFF, block_of(request, argument))

    def _map(self, file: OpenFile, size: int, offset: int) -> Mapping:
        """Map the memory that RM_MAP_MEMORY prepared on this file."""
        context = file.context
        if file.calls is not None:
            raise refused(errno.EINVAL, "mmap of UVM (managed memory) is not modelled")
        if size <= 0 or offset % PAGE:
            raise refused(errno.EINVAL, f"mmap of {size} bytes at {offset:#x} is not page-aligned")
        if context is None:
            raise refused(errno.EINVAL, f"{file.path}: mmap must follow RM_MAP_MEMORY")
        if offset:
            raise refused(errno.EINVAL, "mmap offset must be 0")
        if file.gpu is not None and file.gpu.lost:
            raise refused(errno.EIO, "the GPU is lost")
        if self.machine.faults.take(Fault.MAPPING_REFUSED):
            raise refused(errno.EAGAIN, "mapping creation failed")
        pages = -(-size // PAGE) * PAGE
        limit = -(-context.size // PAGE) * PAGE
        if file.gpu is not None and pages != limit:
            raise refused(
                errno.ENXIO, f"mmap of {size} bytes, RM_MAP_MEMORY prepared {context.size}"
            )
        if pages > limit:
            raise refused(
                errno.ERANGE, f"mmap of {size} bytes, RM_MAP_MEMORY prepared {context.size}"
            )
        if context.backing is None:
            assert context.gpu is not None
            return DoorbellMapping(context.gpu, size, in_bar1=context.in_bar1)
        return MemoryMapping(self.machine, context.backing, context.offset, size)

    def _file_closed(self, handle: int, file: OpenFile) -> None:
        if file.calls is not None:
            file.calls.close()
        self._escapes.file_closed(file)

    def _close_files(self) -> None:
        """Close UVM files before others: they hold the address spaces and channels that clients
        free. Close the files that watch UVM files first: they hold these."""
        order = (ToolsFile, UvmFile, type(None))
        for file in sorted(self.files.values(), key=lambda file: order.index(type(file.calls))):
            self.release(file.handle)

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

    def has_open(self, gpu: VirtualGpu) -> bool:
        """Return whether this program has the GPU's device file open."""
        return any(found.gpu is gpu for found in self.files.values())
