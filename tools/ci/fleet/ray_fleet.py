"""Devices of a Ray cluster: a function runs in an actor that holds a lease on its node's ugpud.

    import ray
    from ugpu.tools.ci.fleet.ray_fleet import run
    ray.init("auto")
    print(run(function, 3, device="gfx1100"))      # function(gpu, 3) on a node with such a device

Ray places the actor by resources that `ugpu.tools.ci.fleet.ray_agent` keeps up to date on each
node: "ugpu" and "ugpu:LABEL" for each label of a device. A device that fails and a node that dies
use up an attempt; the next attempt is made on another node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ugpu.tools.ci.fleet.extra import missing

try:
    import ray
    from ray._private import state
    from ray.exceptions import GetTimeoutError, RayActorError
except ImportError:
    raise missing("ray", __name__) from None

from ugpu import hcq
from ugpu.hcq.errors import (
    ChipError,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    FirmwareError,
    LinkError,
    UgpuError,
)
from ugpu.hcq.remote import failures

RESOURCE = "ugpu"
Result = TypeVar("Result")
# errors that another node may avoid; the others are the caller's
_RETRIED = (LinkError, ChipError, FirmwareError, DeviceBusy, DeviceNotFound)
#: a result, or an error as hcq.remote.failures writes it: UgpuErrors do not survive pickling
Reply = tuple[Any, list[Any] | None]  # Any: the function's result, and msgpack's types


def resources(device: str) -> dict[str, float]:
    """Return the resources that one lease takes. device: a label of the device, "*" for any."""
    amounts = {RESOURCE: 1.0}
    if device != "*":
        amounts[f"{RESOURCE}:{device}"] = 1.0
    return amounts


class Holder:
    """One lease, in an actor of its own; the lease ends with the actor."""

    def __init__(self, device: str, memory: int | str, wait_s: float) -> None:
        self._lease = partial(hcq.lease, device, memory=memory, wait_s=wait_s)
        self._gpu: hcq.Device | None = None

    def node(self) -> str:
        """Return the id of the node that the actor is on."""
        number: str = ray.get_runtime_context().get_node_id()
        return number

    def run(self, function: Callable[..., object], args: tuple[object, ...]) -> Reply:
        """Lease the device, unless it is leased already, and call function(gpu, *args)."""
        try:
            if self._gpu is None:
                self._gpu = self._lease()
            return function(self._gpu, *args), None
        except UgpuError as error:
            return None, failures.to_wire(error)

    def close(self) -> None:
        """End the lease."""
        if self._gpu is not None:
            self._gpu.close()


def run(
    function: Callable[..., Result],
    *args: object,
    device: str = "*",
    memory: int | str = 0,
    attempts: int = 3,
    wait_s: float = 60.0,
) -> Result:
    """Run `function(gpu, *args)` on a device of the cluster and return its result; `gpu` is a
    leased hcq.Device. Exceptions of the function are raised here.

    device: a label of the device ("gfx1100"), "*" for any. memory: as for hcq.lease. attempts: how
    many nodes are tried if the device or the node fails. wait_s: for a node with a free device.

    DeviceBusy: no node has a free device within `wait_s`; DeviceLost: the last node died; or the
    last error of a device. The fact `nodes` lists the nodes that were tried.
    """
    tried: list[str] = []
    last: UgpuError | None = None
    for _ in range(attempts):
        if last is not None and not _others(tried, device):
            break
        # A failed node is not used again, even if its agent has not noticed the failure yet.
        selector = {"ray.io/node-id": f"!in({','.join(tried)})"} if tried else {}
        actor = (
            ray.remote(Holder)
            .options(num_cpus=0, resources=resources(device), label_selector=selector)
            .remote(device, memory, wait_s)
        )
        try:
            tried.append(ray.get(actor.node.remote(), timeout=wait_s))
            result, failed = ray.get(actor.run.remote(function, args))
            if failed is None:
                ray.get(actor.close.remote())
                returned: Result = result
                return returned
            last = failures.from_wire(*failed)
            if not isinstance(last, _RETRIED):
                break
        except GetTimeoutError:
            last = last or DeviceBusy(
                f"no node of the Ray cluster has {' and '.join(resources(device))} free",
                remedy="see `ray status`, and that ugpu.tools.ci.fleet.ray_agent runs on the nodes",
            )
            break
        except RayActorError as error:
            last = DeviceLost(f"the node of a lease died: {error}".splitlines()[0])
        finally:
            ray.kill(actor)
    assert last is not None
    last.facts["nodes"] = tried
    raise last


def _others(tried: list[str], device: str) -> bool:
    """Return whether a node that was not tried has such a device, free or not."""
    needed = resources(device).keys()
    # ray.nodes() keeps the resources that each node had when it started.
    totals = state.total_resources_per_node()
    return any(needed <= total.keys() for node, total in totals.items() if node not in tried)
