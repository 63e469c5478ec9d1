"""Inside the guest: a virtual card on the bus, in vfio-pci's hands, and programs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System

PROGRAM_LIMIT_S = 100  # below pytest's limit, so that its output is told


@dataclass(frozen=True)
class GuestCard:
    """The card of a tier. pci_id: vendor and device as in sysfs. firmware: a folder of images."""

    pci_id: tuple[str, str]
    firmware: Path

    def address(self) -> str:
        """Return the card's address on the guest's bus."""
        for function in sorted(System().path("/sys/bus/pci/devices").iterdir()):
            pci_id = tuple((function / key).read_text().strip() for key in ("vendor", "device"))
            if pci_id == self.pci_id:
                return function.name
        raise LookupError("the guest has no such card")

    @contextmanager
    def bound(self) -> Iterator[str]:
        """Bind the card to vfio-pci; its device name."""
        function = PciFunction.find(System(), self.address())
        # The function alone: were its sibling in the same hands, the kernel could reset the slot.
        with Binding.bind_alone(function):
            yield f"pci:{function.address}"

    def open(self, name: str, **options: object) -> Device:
        """Open the card with this firmware."""
        return hcq.open(name, firmware=self.firmware, **options)

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that opens the card."""
        return {**os.environ, "UGPU_FIRMWARE": str(self.firmware)}

    def start(self, code: str) -> subprocess.Popen[str]:
        """Start a process that runs `code`; its output is read line by line."""
        return started(code, self.environment())

    def run_until(self, code: str, line: str) -> subprocess.Popen[str]:
        """Start a process that runs `code`, and return once it has printed `line`."""
        return wait_for(self.start(code), line)


def started(code: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a process that runs `code`; its output is read line by line."""
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str], line: str) -> subprocess.Popen[str]:
    """Return the process once it has printed `line`."""
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            return process
    pytest.fail(f"it ended before {line!r} with status {process.wait()}")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def check_copies(device: Device) -> None:
    """Data goes to the card and back by its copy engine."""
    data = np.arange(1 << 16, dtype=np.uint32)
    with device.alloc(data.nbytes) as buffer:
        buffer.copy_from(data)
        assert np.array_equal(buffer.numpy(np.uint32), data)


@contextmanager
def suspended() -> Iterator[None]:
    """At the end of the block, suspend the host and resume: the kernel's own test of it, for a
    second and up to where it would put devices to sleep, which this guest's root file system does
    not survive. The kernel counts it; the card answers all the while."""
    power = Path("/sys/power")
    if not (power / "pm_test").exists():
        pytest.skip("this kernel has no test of suspending")
    Path("/sys/module/suspend/parameters/pm_test_delay").write_text("1")
    (power / "pm_test").write_text("freezer")
    yield
    try:
        (power / "state").write_text("freeze")
    finally:
        (power / "pm_test").write_text("none")
