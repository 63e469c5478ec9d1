"""Devices in Ray: a real cluster of three nodes, each with a real ugpud; one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.service.daemon import ROOT, DaemonProcess, Running, started
from ugpu.hcq.errors import BadArgument, ChipError, DeviceBusy, DeviceNotFound, HostError
from ugpu.hcq.state.clock import Clock
from ugpu.tools.service.daemon.clients.leases import State

pytest.importorskip("ray", reason="ray is not installed: the extra 'ray'")

# Before ray is imported: nothing is reported, and no metrics agent runs.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_enable_metrics_collection="0")
import ray
from ray.cluster_utils import Cluster

from ugpu.tools.ci.fleet.ray_agent import Agent, counted
from ugpu.tools.ci.fleet.ray_fleet import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SICK = "pci:0000:ff:1f.7"  # there is no such card: ugpud quarantines it
LIMIT_S = 120.0


@dataclass
class Fleet:
    """A cluster; of each node: what ended it, its daemon, its agent."""

    cluster: Any
    nodes: list[Any]
    daemons: list[DaemonProcess]
    agents: list[Agent]

    def until(self, wanted: dict[str, float]) -> None:
        """Wait until the cluster has these resources of ours."""

        def there() -> bool:
            found = ray.cluster_resources()
            return {key: found[key] for key in found if key.startswith("ugpu")} == wanted

        Clock().wait_until(there, unit="ray", waiting_for=f"{wanted}", limit_s=LIMIT_S)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(DaemonProcess(names)) for names in (["cpu"], ["cpu", SICK], ["cpu"])
        ]
        environment = [
            {"UGPU_DAEMON": each.socket, "PYTHONPATH": str(ROOT), "UGPU_CRASHES": "0"}
            for each in daemons
        ]
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "env_vars": environment[0]},
        )
        stack.callback(cluster.shutdown)
        more = [cluster.add_node(num_cpus=1, env_vars=each) for each in environment[1:]]
        nodes = [cluster.head_node, *more]
        ray.init(address=cluster.address, log_to_driver=False)
        stack.callback(ray.shutdown)
        agents = [
            Agent(cluster.address, node.node_id, daemon.socket)
            for node, daemon in zip(nodes, daemons, strict=True)
        ]
        for agent in agents:
            agent.publish()
        yield Fleet(cluster, nodes, daemons, agents)


def doubled(gpu: Any, count: int) -> tuple[str, list[int]]:
    """What a function of a user's does with a device; where it did."""
    with gpu.alloc(4 * count) as buffer:
        buffer.copy_from(np.arange(count, dtype=np.uint32))
        return ray.get_runtime_context().get_node_id(), (2 * buffer.numpy(np.uint32)).tolist()


def first_fails(gpu: Any, folder: str) -> str:
    """A device that fails on the first node that tries."""
    node: str = ray.get_runtime_context().get_node_id()
    try:
        (Path(folder) / "first").touch(exist_ok=False)
    except FileExistsError:
        return node
    raise ChipError("planted", node=node)


def first_hangs(gpu: Any, folder: str) -> str:
    """Work that does not end on the first node that tries, until the node dies."""
    node: str = ray.get_runtime_context().get_node_id()
    try:
        with (Path(folder) / "at-work").open("x") as file:
            file.write(node)
    except FileExistsError:
        return node
    threading.Event().wait(LIMIT_S)
    return "never"


def users_mistake(gpu: Any) -> None:
    raise BadArgument("expected nothing")


def keys(count: float) -> dict[str, float]:
    """The resources of so many `cpu` devices."""
    target = sorted({"ugpu", "ugpu:cpu", *(f"ugpu:{each}" for each in _cpu_labels())})
    return dict.fromkeys(target, count)


def _cpu_labels() -> list[str]:
    from ugpu import hcq

    with hcq.open("cpu") as cpu:
        return [cpu.target.name, cpu.target.cpu]


