"""Failures by name, and recovery: a new context.

The kernel driver owns the GPU and resets it. A client sees that its context was lost, whether
through its own fault (guilty) or another's (innocent), and on newer kernels which address faulted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import ChipError, DeviceHang, NotSupported, PageFault, UgpuError
from ugpu.hcq.state.instruction import take_culprit
from ugpu.hcq.state.ladder import Diagnosis, Ladder, Level, PlainRung, Planned
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline
from ugpu.qcom.kernel_driver.interface import ResetState
from ugpu.qcom.work import proof

if TYPE_CHECKING:
    from ugpu.qcom.work.holder import WorkHolder
_ACCESSES = {"read": "a read of", "write": "a write to", "execute": "a jump to"}
_RESET = "device.reset() recreates the context; programs and buffers stay"


class Faults:
    """Fault state of one driver's context."""

    def __init__(self, driver: WorkHolder) -> None:
        self.driver = driver

    def explain(self, state: ResetState) -> UgpuError:
        """Return the error for a context that was lost."""
        driver = self.driver
        facts: dict[str, object] = {
            "state": state.value, "kernels": list(self._in_flight()), "remedy": _RESET,
        }  # fmt: skip
        if state is ResetState.INNOCENT:
            return ChipError(
                f"{driver.name}: the GPU was reset because of another context; work was lost",
                **facts,
            )
        fault = driver.interface.fault()
        if fault is not None and fault.address is not None:
            culprit = take_culprit(driver.interface.node, address=fault.address)
            by, kernel = "", ", ".join(self._in_flight())
            if culprit is not None:
                by = f", by `{culprit.text}`"
                facts |= {"instruction": culprit.text, "pc": culprit.pc}
                if code := driver.programs.find(culprit.pc):
                    facts |= {"kernel": code[0], "offset": code[1]}
                    by, kernel = f"{by} at byte {code[1]} of the kernel", code[0]
            near, name = driver.find(fault.address), f"{kernel}: " if kernel else ""
            what = f"{_ACCESSES.get(fault.access, 'an access to')} {fault.address:#x} faulted{by}"
            return PageFault(
                f"{driver.name}: {name}{what}: {near}", address=fault.address,
                access=fault.access, fault=fault.kind, near=near, **facts,
            )  # fmt: skip
        return DeviceHang(
            f"{driver.name}: the kernel driver reset the GPU because of this context (a hang, a "
            "page fault or a packet that the GPU refused; its log has the cause: sudo dmesg)",
            **facts,
        )

    def _in_flight(self) -> tuple[str, ...]:
        names = [name for queue in self.driver.all_queues() for name in queue.in_flight]
        return tuple(dict.fromkeys(names))

    def diagnose(self, timeline: Timeline) -> dict[str, object]:
        """Return facts about a wait that does not end."""
        facts: dict[str, object] = {"kernels": list(self._in_flight()), "remedy": _RESET}
        for queue in self.driver.all_queues():
            if queue.timeline is timeline and queue.in_flight:
                facts["kernel"] = ", ".join(queue.in_flight)
            if queue.timeline is timeline and queue.held:
                facts["held"] = (
                    f"{len(queue.held)} submissions wait for timelines that have not been raised"
                )
        facts["context"] = self.driver.interface.progress()
        return facts

    def evidence(self) -> Evidence:
        """See Driver.evidence."""
        driver, evidence = self.driver, Evidence()
        evidence.take("queues.json", lambda: [
            {
                "name": queue.name, "timeline": queue.timeline.value,
                "timeline_last": queue.timeline.last, "held": len(queue.held),
                "kernels": list(queue.in_flight),
            }
            for queue in driver.all_queues()
        ])  # fmt: skip
        evidence.take("context.json", driver.interface.progress)
        evidence.take("memory.json", lambda: [
            {"address": memory.address, "size": memory.size, "kind": memory.caching.value}
            for memory in list(driver.interface.memories)
        ])  # fmt: skip
        evidence.take(
            "driver.json", lambda: {key: str(fact) for key, fact in driver.info().items()}
        )
        evidence.missing["registers.json"] = "the kernel driver does not show them"
        return evidence

    # ---- recovery --------------------------------------------------------------------------------

    def recover(self, only: Level | None) -> Recovery:
        """See Driver.recover."""
        ladder, diagnosis = self._ladder(), self._diagnosis()
        ladder.climb(diagnosis, only)
        return Recovery(diagnosis, tuple(ladder.attempts), tuple(self.driver.all_queues()))

    def plan(self, only: Level | None) -> tuple[Diagnosis, list[Planned]]:
        """See Driver.recovery_plan."""
        diagnosis = self._diagnosis()
        return diagnosis, self._ladder().plan(diagnosis, only)

    def _diagnosis(self) -> Diagnosis:
        return Diagnosis(Level.QUEUE, str(self.driver.core.failure or "no failure is known"))

    def _ladder(self) -> Ladder:
        driver = self.driver
        work = partial(proof.work, driver)
        cost = "work in flight; programs and memory stay"
        rungs = [
            PlainRung("new context", Level.QUEUE, cost, driver.rebuild, work),
            PlainRung("reset of the GPU", Level.BLOCK, "work of all", _nothing, dict, _not_ours),
        ]
        return Ladder(driver.name, rungs, driver.clock)


def _nothing() -> None:
    return


def _not_ours() -> None:
    raise NotSupported("a GPU reset must be done by its kernel driver")
