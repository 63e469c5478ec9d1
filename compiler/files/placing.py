"""The bytes of many tensors, read into device memory in few large reads.

Each array begins at a multiple of 256 bytes in memory, as kernels assume; arrays that follow each
other in the file are read by one call whatever their number. Memory that this process can access is
read into directly, other memory through a staging array of at most 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ugpu.compiler.files.entry import Entry
from ugpu.compiler.files.source import Source
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.origin import here
from ugpu.compiler.runtime.memory_pool import Part, Storage
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.schedule.group import ALIGN
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument

STAGING = 64 << 20  # bytes on the way to memory that this process cannot access
BLOCK = 1 << 30  # bytes of memory that tensors share


@dataclass(frozen=True)
class _Run:
    """Bytes of the file from `start` on, and their places (offset, size) in memory."""

    start: int
    places: list[tuple[int, int]]


def place(source: Source, entries: Sequence[Entry], device: Device) -> list[Tensor]:
    """Return the tensors of the entries, on the device, in their order: see `place_raw`."""
    return [
        raw if entry.decode is None else entry.decode(raw)
        for entry, raw in zip(entries, place_raw(source, entries, device), strict=True)
    ]


def place_raw(source: Source, entries: Sequence[Entry], device: Device) -> list[Tensor]:
    """Return the arrays that the entries' bytes are, on the device, in their order.

    Entries may overlap in the file. OutOfMemory if they do not fit, BadFile if the file became
    shorter; memory is returned in both cases. Raises BadArgument in a recorded function.
    """
    recording = current_recording()
    if recording is not None:
        raise BadArgument(
            f"@jit {recording.name}: the file would be read in every call; load it outside the "
            "function"
        )
    core_of(device).check_usable()
    raw: dict[int, Tensor] = {}
    order = [n for n, entry in enumerate(entries) if entry.host is None]
    order.sort(key=lambda n: entries[n].start)
    for block in _blocks(order, entries):
        storage, offsets = _read(source, [entries[n] for n in block], device)
        for n, offset in zip(block, offsets, strict=True):
            raw[n] = _stored(entries[n], Part(storage, offset, entries[n].size), device)
    for n, entry in enumerate(entries):
        if entry.host is not None:
            array = entry.host(source.read(entry.start, entry.size, f"tensor {entry.name!r}"))
            raw[n] = Tensor(array, device=device)
    return [raw[n] for n in range(len(entries))]


def _blocks(order: Sequence[int], entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Yield the entries in groups that share memory, none of them empty."""
    group: list[int] = []
    size = 0
    for n in order:
        if group and size + entries[n].size > BLOCK:
            yield group
            group, size = [], 0
        group.append(n)
        size += _aligned(entries[n].size)
    if group:
        yield group


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _stored(entry: Entry, storage: Storage, device: Device) -> Tensor:
    tensor = object.__new__(Tensor)
    tensor.device = device
    tensor.node = node = Node("buffer", entry.stored, entry.stored_shape)
    node.storage = storage
    node.origin = here()
    return tensor


def _read(source: Source, entries: Sequence[Entry], device: Device) -> tuple[Storage, list[int]]:
    """Read entries, in the order of the file, into one block of memory; return it and the places
    in it."""
    offsets, total = [], 0
    for entry in entries:
        offsets.append(total)
        total += _aligned(entry.size)
    storage = runtime_of(device).pool.take(total)
    copies = core_of(device).copies
    if not copies.keeps:
        return storage, offsets
    view = copies.view(storage.buffer)
    if view is not None:
        for run in _runs(entries, offsets):
            views = [view[offset : offset + size] for offset, size in run.places]
            source.fill(run.start, views, f"tensors from {entries[0].name!r} on")
        return storage, offsets
    staging = np.empty(min(STAGING, total), np.uint8).data
    for first, last, runs in _windows(entries, offsets):
        for run in runs:
            views = [staging[offset - first : offset - first + size] for offset, size in run.places]
            source.fill(run.start, views, f"tensors from {entries[0].name!r} on")
        copies.upload(storage.buffer[first:last], staging[: last - first])
    return storage, offsets


def _runs(entries: Sequence[Entry], offsets: Sequence[int]) -> list[_Run]:
    """Return the reads that fill the entries' places: one for entries without a gap in the file."""
    runs: list[_Run] = []
    end = -1
    for entry, offset in zip(entries, offsets, strict=True):
        if entry.size:
            if entry.start != end:
                runs.append(_Run(entry.start, []))
            runs[-1].places.append((offset, entry.size))
            end = entry.start + entry.size
    return runs


def _windows(
    entries: Sequence[Entry], offsets: Sequence[int]
) -> Iterator[tuple[int, int, list[_Run]]]:
    """Yield parts of the memory, of at most STAGING bytes, with the reads that fill each."""
    first = last = 0
    runs: list[_Run] = []
    for run in _runs(entries, offsets):
        start = run.start
        for offset, size in run.places:
            done = 0
            while done < size:
                if offset + done - first >= STAGING:
                    yield first, last, runs
                    first, runs = offset + done, []
                part = min(size - done, first + STAGING - offset - done)
                runs.append(_Run(start + done, [(offset + done, part)]))
                done += part
                last = offset + done
            start += size
    if runs:
        yield first, last, runs
