"""One client of the resource manager: creates, queries and frees objects over the control node.

Sources: open-gpu-kernel-modules 580.142, src/nvidia/arch/nvalloc/unix/src/escape.c (which call goes
to which file), src/common/sdk/nvidia/inc/nvos.h (blocks), kernel-open/nvidia/nv.c. nv.abi supplies
the parameter blocks for the running driver's version.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import re
from typing import Any

from ugpu.hcq.errors import (
    AccessDenied,
    DeviceLost,
    DeviceNotFound,
    DriverRefused,
    ModuleMissing,
    OutOfMemory,
    TransportError,
    UgpuError,
)
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.node import Node, NodeMapping
from ugpu.nv import abi
from ugpu.nv.rm.requests import GONE, Requests, status_error

log = logging.getLogger(__name__)

CONTROL_NODE = "/dev/nvidiactl"
_INTERRUPTIONS = 1000  # signals that one call survives
_CARDS = 32  # NV_MAX_GPUS in kernel-open/common/inc/nv-limits.h


def address_of(buffer: memoryview) -> int:
    """The address of writable bytes in this process; valid as long as they are referenced."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class RmClient(Requests):
    """A client of the stock driver and its control file. abi: the tables of the running driver.
    See Requests."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root = 0
        self.closed = False
        self.control_file = open_file(node, CONTROL_NODE)
        try:
            self.version = self._query_version()
            self.abi = abi.select(self.version)
            if not self.abi.exact:
                log.warning(
                    "NVIDIA driver %s is not known: using the interface of branch %s",
                    self.version,
                    self.abi.branch,
                )
            self.structs, self.constants = self.abi.structs, self.abi.constants
            self.root = self.allocate(0, "NV01_ROOT_CLIENT")
        except BaseException:
            self.close()
            raise

    def _query_version(self) -> str:
        """Return the driver's version. The block has been the same since branch 535."""
        table = abi.select("580.142")
        query = table.structs.nv_ioctl_rm_api_version_t.new(
            cmd=table.constants.NV_RM_API_VERSION_CMD_QUERY
        )
        request = table.request("NV_ESC_CHECK_VERSION_STR")
        self._ioctl(self.control_file, request, query.raw, "NV_ESC_CHECK_VERSION_STR")
        text = bytes(query.versionString).split(b"\0")[0].decode("ascii", "replace")
        if re.fullmatch(r"\d+(\.\d+)*", text) is None:
            raise DriverRefused(
                "expected a version from the NVIDIA driver, found none", version=text
            )
        return text

    # ---- calls -------------------------------------------------------------------------------

    def escape(self, name: str, block: Struct, file: int | None = None) -> None:
        """Make one NV_ESC_* call; the caller checks the statuses inside the block."""
        request = self.abi.request(name)
        self._ioctl(self.control_file if file is None else file, request, block.raw, name)

    def _ioctl(self, file: int, request: int, block: memoryview, name: str) -> None:
        call(self.node, file, request, block, name)

    def _ask(self, name: str, block: Struct, what: str) -> None:
        """Make a call for the request `what`; EINVAL becomes DriverRefused.

        A sandbox in front of the driver that allows only some controls and classes returns EINVAL
        (google/gvisor pkg/sentry/devices/nvproxy).
        """
        try:
            self.escape(name, block)
        except TransportError as error:
            if error.facts.get("errno") != errno.EINVAL:
                raise
            raise DriverRefused(
                f"the NVIDIA driver refused {what} with EINVAL: either a sandbox filters"
                f" requests, or the driver's interface is not that of branch {self.abi.branch}",
                request=what,
                status="EINVAL",
            ) from error

    @property
    def clock(self) -> Clock:
        return self.node.clock

    def _allocate(
        self, parent: int, number: int, parameters: Struct | None, name: str
    ) -> tuple[int, int]:
        block = self.structs.NVOS64_PARAMETERS.new(
            hRoot=self.root, hObjectParent=parent, hClass=number
        )
        if parameters is not None:
            block.pAllocParms = address_of(parameters.raw)
            block.paramsSize = len(parameters)
        try:
            self._ask("NV_ESC_RM_ALLOC", block, f"allocate {name}")
            return int(block.status), int(block.hObjectNew)
        except BaseException:
            if block.hObjectNew:  # created, and the caller will not get its handle
                with contextlib.suppress(UgpuError):
                    self.free(parent, int(block.hObjectNew))
            raise

    def _free(self, parent: int, handle: int) -> int:
        block = self.structs.NVOS00_PARAMETERS.new(
            hRoot=self.root, hObjectParent=parent, hObjectOld=handle
        )
        self.escape("NV_ESC_RM_FREE", block)
        return int(block.status)

    def _control(self, handle: int, command: int, parameters: Struct | None, name: str) -> int:
        block = self.structs.NVOS54_PARAMETERS.new(hClient=self.root, hObject=handle, cmd=command)
        if parameters is not None:
            block.params = address_of(parameters.raw)
            block.paramsSize = len(parameters)
        self._ask("NV_ESC_RM_CONTROL", block, name)
        return int(block.status)

    def map(self, device: int, memory: int, size: int, path: str) -> NodeMapping:
        """Map an object's memory into this process.

        path: the node to map it from, which is the GPU's own node for memory of the GPU and the
        control node for system memory.
        """
        if path == CONTROL_NODE:
            file = open_file(self.node, path)
        else:
            file = self.open_gpu_file(path)
        try:
            block = self.structs.nv_ioctl_nvos33_parameters_with_fd.new(fd=file)
            inner = block.params
            inner.hClient, inner.hDevice, inner.hMemory = self.root, device, memory
            inner.length = size
            self.escape("NV_ESC_RM_MAP_MEMORY", block)
            if inner.status:
                raise status_error(inner.status, "map memory", size=size)
            try:
                return self.node.map(file, size)
            except OSError as error:
                raise os_error(error, "mmap") from error
        finally:
            self.node.release(file)  # the mapping keeps what it needs

    def open_gpu_file(self, path: str) -> int:
        """Open a GPU's node and bind it to this client, which also wakes the GPU up."""
        file = open_file(self.node, path)
        try:
            block = self.structs.nv_ioctl_register_fd_t.new(ctl_fd=self.control_file)
            self.escape("NV_ESC_REGISTER_FD", block, file)
        except BaseException:
            self.node.release(file)
            raise
        return file

    def cards(self) -> list[Any]:
        """The GPUs of the driver, as NV_ESC_CARD_INFO reports them. Any: see `ask`."""
        layout = self.structs.nv_ioctl_card_info_t
        raw = bytearray(layout.size * _CARDS)
        request = self.abi.request("NV_ESC_CARD_INFO") + (len(raw) - layout.size << 16)
        self._ioctl(self.control_file, request, memoryview(raw), "NV_ESC_CARD_INFO")
        found = [layout.view(raw, number * layout.size) for number in range(_CARDS)]
        return [card for card in found if card["valid"]]

    def close(self) -> None:
        """Free every object of this client and the control file; idempotent.

        Errors of the driver are not raised.
        """
        if self.closed:
            return
        self.closed = True
        if self.root:
            with contextlib.suppress(UgpuError):
                self.free(0, self.root)
        with contextlib.suppress(UgpuError):
            self.node.release(self.control_file)

    def __repr__(self) -> str:
        return f"<RmClient {self.root:#x} of driver {self.version}>"


