"""Thunderbolt devices known to bolt, the daemon that authorises them; over D-Bus.

Source: bolt's interface description, org.freedesktop.bolt.xml (names of 0.9). Read only: `boltctl`
authorises devices, subject to the user's policy.
"""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

NAME, PATH = "org.freedesktop.bolt", "/org/freedesktop/bolt"
MANAGER, DEVICE = "org.freedesktop.bolt1.Manager", "org.freedesktop.bolt1.Device"
_LIMIT_S = 2.0


@dataclass(frozen=True)
class BoltDevice:
    """A device known to bolt. status: as bolt reports it (connected, authorizing, authorized,
    auth-error...). stored: whether bolt has stored the device. policy: auto, manual or iommu;
    bolt's action when the device is plugged in."""

    unique_id: str
    status: str
    stored: bool
    policy: str

    @property
    def facts(self) -> dict[str, object]:
        """Return the entries for a device's list of facts."""
        kept = f"remembered, policy {self.policy}" if self.stored else "not remembered"
        return {"bolt": f"{self.status}, {kept}"}


def devices() -> dict[str, BoltDevice]:
    """Return bolt's devices, by unique id. Empty where jeepney is not installed (extra
    "hotplug") or bolt does not answer on the system's bus; sysfs is then the only source."""
    try:
        # Part of an optional extra, so it is imported where it is used.
        import jeepney
        from jeepney.io import blocking
    except ImportError as error:
        log.info("bolt was not queried: %s", error)
        return {}
    try:
        with _connect(blocking) as connection:
            return _ask(jeepney, connection)
    except (OSError, TimeoutError, ValueError, jeepney.DBusErrorResponse) as error:
        log.info("bolt does not answer: %s", error)
        return {}


def _connect(blocking: Any) -> Any:  # Any: modules without types
    """Connect to the system's bus. The library waits for the bus's first reply without a limit, so
    this function shuts its socket down after the limit."""
    bus = blocking.prep_socket(blocking.get_bus("SYSTEM"), timeout=_LIMIT_S)
    ended = threading.Timer(_LIMIT_S, bus.shutdown, (socket.SHUT_RDWR,))
    ended.daemon = True
    ended.start()
    try:
        return blocking.DBusConnection(bus)
    except BaseException:
        bus.close()
        raise
    finally:
        ended.cancel()
        ended.join()


def _ask(jeepney: Any, connection: Any) -> dict[str, BoltDevice]:  # Any: modules without types
    manager = jeepney.DBusAddress(PATH, bus_name=NAME, interface=MANAGER)

    def call(message: Any) -> Any:
        answer = connection.send_and_get_reply(message, timeout=_LIMIT_S)
        return jeepney.wrappers.unwrap_msg(answer)[0]

    devices = {}
    for path in call(jeepney.new_method_call(manager, "ListDevices")):
        address = jeepney.DBusAddress(path, bus_name=NAME, interface=DEVICE)
        values = call(jeepney.Properties(address).get_all())
        properties = {key: value for key, (_, value) in values.items()}
        devices[str(properties["Uid"])] = BoltDevice(
            str(properties["Uid"]),
            str(properties["Status"]),
            bool(properties["Stored"]),
            str(properties["Policy"]),
        )
    return devices
