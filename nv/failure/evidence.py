"""Evidence of a failure, read through RM for a bundle (hcq.disk.bundle).

It consists of channels, mappings, the multiprocessors' exceptions and sensors. RM does not expose
the registers and the page tables; without a kernel driver, what explains its firmware is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import UgpuError

if TYPE_CHECKING:
    from ugpu.nv.failure.faults import Faults
    from ugpu.nv.work.holder import WorkHolder
    from ugpu.nv.work.queue import ChannelQueue

_GONE = "the GPU does not answer"


def gather(driver: WorkHolder, faults: Faults, error: UgpuError) -> Evidence:
    """Collect the parts; errors of RM or the GPU are not raised. error: the bundle's subject."""
    found = Evidence()
    found.take("queues.json", lambda: [_queue(queue) for queue in driver.all_queues()])
    found.take("memory.json", lambda: _regions(faults))
    found.take("driver.json", lambda: {name: str(fact) for name, fact in driver.info().items()})
    driver.gpu.add_evidence(found)
    if driver.gpu.lost():
        found.missing |= {"exceptions.json": _GONE, "sensors.json": _GONE}
        return found
    found.take("exceptions.json", faults.exceptions)
    if driver.shared_data is None:
        found.missing["sensors.json"] = "they had not been requested, and a first look takes long"
    else:
        found.take("sensors.json", lambda: {one.name: one.read() for one in driver.sensors()})
    return found


def _queue(queue: ChannelQueue) -> dict[str, object]:
    stands, failed = queue.progress(), queue.error()
    return {
        "name": queue.name,
        "timeline": queue.timeline.value,
        "timeline_last": queue.timeline.last,
        "gp_get": stands.fetched,
        "gp_put": stands.given,
        "kernels": list(queue.in_flight),
        "notifier": None if failed is None else str(failed),
    }


def _regions(faults: Faults) -> list[dict[str, object]]:
    return [
        {"address": region.address, "size": region.size, "kind": region.kind}
        for region in faults.regions()
    ]
