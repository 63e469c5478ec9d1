"""The interface between the protocol and a model of a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.threads import start
from ugpu.hcq.transport.base import Interrupts, Transport

MOST_VECTORS = 32  # MSI has no more


@dataclass(frozen=True)
class SharedMemory:
    """A BAR, or its first `size` bytes, as memory that a client maps. The model keeps the
    descriptor; its file must be sealed against shrinking (hcq.transport.vfio_user.files)."""

    descriptor: int
    offset: int
    size: int


class Client(Protocol):
    """The attached client, as its model sees it. Any thread may call."""

    def interrupt(self, vector: int = 0) -> None:
        """Send a message interrupt; does nothing while the client has it disabled."""
        ...

    def read_memory(self, address: int, size: int) -> bytes:
        """Read memory that the client did not share, by a message to it. TransportError if it
        refuses, or is gone."""
        ...

    def write_memory(self, address: int, data: bytes) -> None:
        """Write memory that the client did not share. Errors as for `read_memory`."""
        ...


class DeviceModel(Protocol):
    """A device behind a server. Called from one thread; `detach` follows each `attach`.

    Addresses are the client's bus addresses, in whole pages. The device's state outlives its
    clients; when a client disconnects, its memory and interrupts are taken back.
    """

    vectors: int  # message interrupts (MSI) that it can send; 0 for none

    def attach(self, client: Client) -> Transport:
        """Attach a client that has connected. Return its access to the device, which `detach`
        closes."""
        ...

    def detach(self) -> None:
        """Stop DMA and drop the client's memory: the client is gone."""
        ...

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        """Map the client's memory at a bus address, which lies at `host` in this process; None if
        it must be read by `Client.read_memory`."""
        ...

    def unmap_dma(self, address: int, size: int) -> None:
        """Unmap; the model must not access the memory after this returns."""
        ...

    def assign_messages(self, vectors: Collection[int]) -> None:
        """Enable these vectors of the device's MSI-X table, and no others: the client has given
        eventfds for them. Called only for a device that has the capability."""
        ...

    def shared(self, bar: int) -> SharedMemory | None:
        """Return memory behind a BAR that clients may map; None if each access counts."""
        ...


class TransportModel:
    """Any transport as a model: its windows, configuration space, reset and interrupts.

    A transport cannot let its device access another process's memory, so a client's maps are only
    recorded. The owner still closes the transport.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._interrupts = transport.interrupts
        self.vectors = 0
        if self._interrupts is not None:
            self.vectors = min(self._interrupts.vectors, MOST_VECTORS)
            self._interrupts.enable(self.vectors)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def attach(self, client: Client) -> Transport:
        self._stop.clear()
        if self._interrupts is not None:
            self._threads = []
            for vector in range(self.vectors):
                thread = threading.Thread(
                    target=self._pass_on, args=(self._interrupts, vector, client),
                    name=f"vfio-user-interrupts-{vector}", daemon=True,
                )  # fmt: skip
                start(thread)
                self._threads.append(thread)
        return self.transport

    def _pass_on(self, interrupts: Interrupts, vector: int, client: Client) -> None:
        with contextlib.suppress(UgpuError):  # closed or lost: no more will come
            while not self._stop.is_set():
                if interrupts.wait(0.1, vector):
                    client.interrupt(vector)

    def detach(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        """Do nothing: the device cannot use the memory."""

    def unmap_dma(self, address: int, size: int) -> None:
        """Do nothing: the device did not use the memory."""

    def assign_messages(self, vectors: Collection[int]) -> None:
        """Do nothing: the transport enabled all vectors."""

    def shared(self, bar: int) -> SharedMemory | None:
        return None