def open_file(node: Node, path: str) -> int:
    """Open a node; ModuleMissing, DeviceNotFound or AccessDenied have a remedy."""
    try:
        return node.open(path)
    except FileNotFoundError:
        if path == CONTROL_NODE:
            raise ModuleMissing(
                f"{path} does not exist: NVIDIA's kernel driver is not loaded, or its device "
                "nodes are "
                "missing",
                remedy="sudo modprobe nvidia && sudo nvidia-modprobe -c 0 -u",
            ) from None
        if path.endswith("uvm"):
            raise ModuleMissing(
                f"{path} does not exist: NVIDIA's memory driver (nvidia-uvm) is not loaded",
                remedy="sudo modprobe nvidia-uvm && sudo nvidia-modprobe -u -c 0",
            ) from None
        raise DeviceNotFound(
            f"{path} does not exist: this machine has no such NVIDIA GPU", path=path
        ) from None
    except PermissionError:
        raise AccessDenied(
            f"this user does not have permission to open {path}",
            remedy=f"sudo chmod a+rw {path}, or join the group that owns it",
            path=path,
        ) from None
    except OSError as error:
        raise os_error(error, f"open {path}") from error


def call(node: Node, file: int, request: int, block: memoryview, name: str) -> None:
    """Make one ioctl, and repeat it if a signal interrupts the driver's wait."""
    for _ in range(_INTERRUPTIONS):
        try:
            node.ioctl(file, request, block)
            return
        except OSError as error:
            if error.errno != errno.EINTR:
                raise os_error(error, name) from error
    raise TransportError(f"{name} was interrupted by signals too many times", request=name)


def os_error(error: OSError, request: str) -> UgpuError:
    """The error for a failed system call."""
    if error.errno == errno.ENOMEM:
        return OutOfMemory(f"{request}: {error.strerror}", request=request)
    if error.errno in (errno.EACCES, errno.EPERM):
        return AccessDenied(
            f"{request}: {error.strerror}", request=request, remedy="run as a user who may"
        )
    if error.errno in (errno.ENODEV, errno.EIO, errno.ENXIO):
        return DeviceLost(f"{request}: {error.strerror}", request=request, remedy=GONE)
    return TransportError(f"{request}: {error.strerror}", request=request, errno=error.errno)
