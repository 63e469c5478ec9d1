"""Check whether a ugpud of this machine has leased a card, for verbs that would take the card from
its holder.

A card is found by the PCI address in the name or a label of the daemon's device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ugpu.hcq.errors import AccessDenied, DeviceBusy, DeviceNotFound
from ugpu.hcq.remote.address import Address, UntrustedSocket, parse, user_socket
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.config import config

log = logging.getLogger(__name__)

MACHINE = Path("/run/ugpud/ugpud.sock")
LIMIT_S = 5.0  # TIMEOUT: how long a daemon may take for its lists


def sockets() -> list[Path]:
    """Return where daemons of this machine may listen: UGPU_DAEMON, this user's, the machine's."""
    named = parse(None).path  # empty if UGPU_DAEMON names another machine
    return list(dict.fromkeys([*([Path(named)] if named else []), user_socket(), MACHINE]))


def check_unleased(addresses: Sequence[str], paths: Iterable[Path], *, rights: bool = True) -> None:
    """Raise DeviceBusy, with lease and holder, while one of the PCI addresses is leased by a daemon
    at one of the sockets. Observers do not block a card. AccessDenied if this user may not query a
    daemon, unless `rights` is False."""
    for path in paths:
        try:
            with Connection(Address(str(path)), config().token or None) as connection:
                devices = connection.call("devices", limit_s=LIMIT_S).arguments[0]
                leases = connection.call("leases", limit_s=LIMIT_S).arguments[0]["leases"]
        except DeviceNotFound:
            continue  # the socket is stale
        except UntrustedSocket as error:
            log.warning("%s is not asked whether it leases the card: %s", path, error)
            continue
        except AccessDenied:
            if rights:
                raise
            continue
        names = {row["name"] for row in devices if _is_one_of(row, addresses)}
        held = [row for row in leases if row["device"] in names and row["kind"] != "observer"]
        if held:
            raise DeviceBusy(
                f"{addresses[0]} is leased from the ugpud at {path}",
                holder=", ".join(f"{row['holder']} (lease {row['lease']})" for row in held),
                remedy=f"ugpu lease release {held[0]['lease']} --daemon {path}   # as an admin",
            )


def _is_one_of(device: dict[str, Any], addresses: Sequence[str]) -> bool:
    names = {name.lower() for name in (device["name"], *device["labels"])}
    names_of = {f"pci:{address}" for address in addresses}
    return bool(names & (names_of | {f"pci:{plain.removeprefix('0000:')}" for plain in addresses}))
