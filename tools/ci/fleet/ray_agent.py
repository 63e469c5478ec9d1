"""Keep a Ray node's resources up to date: only the healthy devices of its ugpud.

usage: python -m ugpu.tools.ci.fleet.ray_agent --address HEAD:6379 [--node ID] [--daemon WHERE]

Each device counts in the resource "ugpu" and in "ugpu:LABEL" for each of its labels, while ugpud
reports it as ready or leased. A device that is quarantined, recovering or gone does not count. If
ugpud does not answer, no device counts, and Ray places no work on the node.

Ray has no documented way to change a custom resource of a running node (ray.experimental's
set_resource is gone). This module uses the call with which Ray's own autoscaler resizes nodes.
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ugpu.tools.ci.fleet.extra import missing

try:
    from ray._raylet import GcsClient
except ImportError:
    raise missing("ray", __name__) from None

from ugpu.hcq.errors import DeviceNotFound, HostError, UgpuError
from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.config import config
from ugpu.tools.ci.fleet.ray_fleet import RESOURCE

log = logging.getLogger(__name__)

LIMIT_S = 2.0  # TIMEOUT: for ugpud's answer, which takes a millisecond
RAY_LIMIT_S = 10.0  # TIMEOUT: of the head node's; our choice
PERIOD_S = 1.0
_HEALTHY = ("ready", "leased")


def counted(devices: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the resources of healthy devices. devices: as ugpud lists them."""
    counts: Counter[str] = Counter()
    for device in devices:
        if device["state"] in _HEALTHY:
            labels = {device["name"], *device["labels"]}
            counts.update([RESOURCE, *(f"{RESOURCE}:{label}" for label in labels)])
    return {name: float(count) for name, count in counts.items()}


class Agent:
    """The agent of one node. node: its id in hexadecimal; default: the only node with this
    machine's address. HostError if Ray does not answer, DeviceNotFound if it has no such node."""

    def __init__(self, address: str, node: str = "", daemon: str | None = None) -> None:
        self.daemon = daemon
        self._said = ""
        self._last: dict[str, float] | None = None
        try:
            self._ray = GcsClient(address=address)
            nodes = {
                key.hex(): info
                for key, info in self._ray.get_all_node_info(timeout=RAY_LIMIT_S).items()
                if info.state == 0  # GcsNodeInfo.ALIVE
            }
        except Exception as error:  # RpcError and others, which have no common class
            raise HostError(f"Ray does not respond at {address}: {error}") from None
        if not hasattr(self._ray, "resize_raylet_resource_instances"):
            raise HostError(
                "this version of Ray cannot change the resources of a node",
                remedy="pip install 'ugpu[ray]'",
            )
        if not node:
            own = _own_address()
            mine = [key for key, info in nodes.items() if info.node_manager_address == own]
            if len(mine) != 1:
                raise DeviceNotFound(
                    f"expected one Ray node with the address {own}, got {len(mine)}",
                    remedy="pass --node with a value from `ray list nodes`",
                )
            node = mine[0]
        if node not in nodes:
            raise DeviceNotFound(f"Ray has no live node {node!r}; it has: {', '.join(nodes)}")
        self.node = node

    def healthy(self) -> dict[str, float]:
        """Ask ugpud for the healthy devices; empty if it does not answer."""
        try:
            with Connection(parse(self.daemon), config().token or None) as connection:
                counts = counted(connection.call("devices", limit_s=LIMIT_S).arguments[0])
            said = ""
        except UgpuError as error:
            counts, said = {}, error.message
        if said and said != self._said:
            log.warning("no devices for Ray: %s", said)
        self._said = said
        return counts

    def publish(self) -> dict[str, float]:
        """Report the healthy devices to Ray; return them. HostError if Ray refuses."""
        counts = self.healthy()
        if counts != self._last:
            self._set(counts)
            self._last = counts
            log.info("resources: %s", counts)
        return counts

    def close(self) -> None:
        """Remove all resources."""
        self._set({})

    def _set(self, counts: Mapping[str, float]) -> None:
        try:
            totals = self._resize({RESOURCE: counts.get(RESOURCE, 0.0), **counts})
            gone = {name for name in totals if name.startswith(f"{RESOURCE}:")} - set(counts)
            if gone:
                self._resize(dict.fromkeys(gone, 0.0))
        except Exception as error:  # as above
            raise HostError(f"Ray rejected the resources of node {self.node}: {error}") from None

    def _resize(self, resources: Mapping[str, float]) -> Mapping[str, float]:
        totals: Mapping[str, float] = self._ray.resize_raylet_resource_instances(
            self.node, dict(resources), timeout_s=RAY_LIMIT_S
        )
        return totals

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop` is set, then take the resources away."""
        try:
            while not stop.is_set():
                self.publish()
                stop.wait(PERIOD_S)
        finally:
            self.close()


def _own_address() -> str:
    import ray.util  # the agent itself does not need it

    address: str = ray.util.get_node_ip_address()
    return address


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description="publish ugpud's healthy devices to Ray")
    parser.add_argument("--address", required=True, help="of the head node: HOST:PORT")
    parser.add_argument("--node", default="", help="id of the node; default: this machine's")
    parser.add_argument("--daemon", help="a socket, or tls://HOST[:PORT]")
    arguments = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO)
    try:
        agent = Agent(arguments.address, arguments.node, arguments.daemon)
        print(f"agent of node {agent.node}", flush=True)
        agent.run(stop)
    except UgpuError as error:
        print(f"ugpu: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
