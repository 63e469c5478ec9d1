"""Copies of stored arrays from one device to another, also in recorded functions."""

from __future__ import annotations

from ugpu.compiler.graph.movement import part_of_stored
from ugpu.compiler.graph.node import Node
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.runtime.several.stages import carry
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import NotSupported


def copy_between(node: Node, source: Device, target: Device) -> Node:
    """Return the node of a copy on another device; node: computed, or a range of stored elements.
    NotSupported inside a capture that is not a recorded function's."""
    recording, pool = current_recording(), runtime_of(target).pool
    whole, first = part_of_stored(node) or (node, 0)
    storage = whole.storage
    assert isinstance(storage, Storage)
    size, start = node.size * node.dtype.itemsize, first * node.dtype.itemsize
    made = Node("buffer", node.dtype, node.shape)
    if recording is not None:
        made.storage = recording.copied(storage, start, pool, size)
        return made
    for device in (source, target):
        capturing = core_of(device).capturing
        if capturing is not None and capturing.is_mine:
            raise NotSupported(
                f"capture() of {device.name} cannot contain a copy from {source.name} to "
                f"{target.name}; use @jit"
            )
    made.storage = taken = pool.take(size)
    carry(storage.buffer[start : start + size], taken.buffer, size)
    return made
