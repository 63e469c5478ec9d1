"""Tensors whose elements are in a buffer owned by the program."""

from __future__ import annotations

from math import prod
from typing import Any

from ugpu.compiler.dtype import DType, as_dtype, require
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.schedule.group import ALIGN
from ugpu.hcq.device.device import owner_of
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.buffer import Buffer


class Lent(Storage):
    """The start of a program's buffer, which it keeps. Read only: an assignment copies first. Any
    use raises Closed once the program has closed the buffer."""

    __slots__ = ("part",)
    writable = False

    def __init__(self, pool: MemoryPool, buffer: Buffer, size: int) -> None:
        self.pool = pool
        self.part = buffer[:size]
        self.size = size

    @property
    def buffer(self) -> Buffer:  # type: ignore[override]  # a field that is checked each time
        """The bytes; Closed after the buffer was closed."""
        owner = self.part.owner
        assert owner is not None
        if owner.closed:
            raise Closed("buffer used after close", address=int(owner.address))
        return self.part

    @property
    def address(self) -> int:  # type: ignore[override]
        """The address of the bytes; Closed after the buffer was closed."""
        return self.buffer.address

    def __del__(self) -> None:
        """Do nothing: the program owns the buffer."""


def lend(buffer: Any, shape: Shape, dtype: DType | str) -> Node:  # Any: checked here
    """Return a node whose elements are the start of a buffer. BadArgument if not possible."""
    kind = as_dtype(dtype)
    if not isinstance(buffer, Buffer):
        raise BadArgument(f"from_buffer: expected a Buffer, got {type(buffer).__name__}")
    owner = buffer.owner or buffer
    if buffer.closed or owner.closed:
        raise Closed("buffer used after close", address=int(buffer.address))
    require(kind, owner_of(buffer).target)
    recording = current_recording()
    if recording is not None:
        raise BadArgument(
            f"@jit {recording.name}: the tensor would use the same buffer in every call; "
            "pass it as an argument"
        )
    size = prod(shape) * kind.itemsize
    if size > buffer.size:
        listed = ", ".join(map(str, shape))
        raise BadArgument(
            f"from_buffer: {kind.name}[{listed}] needs {size} bytes, the buffer has {buffer.size}"
        )
    if buffer.address % ALIGN:
        raise BadArgument(
            f"from_buffer: the buffer must begin at a multiple of {ALIGN} bytes, got "
            f"{int(buffer.address):#x}"
        )
    node = Node("buffer", kind, shape)
    node.storage = Lent(runtime_of(owner_of(buffer)).pool, buffer, size)
    return node
