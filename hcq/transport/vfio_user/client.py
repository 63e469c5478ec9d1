"""The client side: a function of a vfio-user server as a transport.

Register writes are posted, as on the bus: they are sent immediately and in order, without waiting
for a reply. A read waits for its answer and so for all writes before it. `batch` sends many writes
in one message.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceBusy,
    DeviceNotFound,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.state.clock import Clock, Work
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.dma import BusAddresses, rounded
from ugpu.hcq.transport.interrupts import EventInterrupts
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.checks import read_identity
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio_user import regions, wire
from ugpu.hcq.transport.vfio_user.client_memory import ClientAllocation, Memories
from ugpu.hcq.transport.vfio_user.connection import Connection
from ugpu.hcq.transport.vfio_user.holder import read_holder
from ugpu.hcq.transport.vfio_user.regions import MessageWindow, SharedWindow
from ugpu.hcq.transport.vfio_user.wire import Command, Interrupt, Region
from ugpu.hcq.transport.window import MappedWindow
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)

REACH_BITS = 44  # of the bus addresses we allocate: every supported chip can emit them
# TIMEOUT: only a reset of a busy device takes this long; our choice.
ANSWER_LIMIT_S = 30.0
_COMMAND, _MASTER = 0x04, 0x4


class ServedClock(Clock):
    """Real time; a server that supports it reports its model's work."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def work(self) -> Work:
        """Query the server. NONE if it does not support the query, or is gone."""
        if not self._connection.peer.model_work:
            return Work.NONE
        try:
            answer = self._connection.call(Command.MODEL_WORK)
            return Work(wire.unpack(wire.MODEL_WORK, answer, exact=True)[0])
        except (UgpuError, ValueError):
            return Work.NONE