def test_devices_are_resources_and_functions_run_on_leases(fleet: Fleet, tmp_path: Path) -> None:
    fleet.until(keys(3.0))  # the quarantined card of the second node is none
    node, found = run(doubled, 4, device="cpu", wait_s=LIMIT_S)
    assert found == [0, 2, 4, 6] and node in {each.node_id for each in fleet.nodes}
    with ThreadPoolExecutor(3) as pool:
        again = [pool.submit(run, doubled, 2, wait_s=LIMIT_S) for _ in range(5)]
        assert all(each.result()[1] == [0, 2] for each in again)
    assert run(first_fails, str(tmp_path), wait_s=LIMIT_S)
    with pytest.raises(BadArgument, match="expected nothing"):
        run(users_mistake, wait_s=LIMIT_S)
    with pytest.raises(DeviceBusy, match="ugpu:gfx1100"):
        run(doubled, 4, device="gfx1100", wait_s=1.0)
    for daemon in fleet.daemons:
        assert "failed" not in daemon.log()


def test_an_agent_in_a_process_of_its_own(fleet: Fleet) -> None:
    words = [
        sys.executable,
        "-m",
        "ugpu.tools.ci.fleet.ray_agent",
        "--address",
        fleet.cluster.address,
    ]
    wrong = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert wrong.returncode == 1 and "pass --node" in wrong.stdout, wrong
    node, daemon = fleet.nodes[1].node_id, fleet.daemons[1].socket
    words += ["--node", node, "--daemon", daemon]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and node in process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    fleet.until(keys(2.0))
    fleet.agents[1]._last = None
    fleet.agents[1].publish()
    fleet.until(keys(3.0))
    with pytest.raises(DeviceNotFound, match="no live node 'ff'"):
        Agent(fleet.cluster.address, "ff")
    with pytest.raises(HostError, match="Ray does not respond"):
        Agent("127.0.0.1:1", node)


def test_a_node_that_dies_and_a_daemon_that_dies(fleet: Fleet, tmp_path: Path) -> None:
    fleet.agents[0].close()  # a cluster cannot lose its head node
    fleet.until(keys(2.0))
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(run, first_hangs, str(tmp_path), wait_s=LIMIT_S)
        marker = tmp_path / "at-work"
        Clock().wait_until(
            lambda: marker.exists() and marker.read_text() != "",
            unit="ray", waiting_for="the function", limit_s=LIMIT_S,
        )  # fmt: skip
        first = marker.read_text()
        killed = next(n for n in (1, 2) if fleet.nodes[n].node_id == first)
        left = 3 - killed
        fleet.cluster.remove_node(fleet.nodes[killed], allow_graceful=False)
        assert working.result(LIMIT_S) == fleet.nodes[left].node_id
    fleet.until(keys(1.0))
    fleet.daemons[left].kill()
    assert fleet.agents[left].publish() == {}
    fleet.until({})
    fleet.agents[0]._last = None
    fleet.agents[0].publish()
    assert run(doubled, 2, wait_s=LIMIT_S)[0] == fleet.nodes[0].node_id


def test_a_device_counts_while_it_is_healthy(tmp_path: Path) -> None:
    running: Running = started(tmp_path, count=2)
    try:
        daemon = running.daemon
        daemon.wait_until_booted()
        assert counted(daemon.devices())["ugpu"] == 2
        with running.lease():
            assert counted(daemon.devices())["ugpu"] == 2
        card = daemon.owned[0].card
        for state in (State.QUARANTINED, State.RECOVERING, State.OFF, State.BOOTING):
            daemon._change(card, state, "planted")
            found = counted(daemon.devices())
            assert found["ugpu"] == found["ugpu:cpu"] == 1 and "ugpu:cpu#0" not in found
        daemon._change(card, State.READY)
        assert counted(daemon.devices())["ugpu:cpu#0"] == 1
    finally:
        running.close()
