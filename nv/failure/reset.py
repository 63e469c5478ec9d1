"""Reset: the rungs of the ladder (hcq.state.ladder) that NVIDIA's kernel driver leaves to its
clients.

The kernel driver owns the GPU: a client only recreates its own channels. The kernel driver resets
the GPU itself (`nvidia-smi --gpu-reset`, as root, while nothing uses the GPU). Removal from the bus
ends all clients of the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ugpu.hcq.errors import ChipError, DeviceLost, NotSupported
from ugpu.hcq.state.ladder import Diagnosis, Ladder, Level, PlainRung, Planned
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.nv.rm.requests import GONE
from ugpu.nv.work import proof

if TYPE_CHECKING:
    from ugpu.nv.work.holder import WorkHolder
    from ugpu.nv.work.queue import ChannelQueue

_DRIVERS_OWN = (
    ("reset of the GPU", Level.FLR, "sudo nvidia-smi --gpu-reset, while nothing uses the GPU"),
    ("bus reset", Level.BUS, "the kernel driver must let go of the GPU first: sudo ugpu bind"),
)


def recover(driver: WorkHolder, only: Level | None = None) -> Recovery:
    """Recreate channels, the failed ones first; raise the error of the last rung."""
    if driver.gpu.lost():
        raise DeviceLost(
            f"{driver.name} is no longer on the bus; open it again when it is back", remedy=GONE
        )
    rungs = _Rungs(driver)
    ladder, diagnosis = Ladder(driver.name, rungs.all(), driver.clock), _diagnose(driver)
    ladder.climb(diagnosis, only, give_up=driver.gpu.lost)
    return Recovery(diagnosis, tuple(ladder.attempts), tuple(rungs.restarted), rungs.failed)


def plan(driver: WorkHolder, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
    """Return the steps that `recover` would execute; changes nothing."""
    diagnosis = _diagnose(driver)
    return diagnosis, Ladder(driver.name, _Rungs(driver).all(), driver.clock).plan(diagnosis, only)


def _diagnose(driver: WorkHolder) -> Diagnosis:
    return Diagnosis(Level.QUEUE, str(driver.core.failure or "no failure is known"))


class _Rungs:
    """Rungs of one reset. restarted: the queues whose channel the last rung recreated."""

    def __init__(self, driver: WorkHolder) -> None:
        self.driver = driver
        self.failed = tuple(failed_queues(driver))
        self.restarted: list[ChannelQueue] = []

    def all(self) -> list[PlainRung]:
        failed = "work of the channels that failed; programs and memory stay"
        every = "work of all channels; programs and memory stay"
        return [
            PlainRung("new channel", Level.QUEUE, failed, self._failed, self._prove),
            PlainRung(
                "all channels new", Level.BLOCK, every,
                lambda: self._build(self.driver.all_queues()), self._prove,
            ),
            *(
                PlainRung(name, level, "everything", _nothing, dict, partial(_not_ours, name, how))
                for name, level, how in _DRIVERS_OWN
            ),
        ]  # fmt: skip

    def _failed(self) -> None:
        self._build(self.failed)

    def _build(self, queues: Sequence[ChannelQueue]) -> None:
        self.restarted = rebuild(self.driver, queues)

    def _prove(self) -> dict[str, object]:
        return prove(self.driver, self.restarted)


def rebuild(driver: WorkHolder, queues: Sequence[ChannelQueue]) -> list[ChannelQueue]:
    """Recreate the channels of queues; return those queues."""
    driver.session.events.forget()
    driver.programs.output.drain()
    driver.programs.output.clear()
    if any(queue.kind is QueueKind.COMPUTE for queue in queues):
        driver.workspaces.clear()
    for queue in queues:
        driver.rebuild(queue)
    return [*queues]


def prove(driver: WorkHolder, queues: Sequence[ChannelQueue]) -> dict[str, object]:
    """Run work with known results on new channels.

    `build` has already run the set-up of each channel and waited for its signal.
    """
    for queue in queues:
        error = queue.error()
        if error is not None:
            raise ChipError(f"{queue.name} failed again: {error.name}", xid=error.xid)
    ran = ", ".join(queue.name for queue in queues)
    return {"ran": ran} | proof.work(driver, queues)


def failed_queues(driver: WorkHolder) -> list[ChannelQueue]:
    """Return the queues whose channel has failed, or that the device's failure names.

    If there are none, returns the queues with unfinished work.
    """
    queues = driver.all_queues()
    facts = driver.core.failure.facts if driver.core.failure is not None else {}
    named = (facts.get("queue"), facts.get("timeline"))
    found = [
        queue
        for queue in queues
        if queue.error() is not None or queue.name in named or queue.timeline.name in named
    ]
    return found or [queue for queue in queues if queue.timeline.value < queue.timeline.last]


def _nothing() -> None:
    return


def _not_ours(name: str, how: str) -> None:
    raise NotSupported(f"a {name} must be done by NVIDIA's kernel driver", remedy=how)
