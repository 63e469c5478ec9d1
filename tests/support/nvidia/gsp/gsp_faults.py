"""Register-level cards whose faults a test services: the driver without fault buffers of its own,
and its page tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nvidia.nv_machine import LIMIT_S
from ugpu import hcq
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.fault_buffers import FaultBuffers
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.nv.gsp.rm.space import GspSpace
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.rm.channels import ChannelObject

STRAY = 0x12_3456_7000


@contextlib.contextmanager
def opened(card: Card, monkeypatch: pytest.MonkeyPatch, flags: int = 1 << 6) -> Iterator[NvDevice]:
    """The driver on the card, without fault buffers of its own. flags: of its address space, which
    allow page faults."""
    allocate = GspClient.allocate

    def faulting(self: GspClient, parent: int, name: str, params: Any = None) -> int:
        if name == "FERMI_VASPACE_A":
            params.flags = params.flags & ~(1 << 6) | flags
        return allocate(self, parent, name, params)

    monkeypatch.setattr(FaultBuffers, "enter", lambda *arguments: None)

    monkeypatch.setattr(GspClient, "allocate", faulting)
    with hcq.open(f"virtual:{card.facts.name}+gsp", chip=card) as device:
        assert isinstance(device, NvDevice)
        device.limit_s = LIMIT_S
        yield device


def channels(card: Card) -> list[ChannelObject]:
    clients = card.machine.clients.values()
    every = [each for client in clients for each in client.objects.values()]
    return [each for each in every if isinstance(each, ChannelObject)]


def space_of(device: NvDevice) -> GspSpace:
    gpu = device.driver.gpu
    assert isinstance(gpu, GspGpu)
    return gpu.session.space


def unmap(device: NvDevice, address: int) -> None:
    space = space_of(device)
    space.tables.clear(VirtAddr(address), 4096)
    space.stale = True
    space.flush()


def map_again(device: NvDevice, address: int) -> None:
    space = space_of(device)
    mapped = space.mappings.items()
    start, mapping = next(each for each in mapped if 0 <= address - each[0] < each[1].size)
    pieces = [(space.places.physical(at), size) for at, size in mapping.pieces]
    flags = space.format.data_flags
    if mapping.dma is not None:
        pieces = [(int(piece.address), piece.size) for piece in mapping.dma.segments]
        flags = space.format.host_flags
    space.tables.clear(start, mapping.size)
    space.tables.map(start, pieces, flags)
    space.stale = True
    space.flush()


def copy_from_nowhere(device: NvDevice, target: Buffer) -> None:
    copy(device, target, Buffer(device.driver.core, VirtAddr(STRAY), 4096, Placement.DEVICE, None))


def copy(device: NvDevice, target: Buffer, source: Buffer) -> None:
    with device.queue(QueueKind.COPY) as queue:
        queue.copy(target, source)
