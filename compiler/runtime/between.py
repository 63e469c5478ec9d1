"""Copies of stored arrays from one device to another: by the devices themselves where the target
reaches the source's memory (peers, and `cpu` devices of one process), without the host."""

from __future__ import annotations

from ugpu.compiler.graph.node import Node
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.hcq.device.device import Device, core_of


def near_copy(node: Node, source: Device, target: Device) -> Node | None:
    """Return a stored node's copy on another device, whose queue makes it; None if that device does
    not reach the memory. Waits for the source's work, and for the copy."""
    storage = node.storage
    if not isinstance(storage, Storage) or any(
        core_of(each).capturing is not None for each in (source, target)
    ):
        return None
    size = node.size * node.dtype.itemsize
    near = target.driver.reach_memory(storage.buffer) if size else None
    if near is None:
        return None
    made = Node("buffer", node.dtype, node.shape)
    made.storage = taken = runtime_of(target).pool.take(size)
    source.synchronize()
    with target.queue() as queue:
        queue.copy(taken.buffer, near, size)
    target.synchronize()  # until then, the source's memory must not be used again
    return made
