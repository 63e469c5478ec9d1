"""The watcher sees every arrival and departure, with or without events; open waits for a device."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pci.pci_machine import PciMachine
from ugpu import hcq
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    UgpuError,
)
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.hotplug import Change, Watcher, best_wake, keep_trying
from ugpu.hcq.transport.system import System

GPU, OTHER = "0000:03:00.0", "0000:04:00.0"


class Scripted(Clock):
    """A clock and a source of events in one: each wait makes the next thing happen."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.time = 0.0
        self.closed = 0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def wait(self, limit_s: float) -> None:
        if not self.steps:
            self.time += limit_s
            return
        self.time += min(limit_s, 1)
        self.steps.pop(0)()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def machine(tmp_path: Path) -> PciMachine:
    return PciMachine(tmp_path)


def leave(machine: PciMachine, address: str = GPU) -> None:
    link = machine.folder(address)
    folder = link.resolve()
    link.unlink()
    # Not removed: its number must not be given to the next one, as in the kernel's own file system.
    folder.rename(folder.with_name(f"gone-{len(list(folder.parent.iterdir()))}"))


def test_arrival_and_departure(machine: PciMachine) -> None:
    script = Scripted(lambda: machine.add(GPU, group=None), lambda: leave(machine))
    with Watcher(machine, wake=script, clock=script) as watcher:
        assert watcher.changes(10) == [Change(f"pci:{GPU}", True)]
        (change,) = watcher.changes(10)
        assert str(change) == f"pci:{GPU} departed"
        assert watcher.changes(10) == []
        assert script.time == 12
    assert script.closed


def test_a_card_that_was_swapped_between_two_looks(machine: PciMachine) -> None:
    machine.add(GPU, group=None)
    machine.add(OTHER, group=None)

    def swap() -> None:
        leave(machine)
        machine.add(GPU, group=None)

    script = Scripted(swap)
    watcher = Watcher(machine, wake=script, clock=script)
    assert watcher.changes(1) == [Change(f"pci:{GPU}", False), Change(f"pci:{GPU}", True)]


def test_a_card_that_the_kernel_still_adds(machine: PciMachine) -> None:
    procfs = machine.root / "proc/bus/pci/03"
    procfs.mkdir(parents=True)
    script = Scripted(lambda: machine.add(GPU, group=None), lambda: None, (procfs / "00.0").touch)
    with Watcher(machine, wake=script, clock=script) as watcher:
        assert watcher.changes(1.04) == []
        with pytest.raises(DeviceNotFound, match="still adding"):
            PciFunction.find(machine, GPU)
        # No event comes when the kernel is done: the look is repeated soon.
        assert watcher.changes(1) == [Change(f"pci:{GPU}", True)]
        assert script.time < 1.2
        assert PciFunction.find(machine, GPU).address == GPU
        leave(machine)
        (procfs / "00.0").unlink()
        assert watcher.changes(0) == [Change(f"pci:{GPU}", False)]


@given(st.lists(st.sets(st.integers(0, 7), max_size=4), max_size=6))
def test_the_changes_add_up_to_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, sets: list[set[int]]
) -> None:
    root = tmp_path_factory.mktemp("bus")
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    clock = Scripted()
    watcher = Watcher(System(root), wake=clock, clock=clock)
    seen: set[str] = set()
    for wanted in sets:
        for name in {path.name for path in devices.iterdir()} - {str(one) for one in wanted}:
            shutil.rmtree(devices / name)
        for one in wanted:
            (devices / str(one)).mkdir(exist_ok=True)
        for change in watcher.changes(0):
            name = change.name.removeprefix("pci:")
            if change.arrived:
                seen.add(name)
            else:
                seen.discard(name)
        assert seen == {str(one) for one in wanted}


def test_open_waits_for_what_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[UgpuError] = [
        DeviceNotFound("no such device"), AccessDenied("udev has not run"), DeviceBusy("unbound")
    ]  # fmt: skip

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "open"

    script = Scripted(*[lambda: None] * 3)
    assert keep_trying(attempt, 10, wake=script, clock=script) == "open"
    assert script.time == 3 and script.closed


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (DeviceNotFound("not there"), 5.0),
        (DeviceNotFound("the wrong card", present=True), 0.0),
        (DeviceLost("gone in the middle"), 0.0),
    ],
)
def test_what_is_raised_in_the_end(error: UgpuError, seconds: float) -> None:
    def attempt() -> None:
        raise error

    script = Scripted()
    with pytest.raises(type(error)) as caught:
        keep_trying(attempt, 5, wake=script, clock=script)
    assert caught.value is error and script.time == seconds and script.closed


def test_events_only_shorten_the_wait(machine: PciMachine) -> None:
    """Without pyudev, or below another root, looks are repeated."""
    clock = Scripted()
    wake = best_wake(machine, clock)
    wake.wait(10)
    assert 0 < clock.time < 0.1
    wake.close()


def test_events_of_the_kernel() -> None:
    """A socket of the kernel's events is opened and closed; what arrives on it, guests test."""
    pytest.importorskip("pyudev", reason="pyudev is not installed")
    clock = Scripted()
    wake = best_wake(System(), clock)
    wake.wait(0)
    wake.close()
    wake.close()
    assert clock.time == 0 or type(wake).__name__ == "Pauses"  # a sandbox may refuse the socket


def test_wait_s_is_checked() -> None:
    with pytest.raises(BadArgument, match="wait_s"):
        hcq.open("cpu", wait_s=-1)
    with pytest.raises(BadArgument, match="got 'auto'"):
        hcq.open("auto", wait_s=1)
    hcq.open("cpu", wait_s=1).close()
