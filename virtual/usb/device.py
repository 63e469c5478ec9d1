"""The host's side of the cable: a virtual enclosure as `usbgpu.link.usb.UsbDevice`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceLost,
    EndpointStalled,
    NotSupported,
    TransferTimeout,
    TransportError,
)
from ugpu.usbgpu.link.usb import IN, Kind, Recipient, UsbIdentity
from ugpu.virtual.usb.custom import Setup
from ugpu.virtual.usb.hardware import Hardware
from ugpu.virtual.usb.meter import Meter, VirtualClock
from ugpu.virtual.usb.uas import Stalled

_LONGEST_CONTROL = 0xFFFF
_CLEAR_FEATURE, _SET_INTERFACE, _ENDPOINT_HALT = 0x01, 0x0B, 0
# Poll interval of a wait for the card, which works in real time.
_LOOK_S = 1e-4


class Port(Protocol):
    """The enclosure at the other end of the cable; all calls are made with `lock` held."""

    lock: threading.RLock
    hardware: Hardware
    meter: Meter
    clock: VirtualClock

    @property
    def alternates(self) -> tuple[tuple[int, ...], ...]:
        """The bulk endpoints of each alternate setting at the current speed."""
        ...

    @property
    def streams(self) -> int:
        """The number of streams of the setting that has them."""
        ...

    @property
    def control_packet(self) -> int:
        """The bytes of a full packet of endpoint 0."""
        ...

    @property
    def awaits_card(self) -> bool:
        """Whether an action of the card may complete a pending transfer."""
        ...

    def control(self, setup: Setup, data: bytes) -> bytes | None:
        """Serve a control request; None: stalled."""
        ...

    def put(self, endpoint: int, stream: int, data: memoryview) -> int:
        """Accept bulk data from the host; return how many bytes."""
        ...

    def take(self, endpoint: int, stream: int, room: int) -> bytes:
        """Return bulk data for the host."""
        ...

    def next_cut(self) -> int | None:
        """Count a transfer; return after how many of its bytes the cable is pulled, or None."""
        ...

    def unplug(self) -> None:
        """Pull the cable."""
        ...

    def reset_port(self) -> None:
        """Reset the USB port."""
        ...

    def released(self, device: VirtualUsb) -> None:
        """Note that the host has closed the device."""
        ...


class Transfer:
    """A bulk transfer; implements `usbgpu.link.usb.Pending`. `done`: whether it has ended."""

    def __init__(
        self, device: VirtualUsb, endpoint: int, stream: int, data: memoryview | None, length: int
    ) -> None:
        self._device = device
        self.endpoint = endpoint
        self.stream = stream
        self.length = length
        self.data = data  # None for a transfer to the host
        self.sent = 0
        self.received = bytearray()
        self.cut_at: int | None = None  # bytes after which the cable is pulled
        self.ends_at = 0.0  # the moment when its last byte crosses the cable
        self._error: Exception | None = None
        self.done = False

    def finish(self, error: Exception | None = None) -> None:
        """End the transfer; only the first call has an effect."""
        if not self.done:
            self.done = True
            self._error = error
            self.data = None

    def wait(self, limit_s: float) -> bytes:
        """See Pending."""
        self._device.run(self, limit_s)
        if self._error is not None:
            raise self._error
        return bytes(self.received)

    def poll(self) -> bool:
        """Let the device proceed, without waiting; return whether the transfer has ended."""
        self._device.advance()
        return self.done

    def cancel(self) -> None:
        """See Pending."""
        self._device.drop(self, TransportError("the transfer was cancelled", sent=self.sent))


class VirtualUsb:
    """An opened enclosure. It leaves with the cable: after another plug, a new one must be
    opened."""

    def __init__(
        self, enclosure: Port, identity: UsbIdentity, at_close: Callable[[], None]
    ) -> None:
        self._box = enclosure
        self._at_close = at_close
        self.identity = identity
        self._lock = enclosure.lock
        self._queues: dict[tuple[int, int], list[Transfer]] = {}
        self._alternate = 0
        self._streams = 0
        self._stream_endpoints: frozenset[int] = frozenset()
        self._halted: set[int] = set()
        self._departures: list[Callable[[], None]] = []
        self._gone = False
        self._closed = False

    # ---- the interface ------------------------------------------------------------------------

    @property
    def streams(self) -> int:
        return self._streams

    def packet_size(self, endpoint: int) -> int:
        self._check_endpoint(endpoint)
        return self._box.hardware.packet_size

    def endpoints(self) -> Sequence[int]:
        return self._box.alternates[self._alternate]

    def _check_endpoint(self, endpoint: int) -> None:
        if endpoint not in self.endpoints():
            have = ", ".join(f"{have:#04x}" for have in self.endpoints())
            raise BadArgument(f"expected one of the endpoints {have}, got {endpoint:#04x}")

    def set_alternate(self, setting: int) -> None:
        if not 0 <= setting < len(self._box.alternates):
            raise BadArgument(
                f"alternate setting must be below {len(self._box.alternates)}, got {setting}"
            )
        self.control_out(
            _SET_INTERFACE, setting, 0, kind=Kind.STANDARD, recipient=Recipient.INTERFACE
        )
        with self._lock:
            self._alternate = setting
            self._streams, self._stream_endpoints = 0, frozenset()
            self._halted.clear()
            self._cancel_all()

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        for endpoint in endpoints:
            self._check_endpoint(endpoint)
        most = self._box.streams if self._alternate == 1 else 0
        if not most or count < 1:
            raise NotSupported(f"alternate setting {self._alternate} has no streams")
        with self._lock:
            self._streams = min(count, most)
            self._stream_endpoints = frozenset(endpoints)
        return self._streams

    def clear_halt(self, endpoint: int) -> None:
        self._check_endpoint(endpoint)
        with self._lock:
            self._halted.discard(endpoint)
        self.control_out(
            _CLEAR_FEATURE,
            _ENDPOINT_HALT,
            endpoint,
            kind=Kind.STANDARD,
            recipient=Recipient.ENDPOINT,
        )

    def halt(self, endpoint: int) -> None:
        """Provoke a fault: the endpoint answers with STALL until it is cleared."""
        with self._lock:
            self._halted.add(endpoint)

    # ---- control transfers --------------------------------------------------------------------

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        setup = Setup(True, kind, recipient, request, value, index, length)
        return self._control(setup, b"", limit_s)

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        setup = Setup(False, kind, recipient, request, value, index, len(data))
        self._control(setup, bytes(data), limit_s)

    def _control(self, setup: Setup, data: bytes, limit_s: float) -> bytes:
        if not 0 <= setup.length <= _LONGEST_CONTROL:
            raise BadArgument(f"length must be 0 to 65535, got {setup.length}")
        if not (0 <= setup.value <= 0xFFFF and 0 <= setup.index <= 0xFFFF):
            raise BadArgument(
                f"value and index must have 16 bits, got {setup.value:#x} and {setup.index:#x}"
            )
        if not 0 <= setup.request <= 0xFF:
            raise BadArgument(f"request must have 8 bits, got {setup.request:#x}")
        with self._lock:
            self._check_open()
            box = self._box
            cut = box.next_cut()
            if cut == 0:
                box.unplug()
            self._check_plugged()
            start = box.clock.now()
            box.meter.settle()
            try:
                answer = box.control(setup, data)
            except Stalled:
                box.meter.control(_way(setup.inward), 0)
                raise EndpointStalled(
                    "the device rejected a control request",
                    request=setup.request, value=setup.value, index=setup.index,
                ) from None  # fmt: skip
            box.meter.control(_way(setup.inward), len(answer or data))
            if cut is not None:
                box.unplug()  # the request took effect; its answer never came
            self._check_plugged()
            packet = box.control_packet
            # A short answer of whole packets does not end the data stage.
            unended = setup.inward and answer and len(answer) < setup.length
            if unended and answer is not None and len(answer) % packet == 0:
                answer = None
            box.meter.settle()
            self._advance_all()
            if answer is None or box.clock.now() - start > limit_s:
                box.clock.advance(max(0.0, start + limit_s - box.clock.now()))
                raise TransferTimeout(
                    f"no response to request {setup.request:#04x} within {limit_s} s",
                    request=setup.request, length=setup.length, limit_s=limit_s,
                )  # fmt: skip
            return answer if setup.inward else b""

    # ---- bulk transfers -----------------------------------------------------------------------

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> Transfer:
        view = memoryview(data).cast("B")
        return self._submit(endpoint, stream, view, len(view), inward=False)

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> Transfer:
        size = self._box.hardware.packet_size
        if length <= 0 or length % size:
            raise BadArgument(f"length must be a multiple of {size}, got {length}")
        return self._submit(endpoint, stream, None, length, inward=True)

    def _submit(
        self, endpoint: int, stream: int, data: memoryview | None, length: int, *, inward: bool
    ) -> Transfer:
        self._check_open()
        self._check_endpoint(endpoint)
        if bool(endpoint & IN) is not inward:
            raise BadArgument(f"endpoint {endpoint:#04x} does not support this direction")
        most = self._streams if endpoint in self._stream_endpoints else 0
        if not (1 if most else 0) <= stream <= most:
            raise BadArgument(
                f"stream of endpoint {endpoint:#04x} must be 0 to {most}, got {stream}"
            )
        transfer = Transfer(self, endpoint, stream, data, length)
        with self._lock:
            transfer.cut_at = self._box.next_cut()
            self._box.meter.begin(endpoint)
            self._queues.setdefault((endpoint, stream), []).append(transfer)
            if self._gone:
                transfer.finish(self._lost())
            self._advance_all()
        return transfer

    def _advance_all(self) -> None:
        """Let every endpoint proceed as far as it can. Lock held."""
        going = True
        while going and not self._gone:
            going = False
            for place, queue in list(self._queues.items()):
                going |= self._advance(queue)
                if not queue:
                    self._queues.pop(place, None)

    def _advance(self, queue: list[Transfer]) -> bool:
        """Serve the first transfer of an endpoint; return whether any data moved or the transfer
        ended."""
        while queue and queue[0].done:
            queue.pop(0)
        if not queue:
            return False
        transfer = queue[0]
        if transfer.cut_at == 0:
            self._box.unplug()
            return False
        before = len(transfer.received) + transfer.sent
        try:
            if transfer.endpoint in self._halted:
                raise Stalled
            if transfer.data is None:
                self._receive(transfer)
            else:
                self._send(transfer, transfer.data)
        except Stalled:
            self._halted.add(transfer.endpoint)
            transfer.finish(EndpointStalled("the endpoint is halted", endpoint=transfer.endpoint))
        if transfer.done:
            moved = len(transfer.received) + transfer.sent
            way = _way(transfer.endpoint & IN != 0)
            transfer.ends_at = self._box.meter.bulk(way, transfer.endpoint, moved)
            return True
        return len(transfer.received) + transfer.sent != before

    def _send(self, transfer: Transfer, data: memoryview) -> None:
        end = len(data)
        if transfer.cut_at is not None:  # a packet arrives whole or not at all
            cut = transfer.cut_at - transfer.cut_at % self._box.hardware.packet_size
            end = min(end, cut)
        if transfer.sent < end:
            rest = data[transfer.sent : end]
            transfer.sent += self._box.put(transfer.endpoint, transfer.stream, rest)
        if transfer.cut_at is not None and transfer.sent >= end:
            self._box.unplug()
        elif transfer.sent == len(data):
            transfer.finish()

    def _receive(self, transfer: Transfer) -> None:
        room = transfer.length - len(transfer.received)
        found = self._box.take(transfer.endpoint, transfer.stream, room)
        transfer.received += found
        if transfer.cut_at is not None and found and len(transfer.received) >= transfer.cut_at:
            self._box.unplug()
        elif found and (len(found) == room or len(found) % self._box.hardware.packet_size):
            transfer.finish()

    def run(self, transfer: Transfer, limit_s: float) -> None:
        """Wait until a transfer has ended; see Pending.wait.

        Time is virtual: where only the host could proceed, the limit passes at once. While the card
        works, real time passes with it.
        """
        clock = self._box.clock
        start = clock.now()
        while True:
            with self._lock:
                if self._closed and not transfer.done:
                    transfer.finish(Closed("the USB device was closed"))
                self._advance_all()
                if transfer.done:
                    clock.advance_to(transfer.ends_at)
                    return
                if not self._box.awaits_card:
                    clock.advance(max(0.0, start + limit_s - clock.now()))
                if clock.now() - start >= limit_s:
                    error = TransferTimeout(
                        f"endpoint {transfer.endpoint:#04x} did not end a transfer in {limit_s} s",
                        endpoint=transfer.endpoint, length=transfer.length, limit_s=limit_s,
                        sent=transfer.sent, received=len(transfer.received),
                    )  # fmt: skip
                    self.drop(transfer, error)
                    return
            clock.sleep(_LOOK_S)

    def advance(self) -> None:
        """Let every endpoint proceed as far as it can now."""
        with self._lock:
            self._advance_all()

    def drop(self, transfer: Transfer, error: Exception) -> None:
        """End a transfer that did not end by itself."""
        with self._lock:
            transfer.finish(error)

    # ---- life ---------------------------------------------------------------------------------

    def reset(self) -> None:
        """See UsbDevice."""
        with self._lock:
            self._check_open()
            cut = self._box.next_cut()
            if cut is not None:
                self._box.unplug()
            self._check_plugged()
            self._box.reset_port()
            self._alternate, self._streams = 0, 0
            self._stream_endpoints = frozenset()
            self._halted.clear()
            self._cancel_all()

    def _cancel_all(self) -> None:
        for queue in self._queues.values():
            for transfer in queue:
                transfer.finish(TransportError("the endpoint was reset", sent=transfer.sent))
        self._queues.clear()

    def on_departure(self, call: Callable[[], None]) -> None:
        with self._lock:
            if not self._gone:
                self._departures.append(call)
                return
        call()

    def leave(self) -> None:
        """Fail all pending transfers: the cable was pulled. Lock held by the enclosure."""
        self._gone = True
        for queue in self._queues.values():
            for transfer in queue:
                transfer.finish(self._lost())
        self._queues.clear()
        calls, self._departures = self._departures, []
        for call in calls:
            threading.Thread(target=call, name="virtual-usb-departure", daemon=True).start()

    def present(self) -> bool:
        return not self._gone and not self._closed

    def _lost(self) -> DeviceLost:
        return DeviceLost(
            f"the USB device at {self.identity.port} was unplugged", port=self.identity.port
        )

    def _check_plugged(self) -> None:
        if self._gone:
            raise self._lost()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the USB device was closed")

    def close(self) -> None:
        """See UsbDevice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for queue in self._queues.values():
                for transfer in queue:
                    transfer.finish(TransportError("the transfer was cancelled by close"))
            self._queues.clear()
            self._departures.clear()
            self._box.released(self)
        self._at_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<VirtualUsb {self.identity.port} {self.identity.name!r}>"


def _way(inward: bool) -> str:
    return "in" if inward else "out"
