"""A small program on CUDA's driver library, to be recorded: one launch, one copy, or one graph;
or, with `bank`, what a kernel finds in constant bank 0.

    ugpu sniff -o launch.jsonl -- python -m tests.hw.cuda_program launch

It needs libcuda.so.1, which comes with the kernel driver, and nothing else: no toolkit, no PyTorch.
The kernel is the contract suite's `scale`, from the same PTX that our driver loads, so that what
differs between two recordings is the drivers and not the work. Names and arguments: CUDA Driver API
reference, modules "Memory Management", "Execution Control" and "Graph Management".
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.hw import bank
from tests.support import ptx_kernels

COUNT = 64
NO_CUDA = 3
_CAPTURE_RELAXED = 2
#: CUdevice_attribute: compute capability
_MAJOR, _MINOR = 75, 76


class CudaFailed(Exception):
    """A call of the library did not return CUDA_SUCCESS."""


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
        """Record one launch into a graph, and run that twice."""
        stream, graph, ready = (ctypes.c_void_p() for _ in range(3))
        self._call("cuStreamCreate", ctypes.byref(stream), 1)
        self._call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
        self.launch(stream)
        self._call("cuStreamEndCapture", stream, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        for _ in range(2):
            self._call("cuGraphLaunch", ready, stream)

    def bank(self) -> None:
        """Print constant bank 0 as CUDA fills it, read by a kernel: see tests.hw.bank."""
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
        if what == "copy":
            self._call("cuCtxSynchronize")
            return
        if what == "launch":
            self.launch()
        else:
            self.graph()
        self.check()


WORKS = ("launch", "copy", "graph")
_ALL = (*WORKS, "bank")


def main(arguments: Sequence[str], library: Library | None = None) -> int:
    """Do one work; NO_CUDA without the library or without a GPU."""
    if len(arguments) != 1 or arguments[0] not in _ALL:
        sys.stderr.write(f"usage: python -m tests.hw.cuda_program {'|'.join(_ALL)}\n")
        return 2
    try:
        Program(library or ctypes.CDLL("libcuda.so.1")).run(arguments[0])
    except (OSError, CudaFailed) as error:
        sys.stderr.write(f"cuda_program: {error}\n")
        return NO_CUDA if isinstance(error, OSError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
