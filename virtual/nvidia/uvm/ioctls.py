"""UVM's calls: the ioctl number is a plain number, the status is at the end of each block.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm.c (uvm_ioctl), uvm_ioctl.h,
uvm_linux_ioctl.h, uvm_va_space.c, uvm_user_channel.c, uvm_map_external.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.files import Program
from ugpu.virtual.nvidia.memory.faults import MmuFault
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.mig import GpuInstance
from ugpu.virtual.nvidia.rm.objects import Client, DriverState, RmObject
from ugpu.virtual.nvidia.rm.resources import VaSpace
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.uvm.calls import Calls
from ugpu.virtual.nvidia.uvm.contexts import ContextBuffers
from ugpu.virtual.nvidia.uvm.ranges import ExternalRanges

_FIRST = ("UVM_INITIALIZE", "UVM_MM_INITIALIZE")  # calls that a new file accepts
_KNOWN_FLAGS = 0x3  # UVM_INIT_FLAGS: DISABLE_HMM 1, MULTI_PROCESS_SHARING_MODE 2
_MOST_GPUS = 256
# Address bits of context buffers, where they are fewer than the MMU's (max_channel_va in
# uvm_turing.c, uvm_ampere.c and uvm_ada.c; uvm_hopper.c and uvm_blackwell.c have 57)
_CHANNEL_BITS = {"turing": 40, "ampere": 40, "ada": 40}
_READ_WRITE_ATOMIC, _READ_WRITE, _READ_ONLY = 1, 2, 3  # UvmGpuMappingType; 0 is the default


class Watcher(Protocol):
    """An event queue of an address space."""

    def fatal_fault(self, gpu: int, fault: MmuFault) -> None:
        """Queue a fault that ends a channel of the address space."""
        ...


class UvmFile:
    """One open /dev/nvidia-uvm: a UVM address space, once it is initialised.

    watchers: event queues, each of which keeps the space alive after its file is closed.
    """

    def __init__(self, machine: DriverState, program: Program) -> None:
        self._machine = machine
        self._program = program
        self._initialized = False
        self.flags = 0  # of UVM_INITIALIZE
        self._mm_initialized = False
        self.gpus: dict[bytes, VirtualGpu] = {}
        self.spaces: dict[bytes, VaSpace] = {}  # by UUID
        self.channels: dict[tuple[int, int], tuple[bytes, ChannelObject]] = {}
        self.peers: set[frozenset[bytes]] = set()
        self.ranges = ExternalRanges(machine, self.spaces, self.peers)
        self.contexts = ContextBuffers(self.ranges)
        self.watchers: list[Watcher] = []
        self._file_closed = False
        handlers: dict[str, Callable[[Struct], None]] = {
            "UVM_INITIALIZE": self._initialize,
            "UVM_MM_INITIALIZE": self._mm_initialize,
            "UVM_PAGEABLE_MEM_ACCESS": self._pageable,
            "UVM_REGISTER_GPU": self._register_gpu,
            "UVM_UNREGISTER_GPU": self._unregister_gpu,
            "UVM_REGISTER_GPU_VASPACE": self._register_space,
            "UVM_UNREGISTER_GPU_VASPACE": self._unregister_space,
            "UVM_REGISTER_CHANNEL": self._register_channel,
            "UVM_UNREGISTER_CHANNEL": self._unregister_channel,
            "UVM_ENABLE_PEER_ACCESS": self._enable_peers,
            "UVM_DISABLE_PEER_ACCESS": self._disable_peers,
            "UVM_CREATE_EXTERNAL_RANGE": self._create_range,
            "UVM_MAP_EXTERNAL_ALLOCATION": self._map,
            "UVM_UNMAP_EXTERNAL": self._unmap,
            "UVM_FREE": self._free,
        }
        self._calls = Calls(machine, "UVM", {
            name: handler if name in _FIRST else self._initialized_only(handler)
            for name, handler in handlers.items()
        })  # fmt: skip

    def ioctl(self, request: int, argument: bytearray | memoryview) -> None:
        """Execute one call; its status is written to the block."""
        self._calls.answer(request, argument)

    def _initialized_only(self, handler: Callable[[Struct], None]) -> Callable[[Struct], None]:
        def checked(block: Struct) -> None:
            require(self._initialized, Status.ILLEGAL_ACTION, "UVM_INITIALIZE comes first")
            handler(block)

        return checked

    @property
    def is_initialized(self) -> bool:
        """Whether UVM_INITIALIZE succeeded."""
        return self._initialized

    def record(self, gpu: VirtualGpu, fault: MmuFault) -> None:
        """Notify the watchers that a fault ends a channel of this space."""
        for watcher in list(self.watchers):
            watcher.fatal_fault(gpu.index, fault)

    def close(self) -> None:
        """Close the file: free mappings, channels, spaces and GPUs unless a queue watches them."""
        self._file_closed = True
        self.leave()

    def leave(self) -> None:
        """Drop a holder of the space; the last one frees it."""
        if not self._file_closed or self.watchers:
            return
        self.ranges.close()
        for uuid in list(self.gpus):
            self._drop_gpu(uuid)

    # Lookups

    def gpu(self, uuid: Struct) -> tuple[bytes, VirtualGpu]:
        """Return a registered GPU by its UUID."""
        key = bytes(uuid.raw)
        found = self.gpus.get(key)
        if found is None:
            raise RmError(Status.INVALID_DEVICE, f"GPU {key.hex()} is not registered")
        return key, found

    def object_of(self, client_handle: int, handle: int) -> RmObject:
        """Return the object of the resource manager that a block names."""
        client: Client | None = self._machine.clients.get(client_handle)
        if client is None or client.owner is not self._program:
            raise RmError(Status.INVALID_CLIENT, f"no client {client_handle:#x}")
        return client.find(handle, Status.OBJECT_NOT_FOUND)

    def memory_of(self, client_handle: int, handle: int) -> Memory:
        """Return the memory object that a block names."""
        found = self.object_of(client_handle, handle)
        if not isinstance(found, Memory):
            raise RmError(Status.INVALID_OBJECT, f"expected memory, got {found!r}")
        return found

    # Calls

    def _initialize(self, block: Struct) -> None:
        require(not block.flags & ~_KNOWN_FLAGS, Status.INVALID_ARGUMENT, f"flags {block.flags:#x}")
        require(not self._initialized, Status.INVALID_STATE, "initialised already")
        self._initialized, self.flags = True, block.flags

    def _mm_initialize(self, block: Struct) -> None:
        file = self._program.files.get(block.uvmFd)
        other = file.calls if file is not None else None
        if not isinstance(other, UvmFile) or not other.is_initialized:
            raise RmError(Status.INVALID_ARGUMENT, f"{block.uvmFd} is not an initialised UVM file")
        require(other is not self, Status.INVALID_ARGUMENT, "the same file")
        # The kernel does not keep such a file if it does not need it, and reports that.
        raise RmError(Status.NOTHING_TO_DO, "the MM file is not needed")

    def _pageable(self, block: Struct) -> None:
        block.pageableMemAccess = 0

    def _register_gpu(self, block: Struct) -> None:
        uuid = bytes(block.gpu_uuid.raw)
        gpu = next((found for found in self._machine.gpus if found.uuid == uuid), None)
        if gpu is None or gpu.lost or not self._program.has_open(gpu):
            raise RmError(Status.INVALID_DEVICE, f"GPU {uuid.hex()} is not open in this process")
        require(uuid not in self.gpus, Status.INVALID_DEVICE, "registered already")
        if self._machine.faults.take(Fault.UVM_REFUSED, gpu.index):
            raise RmError(Status.INVALID_DEVICE, "planted")
        if gpu.options.mig is not None:
            inside = self.object_of(block.hClient, block.hSmcPartRef)
            if not isinstance(inside, GpuInstance):
                raise RmError(Status.INVALID_ARGUMENT, f"expected a MIG instance, got {inside!r}")
        elif block.hSmcPartRef:
            raise RmError(Status.INVALID_DEVICE, "MIG is off")
        self.gpus[uuid] = gpu
        block.numaEnabled, block.numaNodeId = 0, -1

    def _unregister_gpu(self, block: Struct) -> None:
        uuid, _ = self.gpu(block.gpu_uuid)
        self._drop_gpu(uuid)

    def _drop_gpu(self, uuid: bytes) -> None:
        if uuid in self.spaces:
            self._drop_space(uuid)
        self.peers -= {pair for pair in self.peers if uuid in pair}
        del self.gpus[uuid]

    def _register_space(self, block: Struct) -> None:
        uuid, gpu = self.gpu(block.gpuUuid)
        space = self.object_of(block.hClient, block.hVaSpace)
        if not isinstance(space, VaSpace):
            raise RmError(Status.INVALID_OBJECT, f"expected an address space, got {space!r}")
        require(space.gpu is gpu, Status.INVALID_DEVICE, "a space of another GPU")
        require(uuid not in self.spaces, Status.INVALID_DEVICE, "the GPU has a space already")
        require(not space.registered, Status.INVALID_ARGUMENT, "registered with another file")
        require(space.external, Status.NOT_SUPPORTED, "not IS_EXTERNALLY_OWNED")
        space.hold()
        space.registered = True
        self.spaces[uuid] = space

    def _unregister_space(self, block: Struct) -> None:
        uuid, _ = self.gpu(block.gpuUuid)
        require(uuid in self.spaces, Status.INVALID_DEVICE, "no space is registered")
        self._drop_space(uuid)

    def _drop_space(self, uuid: bytes) -> None:
        for key, (owner, channel) in list(self.channels.items()):
            if owner == uuid:
                self.contexts.unmap(channel)
                channel.on_fault = None
                channel.channel.stop()
                channel.runlist.pause(channel.channel)
                del self.channels[key]
        self.ranges.unmap_gpu(uuid)
        space = self.spaces.pop(uuid)
        space.registered = False
        space.drop()

    def _register_channel(self, block: Struct) -> None:
        uuid, gpu = self.gpu(block.gpuUuid)
        space = self.spaces.get(uuid)
        require(space is not None, Status.INVALID_DEVICE, "the GPU has no registered space")
        channel = self.object_of(block.hClient, block.hChannel)
        if not isinstance(channel, ChannelObject):
            raise RmError(Status.INVALID_CHANNEL, f"expected a channel, got {channel!r}")
        require(channel.vaspace is space, Status.INVALID_CHANNEL, "of another address space")
        key = (block.hClient, block.hChannel)
        known = self.channels.get(key)
        require(
            known is None or known[1] is not channel, Status.INVALID_CHANNEL, "registered already"
        )
        if known is not None:
            self.contexts.unmap(known[1])
        if channel.runlist is gpu.runlists[0]:
            # nvGpuOpsRetainChannel requests the context's buffers (observed on an H100 too).
            require(channel.has_context, Status.INVALID_OBJECT, "no graphics context yet")
            base, length = block.base, block.length
            bad = not length or base % 4096 or length % 4096 or not base
            require(not bad, Status.INVALID_ADDRESS, f"{base:#x}, {length} bytes")
            limit = 1 << _CHANNEL_BITS.get(gpu.facts.family, gpu.form.address_bits)
            require(base + length <= limit, Status.OUT_OF_RANGE, f"{base:#x}, {length} bytes")
            self.contexts.map(channel, base, length)
            channel.contexts_mapped = True
        self.channels[key] = (uuid, channel)
        channel.on_fault = lambda fault: self.record(gpu, fault)

    def _unregister_channel(self, block: Struct) -> None:
        found = self.channels.pop((block.hClient, block.hChannel), None)
        if found is None:
            raise RmError(Status.INVALID_CHANNEL, f"{block.hChannel:#x} is not registered")
        self.contexts.unmap(found[1])
        found[1].on_fault = None
        found[1].channel.stop()
        found[1].runlist.pause(found[1].channel)

    def _enable_peers(self, block: Struct) -> None:
        pair = self._pair(block)
        require(pair not in self.peers, Status.INVALID_DEVICE, "enabled already")
        self.peers.add(pair)

    def _disable_peers(self, block: Struct) -> None:
        pair = self._pair(block)
        require(pair in self.peers, Status.INVALID_DEVICE, "not enabled")
        self.peers.discard(pair)
        self.ranges.unmap_peers(pair)

    def _pair(self, block: Struct) -> frozenset[bytes]:
        first, _ = self.gpu(block.gpuUuidA)
        second, _ = self.gpu(block.gpuUuidB)
        require(first != second, Status.INVALID_DEVICE, "a GPU and itself")
        return frozenset((first, second))

    def _create_range(self, block: Struct) -> None:
        self.ranges.create(block.base, block.length)

    def _map(self, block: Struct) -> None:
        count = block.gpuAttributesCount
        require(0 < count <= len(block.perGpuAttributes), Status.INVALID_ARGUMENT, f"{count} GPUs")
        found = self.ranges.containing(block.base, block.length)
        memory = self.memory_of(block.hClient, block.hMemory)
        for index in range(count):
            attributes = block.perGpuAttributes[index]
            require(attributes.gpuMappingType <= 3, Status.INVALID_ARGUMENT, "gpuMappingType")
            require(attributes.gpuCachingType <= 2, Status.INVALID_ARGUMENT, "gpuCachingType")
            default = not attributes.gpuFormatType and not attributes.gpuElementBits
            require(default, Status.NOT_SUPPORTED, "block-linear formats")
            require(attributes.gpuCompressionType <= 2, Status.INVALID_ARGUMENT, "compression")
            uuid, gpu = self.gpu(attributes.gpuUuid)
            space = self.spaces.get(uuid)
            if space is None:
                raise RmError(Status.INVALID_DEVICE, "the GPU has no registered space")
            limit = 1 << gpu.form.address_bits
            require(block.base + block.length <= limit, Status.OUT_OF_RANGE, f"{block.base:#x}")
            if self._machine.faults.take(Fault.NO_PAGE_TABLES, gpu.index):
                raise RmError(Status.NO_MEMORY, "planted")
            self.ranges.map(
                found, uuid, gpu, memory.backing, block.base, block.length, block.offset,
                read_only=attributes.gpuMappingType == _READ_ONLY,
                atomic=attributes.gpuMappingType in (0, _READ_WRITE_ATOMIC),
                uncached=attributes.gpuCachingType == 1,
            )  # fmt: skip

    def _unmap(self, block: Struct) -> None:
        found = self.ranges.containing(block.base, block.length)
        uuid, _ = self.gpu(block.gpuUuid)
        self.ranges.unmap(found, uuid, block.base, block.length)

    def _free(self, block: Struct) -> None:
        length = block.length if "length" in block.layout.fields else None
        self.ranges.free(block.base, length)
