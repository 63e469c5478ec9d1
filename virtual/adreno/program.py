"""A program that has the device file open, as seen by its calls; `node.VirtualNode` is its file."""

from __future__ import annotations

from typing import Protocol

from ugpu.virtual.adreno.kgsl.context import Context
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.memory.objects import MemoryObject
from ugpu.virtual.adreno.memory.space import AddressSpace
from ugpu.virtual.node.process import UserMemory


class Program(Protocol):
    """A program. is_here: it runs in this process. counters: (group, event) of its performance
    counters."""

    machine: VirtualMachine
    space: AddressSpace
    memory: UserMemory
    objects: dict[int, MemoryObject]
    counters: list[tuple[int, int]]
    is_here: bool

    @property
    def halts_at_page_faults(self) -> bool:
        """Whether a page fault of a shader ends the submission."""
        ...

    def drop(self, found: MemoryObject) -> None:
        """Drop one reference to an object; the last one unmaps it from the GPU. Under the lock."""
        ...

    def destroy(self, context: Context) -> None:
        """Destroy a context; its queued submissions never run. Under the machine's lock."""
        ...
