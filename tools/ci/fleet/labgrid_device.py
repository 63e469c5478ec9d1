"""Devices of a ugpud in labgrid: resource, driver and strategy for its clients.

An environment imports this module (`imports: [ugpu.tools.ci.fleet.labgrid_device]`); resources come
from `labgrid_exporter`. The names below are those of labgrid's configuration files.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from ugpu.tools.ci.fleet.extra import missing

try:
    import attr
    from labgrid.driver.common import Driver
    from labgrid.factory import target_factory
    from labgrid.resource.common import Resource
    from labgrid.strategy.common import Strategy, StrategyError, never_retry
except ImportError:
    raise missing("labgrid", __name__) from None

from ugpu import hcq
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.lease import LeasedDevice
from ugpu.tools.ci.health import check

WAIT_S = 60.0  # TIMEOUT: for the lease; our choice, since a place has one user


@target_factory.reg_resource
@attr.s(eq=False)
class NetworkUGpu(Resource):  # type: ignore[misc]
    """A device of a ugpud. daemon: the address at which this client reaches the ugpud. device: its
    name there. health, reason: state and reason as in `ugpu lease ls`."""

    daemon: str = attr.ib(validator=attr.validators.instance_of(str))
    device: str = attr.ib(validator=attr.validators.instance_of(str))
    health: str = attr.ib(default="", validator=attr.validators.instance_of(str))
    reason: str = attr.ib(default="", validator=attr.validators.instance_of(str))
    extra: Any = attr.ib(default=None)


@target_factory.reg_driver
@attr.s(eq=False)
class UGpuDriver(Driver):  # type: ignore[misc]
    """Leases the device. `device` is the open hcq.Device between `on` and `off`."""

    bindings: ClassVar = {"gpu": NetworkUGpu}
    device: LeasedDevice | None = attr.ib(default=None, init=False)

    @Driver.check_active  # type: ignore[untyped-decorator]
    def on(self) -> LeasedDevice:
        """Lease the device; an existing lease is kept."""
        if self.device is None:
            self.device = hcq.lease(self.gpu.device, daemon=self.gpu.daemon, wait_s=WAIT_S)
        return self.device

    @Driver.check_active  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        """Reset the device by the mildest rung that can help."""
        self.on().reset()

    def off(self) -> None:
        """Release the lease. Idempotent."""
        device, self.device = self.device, None
        if device is not None:
            device.close()

    def on_deactivate(self) -> None:
        """Release the lease."""
        self.off()


class Status(enum.Enum):
    """off: not leased. booted: leased. ready: leased, and its self-test has passed."""

    unknown = 0
    off = 1
    booted = 2
    ready = 3


@target_factory.reg_driver
@attr.s(eq=False)
class UGpuStrategy(Strategy):  # type: ignore[misc]
    """Bring the device to a state: off, booted or ready."""

    bindings: ClassVar = {"gpu": UGpuDriver}
    status: Status = attr.ib(default=Status.unknown)

    @never_retry  # type: ignore[untyped-decorator]
    def transition(self, status: Status | str) -> None:
        """Change to a state. StrategyError if the device cannot be leased or fails its test."""
        if not isinstance(status, Status):
            if status not in Status.__members__:
                raise StrategyError(f"state must be off, booted or ready, got {status!r}")
            status = Status[status]
        if status is Status.unknown:
            raise StrategyError("state must be off, booted or ready, got 'unknown'")
        self.target.activate(self.gpu)
        try:
            if status is Status.off:
                self.gpu.off()
            else:
                device = self.gpu.on()
                health = check(device) if status is Status.ready else None
                if health is not None and health.trouble:
                    self.gpu.off()
                    self.status = Status.off
                    raise StrategyError(f"{device.name}: {health.trouble}")
        except UgpuError as error:
            self.status = Status.unknown
            raise StrategyError(f"{type(error).__name__}: {error.message}") from error
        self.status = status
