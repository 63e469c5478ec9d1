"""`ugpu reset`: recover a device by the mildest rung of the ladder that can help and works.

The verb explains before it acts, and refuses a device that another driver or process owns. A card
on the PCI bus is first inspected without a boot. Then its driver opens it and climbs the rungs of
an open card. If that does not help, the rungs of its slot follow, each proven by an open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError, DeviceBusy, NotSupported, UgpuError
from ugpu.hcq.find import offline as window
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Ladder, Level, Planned, Rung
from ugpu.hcq.transport.pci.binding import check_idle
from ugpu.hcq.transport.pci.checks import VFIO_DRIVER
from ugpu.hcq.transport.pci.function import holders
from ugpu.hcq.transport.pci.power_action import PowerAction
from ugpu.hcq.transport.pci.rungs import BusReset, ColdCycle, FunctionReset, RemoveRescan
from ugpu.hcq.transport.system import System
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.base.console import Output
from ugpu.tools.control.pci import ours

Opener = Callable[[str], Device]

# Rungs of an open card; their names differ between drivers.
_OPEN_RUNGS = (
    (Level.QUEUE, "queues", "work of the queues that failed"),
    (Level.BLOCK, "command processors and copy engines", "all work"),
    (Level.WARM, "everything but the firmware", "all work"),
    (Level.MODE2, "graphics core and copy engines, by firmware", "all work"),
    (Level.MODE1, "the chip, by its firmware", "all work and device memory"),
)
_SLOT_RUNGS = (FunctionReset, BusReset, RemoveRescan, ColdCycle, PowerAction)
_PATTERN = 4096  # bytes


def run(
    name: str,
    out: Output,
    *,
    to: str | None = None,
    dry_run: bool = False,
    system: System | None = None,
    opener: Opener = hcq.open,
) -> int:
    """Reset a device; return 0 if it works afterwards. to: the only rung to take."""
    only = None if to is None else Level.named(to)
    kind, _, _ = name.partition(":")
    if kind == "pci":
        return _Card(name, out, system or System(), opener).run(only, dry_run)
    if kind == "nvrm":
        _refuse_kernel_drivers(name, system or System())
    return _reset_open(name, out, only, dry_run, opener)


# ---- devices that are reset by their open driver -----------------------------------------------


def _refuse_kernel_drivers(name: str, system: System) -> None:
    node = system.path(f"dev/nvidia{name.partition(':')[2]}")
    users = holders(system, [node])
    raise DeviceBusy(
        f"{name} belongs to NVIDIA's kernel driver; a program can reset its own channels "
        "with device.reset()",
        holder=", ".join(["nvidia", *users]),
        remedy="end all programs that use the GPU, then: sudo nvidia-smi --gpu-reset",
    )


def _reset_open(name: str, out: Output, only: Level | None, dry_run: bool, opener: Opener) -> int:
    with opener(name) as device:
        diagnosis, planned = device.driver.recovery_plan(only)
        _explain(out, name, diagnosis, planned)
        if dry_run:
            _result(out, name, diagnosis, planned, ())
            return 0
        recovery = device.reset(None if only is None else only.label)
        proof = prove(device)
    _tell(out, recovery.attempts)
    out.say(f"{name}: {recovery}")
    _result(out, name, diagnosis, planned, recovery.attempts, proof)
    return 0


def prove(device: Device) -> dict[str, object]:
    """Copy memory with every queue of a device; ChipError if the data does not arrive."""
    pattern = np.arange(_PATTERN // 4, dtype=np.uint32)
    copied = []
    with device.alloc(_PATTERN) as source, device.alloc(_PATTERN) as target:
        source.copy_from(pattern)
        for hardware in device.driver.all_queues():
            index = device.driver.hardware_queues(hardware.kind).index(hardware)
            target.fill(0)
            with device.queue(hardware.kind, index) as queue:
                queue.copy(target, source)
            device.synchronize()
            if not np.array_equal(target.numpy(np.uint32), pattern):
                raise ChipError(
                    f"{hardware.name}: the destination of a copy was not written",
                    queue=hardware.name,
                )
            copied.append(hardware.name)
    return {"copied": ", ".join(copied), "launched": _launch(device)}


def _launch(device: Device) -> str:
    """Run a kernel of one thread; return a description of it."""
    import ugpu  # loads the compiler, which a plan does not need
    from ugpu import ir

    out = ir.Memory("out", ugpu.dtypes.float32, 1)
    at = ir.group_range(0, 1).index()
    store = ir.Store(out, at, ir.const(42.0, ugpu.dtypes.float32))
    kernel = ir.Kernel("proof", (out,), (), (1, 1, 1), 1, (store,))
    with device.compile(kernel) as program, device.alloc(4) as result:
        result.fill(0)
        with device.queue(QueueKind.COMPUTE) as queue:
            queue.launch(program["proof"], grid=(1, 1, 1), block=(1, 1, 1), args=(result,))
        device.synchronize()
        stored = float(result.numpy(np.float32)[0])
    if stored != 42.0:
        raise ChipError(f"{device.name}: a kernel stored {stored} instead of 42.0")
    return "one kernel"


# ---- a card on the PCI bus ---------------------------------------------------------------------


class _Card:
    """A card that no process has open."""

    def __init__(self, name: str, out: Output, system: System, opener: Opener) -> None:
        self.name, self.out, self.opener = name, out, opener
        self.function = ours(name, system)
        self._check_owner()
        self.rungs: list[Rung] = [kind(self.function) for kind in _SLOT_RUNGS]

    def _check_owner(self) -> None:
        """Raise DeviceBusy, with the kernel driver or the processes and their numbers."""
        driver = self.function.driver
        if driver not in (None, VFIO_DRIVER, "pci-stub"):
            users = holders(self.function.system, self.function.device_nodes())
            raise DeviceBusy(
                f"{self.name} belongs to a kernel driver",
                holder=", ".join([str(driver), *users]),
                remedy=f"sudo ugpu bind {self.name}   # then reset it",
            )
        check_idle(self.function)

    def run(self, only: Level | None, dry_run: bool) -> int:
        """Explain the plan, then climb."""
        diagnosis = self._diagnose()
        slot = Ladder(self.name, [self._proven(rung) for rung in self.rungs])
        slot_only = only if only is None or only >= Level.FLR else None
        planned = self._planned(diagnosis, slot.plan(diagnosis, slot_only), only)
        _explain(self.out, self.name, diagnosis, planned)
        attempts: list[Attempt] = []
        if dry_run:
            _result(self.out, self.name, diagnosis, planned, attempts)
            return 0
        if only is None or only < Level.FLR:
            attempts = self._climb_open(only)
        if not attempts or not attempts[-1].worked:
            if only is not None and only < Level.FLR:
                _tell(self.out, attempts)
                raise ChipError(f"{self.name}: {attempts[-1]}")
            first = Diagnosis(max(diagnosis.first, Level.FLR), diagnosis.reason)
            try:
                slot.climb(first, only)
            finally:
                attempts += slot.attempts
                _tell(self.out, attempts)
        else:
            _tell(self.out, attempts)
        _result(self.out, self.name, diagnosis, planned, attempts, attempts[-1].proof)
        return 0

    def _diagnose(self) -> Diagnosis:
        """Diagnose the card by the named states of its units, without a boot."""
        try:
            with window.open_window(self.name) as chip:
                facts = getattr(chip, "facts", None)
                return window.module_of_chip(str(getattr(facts, "name", ""))).diagnose(chip)
        except NotSupported as error:
            return Diagnosis(Level.WARM, f"it cannot be looked at without a boot: {error.message}")
        except UgpuError as error:
            return Diagnosis(Level.FLR, str(error))

    def _planned(
        self, diagnosis: Diagnosis, slot: Sequence[Planned], only: Level | None
    ) -> list[Planned]:
        planned = []
        for level, what, cost in _OPEN_RUNGS:
            taken = level == only if only is not None else level >= diagnosis.first
            planned.append(Planned(what, level, cost, "", taken))
        return [*planned, *slot]

    def _climb_open(self, only: Level | None) -> list[Attempt]:
        """Open the card, which attaches to it or boots it, and climb its driver's rungs."""
        try:
            with self.opener(self.name) as device:
                recovery = device.reset(None if only is None else only.label)
                proof = prove(device)
        except DeviceBusy:
            raise
        except UgpuError as error:
            level = Level.WARM if only is None else only
            return [Attempt("open and reset", level, False, 0.0, str(error))]
        *before, last = recovery.attempts
        return [*before, Attempt(last.name, last.level, True, last.seconds, proof=proof)]

    def _proven(self, rung: Rung) -> Rung:
        """Return a rung of the slot with a further proof: the card's driver opens it, and it
        works."""
        return _Opened(rung, partial(self._open_and_prove, rung))

    def _open_and_prove(self, rung: Rung) -> dict[str, object]:
        proof = rung.prove()
        with self.opener(self.name) as device:
            return {**proof, **prove(device)}


