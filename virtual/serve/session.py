"""One client of a server: each message is checked before it reaches the model."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    NotSupported,
    OutOfMemory,
    TransportError,
    UgpuError,
)
from ugpu.hcq.transport.base import ResetKind, Transport, Window
from ugpu.hcq.transport.vfio_user import version, wire
from ugpu.hcq.transport.vfio_user.wire import (
    Channel,
    Command,
    Disconnected,
    Interrupt,
    Message,
    Region,
)
from ugpu.hcq.uapi import constants
from ugpu.virtual.serve.config import SIZE as CONFIG_SIZE
from ugpu.virtual.serve.config import ServedConfig
from ugpu.virtual.serve.covered import covered, write_covered
from ugpu.virtual.serve.delivery import Delivery
from ugpu.virtual.serve.memory import ClientMemory
from ugpu.virtual.serve.model import DeviceModel, SharedMemory
from ugpu.virtual.serve.requests import Requests

log = logging.getLogger(__name__)

Reply = tuple[Sequence[bytes | memoryview], Sequence[int]]
Outcome = TypeVar("Outcome")
DETACH_LIMIT_S = 20.0  # TIMEOUT: for a client that has disconnected, on a busy host; our choice
_WIDTHS = frozenset((1, 2, 4, 8))  # of single register writes
_DONE: Reply = ((), ())
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")
_READ, _WRITE = int(Command.REGION_READ), int(Command.REGION_WRITE)
_REGISTER, _PLACE, _POSTED = wire.REGISTER[4], wire.REGION_ACCESS, struct.Struct("<QIII")


class Refused(Exception):
    """A refused command; `number` is the errno of the reply."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


