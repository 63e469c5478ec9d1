"""Open device files, and the program that has them open, as the driver's calls see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprits
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.memory.physical import Backing


class FileCalls(Protocol):
    """The calls of a file that the resource manager does not answer: UVM's, and its tools'."""

    def ioctl(self, request: int, argument: bytearray | memoryview) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class MapContext:
    """Mapping that a file may make after RM_MAP_MEMORY. gpu, in_bar1: for a doorbell page."""

    size: int
    backing: Backing | None = None
    offset: int = 0
    gpu: VirtualGpu | None = None
    in_bar1: bool = False


@dataclass(eq=False)
class OpenFile:
    """An open device file. gpu: None for nvidiactl and UVM. calls: of UVM and its tools. control:
    the file given by REGISTER_FD."""

    handle: int
    path: str
    gpu: VirtualGpu | None = None
    calls: FileCalls | None = None
    control: OpenFile | None = None
    context: MapContext | None = None

    def set_memory_context(self, backing: Backing, offset: int, size: int) -> None:
        """Allow `map` to map this memory."""
        self.context = MapContext(size, backing, offset)

    def set_doorbell_context(self, gpu: VirtualGpu, size: int, *, in_bar1: bool) -> None:
        """Allow `map` to map the GPU's doorbell page."""
        self.context = MapContext(size, gpu=gpu, in_bar1=in_bar1)

    @property
    def is_control(self) -> bool:
        """Whether this file is /dev/nvidiactl."""
        return self.path == "/dev/nvidiactl"


class Program(Protocol):
    """A program that calls the driver. gaps, culprits: of its channels' errors, see
    hcq.transport.node and hcq.state.instruction."""

    gaps: list[NotSupported]
    culprits: Culprits

    @property
    def files(self) -> Mapping[int, OpenFile]:
        """The open files by handle."""
        ...

    def has_open(self, gpu: VirtualGpu) -> bool:
        """Return whether the program has the GPU's device file open."""
        ...
