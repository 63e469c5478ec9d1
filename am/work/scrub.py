"""Clearing of the driver's own memory that kernels can read and that was another holder's.

The caller clears buffers: the daemon does so when it allocates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.work.command import Fill, Signal, Symbol, values_of

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder


def by_host(driver: Holder, mapping: Mapping) -> None:
    """Clear VRAM through the host's window: for small sizes, at any time."""
    for start, length in mapping.pieces:
        driver.chip.vram.write(start, bytes(length))
    driver.units.nbio.post_hdp()


def by_queue(driver: Holder, mapping: Mapping) -> None:
    """Clear memory before all kernels that are submitted from now on; does not wait.

    OutOfMemory if the compute queue of a tenant has no room: waiting for it would make the other
    holders of the card wait too.
    """
    driver.core.complete()
    queue = driver.queues.compute[0]
    timeline, value = queue.timeline, queue.timeline.last + 1
    fill = Fill(Symbol.constant(int(mapping.address)), 0, mapping.size)
    buffer = queue.encode([fill, Signal(timeline, Symbol.constant(value))])
    if driver.is_tenant and not queue.room(len(buffer.words)):
        raise OutOfMemory(
            f"{queue.name} has no room for the command that clears new memory; wait for its work"
        )
    queue.submit(buffer, values_of(buffer, value))
