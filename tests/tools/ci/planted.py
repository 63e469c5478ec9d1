"""Virtual cards that break and tests with bugs, and the two runs that the plugin makes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from tests.tools.ci import sessions
from tests.tools.ci.sessions import Outcome
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.tools.ci.demand import Demand
from ugpu.tools.ci.evidence import attempt, of_error
from ugpu.tools.ci.pool import Pool
from ugpu.tools.ci.verdict import Attempt, Verdict, is_over, judge

LIMIT_S = 0.3
Use = Callable[[Device], None]
Plan = Callable[[Device], None]
CARDS = ("virtual:navi31#1", "virtual:navi31#2")


def opened(name: str) -> Device:
    return hcq.open(name.partition("#")[0])


def copies(device: Device) -> None:
    with device.alloc(4096) as buffer:
        buffer.copy_from(np.arange(1024, dtype=np.uint32))
        assert np.array_equal(buffer.numpy(np.uint32), np.arange(1024)), "a copy differs"
    run(device, "good", np.uint32(7))


def copies_of_any(device: Device) -> None:
    """Copy and fill on a device of any vendor."""
    with device.alloc(4096) as buffer, device.alloc(4096) as other, device.queue() as queue:
        buffer.copy_from(np.arange(1024, dtype=np.uint32))
        queue.copy(other, buffer)
        queue.timeline.wait(queue.submit())
        assert np.array_equal(other.numpy(np.uint32), np.arange(1024)), "a copy differs"
        queue.fill(buffer, 7)
        queue.timeline.wait(queue.submit())


def wrong(device: Device) -> None:
    assert device.name == "another", "the test is wrong"


def run(device: Device, name: str, *more: np.generic, wait: bool = True) -> int:
    """Run one kernel of tests.support.amd.am_faulty; what it has stored."""
    with device.load(faulty_object()) as program, device.alloc(64) as out:
        queue = device.queue()
        queue.launch(program[name], grid=(1,), block=(32,), args=(out, *more))
        point = queue.submit()
        if wait:
            queue.timeline.wait(point)
        return int(out.numpy(np.uint32)[0]) if wait else 0


def hangs(device: Device) -> None:
    run(device, "forever")


def faults(device: Device) -> None:
    run(device, "write_at", np.uint64(0x1234_5678_9000))


def planted(**faults: object) -> Plan:
    """A plan: set faults of the card's model (virtual.amd.options.FaultPlan)."""

    def plan(device: Device) -> None:
        chip = device.driver.transport.chip  # type: ignore[attr-defined]
        for name, value in faults.items():
            setattr(chip.faults, name, value)

    return plan


def lost_after(accesses: int) -> Plan:
    """A plan: the card leaves the bus after so many accesses to registers."""

    def plan(device: Device) -> None:
        chip = device.driver.transport.chip  # type: ignore[attr-defined]
        chip.faults.lost_at_access = chip.accesses + accesses

    return plan


def flips(bit: int, at: int) -> Plan:
    """A plan: one bit of each 4 KiB that the host reads from the card is flipped."""

    def plan(device: Device) -> None:
        real = device.alloc

        def alloc(size: int) -> object:
            buffer = real(size)
            read = buffer.numpy

            def numpy(kind: type) -> np.ndarray:
                found: np.ndarray = read(kind).copy()
                if found.nbytes >= 4096:
                    found.view(np.uint32)[at::1024] ^= np.uint32(1 << bit)
                return found

            buffer.numpy = numpy  # type: ignore[method-assign,assignment]
            return buffer

        device.alloc = alloc  # type: ignore[method-assign,assignment]

    return plan


CARD: Mapping[str, Plan] = {
    "mec_crashed": planted(mec_crashed=True),
    "sdma_crashed": planted(sdma_crashed=True),
    "doorbells_lost": planted(doorbells_lost=True),
    "dma_refused": planted(dma_refused=True),
    "lost": lost_after(1),
}


def two_runs(pool: Pool, use: Use, plan: Plan | None) -> Verdict:
    """As the plugin does: the first card breaks by `plan` while the test has it."""
    runs: list[Attempt] = []
    while not runs or not is_over(runs):
        avoid = tuple(name for run in runs for name in run.devices)
        loan = pool.take(Demand(arch="gfx1100"), avoid=avoid)
        (device,) = loan.devices
        device.limit_s = LIMIT_S
        error: Exception | None = None
        try:
            if plan is not None and not runs:
                plan(device)
            use(device)
            device.synchronize()
        except (UgpuError, AssertionError, ValueError) as caught:
            error = caught
        try:
            runs.append(attempt(loan, of_error(error), pool))
        finally:
            loan.release()
    return judge(runs).verdict


