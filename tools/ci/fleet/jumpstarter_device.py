"""Devices of a ugpud in Jumpstarter: the exporter's driver and its client.

An exporter's configuration names `ugpu.tools.ci.fleet.jumpstarter_device.UGpu`. Jumpstarter's
controller leases the exporter, and within that lease the client takes the device's own lease.
`lease` uses Jumpstarter's connection to the ugpud, so that the device's holder needs no connection
of its own to the machine. A client on this path has the rights of the exporter's user at the ugpud.

Source: Jumpstarter 0.9, jumpstarter.driver (export, exportstream), jumpstarter.client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ugpu.tools.ci.fleet.extra import missing

try:
    import anyio
    from anyio.abc import ByteStream
    from jumpstarter.client import DriverClient
    from jumpstarter.client.decorators import driver_click_group
    from jumpstarter.common import TemporaryUnixListener
    from jumpstarter.driver import Driver, export, exportstream
    from jumpstarter.streams.common import forward_stream
    from pydantic.dataclasses import dataclass
except ImportError:
    raise missing("jumpstarter", __name__) from None

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.lease import LeasedDevice
from ugpu.tools.ci import health

WAIT_S = 60.0  # TIMEOUT: for the device; Jumpstarter's lease is one user's


@dataclass(kw_only=True)
class UGpu(Driver):  # type: ignore[misc]
    """A device of a ugpud on this machine. device: its name there. daemon: the ugpud's UNIX socket;
    empty: the usual one."""

    device: str
    daemon: str = ""

    @classmethod
    def client(cls) -> str:
        """The client's class, as Jumpstarter finds it."""
        return f"{UGpuClient.__module__}.{UGpuClient.__qualname__}"

    @export  # type: ignore[untyped-decorator]
    def name(self) -> str:
        """The device's name at the ugpud."""
        return self.device

    @export  # type: ignore[untyped-decorator]
    def state(self) -> dict[str, Any]:
        """Return the device as in `ugpu lease ls --json`; BadArgument if it does not exist."""
        with Connection(parse(self.daemon or None)) as connection:
            devices: list[dict[str, Any]] = connection.call("devices").arguments[0]
        card = next((device for device in devices if device["name"] == self.device), None)
        if card is None:
            have = ", ".join(device["name"] for device in devices)
            raise BadArgument(f"ugpud has no device {self.device!r}; it has: {have}")
        return card

    @export  # type: ignore[untyped-decorator]
    def check(self) -> str:
        """Lease the device and run its self-test. Return the fault found; empty if there is
        none."""
        try:
            card = self.state()
            if card["state"] in ("quarantined", "off"):
                return f"it is {card['state']}: {card['reason']}"
            with self._leased() as device:
                return health.check(device).trouble
        except UgpuError as error:
            return f"{type(error).__name__}: {error.message}"

    @export  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        """Lease the device and reset it by the mildest rung that can help."""
        with self._leased() as device:
            device.reset()

    @exportstream  # type: ignore[untyped-decorator]
    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ByteStream]:
        """A connection to the ugpud."""
        async with await anyio.connect_unix(parse(self.daemon or None).path) as stream:
            yield stream

    def _leased(self) -> LeasedDevice:
        return hcq.lease(self.device, daemon=self.daemon or None, wait_s=WAIT_S)


class UGpuClient(DriverClient):  # type: ignore[misc]
    """The device on the side of Jumpstarter's client."""

    def state(self) -> dict[str, Any]:
        """See UGpu.state."""
        state: dict[str, Any] = self.call("state")
        return state

    def check(self) -> str:
        """See UGpu.check."""
        return str(self.call("check"))

    def reset(self) -> None:
        """See UGpu.reset."""
        self.call("reset")

    @contextmanager
    def lease(self, **options: Any) -> Iterator[LeasedDevice]:
        """Lease the device for kernels of this program; options: as for hcq.lease."""
        options.setdefault("wait_s", WAIT_S)
        with (
            self.forwarded() as socket,
            hcq.lease(self.call("name"), daemon=socket, **options) as device,
        ):
            yield device

    @contextmanager
    def forwarded(self) -> Iterator[str]:
        """Yield a UNIX socket of this machine that leads to the ugpud, for tools such as `ugpu
        top`."""

        async def handle(stream: ByteStream) -> None:
            async with self.stream_async("connect") as far, forward_stream(stream, far):
                pass

        listener = self.portal.wrap_async_context_manager(TemporaryUnixListener(handle))
        path = listener.__enter__()
        try:
            yield str(path)
        finally:
            listener.__exit__(None, None, None)  # no error: it would be raised in a group

    def cli(self) -> Any:
        """`j <name> state|check|reset` in Jumpstarter's shell."""

        @driver_click_group(self)  # type: ignore[untyped-decorator]
        def base() -> None:
            """A GPU of a ugpud."""

        for call in (self.state, self.check, self.reset):
            base.command(name=call.__name__, help=call.__doc__)(lambda call=call: print(call()))
        return base
