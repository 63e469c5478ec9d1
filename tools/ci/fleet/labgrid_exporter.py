"""A labgrid exporter for devices of a ugpud that hands out only healthy ones.

usage: python -m ugpu.tools.ci.fleet.labgrid_exporter -c COORDINATOR:PORT resources.yaml

    bench:
      UGpu:
        daemon: /run/ugpud/ugpud.sock
        device: "pci:0000:03:00.0"

The options are those of labgrid-exporter. That program cannot be extended by a kind of resource: it
exports an unknown kind as always available. labgrid's coordinator does not check whether a resource
is available before it gives a place to a user. Therefore this exporter refuses.
"""

from __future__ import annotations

import time
from typing import Any

from ugpu.tools.ci.fleet.extra import missing

try:
    import attr
    from labgrid.remote import exporter
except ImportError:
    raise missing("labgrid", __name__) from None

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.config import config

LIMIT_S = 2.0  # TIMEOUT: for ugpud's answer, which takes a millisecond; the exporter waits
PERIOD_S = 1.0  # between two requests; labgrid polls four times as often
_HEALTHY = ("ready", "leased")


class Watch:
    """One device in the last report of its ugpud. state, reason: as in `ugpu lease ls`; "no answer"
    if the daemon is not running or does not have the device."""

    def __init__(self, daemon: str, device: str) -> None:
        self.daemon, self.device = daemon, device
        self.state, self.reason = "no answer", "not asked yet"
        self._asked: float | None = None

    @property
    def avail(self) -> bool:
        """Return whether the device is usable: it is free, or in use by a holder."""
        return self.state in _HEALTHY

    def poll(self) -> None:
        """Ask again if the last answer is old."""
        if self._asked is None or time.monotonic() - self._asked >= PERIOD_S:
            self.ask()

    def ask(self) -> None:
        """Ask the daemon now; never raises UgpuError."""
        try:
            with Connection(parse(self.daemon), config().token or None) as connection:
                devices = connection.call("devices", limit_s=LIMIT_S).arguments[0]
            mine = [device for device in devices if device["name"] == self.device]
            if not mine:
                raise UgpuError(f"ugpud has no device {self.device!r}")
            self.state, self.reason = str(mine[0]["state"]), str(mine[0]["reason"])
        except UgpuError as error:
            self.state, self.reason = "no answer", error.message
        self._asked = time.monotonic()


@attr.s(eq=False)
class UGpuExport(exporter.ResourceExport):  # type: ignore[misc]
    """A device of a ugpud: available while it is healthy."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.local = Watch(**self.local_params)
        self.data["cls"] = "NetworkUGpu"

    def _get_params(self) -> dict[str, Any]:
        return {
            "daemon": self.local.daemon, "device": self.local.device, "health": self.local.state,
            "reason": self.local.reason,
        }  # fmt: skip

    def acquire(self, place_name: str) -> None:
        """Assign the device to a place. BrokenResourceError, which refuses it, if the device is not
        ready now."""
        self.local.ask()
        if self.local.state != "ready":
            why = f": {self.local.reason}" if self.local.reason else ""
            raise exporter.BrokenResourceError(
                f"{self.local.device} must be ready, got {self.local.state}{why}"
            )
        super().acquire(place_name)


def main() -> None:
    """Run labgrid's exporter with the additional kind of resource."""
    exporter.exports["UGpu"] = UGpuExport
    exporter.main()


if __name__ == "__main__":
    main()