class Session:
    """Serves one connection in the thread that calls `run`; implements model.Client."""

    def __init__(self, channel: Channel, model: DeviceModel) -> None:
        self.channel = channel
        self.model = model
        self.ended = threading.Event()
        self._leaving = False
        self._peer: version.Capabilities | None = None
        self._transport: Transport | None = None
        self._windows: dict[int, Window] = {}
        self._shared: dict[int, SharedMemory | None] = {}
        self._delivery = Delivery(model.vectors)
        self._requests = Requests(channel)
        self._commands: dict[int, Callable[[Message], Reply]] = {
            Command.VERSION: self._version,
            Command.DMA_MAP: self._dma_map,
            Command.DMA_UNMAP: self._dma_unmap,
            Command.DEVICE_GET_INFO: self._device_info,
            Command.DEVICE_GET_REGION_INFO: self._region_info,
            Command.DEVICE_GET_IRQ_INFO: self._irq_info,
            Command.DEVICE_SET_IRQS: self._set_irqs,
            Command.REGION_READ: self._region_read,
            Command.REGION_WRITE: self._region_write,
            Command.REGION_WRITE_MULTI: self._region_write_multi,
            Command.DEVICE_RESET: self._reset,
            Command.MODEL_WORK: self._model_work,
        }
        # Nearly all messages, and the client waits for each; unusual ones take the general path.
        self._registers: dict[int, Callable[[Message], bytes | None]] = {
            _READ: self._read_register,
            _WRITE: self._write_register,
        }

    # ---- life --------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the client disconnects, or `stop`. Afterwards all its resources are
        released."""
        memory: ClientMemory | None = None
        try:
            self._transport = self.model.attach(self)
            self._config = ServedConfig(self._transport, interrupts=bool(self.model.vectors))
            self._delivery.offer(line=self._config.has_line, table=self._config.table_size())
            bars = [self._config.bar_size(bar) for bar in range(Region.ROM)]
            self._sizes = [*bars, 0, CONFIG_SIZE, 0]  # of each region, in bytes
            memory = self._memory = ClientMemory(self.model)
            self._requests.serve(self._handle)
        except Disconnected:
            log.info("the client disconnected")
        except (TransportError, OSError) as error:
            log.warning("the client was disconnected: %s", error)
        except UgpuError:
            log.exception("the model cannot be served")
        finally:
            self._leaving = True
            try:
                self._leave(memory)
            except UgpuError:
                log.exception("a client was not cleaned up completely")

    def _leave(self, memory: ClientMemory | None) -> None:
        with contextlib.ExitStack() as left:  # all of them, even if one raises
            left.callback(self.ended.set)
            if memory is not None:
                left.callback(memory.clear)
            if self._transport is not None:
                left.callback(self.model.detach)
            # ORDER: before the model, whose threads the client may be blocking.
            left.callback(self._delivery.close)
            left.callback(self._requests.close)
            left.callback(self.channel.close)

    def stop(self) -> None:
        """End the connection; `run` returns soon after. Any thread may call it."""
        self.channel.shut()
        self._delivery.release()

    def gone(self, limit_s: float) -> bool:
        """Return whether the client has disconnected, or disconnects within `limit_s` seconds."""
        if self.ended.wait(limit_s):
            return True
        leaves = self._leaving or self.channel.hung_up()
        if leaves:
            self._delivery.release()
        return leaves and self.ended.wait(DETACH_LIMIT_S)

    # ---- for the model -----------------------------------------------------------------------

    def interrupt(self, vector: int = 0) -> None:
        self._delivery.signal(vector)

    def read_memory(self, address: int, size: int) -> bytes:
        limit = self._limit()
        parts = []
        for start in range(address, address + size, limit):
            count = min(limit, address + size - start)
            head = wire.DMA_ACCESS.pack(start, count)
            answer = self._requests.ask(Command.DMA_READ, (head,))
            if len(answer) != wire.DMA_ACCESS.size + count or answer[:16] != head:
                raise TransportError("the client's reply to a DMA read is invalid")
            parts.append(answer[wire.DMA_ACCESS.size :])
        return b"".join(parts)

    def write_memory(self, address: int, data: bytes) -> None:
        limit = self._limit()
        for start in range(0, len(data), limit):
            piece = data[start : start + limit]
            head = wire.DMA_ACCESS.pack(address + start, len(piece))
            self._requests.ask(Command.DMA_WRITE, (head, piece))

    def _limit(self) -> int:
        peer = self._peer
        if peer is None:
            raise TransportError("the client has not sent its version")
        return min(peer.transfer, wire.LARGEST_TRANSFER)

    # ---- commands ----------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        """Execute a command and answer it."""
        try:
            register = self._registers.get(message.command)
            whole = None if register is None else self._attempt(register, message)
            if whole is None:
                parts, descriptors = self._attempt(self._command(message), message)
                self._answer(message, parts, descriptors, 0)
            elif whole:
                self.channel.send_bytes(whole)
        except Refused as refusal:
            log.info("command %d is refused: %s", message.command, refusal)
            self._answer(message, (), (), refusal.number)
        finally:
            message.close()

    def _answer(
        self,
        message: Message,
        parts: Sequence[bytes | memoryview],
        descriptors: Sequence[int],
        number: int,
    ) -> None:
        if not message.flags & wire.NO_REPLY:
            flags = wire.REPLY | wire.ERROR if number else wire.REPLY
            self.channel.send(
                message.number, message.command, parts,
                flags=flags, error=number, descriptors=descriptors,
            )  # fmt: skip

    def _command(self, message: Message) -> Callable[[Message], Reply]:
        command = self._commands.get(message.command)
        if command is None:
            raise Refused(errno.ENOTSUP, "unknown command")
        if self._peer is None and message.command != Command.VERSION:
            raise Refused(errno.EINVAL, "the version must be sent first")
        return command

    def _attempt(self, command: Callable[[Message], Outcome], message: Message) -> Outcome:
        """Execute a request; errors to be reported to the client become Refused."""
        try:
            return command(message)
        except (BadArgument, TransportError) as error:
            raise Refused(errno.EINVAL, str(error)) from error
        except NotSupported as error:
            raise Refused(errno.ENOTSUP, str(error)) from error
        except OutOfMemory as error:
            raise Refused(errno.ENOMEM, str(error)) from error
        except DeviceBusy as error:
            raise Refused(errno.EBUSY, str(error)) from error
        except (Closed, DeviceLost) as error:
            raise Refused(errno.ENODEV, str(error)) from error

    def _version(self, message: Message) -> Reply:
        if self._peer is not None:
            raise Refused(errno.EINVAL, "the version was already negotiated")
        major, _, peer = version.parse(message.payload)
        if major != wire.MAJOR:
            raise Refused(errno.ENOTSUP, f"major version {major}")
        self._peer = peer
        offered = {
            "max_msg_fds": wire.LARGEST_DESCRIPTORS,
            "max_data_xfer_size": wire.LARGEST_TRANSFER,
            "max_dma_maps": version.MOST_DMA_MAPS,
            "pgsizes": version.PAGE_SIZES,
            "write_multiple": True,
            "model_work": True,
        }
        answer: dict[str, object] = {
            name: value for name, value in offered.items() if name in peer.named
        }
        if not peer.twin_socket:
            return (version.build(answer),), ()
        ours, theirs = socket.socketpair()
        self._requests.use_twin(ours)
        answer["twin_socket"] = {"supported": True, "fd_index": 0}
        # ORDER: the descriptor must live until the reply is sent; `message` closes it after that.
        message.descriptors.append(theirs.detach())
        return (version.build(answer),), (message.descriptors[-1],)

    def _dma_map(self, message: Message) -> Reply:
        argsz, flags, offset, address, size = wire.unpack(wire.DMA_MAP, message.payload, exact=True)
        if argsz < wire.DMA_MAP.size or not flags or flags & ~3 or len(message.descriptors) > 1:
            raise Refused(errno.EINVAL, "the DMA map request is invalid")
        if self._memory.overlaps(address, size):
            raise Refused(errno.EEXIST, f"{address:#x} is mapped")
        if len(self._memory) >= version.MOST_DMA_MAPS:
            raise Refused(errno.ENOSPC, "too many DMA maps")
        descriptor = message.descriptors[0] if message.descriptors else None
        writable = bool(flags & wire.DMA_WRITEABLE)
        self._memory.map(address, size, descriptor, offset, writable=writable)
        return _DONE

    def _dma_unmap(self, message: Message) -> Reply:
        _, flags, address, size = wire.unpack(wire.DMA_UNMAP, message.payload, exact=True)
        if flags & ~wire.UNMAP_ALL:
            raise Refused(errno.EINVAL, f"unmap flags {flags:#x}")
        if flags & wire.UNMAP_ALL:
            self._memory.clear()
        else:
            self._memory.unmap(address, size)
        return (message.payload,), ()

    def _device_info(self, message: Message) -> Reply:
        self._room(message, wire.DEVICE_INFO)
        names = constants("vfio")
        flags = names.VFIO_DEVICE_FLAGS_RESET | names.VFIO_DEVICE_FLAGS_PCI
        return (
            wire.DEVICE_INFO.pack(wire.DEVICE_INFO.size, flags, wire.REGIONS, wire.INTERRUPTS),
        ), ()

    def _room(self, message: Message, layout: struct.Struct) -> tuple[int, ...]:
        """Return a request's fields; its argsz must leave room for the fixed part of the reply."""
        fields = wire.unpack(layout, message.payload)
        if fields[0] < layout.size:
            raise Refused(errno.EINVAL, f"argsz {fields[0]} is too small for the reply")
        return fields

    def _region_info(self, message: Message) -> Reply:
        fields = self._room(message, wire.REGION_INFO)
        room, index = fields[0], fields[2]
        if index >= wire.REGIONS:
            raise Refused(errno.EINVAL, f"no region {index}")
        names = constants("vfio")
        size = self._sizes[index]
        access = names.VFIO_REGION_INFO_FLAG_READ | names.VFIO_REGION_INFO_FLAG_WRITE
        flags, offset, capabilities = access if size else 0, 0, b""
        descriptors: tuple[int, ...] = ()
        shared = self._shared_memory(index) if size else None
        if shared is not None:
            flags |= names.VFIO_REGION_INFO_FLAG_MMAP
            offset, descriptors = shared.offset, (shared.descriptor,)
            if shared.size < size:
                flags |= names.VFIO_REGION_INFO_FLAG_CAPS
                kind = names.VFIO_REGION_INFO_CAP_SPARSE_MMAP
                capabilities = wire.CAPABILITY.pack(kind, 1, 0) + wire.SPARSE.pack(1, 0)
                capabilities += wire.AREA.pack(0, shared.size)
        whole = wire.REGION_INFO.size + len(capabilities)
        fits = room >= whole
        place = wire.REGION_INFO.size if capabilities and fits else 0
        info = wire.REGION_INFO.pack(whole, flags, index, place, size, offset)
        return (info, capabilities if fits else b""), descriptors

    def _shared_memory(self, index: int) -> SharedMemory | None:
        if index >= Region.ROM:
            return None
        if index not in self._shared:
            self._shared[index] = self.model.shared(index)
        return self._shared[index]

    def _irq_info(self, message: Message) -> Reply:
        fields = self._room(message, wire.IRQ_INFO)
        index = fields[2]
        if index >= wire.INTERRUPTS:
            raise Refused(errno.EINVAL, f"no interrupt type {index}")
        count, flags = self._delivery.count(index), self._delivery.flags(index)
        return (wire.IRQ_INFO.pack(wire.IRQ_INFO.size, flags, index, count),), ()

    def _set_irqs(self, message: Message) -> Reply:
        argsz, flags, index, start, count = wire.unpack(wire.SET_IRQS, message.payload)
        data = message.payload[wire.SET_IRQS.size :]
        names = constants("vfio")
        kind = flags & names.VFIO_IRQ_SET_DATA_TYPE_MASK
        if argsz < wire.SET_IRQS.size or index >= wire.INTERRUPTS:
            raise Refused(errno.EINVAL, f"no interrupts of type {index}")
        if start + count > self._delivery.count(index):
            raise Refused(errno.EINVAL, f"no interrupts {start} to {start + count} of {index}")
        if kind == names.VFIO_IRQ_SET_DATA_BOOL and len(data) != count:
            raise Refused(errno.EINVAL, f"expected {count} booleans, got {len(data)} bytes")
        chosen = [
            vector
            for vector in range(start, start + count)
            if kind == names.VFIO_IRQ_SET_DATA_NONE or (data and data[vector - start])
        ]
        action = flags & ~kind
        masks = (names.VFIO_IRQ_SET_ACTION_MASK, names.VFIO_IRQ_SET_ACTION_UNMASK)
        plain = kind in (names.VFIO_IRQ_SET_DATA_NONE, names.VFIO_IRQ_SET_DATA_BOOL)
        if action in masks and index == Interrupt.INTX and plain:
            if chosen:
                self._delivery.mask(action == names.VFIO_IRQ_SET_ACTION_MASK)
        elif action != names.VFIO_IRQ_SET_ACTION_TRIGGER:
            raise Refused(errno.EINVAL, f"no such action of interrupts, flags {flags:#x}")
        elif kind == names.VFIO_IRQ_SET_DATA_EVENTFD:
            self._delivery.assign(index, start, count, message.descriptors)
            self._assign_messages(index)
        elif not plain:
            raise Refused(errno.EINVAL, f"interrupt flags {flags:#x}")
        elif kind == names.VFIO_IRQ_SET_DATA_NONE and not count and self._delivery.count(index):
            self._delivery.disable(index)
            self._assign_messages(index)
        else:
            for vector in chosen:
                self._delivery.trigger(index, vector)
        return _DONE

    def _assign_messages(self, index: int) -> None:
        if index == Interrupt.MSIX:
            self.model.assign_messages(self._delivery.messages())

    def _reset(self, message: Message) -> Reply:
        self._device().reset(ResetKind.FUNCTION)
        return _DONE

    def _model_work(self, message: Message) -> Reply:
        return (wire.MODEL_WORK.pack(self._device().clock.work()),), ()

    # ---- regions -----------------------------------------------------------------------------

    def _read_register(self, message: Message) -> bytes | None:
        """Return the whole answer; None unless it is a plain read of a register that was used
        before."""
        if len(message.payload) != _PLACE.size or message.flags & wire.NO_REPLY:
            return None
        offset, region, count = _PLACE.unpack(message.payload)
        window = self._windows.get(region)
        if window is None or count != 4 or offset & 3 or offset + 4 > self._sizes[region]:
            return None
        value = window.read32(offset)
        return _REGISTER.pack(
            message.number, _READ, _REGISTER.size, wire.REPLY, 0, offset, region, 4, value
        )

    def _write_register(self, message: Message) -> bytes | None:
        """Return an empty reply; None unless it is a plain posted write."""
        if len(message.payload) != _POSTED.size or not message.flags & wire.NO_REPLY:
            return None
        offset, region, count, value = _POSTED.unpack(message.payload)
        window = self._windows.get(region)
        if window is None or count != 4 or offset & 3 or offset + 4 > self._sizes[region]:
            return None
        window.write32(offset, value)
        return b""

    def _region_read(self, message: Message) -> Reply:
        offset, region, count = wire.unpack(wire.REGION_ACCESS, message.payload)
        self._check(offset, region, count)
        return (message.payload[:16], self._read(offset, region, count)), ()

    def _region_write(self, message: Message) -> Reply:
        offset, region, count = wire.unpack(wire.REGION_ACCESS, message.payload)
        data = memoryview(message.payload)[wire.REGION_ACCESS.size :]
        self._check(offset, region, count)
        if len(data) != count:
            raise Refused(errno.EINVAL, f"expected {count} bytes, got {len(data)}")
        self._write(offset, region, data)
        return (message.payload[:16],), ()

    def _region_write_multi(self, message: Message) -> Reply:
        (count,) = wire.unpack(wire.WRITE_COUNT, message.payload)
        entries = memoryview(message.payload)[wire.WRITE_COUNT.size :]
        if len(entries) != count * wire.WRITE_ENTRY.size:
            raise Refused(errno.EINVAL, f"{count} writes in {len(entries)} bytes")
        # ORDER: all are checked before the first is done, so that a refusal has no effect.
        writes = list(wire.WRITE_ENTRY.iter_unpack(entries))
        sizes = self._sizes
        for offset, region, size, _ in writes:
            if size not in _WIDTHS or region >= wire.REGIONS or offset % size:
                raise Refused(errno.EINVAL, f"no write of {size} bytes to region {region}")
            if offset + size > sizes[region]:
                raise Refused(errno.EINVAL, f"{offset:#x} lies outside region {region}")
        windows = self._windows
        for offset, region, size, value in writes:
            if size == 4 and region in windows:
                windows[region].write32(offset, value & 0xFFFF_FFFF)
            else:
                self._write(offset, region, memoryview(_LONG.pack(value))[:size])
        return (wire.WRITE_COUNT.pack(count),), ()

    def _check(self, offset: int, region: int, count: int) -> None:
        if region >= wire.REGIONS or count > wire.LARGEST_TRANSFER or not count:
            raise Refused(errno.EINVAL, f"no access of {count} bytes to region {region}")
        if offset + count > self._sizes[region]:
            raise Refused(errno.EINVAL, f"{offset:#x} lies outside region {region}")

    def _read(self, offset: int, region: int, count: int) -> bytes:
        if region == Region.CONFIG:
            return self._config.read(offset, count)
        window = self._window(region)
        if offset % count == 0 and count == 4:
            return _WORD.pack(window.read32(offset))
        if offset % count == 0 and count == 8:
            return _LONG.pack(window.read64(offset))
        return covered(window, offset, count)

    def _write(self, offset: int, region: int, data: memoryview) -> None:
        if region == Region.CONFIG:
            self._config.write(offset, bytes(data))
            return
        window = self._window(region)
        count = len(data)
        if offset % count == 0 and count == 4:
            window.write32(offset, _WORD.unpack(data)[0])
        elif offset % count == 0 and count == 8:
            window.write64(offset, _LONG.unpack(data)[0])
        else:
            write_covered(window, offset, data)

    def _window(self, region: int) -> Window:
        if region not in self._windows:
            self._windows[region] = self._device().window(region)
        return self._windows[region]

    def _device(self) -> Transport:
        assert self._transport is not None, "commands come after attaching"
        return self._transport