class _Opened:
    """A rung with a different proof."""

    def __init__(self, rung: Rung, prove: Callable[[], dict[str, object]]) -> None:
        self.name, self.level, self.cost = rung.name, rung.level, rung.cost
        self.check, self.act, self.prove = rung.check, rung.act, prove


# ---- output ------------------------------------------------------------------------------------


def _explain(out: Output, name: str, diagnosis: Diagnosis, planned: Sequence[Planned]) -> None:
    out.say(f"{name}: {diagnosis.reason}")
    out.say(f"the mildest rung that can help is {diagnosis.first.label!r}; what each rung loses:")
    rows = [
        (
            rung.level.label,
            rung.name,
            rung.cost,
            rung.refusal or ("taken if needed" if rung.taken else "skipped"),
        )
        for rung in planned
    ]
    out.table(("rung", "resets", "loses", ""), rows)


def _tell(out: Output, attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        took = f" in {attempt.seconds * 1e3:.0f} ms" if attempt.worked else ""
        out.say(f"{attempt.level.label}: {attempt}{took}")


def _result(
    out: Output,
    name: str,
    diagnosis: Diagnosis,
    planned: Sequence[Planned],
    attempts: Sequence[Attempt],
    proof: dict[str, object] | None = None,
) -> None:
    out.result(
        {
            "device": name,
            "reason": diagnosis.reason,
            "first": diagnosis.first.label,
            "plan": [{**asdict(row), "level": row.level.label} for row in planned],
            "attempts": [{**asdict(row), "level": row.level.label} for row in attempts],
            "proof": proof or {},
        }
    )
