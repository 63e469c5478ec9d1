"""A USB device that expects given transfers, in their order, and gives given answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ugpu.usbgpu.link.usb import Kind, Recipient, Speed, UsbIdentity

IDENTITY = UsbIdentity(
    0xADD1, 0x0001, 0x0001, "tiny", "custom v0.1", "0badcafe", Speed.SUPER_PLUS, "2-1", 3
)


@dataclass(frozen=True)
class Out:
    """A control request to the device; answered by an error, or by nothing."""

    request: int
    value: int
    index: int
    data: bytes = b""
    error: Exception | None = None


@dataclass(frozen=True)
class In:
    """A control request to the host, and its answer."""

    request: int
    value: int
    index: int
    length: int
    answer: bytes | Exception = b""


@dataclass(frozen=True)
class BulkOut:
    endpoint: int
    data: bytes
    error: Exception | None = None


@dataclass(frozen=True)
class BulkIn:
    endpoint: int
    length: int
    answer: bytes | Exception = b""


@dataclass(frozen=True)
class Clear:
    """CLEAR_FEATURE(ENDPOINT_HALT)."""

    endpoint: int


Step = Out | In | BulkOut | BulkIn | Clear


class Ended:
    """A transfer that has ended."""

    def __init__(self, answer: bytes | Exception) -> None:
        self._answer = answer

    def wait(self, limit_s: float) -> bytes:
        assert limit_s > 0
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        """It has ended."""


@dataclass
class ScriptedUsb:
    """See usbgpu.link.usb.UsbDevice. `finish` fails unless all steps were taken."""

    steps: list[Step]
    identity: UsbIdentity = IDENTITY
    streams: int = 0
    closed: bool = False
    departures: list[Callable[[], None]] = field(default_factory=list)

    def _next(self, got: Step) -> Step:
        assert self.steps, f"unexpected transfer {got}"
        return self.steps.pop(0)

    def finish(self) -> None:
        assert not self.steps, f"transfers that did not take place: {self.steps}"

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        step = self._next(In(request, value, index, length))
        assert isinstance(step, In), step
        assert (request, value, index, length) == (
            step.request, step.value, step.index, step.length,
        )  # fmt: skip
        assert kind is Kind.VENDOR and recipient is Recipient.DEVICE
        return Ended(step.answer).wait(limit_s)

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        step = self._next(Out(request, value, index, data))
        assert isinstance(step, Out), step
        assert (request, value, index, data) == (step.request, step.value, step.index, step.data)
        assert kind is Kind.VENDOR and recipient is Recipient.DEVICE
        Ended(step.error or b"").wait(limit_s)

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> Ended:
        step = self._next(BulkOut(endpoint, bytes(data)))
        assert isinstance(step, BulkOut), step
        assert (endpoint, bytes(data)) == (step.endpoint, step.data)
        return Ended(step.error or b"")

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> Ended:
        step = self._next(BulkIn(endpoint, length))
        assert isinstance(step, BulkIn), step
        assert (endpoint, length) == (step.endpoint, step.length)
        return Ended(step.answer)

    def packet_size(self, endpoint: int) -> int:
        return 1024 if self.identity.speed >= Speed.SUPER else 512

    def endpoints(self) -> Sequence[int]:
        return (0x02, 0x81)

    def set_alternate(self, setting: int) -> None:
        raise AssertionError("alternate setting")

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        raise AssertionError("streams")

    def clear_halt(self, endpoint: int) -> None:
        step = self._next(Clear(endpoint))
        assert step == Clear(endpoint)

    def reset(self) -> None:
        raise AssertionError("reset")

    def on_departure(self, call: Callable[[], None]) -> None:
        self.departures.append(call)

    def present(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
