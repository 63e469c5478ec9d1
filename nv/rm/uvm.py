"""UVM, the driver's second half: it owns the address space that kernels run in.

Sources: open-gpu-kernel-modules 580.142, kernel-open/nvidia-uvm: uvm_ioctl.h (blocks), uvm.c,
uvm_map_external.c (external ranges), uvm_user_channel.c (channels).
"""

from __future__ import annotations

import contextlib
from typing import Any

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.nv import abi
from ugpu.nv.rm.client import RmClient, call, open_file
from ugpu.nv.rm.requests import status_error

UVM_NODE = "/dev/nvidia-uvm"
_MM_NOT_NEEDED = frozenset(("NV_OK", "NV_WARN_NOTHING_TO_DO"))


class Uvm:
    """An address space of UVM, one for this client. `close` releases everything in it.

    isolated: kernels cannot reach memory of this process that was not mapped for them. Without it
    they can if the system has HMM or ATS (uvm_hmm.c, uvm_ats.c). In multi-process sharing mode an
    address space does not belong to a process (uvm_va_space_mm.c, uvm_va_space_mm_enabled).
    """

    def __init__(self, client: RmClient, *, isolated: bool = False) -> None:
        self.client = client
        self.node = client.node
        self.files: list[int] = []
        self.closed = False
        try:
            self.file = self._open()
            number = client.constants
            flags = number.UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE if isolated else 0
            self.call("UVM_INITIALIZE", flags=flags)
            if not isolated:
                self._keep_mm()
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        file = open_file(self.node, UVM_NODE)
        self.files.append(file)
        return file

    def _keep_mm(self) -> None:
        """Tie the address space to this process by a separate file, if the kernel requires it."""
        file = self._open()
        block = self._block("UVM_MM_INITIALIZE", uvmFd=self.file)
        self._ioctl("UVM_MM_INITIALIZE", block, file)
        if abi.status_name(block.rmStatus) not in _MM_NOT_NEEDED:
            raise status_error(block.rmStatus, "UVM_MM_INITIALIZE")

    def _block(self, name: str, **values: Any) -> Any:  # Any: the tables define the members
        return self.client.structs[self.client.abi.ioctls[name].struct].new(**values)

    def _ioctl(self, name: str, block: Struct, file: int) -> None:
        call(self.node, file, self.client.abi.request(name), block.raw, name)

    def call(self, name: str, **values: Any) -> Any:  # Any: see _block
        """Make one call and return the block with its results; raise the error in `rmStatus`."""
        block = self._block(name, **values)
        self._ioctl(name, block, self.file)
        if block.rmStatus:
            raise status_error(block.rmStatus, name)
        return block

    def call_known(self, name: str, **values: Any) -> Any:  # Any: see _block
        """Like `call`, for blocks that lost members in later branches: these are omitted."""
        fields = self.client.structs[self.client.abi.ioctls[name].struct].fields
        known = {member: value for member, value in values.items() if member in fields}
        return self.call(name, **known)

    def uuid(self, raw: bytes) -> Any:  # Any: see _block
        """A GPU's identifier as the blocks hold it."""
        found = self.client.structs.nv_uuid.new()
        found["uuid"] = list(raw)
        return found

    def map_external(self, base: int, size: int, memory: int, gpus: list[bytes]) -> None:
        """Create a range and map an allocation of the resource manager there for `gpus`."""
        self.call("UVM_CREATE_EXTERNAL_RANGE", base=base, length=size)
        try:
            self.map_for(base, size, memory, gpus)
        except BaseException:
            with contextlib.suppress(UgpuError):
                self.unmap(base, size)
            raise

    def map_for(
        self, base: int, size: int, memory: int, gpus: list[bytes], *, read_only: bool = False
    ) -> None:
        """Map an allocation, from its start, into an existing range for `gpus`.

        This replaces the earlier mapping there (uvm_map_external.c).
        """
        number = self.client.constants
        block = self._block(
            "UVM_MAP_EXTERNAL_ALLOCATION",
            base=base,
            length=size,
            gpuAttributesCount=len(gpus),
            rmCtrlFd=self.client.control_file,
            hClient=self.client.root,
            hMemory=memory,
        )
        for position, raw in enumerate(gpus):
            attributes = block.perGpuAttributes[position]
            attributes.gpuUuid = self.uuid(raw)
            attributes.gpuMappingType = (
                number.UvmGpuMappingTypeReadOnly
                if read_only
                else number.UvmGpuMappingTypeReadWriteAtomic
            )
        self._ioctl("UVM_MAP_EXTERNAL_ALLOCATION", block, self.file)
        if block.rmStatus:
            raise status_error(block.rmStatus, "UVM_MAP_EXTERNAL_ALLOCATION", size=size)

    def unmap(self, base: int, size: int) -> None:
        """Remove a range, for all GPUs."""
        self.call_known("UVM_FREE", base=base, length=size)  # no length since branch 595

    def close(self) -> None:
        """Close the files, which ends the address space; idempotent."""
        if self.closed:
            return
        self.closed = True
        for file in reversed(self.files):
            with contextlib.suppress(UgpuError):
                self.node.release(file)
