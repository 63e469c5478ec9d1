"""The resource manager's calls on nvidiactl and nvidiaN: which file accepts them, and their sizes.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia/nv.c (nvidia_ioctl), src/nvidia/arch/
nvalloc/unix/src/escape.c (RmIoctl), osapi.c (RmPerformVersionCheck, RmCreateMmapContextLocked).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.node.refusal import refused
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.files import OpenFile, Program
from ugpu.virtual.nvidia.rm.alloc import allocate, allocate_memory, free_object
from ugpu.virtual.nvidia.rm.controls.control import control
from ugpu.virtual.nvidia.rm.controls.text import set_text
from ugpu.virtual.nvidia.rm.mapping import (
    map_memory,
    map_memory_dma,
    unmap_memory,
    unmap_memory_dma,
)
from ugpu.virtual.nvidia.rm.objects import Client, DriverState
from ugpu.virtual.nvidia.status import RmError, Status
from ugpu.virtual.nvidia.text_files import pci_address
from ugpu.virtual.nvidia.userspace import copy_in, copy_out

_STRICT, _RELAXED, _QUERY = 0, ord("1"), ord("2")  # NV_RM_API_VERSION_CMD, nv-ioctl.h
_LARGEST = 16384  # NV_ABSOLUTE_MAX_IOCTL_SIZE


class Escapes:
    """The calls of one program."""

    def __init__(self, machine: DriverState, program: Program) -> None:
        self._machine = machine
        self._program = program
        self._structs = machine.abi.structs
        numbers = {name: call.number for name, call in machine.abi.ioctls.items()}
        numbers.setdefault("NV_ESC_ATTACH_GPUS_TO_FD", 0xD4)  # a bare list: no structure names it
        handlers: dict[str, Callable[[OpenFile, memoryview], None]] = {
            "NV_ESC_CARD_INFO": self._card_info,
            "NV_ESC_REGISTER_FD": self._register_file,
            "NV_ESC_CHECK_VERSION_STR": self._check_version,
            "NV_ESC_SYS_PARAMS": self._system_parameters,
            "NV_ESC_WAIT_OPEN_COMPLETE": self._wait_open_complete,
            "NV_ESC_ATTACH_GPUS_TO_FD": self._attach_gpus,
            "NV_ESC_RM_ALLOC": self._alloc,
            "NV_ESC_RM_FREE": self._free,
            "NV_ESC_RM_CONTROL": self._control,
            "NV_ESC_RM_ALLOC_MEMORY": self._alloc_memory,
            "NV_ESC_RM_MAP_MEMORY": self._map_memory,
            "NV_ESC_RM_UNMAP_MEMORY": self._unmap_memory,
            "NV_ESC_RM_MAP_MEMORY_DMA": self._map_memory_dma,
            "NV_ESC_RM_UNMAP_MEMORY_DMA": self._unmap_memory_dma,
        }
        self._handlers = {
            numbers[name]: handler for name, handler in handlers.items() if name in numbers
        }
        self._transfer = numbers["NV_ESC_IOCTL_XFER_CMD"]
        self._wait_open = numbers.get("NV_ESC_WAIT_OPEN_COMPLETE")  # from branch 550 on

    def call(self, file: OpenFile, command: int, argument: memoryview) -> None:
        """Execute one ioctl; its number implies the size of its block."""
        if command == self._transfer:
            self._transferred(file, argument)
            return
        if file.gpu is not None and file.gpu.lost and command != self._wait_open:
            raise refused(errno.EINVAL, "the GPU is lost")
        handler = self._handlers.get(command)
        if handler is None:
            self._machine.asked[f"escape {command:#x}"] += 1
            raise refused(errno.EINVAL, f"escape {command:#x} is not modelled")
        handler(file, argument)

    def file_closed(self, file: OpenFile) -> None:
        """Free the clients that were created on a file that closes."""
        if not file.is_control:
            return
        for client in list(self._machine.clients.values()):
            if client.owner is self._program and client.file == file.handle:
                client.free(client)
                del self._machine.clients[client.handle]

    def _transferred(self, file: OpenFile, argument: memoryview) -> None:
        if len(argument) != 16:
            raise refused(errno.EINVAL, "an ioctl XFER block must have 16 bytes")
        command, size, address = struct.unpack("<IIQ", argument)
        if size > _LARGEST or command == self._transfer:
            raise refused(errno.EINVAL, f"XFER size {size} is out of range")
        try:
            block = copy_in(address, size)
            try:
                self.call(file, command & 0xFF, memoryview(block))
            finally:
                copy_out(address, block)
        except RmError as error:
            raise refused(errno.EFAULT, error.why) from error

    def _block(self, name: str, argument: memoryview) -> Struct:
        layout = self._structs[name]
        if len(argument) != layout.size:
            raise refused(
                errno.EINVAL,
                f"{name} must have {layout.size} bytes in this branch, got {len(argument)}",
            )
        block: Struct = layout.view(argument)
        return block

    def _need_control(self, file: OpenFile) -> None:
        if not file.is_control:
            raise refused(errno.EINVAL, f"{file.path}: this call is valid only on nvidiactl")

    def _client(self, handle: int) -> Client:
        client = self._machine.clients.get(handle)
        if client is None or client.owner is not self._program:
            raise RmError(Status.INVALID_CLIENT, f"no client {handle:#x}")
        return client

    # Calls of the kernel interface layer

    def _check_version(self, file: OpenFile, argument: memoryview) -> None:
        self._need_control(file)
        block = self._block("nv_ioctl_rm_api_version", argument)
        ours = self._machine.options.driver
        theirs = bytes(block.versionString).split(b"\0")[0].decode("latin-1")
        block.reply = 1  # recognised
        if block.cmd == _QUERY:
            set_text(block.versionString, ours)
            return
        if self._machine.faults.take(Fault.VERSION_MISMATCH):
            ours = "999.99"
        same = theirs == ours
        if block.cmd == _RELAXED and "." in ours:
            same = theirs.split(".")[0] == ours.split(".")[0]
        if not same:
            set_text(block.versionString, ours)
            raise refused(errno.EINVAL, f"API version mismatch: expected {ours!r}, got {theirs!r}")

    def _card_info(self, file: OpenFile, argument: memoryview) -> None:
        self._need_control(file)
        layout = self._structs["nv_ioctl_card_info"]
        count = len(argument) // layout.size
        if count < len(self._machine.gpus):
            raise refused(
                errno.EINVAL, f"the buffer has {count} entries for cards, which is too few"
            )
        argument[:] = bytes(len(argument))
        for index, gpu in enumerate(self._machine.gpus):
            card = layout.view(argument, index * layout.size)
            card.valid = 1
            card.gpu_id = gpu.gpu_id
            card.minor_number = gpu.index
            card.fb_size = gpu.memory.size
            card.reg_address, card.reg_size = 0xF000_0000 + (gpu.index << 25), 16 << 20
            card.fb_address = 0x10_0000_0000 * (gpu.index + 1)
            pci = card.pci_info
            pci.domain, pci.bus, pci.slot, pci.function = 0, gpu.bus, 0, 0
            pci.vendor_id, pci.device_id = 0x10DE, gpu.facts.pci_device
            set_text(card.dev_name, pci_address(gpu)[5:])

    def _register_file(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("nv_ioctl_register_fd", argument)
        control = self._program.files.get(block.ctl_fd)
        if file.control is not None:
            raise refused(errno.EINVAL, f"{file.path} is already registered")
        if control is None or not control.is_control:
            raise refused(errno.EINVAL, f"{block.ctl_fd} is not an open nvidiactl")
        if control is file or control.control is not None:
            raise refused(errno.EINVAL, "a file cannot be registered with itself or in a chain")
        file.control = control

    def _system_parameters(self, file: OpenFile, argument: memoryview) -> None:
        self._need_control(file)
        block = self._block("nv_ioctl_sys_params", argument)
        if self._machine.memblock_size not in (0, block.memblock_size):
            raise refused(errno.EBUSY, "memblock_size is already set to another value")
        self._machine.memblock_size = block.memblock_size

    def _wait_open_complete(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("nv_ioctl_wait_open_complete", argument)
        lost = file.gpu is not None and file.gpu.lost
        block.rc = -errno.EIO if lost else 0
        block.adapterStatus = Status.GPU_IS_LOST if lost else Status.OK

    def _attach_gpus(self, file: OpenFile, argument: memoryview) -> None:
        self._need_control(file)
        if not argument or len(argument) % 4:
            raise refused(
                errno.EINVAL,
                f"the list of GPU ids must be a positive multiple of 4 bytes, got {len(argument)}",
            )
        known = {gpu.gpu_id for gpu in self._machine.gpus} | {0}
        if not set(memoryview(argument).cast("I")) <= known:
            raise refused(errno.EINVAL, "no such GPU id")

    # Calls of the resource manager: a status inside the block

    def _alloc(self, file: OpenFile, argument: memoryview) -> None:
        name = "NVOS64_PARAMETERS"
        if len(argument) == self._structs["NVOS21_PARAMETERS"].size:
            name = "NVOS21_PARAMETERS"
        block = self._block(name, argument)
        self._need_control(file)
        self._answer(block, lambda: allocate(self._machine, self._program, file, block))

    def _free(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("NVOS00_PARAMETERS", argument)
        self._need_control(file)
        self._answer(block, lambda: free_object(self._client(block.hRoot), block), busy=False)

    def _control(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("NVOS54_PARAMETERS", argument)
        self._need_control(file)
        self._answer(block, lambda: control(self._client(block.hClient), block))

    def _alloc_memory(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("nv_ioctl_nvos02_parameters_with_fd", argument)
        if file.is_control:
            raise refused(errno.EINVAL, "RM_ALLOC_MEMORY is valid only on nvidiaN")
        params = block.params
        self._answer(params, lambda: allocate_memory(self._client(params.hRoot), params, block.fd))

    def _map_memory(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("nv_ioctl_nvos33_parameters_with_fd", argument)
        self._need_control(file)
        params = block.params
        self._answer(params, lambda: map_memory(self._client(params.hClient), params, block.fd))

    def _unmap_memory(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("NVOS34_PARAMETERS", argument)
        self._need_control(file)
        self._answer(block, lambda: unmap_memory(self._client(block.hClient), block), busy=False)

    def _map_memory_dma(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("NVOS46_PARAMETERS", argument)
        self._need_control(file)
        self._answer(block, lambda: map_memory_dma(self._client(block.hClient), block))

    def _unmap_memory_dma(self, file: OpenFile, argument: memoryview) -> None:
        block = self._block("NVOS47_PARAMETERS", argument)
        self._need_control(file)
        self._answer(
            block, lambda: unmap_memory_dma(self._client(block.hClient), block), busy=False
        )

    def _answer(self, block: Struct, work: Callable[[], None], *, busy: bool = True) -> None:
        """Do the work and write its status to the block; the ioctl itself succeeds."""
        status = Status.OK
        try:
            if busy and self._machine.faults.take(Fault.BUSY):
                raise RmError(Status.BUSY_RETRY, "planted")
            work()
        except RmError as error:
            status = error.status
            self._machine.refused.append(f"{block.layout.name}: {error}")
        block.status = int(status)