class VfioUserTransport(TransportLife):
    """A device that another process serves. See hcq.transport.base.Transport.

    DMA memory is shared with the server, which maps it. With `share_memory=False` it stays private
    and the server accesses it by messages (slow; not every device supports this). A forked child
    cannot use the transport: every method raises Closed there.
    """

    def __init__(
        self,
        path: str,
        *,
        share_memory: bool = True,
        reach_bits: int = REACH_BITS,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        """Connect to the server at `path`, which must answer within `limit_s`.

        DeviceNotFound if there is none, DeviceBusy if it has a client, TransportError if it
        violates the protocol.
        """
        super().__init__(f"vfio-user:{path}")
        self._share_memory = share_memory
        self._windows: dict[int, MessageWindow | SharedWindow | MappedWindow] = {}
        self._interrupts: EventInterrupts | None = None
        self._addresses = BusAddresses([(0, (1 << 64) - 1)], reach_bits)
        self._memories = Memories()
        self._connection = Connection(_connect(path), self.name, self._memories, limit_s)
        self.clock = ServedClock(self._connection)
        # ORDER: closing does this from the last one up: DMA ends before memory is freed.
        self.at_end(self._free_parts)
        self.at_end(self._connection.close, drop=self._forked)
        self.at_end(self._silence)
        try:
            try:
                self._connection.negotiate(twin_socket=not share_memory)
            except DeviceBusy as error:
                holder = read_holder(Path(path))
                if holder:
                    error.add_facts(holder=holder)
                raise
            self._flags, self._region_count, self._irq_count = self._device_info()
            self.identity: PciIdentity = read_identity(self.name, self.config_read)
            if self.identity.vendor == 0 and self.identity.device == 0:
                raise NotSupported(f"{self.name} has an empty configuration space")
        except BaseException:
            self.close()
            raise
        self.opened()

    # ---- configuration space -----------------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes of configuration space."""
        self.check_open()
        pci_config.check_access(offset, width)
        if width == 4:
            return self._connection.read_register(Region.CONFIG, offset, width)
        return int.from_bytes(self._connection.read(Region.CONFIG, offset, width), "little")

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write 1, 2 or 4 bytes; return when the write is done."""
        self.check_open()
        pci_config.check_access(offset, width)
        if not 0 <= value < 1 << 8 * width:
            raise BadArgument("the value does not fit the width", value=value, width=width)
        self._connection.write(Region.CONFIG, offset, value.to_bytes(width, "little"))

    def present(self) -> bool:
        """Return whether the server is connected and its device responds."""
        if self.closed:
            return False
        try:
            return self.config_read(0, 2) != 0xFFFF
        except UgpuError:
            return False

    # ---- windows -----------------------------------------------------------------------------

    def window(self, index: int) -> MessageWindow | SharedWindow | MappedWindow:
        """Open BAR `index`; mapped if the server shares its memory."""
        with self.lock:
            self.check_open()
            if not 0 <= index <= 5:
                raise BadArgument("the index of a BAR must be 0 to 5", index=index)
            if index not in self._windows:
                self._windows[index] = regions.open_window(self._connection, self.name, index)
            return self._windows[index]

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Collect register writes, up to 256 in a message. See Transport.batch."""
        self.check_open()
        return self._connection.batch()

    @property
    def messages(self) -> int:
        """Number of messages sent."""
        return self._connection.messages

    # ---- memory ------------------------------------------------------------------------------

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> ClientAllocation:
        """Allocate memory that the device can access; always one run on the bus."""
        size = rounded(size)
        with self.lock:
            self.check_open()
            address = self._addresses.allocate(size, min(1 << (size - 1).bit_length(), 2 << 20))
            return self._allocate(address, size)

    def place_dma(self, size: int, address: BusAddr) -> ClientAllocation:
        """See hcq.transport.base.Placing."""
        size = rounded(size)
        with self.lock:
            self.check_open()
            self._addresses.take(int(address), size)
            return self._allocate(int(address), size)

    def _allocate(self, address: int, size: int) -> ClientAllocation:
        """Back bus addresses that were taken; they are given back if it fails."""
        try:
            memory = ClientAllocation(address, size, self._release)
            try:
                self._map(memory)
            except BaseException:
                memory.discard()
                raise
        except BaseException:
            self._addresses.free(address)
            raise
        self._memories.add(memory)
        return memory

    def _map(self, memory: ClientAllocation) -> None:
        flags = wire.DMA_READABLE | wire.DMA_WRITEABLE
        payload = wire.DMA_MAP.pack(
            wire.DMA_MAP.size, flags, 0, memory.segments[0].address, memory.size
        )
        shared = (memory.descriptor,) if self._share_memory else ()
        try:
            self._connection.call(Command.DMA_MAP, (payload,), descriptors=shared)
        finally:
            memory.close_descriptor()

    def _release(self, memory: ClientAllocation) -> None:
        # ORDER: the server unmaps the pages before they, and their bus address, are used again.
        with self.lock:
            if not self._memories.remove(memory):
                return
            address = memory.segments[0].address
            if not self.closed and self._connection.alive:
                payload = wire.DMA_UNMAP.pack(wire.DMA_UNMAP.size, 0, address, memory.size)
                self._connection.call(Command.DMA_UNMAP, (payload,))
            self._addresses.free(address)

    # ---- interrupts and reset ----------------------------------------------------------------

    @property
    def interrupts(self) -> EventInterrupts | None:
        """MSI-X or MSI, an eventfd for each vector; None for a device that has neither."""
        with self.lock:
            self.check_open()
            if self._interrupts is None:
                for index in (Interrupt.MSIX, Interrupt.MSI):
                    vectors = self._vectors(index)
                    if vectors:
                        deliver = functools.partial(self._deliver, index)
                        self._interrupts = EventInterrupts(System(), vectors, deliver)
                        break
            return self._interrupts

    def _vectors(self, index: int) -> int:
        if index >= self._irq_count:
            return 0
        request = wire.IRQ_INFO.pack(wire.IRQ_INFO.size, 0, index, 0)
        _, flags, _, count = wire.unpack(
            wire.IRQ_INFO, self._connection.call(Command.DEVICE_GET_IRQ_INFO, (request,))
        )
        return count if flags & constants("vfio").VFIO_IRQ_INFO_EVENTFD else 0

    def _deliver(self, index: int, events: Sequence[int]) -> None:
        """Send the server an eventfd for each vector, as many per message as it accepts."""
        names = constants("vfio")
        flags = names.VFIO_IRQ_SET_DATA_EVENTFD | names.VFIO_IRQ_SET_ACTION_TRIGGER
        room = max(1, self._connection.peer.descriptors)
        for start in range(0, len(events), room):
            some = events[start : start + room]
            payload = wire.SET_IRQS.pack(wire.SET_IRQS.size, flags, index, start, len(some))
            self._connection.call(Command.DEVICE_SET_IRQS, (payload,), descriptors=some)

    def reset(self, kind: ResetKind) -> None:
        """Reset the device. The protocol has one reset, used for both the function and its bus, as
        nothing else is on that bus."""
        self.check_open()
        if kind is ResetKind.POWER:
            raise NotSupported("vfio-user cannot power off a device; restart its server")
        if not self._flags & constants("vfio").VFIO_DEVICE_FLAGS_RESET:
            raise NotSupported(f"{self.name} does not support a reset")
        self._connection.call(Command.DEVICE_RESET)

    # ---- life --------------------------------------------------------------------------------

    def _device_info(self) -> tuple[int, int, int]:
        request = wire.DEVICE_INFO.pack(wire.DEVICE_INFO.size, 0, 0, 0)
        answer = self._connection.call(Command.DEVICE_GET_INFO, (request,))
        _, flags, region_count, irq_count = wire.unpack(wire.DEVICE_INFO, answer)
        if not flags & constants("vfio").VFIO_DEVICE_FLAGS_PCI:
            raise NotSupported(f"{self.name} is not a PCI device", flags=flags)
        if region_count <= Region.CONFIG:
            raise NotSupported(f"{self.name} has no configuration space", regions=region_count)
        return flags, region_count, irq_count

    def _silence(self) -> None:
        if not self._connection.alive:
            return
        with contextlib.suppress(UgpuError):  # the server may be gone; then everything is stopped
            head = self._connection.read(Region.CONFIG, _COMMAND, 2)
            command = int.from_bytes(head, "little")
            if command != 0xFFFF:
                quiet = (command & ~_MASTER).to_bytes(2, "little")
                self._connection.write(Region.CONFIG, _COMMAND, quiet)

    def _free_parts(self) -> None:
        self._memories.discard_all()
        close_all((*self._windows.values(), self._interrupts))

    def _forked(self) -> None:
        self._connection.forked()
        close_all(self._windows.values())


def _connect(path: str) -> socket.socket:
    if not path or len(os.fsencode(path)) > 107:
        raise BadArgument("the path of a socket must have 1 to 107 bytes", path=path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except PermissionError as error:
        connection.close()
        raise AccessDenied(
            f"no permission to connect to {path}", remedy=f"sudo setfacl -m u:$USER:rw {path}"
        ) from error
    except OSError as error:
        connection.close()
        raise DeviceNotFound(
            f"no vfio-user server is listening on {path}",
            reason=error.strerror or error.errno,
            remedy=f"ugpu serve --vfio-user {path} virtual:CHIP",
        ) from error
    return connection
