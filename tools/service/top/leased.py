"""Telemetry of the devices of a ugpud, through its socket, for local and remote observers."""

from __future__ import annotations

import threading
from pathlib import Path

from ugpu.hcq.errors import Closed, UgpuError
from ugpu.hcq.remote.address import Address, parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.config import config
from ugpu.hcq.state.telemetry import loads
from ugpu.tools.service.top.fleet import LIMIT_S, Card, Fleet, Watch

CALL_LIMIT_S = 10.0  # TIMEOUT: for the list of devices; the daemon accesses no device for it


class LeasedWatch(Watch):
    """Reads one device of a daemon on a connection of its own, so that a device that does not
    answer delays no other."""

    def __init__(self, address: Address, device: str, limit_s: float = LIMIT_S) -> None:
        self.card = Card(device, Path(str(address)))
        self._address = address
        self._name = device
        self._limit_s = limit_s
        self._connection: Connection | None = None

    def step(self) -> bool:
        """See Watch. A device that is not open is kept, with the reason."""
        try:
            if self._connection is None:
                self._connection = Connection(self._address, config().token or None)
            reply = self._connection.call("telemetry", self._name, limit_s=self._limit_s)
            self.card.take(loads(bytes(reply.data)))
        except Closed as error:
            self.card.problem = error.message
        except UgpuError as error:
            self.card.problem = error.message
            self.close()
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class LeasedFleet(Fleet):
    """All devices of the ugpud at `where`; "": the usual place. See Fleet."""

    def __init__(self, where: str, limit_s: float = LIMIT_S) -> None:
        super().__init__(None, (), limit_s)
        self._address = parse(where or None)

    def once(self) -> list[Card]:
        """See Fleet."""
        watches = [LeasedWatch(self._address, name, self._limit_s) for name in self._names()]
        for watch in watches:
            watch.step()
            watch.close()
        return self._sorted([watch.card for watch in watches])

    def look(self) -> list[Card]:
        """See Fleet. The list of devices is requested only once."""
        if not self._watches:
            for name in self._names():
                path = Path(name)
                watch = self._watches[path] = LeasedWatch(self._address, name, self._limit_s)
                thread = threading.Thread(target=self._run, args=(path, watch), daemon=True)
                self._threads[path] = thread
                thread.start()
        return self._sorted([watch.card for watch in self._watches.values()])

    def _names(self) -> list[str]:
        with Connection(self._address, config().token or None) as connection:
            rows = connection.call("devices", limit_s=CALL_LIMIT_S).arguments[0]
        return [row["name"] for row in rows]