# ---- the campaign ----------------------------------------------------------------------------


def _wrong_result(value: int) -> Use:
    def use(device: Device) -> None:
        assert run(device, "good", np.uint32(value)) == value + 1, "the test expects this"

    return use


def _misuse(device: Device) -> None:
    with device.alloc(64) as buffer:
        buffer.copy_from(bytes(128))


def _raises(device: Device) -> None:
    raise ValueError(f"{device.name} has no such table")


def _once(use: Use) -> Use:
    """A test that goes wrong in its first run alone, for a reason of its own."""
    runs: list[int] = []

    def used(device: Device) -> None:
        runs.append(1)
        (use if len(runs) == 1 else copies)(device)

    return used


Case = tuple[Use, Plan | None, Verdict]


def _bug(use: Use) -> Case:
    return use, None, Verdict.TEST


def _fault(plan: Plan) -> Case:
    return copies, plan, Verdict.DEVICE


# By kind of a case. An address is one that no page table maps.
KINDS: Mapping[str, Callable[[Random], Case]] = {
    "card: compute firmware stands still": lambda draw: _fault(planted(mec_crashed=True)),
    "card: copy engines stand still": lambda draw: _fault(planted(sdma_crashed=True)),
    "card: doorbells are lost": lambda draw: _fault(planted(doorbells_lost=True)),
    "card: the IOMMU refuses it": lambda draw: _fault(planted(dma_refused=True)),
    "card: off the bus": lambda draw: _fault(lost_after(draw.randrange(1, 4))),
    "card: a bit of its memory flips": lambda draw: _fault(
        flips(draw.randrange(32), draw.randrange(1024))
    ),
    "test: false assertion": lambda draw: _bug(wrong),
    "test: expects a wrong result": lambda draw: _bug(_wrong_result(draw.randrange(1 << 20))),
    "test: kernel without end": lambda draw: _bug(hangs),
    "test: writes outside": lambda draw: _bug(_outside(draw, "write_at")),
    "test: reads outside": lambda draw: _bug(_outside(draw, "read_at")),
    "test: wild jump": lambda draw: _bug(_outside(draw, "jump_to")),
    "test: undefined instruction": lambda draw: _bug(_ran("illegal")),
    "test: misuse of the interface": lambda draw: _bug(_misuse),
    "test: exception of Python": lambda draw: _bug(_raises),
    "test: leaves a fault in flight": lambda draw: _bug(
        _outside(draw, "write_at", wait=False)
    ),
    "flaky: false assertion once": lambda draw: (_once(wrong), None, Verdict.FLAKY),
    "flaky: writes outside once": lambda draw: (
        _once(_outside(draw, "write_at")), None, Verdict.FLAKY
    ),
}  # fmt: skip


def _ran(name: str) -> Use:
    def use(device: Device) -> None:
        run(device, name)

    return use


def _outside(draw: Random, name: str, wait: bool = True) -> Use:
    address = np.uint64(draw.randrange(0x1000_0000, 0x7000_0000) << 12)

    def use(device: Device) -> None:
        run(device, name, address, wait=wait)

    return use


def kinds() -> list[str]:
    """Return all kinds of cases; those of a number follow each other."""
    return [*KINDS, *sessions.KINDS]


def judged(number: int, seed: int, folder: Path) -> tuple[str, Outcome, Outcome]:
    """Run a case; its kind, the outcome that is right, and the one that was given."""
    kind = kinds()[number % len(kinds())]
    draw = Random(f"{seed} {number}")
    if kind in sessions.KINDS:
        session = sessions.session_of(kind, draw)
        return kind, session.right, sessions.run(session, folder / str(number))
    use, plan, right = KINDS[kind](draw)
    pool = Pool(CARDS, folder / str(number), "r", opener=opened)
    given = two_runs(pool, use, plan)
    return (
        kind,
        Outcome(right, right is not Verdict.TEST),
        Outcome(given, given is not Verdict.TEST),
    )
