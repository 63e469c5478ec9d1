"""What the guest tests of the virtual Navi31 share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lab.kernel.lab import CACHE
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System

FIRMWARE = CACHE / "firmware"
PCI_ID = ("0x1002", "0x744c")
PROGRAM_LIMIT_S = 100  # below pytest's limit, so that its output is told


def address() -> str:
    """The card's address on the guest's bus."""
    system = System()
    for function in sorted(system.path("/sys/bus/pci/devices").iterdir()):
        if tuple((function / key).read_text().strip() for key in ("vendor", "device")) == PCI_ID:
            return function.name
    raise LookupError("the guest has no such card")


@contextmanager
def bound() -> Iterator[str]:
    """The card in vfio-pci's hands; its device name."""
    function = PciFunction.find(System(), address())
    # The function alone: were its sibling in the same hands, the kernel could reset the slot.
    with Binding.bind_alone(function):
        yield f"pci:{function.address}"


def open_card(name: str, **options: object) -> Device:
    return hcq.open(name, firmware=FIRMWARE, **options)


def check_copies(device: Device) -> None:
    """Data goes to the card and back by its copy engine."""
    data = np.arange(1 << 16, dtype=np.uint32)
    with device.alloc(data.nbytes) as buffer:
        buffer.copy_from(data)
        assert np.array_equal(buffer.numpy(np.uint32), data)


def environment() -> dict[str, str]:
    return {**os.environ, "UGPU_FIRMWARE": str(FIRMWARE)}


def start(code: str) -> subprocess.Popen[str]:
    """A process of its own that runs `code`; its output is read line by line."""
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def run_until(code: str, line: str) -> subprocess.Popen[str]:
    """A process that runs `code`, once it has printed `line`."""
    process = start(code)
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


def kernel_log() -> str:
    return subprocess.run(["/bin/dmesg"], capture_output=True, text=True, check=False).stdout


def iommu_faults() -> list[str]:
    """What the guest's IOMMU refused, in its kernel's words."""
    return re.findall(r"DMAR: .*fault.*", kernel_log())
