"""Guest tests: command line and registry on a real kernel's sysfs; owners that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu import hcq
from ugpu.hcq.errors import DeviceBusy, DeviceNotFound
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System

OWNER = """
import sys, time
from ugpu.hcq.transport.attach import attach_pci
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
transport = attach_pci(sys.argv[1], bind=True, reach_bits=28)
device = Edu(transport)
device.master()
memory = transport.allocate_dma(4 << 20)
print("open", flush=True)
while True:
    device.store(memory.segments[0].address, 2048)
"""


def ugpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ugpu.tools.cli", *arguments],
        capture_output=True, text=True, timeout=within(90), check=False,
    )  # fmt: skip


def test_the_doctor_sees_this_machine() -> None:
    done = ugpu("doctor", "--json")
    findings = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    for check in ("iommu", "vfio-pci", "vfio access"):
        assert findings[check]["state"] == "ok", findings[check]
    assert all(one["remedy"] for one in findings.values() if one["state"] != "ok")


def test_a_device_that_is_not_ours_is_left_alone() -> None:
    function = PciFunction.find(System(), edu.address())
    before = function.driver, function.override
    done = ugpu("bind", f"pci:{function.address}")
    assert done.returncode == 2 and "ugpu does not support" in done.stderr
    assert (function.driver, function.override) == before
    with pytest.raises(DeviceNotFound, match="1234:11e8"):
        hcq.open(f"pci:{function.address}", bind=True)
    assert (function.driver, function.override) == before


def owner() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, edu.address()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    return process


def test_ctrl_c_gives_the_device_back() -> None:
    function = PciFunction.find(System(), edu.address())
    assert function.driver is None
    process = owner()
    assert function.driver == "vfio-pci"
    process.send_signal(signal.SIGINT)
    process.wait(within(60))
    assert function.driver is None and function.override is None
    with attach_pci(function.address, bind=True, reach_bits=28) as transport:
        assert Edu(transport).alive()


def test_a_killed_owner_leaves_the_device_usable() -> None:
    process = owner()
    with pytest.raises(DeviceBusy) as caught:
        attach_pci(edu.address(), reach_bits=28)
    assert f"(pid {process.pid})" in str(caught.value)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(within(60))
    with attach_pci(edu.address(), reach_bits=28) as transport:
        device = Edu(transport)
        assert device.alive() and device.factorial(6) == 720
    # It was bound by the killed process and still is; giving it back is one step.
    function = PciFunction.find(System(), edu.address())
    assert function.driver == "vfio-pci"
    Path(f"/sys/bus/pci/devices/{function.address}/driver_override").write_text("\n")
    Path("/sys/bus/pci/drivers/vfio-pci/unbind").write_text(function.address)
    assert function.driver is None
