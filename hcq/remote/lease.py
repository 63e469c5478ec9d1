"""`hcq.lease`: a device of a ugpud, as an hcq.Device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, LinkError
from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.driver import RemoteDriver
from ugpu.hcq.remote.replies import checked, real
from ugpu.hcq.remote.request import Grant, LeaseRequest, byte_count
from ugpu.hcq.state.config import config


class LeasedDevice(Device):
    """A device leased from a ugpud. Closing it ends the lease."""

    def __init__(self, driver: RemoteDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> RemoteDriver:
        """See Device."""
        return self._driver

    @property
    def grant(self) -> Grant:
        """The daemon's grant: the device's name there, quota, time limit."""
        return self._driver.grant

    def extend(self, limit_s: float) -> float:
        """Hold the lease for `limit_s` from now on; return the seconds that the daemon granted."""
        reply = self._driver.connection.call("extend", None, limit_s)
        with checked("extend"):
            return real(reply.arguments[0])


def lease(
    device: str = "*",
    *,
    memory: int | str = 0,
    kind: str = "exclusive",
    shared: bool = False,
    priority: int = 5,
    wait_s: float = 0.0,
    limit_s: float = 0.0,
    daemon: str | None = None,
    token: str | None = None,
    authority: str = "",
    name: str = "",
) -> LeasedDevice:
    """Lease a device from a ugpud; closing it ends the lease.

    device: a pattern of names, labels, targets or processors ("gfx11*", "pci:*"). memory: bytes
    that it must have, and the quota ("8G"). shared: the same as kind="shared", separate queues and
    a separate address space beside other holders. Other options: LeaseRequest. daemon: a socket's
    path or tls://HOST:PORT; default: UGPU_DAEMON, else this user's or the machine's socket.

    DeviceNotFound: no daemon, or no such device there; DeviceBusy: it is leased, and `wait_s` is
    over; AccessDenied: the token or user lacks permission; NotSupported: it cannot be shared.
    """
    if shared:
        if kind not in ("exclusive", "shared"):
            raise BadArgument(f"kind must be 'shared' with shared=True, got kind={kind!r}")
        kind = "shared"
    if kind in ("observer", "transport"):
        raise BadArgument(
            f"a lease of kind {kind!r} has no queues; see lease_transport and `ugpu lease ls`"
        )
    request = LeaseRequest(device, kind, byte_count(memory), priority, wait_s, limit_s)
    connection = Connection(parse(daemon, authority), token or config().token or None)
    try:
        reply = connection.call("lease", request.to_map(), limit_s=request.wait_s + 120.0)
        grant = Grant.from_map(reply.arguments[0])
        return LeasedDevice(RemoteDriver(name or f"ugpud:{grant.device}", connection, grant))
    except BaseException:
        connection.close()
        raise


class TransportLease:
    """A chip leased without a driver from a ugpud on this machine, at a vfio-user socket. A context
    manager; `close` returns it."""

    def __init__(self, connection: Connection, grant: Grant) -> None:
        self.connection = connection
        self.grant = grant

    @property
    def name(self) -> str:
        """The name for `hcq.open`, which also needs firmware=`grant.firmware`."""
        return f"vfio-user:{self.grant.socket}"

    def close(self) -> None:
        """End the lease, and return when the daemon has the chip back; a driver that still uses the
        chip loses it. Idempotent."""
        try:
            if self.connection.failure is None:
                with contextlib.suppress(LinkError):
                    self.connection.call("release", None)
        finally:
            self.connection.close()

    def __enter__(self) -> TransportLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lease_transport(
    device: str = "*",
    *,
    priority: int = 5,
    wait_s: float = 0.0,
    limit_s: float = 0.0,
    daemon: str | None = None,
) -> TransportLease:
    """Lease a chip for the caller's own driver (hcq, QEMU): options and errors as for `lease`.
    NotSupported for devices that cannot be passed on, and over TCP."""
    request = LeaseRequest(device, "transport", 0, priority, wait_s, limit_s)
    connection = Connection(parse(daemon), config().token or None)
    try:
        reply = connection.call("lease", request.to_map(), limit_s=request.wait_s + 120.0)
        return TransportLease(connection, Grant.from_map(reply.arguments[0]))
    except BaseException:
        connection.close()
        raise


def open_device(
    name: str,
    pattern: str,
    *,
    memory: int | str = 0,
    kind: str = "exclusive",
    priority: int = 5,
    limit_s: float = 0.0,
    lease_wait_s: float = 0.0,
    daemon: str | None = None,
    token: str | None = None,
    authority: str = "",
    on_stage: Callable[[str, float], None] | None = None,
) -> LeasedDevice:
    """Implement `hcq.open("ugpud:PATTERN")`. Options as for `lease`; lease_wait_s: its `wait_s`."""
    return lease(
        pattern or "*",
        memory=memory,
        kind=kind,
        priority=priority,
        wait_s=lease_wait_s,
        limit_s=limit_s,
        daemon=daemon,
        token=token,
        authority=authority,
        name=name,
    )
