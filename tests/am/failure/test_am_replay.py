"""A recorded boot, copies and a kernel of the driver replay without the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceNotFound, TransportError
from ugpu.hcq.transport.recorded.format import Allocation, Content, Recording
from ugpu.hcq.transport.recorded.replay import ReplayTransport
from ugpu.virtual.amd.firmware.images import synthetic_set

VALUES = np.arange(1 << 12, dtype=np.uint32)


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    folder = tmp_path / "firmware"
    folder.mkdir()
    for name, image in synthetic_set(NAVI31).items():
        (folder / name).write_bytes(image)
    return folder


def work(device: Device) -> list[bytes]:
    """Copies both ways and a kernel; what came back."""
    kernel = device.load(contract_object(device.target))["scale"]
    count, factor = np.uint32(len(VALUES)), np.uint32(3)
    with device.alloc(VALUES.nbytes) as one, device.alloc(VALUES.nbytes) as out:
        one.copy_from(VALUES)
        with device.queue() as queue:
            queue.launch(kernel, grid=(64,), block=(64,), args=(out, one, count, factor))
        device.synchronize()
        results = [one.numpy(np.uint32), out.numpy(np.uint32)]
        assert np.array_equal(results[1], 3 * VALUES)
        return [result.tobytes() for result in results]


def test_a_recorded_device_boots_and_works_again_without_it(tmp_path: Path, firmware: Path) -> None:
    path = tmp_path / "boot.txt"
    options = {"vram": 256 << 20, "firmware": firmware}
    with hcq.open("virtual:navi31", record=path, **options) as device:
        seen = work(device)
        assert device.info()["start"] == "cold"
    recording = Recording.load(path.read_text())
    assert recording.interrupts == 1
    for kind in (Allocation, Content):
        assert any(isinstance(entry, kind) for entry in recording.entries)
    with hcq.open(f"recording:{path}", firmware=firmware) as device:
        transport = device.transport
        assert isinstance(transport, ReplayTransport)
        assert work(device) == seen
        assert device.info()["start"] == "cold"
    transport.finish()


def test_a_driver_that_strays_is_told_where(tmp_path: Path, firmware: Path) -> None:
    path = tmp_path / "boot.txt"
    with hcq.open("virtual:navi31", record=path, vram=256 << 20, firmware=firmware):
        pass
    lines = path.read_text().splitlines()
    writes = [at for at, line in enumerate(lines) if line.startswith("write bar5")]
    middle = writes[len(writes) // 2]
    lines[middle] = lines[middle].rsplit(" ", 1)[0] + " 0x1234567"
    path.write_text("\n".join(lines) + "\n")
    with (
        pytest.raises(TransportError, match="the access differs from the recording"),
        hcq.open(f"recording:{path}", firmware=firmware),
    ):
        pass


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceNotFound, match="cannot open"):
        hcq.open(f"recording:{tmp_path}/none")
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(BadArgument, match="not a recording"):
        hcq.open(f"recording:{tmp_path}/noise")
    (tmp_path / "other").write_text("identity 1:2 0x0 3:4 0x0\n")
    with pytest.raises(DeviceNotFound, match="no driver"):
        hcq.open(f"recording:{tmp_path}/other")
