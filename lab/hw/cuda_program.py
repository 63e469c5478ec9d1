"""A small program on CUDA's driver library, to be recorded: one launch, one copy, one graph,
or one launch of clusters (compute capability 9.0 or later); or, with `bank`, what a kernel finds in
constant bank 0.

    ugpu sniff -o launch.jsonl -- python -m lab.hw.cuda_program launch

It needs libcuda.so.1, which comes with the kernel driver, and nothing else: no toolkit, no PyTorch.
The kernel is the contract suite's `scale`, from the same PTX that our driver loads, so that what
differs between two recordings is the drivers and not the work. Clusters run `tell`, whose groups
say who they are. Names, arguments and structures: CUDA Driver API reference, modules "Memory
Management", "Execution Control", "Graph Management" and "Data types" (CUlaunchConfig,
CUlaunchAttribute).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lab.hw import bank
from tests.support.nvidia import cluster_kernel, ptx_kernels

COUNT = 64
NO_CUDA = 3
IN_GRAPH = 4  # launches
#: the launch of clusters, in groups
GRID, CLUSTER, BLOCK = (8, 4), (2, 2), 32
_ROWS, _COLUMNS = GRID[0] * GRID[1], 16
_CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
_CLUSTER_CAPABILITY = (9, 0)
_CAPTURE_RELAXED = 2
#: CUdevice_attribute: compute capability
_MAJOR, _MINOR = 75, 76


class CudaFailed(Exception):
    """A call of the library did not return CUDA_SUCCESS."""


class NoClusters(Exception):
    """The GPU has no clusters of groups."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute whose value, a union of 64 bytes, is a cluster's dimensions."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("cluster", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


class Library(Protocol):
    """The library: every function returns a CUresult."""

    def __getattr__(self, name: str) -> Callable[..., int]: ...


class Program:
    """A context with the kernel loaded and two arrays of numbers."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        capability = [ctypes.c_int(), ctypes.c_int()]
        for place, attribute in zip(capability, (_MAJOR, _MINOR), strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(place), attribute, device)
        context, module, self.kernel = (ctypes.c_void_p() for _ in range(3))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self.capability = (capability[0].value, capability[1].value)
        cpu = "sm_{}{}".format(*self.capability)
        text = ptx_kernels.text(ptx_kernels.CONTRACT, cpu) + b"\0"
        self._call("cuModuleLoadData", ctypes.byref(module), text)
        self._call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"scale")
        self.out, self.given = ctypes.c_uint64(), ctypes.c_uint64()
        for memory in (self.out, self.given):
            self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(COUNT * 4))

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        if result:
            raise CudaFailed(f"{name}: CUresult {result}")

    def copy_in(self) -> None:
        """Copy the numbers to the device."""
        numbers = (ctypes.c_uint32 * COUNT)(*range(COUNT))
        self._call("cuMemcpyHtoD_v2", self.given, numbers, ctypes.c_size_t(COUNT * 4))

    def launch(self, stream: ctypes.c_void_p | None = None) -> None:
        """Run scale(out, given, COUNT, 3)."""
        values = (self.out, self.given, ctypes.c_uint32(COUNT), ctypes.c_uint32(3))
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        sizes = (1, 1, 1, COUNT, 1, 1, 0)
        self._call("cuLaunchKernel", self.kernel, *sizes, stream, pointers, None)

    def graph(self) -> None:
        """Record launches that wait for each other into a graph, and run that twice."""
        stream, graph, ready = (ctypes.c_void_p() for _ in range(3))
        self._call("cuStreamCreate", ctypes.byref(stream), 1)
        self._call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
        for _ in range(IN_GRAPH):
            self.launch(stream)
        self._call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        for _ in range(2):
            self._call("cuGraphLaunch", ready, stream)

    def bank(self) -> None:
        """Print constant bank 0 as CUDA fills it, read by a kernel: see lab.hw.bank."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), bank.text(self.capability) + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, bank.KERNEL.encode())
        count = bank.words_of(self.capability)
        out, unused = ctypes.c_uint64(), (ctypes.c_uint8 * bank.WINDOW)()
        self._call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4 * count))
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(unused))
        self._call("cuLaunchKernel", kernel, 1, 1, 1, count, 1, 1, 0, None, pointers, None)
        self._call("cuCtxSynchronize")
        found = (ctypes.c_uint32 * count)()
        self._call("cuMemcpyDtoH_v2", found, out, ctypes.c_size_t(4 * count))
        sys.stdout.write(bank.dump(self.capability, list(found)) + "\n")

    def cluster(self) -> None:
        """Run tell(out) in clusters, and compare what its groups heard. NoClusters below 9.0."""
        if self.capability < _CLUSTER_CAPABILITY:
            raise NoClusters("capability {}.{} has no clusters; 9.0 has".format(*self.capability))
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        text = cluster_kernel.text("sm_{}{}".format(*self.capability)).encode() + b"\0"
        self._call("cuModuleLoadData", ctypes.byref(module), text)
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, b"tell")
        out, size = ctypes.c_uint64(), ctypes.c_size_t(4 * _ROWS * _COLUMNS)
        heard = (ctypes.c_int32 * (_ROWS * _COLUMNS))(*[-1] * (_ROWS * _COLUMNS))
        self._call("cuMemAlloc_v2", ctypes.byref(out), size)
        self._call("cuMemcpyHtoD_v2", out, heard, size)
        attribute = LaunchAttribute(id=_CLUSTER_DIMENSION, cluster=(*CLUSTER, 1))
        config = LaunchConfig((*GRID, 1), (BLOCK, 1, 1), 0, None, ctypes.pointer(attribute), 1)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        self._call("cuLaunchKernelEx", ctypes.byref(config), kernel, pointers, None)
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH_v2", heard, out, size)
        if list(heard) != cluster_kernel.expected(GRID, CLUSTER).ravel().tolist():
            raise CudaFailed("the clusters computed wrongly")

    def check(self) -> None:
        """Wait, copy back, compare."""
        self._call("cuCtxSynchronize")
        found = (ctypes.c_uint32 * COUNT)()
        self._call("cuMemcpyDtoH_v2", found, self.out, ctypes.c_size_t(COUNT * 4))
        if list(found) != [3 * number for number in range(COUNT)]:
            raise CudaFailed("the kernel computed wrongly")

    def run(self, what: str) -> None:
        """One of the works below."""
        self.copy_in()
        if what == "bank":
            self.bank()
            return
        if what == "cluster":
            self.cluster()
            return
        if what == "copy":
            self._call("cuCtxSynchronize")
            return
        if what == "launch":
            self.launch()
        else:
            self.graph()
        self.check()


WORKS = ("launch", "copy", "graph")
_ALL = (*WORKS, "cluster", "bank")


def main(arguments: Sequence[str], library: Library | None = None) -> int:
    """Do one work; NO_CUDA without the library, or where the GPU cannot do the work."""
    if len(arguments) != 1 or arguments[0] not in _ALL:
        sys.stderr.write(f"usage: python -m lab.hw.cuda_program {'|'.join(_ALL)}\n")
        return 2
    try:
        Program(library or ctypes.CDLL("libcuda.so.1")).run(arguments[0])
    except (OSError, CudaFailed, NoClusters) as error:
        sys.stderr.write(f"cuda_program: {error}\n")
        return 1 if isinstance(error, CudaFailed) else NO_CUDA
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
