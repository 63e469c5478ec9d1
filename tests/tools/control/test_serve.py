"""`ugpu serve`: the virtual Navi31 in one process, its driver in another, which may be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceBusy, DeviceLost, DeviceNotFound
from ugpu.tools.base.console import Output
from ugpu.tools.control import serve

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60


class Served:
    """A serving process; `facts` is what it said in JSON."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ugpu.tools.cli", "serve", "--json", "--vram", "0.5",
             "--vfio-user", str(folder / "s"), "virtual:navi31"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read() if self.process.stderr else ""
            text += line
        self.facts: dict[str, Any] = json.loads(text)

    def open(self, **options: object) -> Device:
        return hcq.open(self.facts["name"], firmware=self.facts["firmware"], **options)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode


@pytest.fixture
def server() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="vu-") as folder:
        one = Served(Path(folder))
        yield one
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def check_work(device: Device) -> None:
    """Data goes there and back, and a kernel of ours loads."""
    data = np.arange(1 << 14, dtype=np.uint32)
    with device.alloc(data.nbytes) as buffer, device.load(contract_object(device.target)):
        buffer.copy_from(data)
        assert np.array_equal(buffer.numpy(np.uint32), data)


def test_cold_then_warm_then_ctrl_c(server: Served) -> None:
    images = {path.name for path in Path(server.facts["firmware"]).iterdir()}
    assert set(NAVI31.firmware_files) <= images
    for start in ("cold", "warm"):
        with server.open() as device:
            assert device.name == server.facts["name"]
            assert device.info()["start"] == start
            check_work(device)
            with pytest.raises(DeviceBusy):
                server.open()
    assert server.end(signal.SIGINT) == 0, "Ctrl-C is an orderly end"
    assert not Path(server.facts["socket"]).exists()
    assert not Path(server.facts["firmware"]).exists(), "a folder of its own goes with it"
    with pytest.raises(DeviceNotFound):
        server.open()


def test_a_server_that_dies_is_a_lost_device(server: Served) -> None:
    device = server.open()
    check_work(device)
    server.end(signal.SIGKILL)
    with pytest.raises(DeviceLost):
        check_work(device)
    device.close()


BOOT = """
import sys
from ugpu import hcq
hcq.open(sys.argv[1], firmware=sys.argv[2], on_stage=lambda stage, s: print(stage, flush=True))
"""
WORK = """
import sys, numpy as np
from ugpu import hcq
device = hcq.open(sys.argv[1], firmware=sys.argv[2])
buffer = device.alloc(1 << 20)
data = np.zeros(1 << 18, np.uint32)
buffer.copy_from(data)
print("working", flush=True)
while True:
    buffer.copy_from(data)
"""


@pytest.mark.parametrize(
    ("code", "line"), [(BOOT, "PSP ring"), (BOOT, "IP firmware"), (WORK, "working")],
    ids=["killed after the PSP ring", "killed in the middle of firmware", "killed at work"],
)  # fmt: skip
def test_a_killed_driver_leaves_a_card_that_opens(server: Served, code: str, line: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", code, server.facts["name"], server.facts["firmware"]],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdout is not None
    for said in driver.stdout:
        if said.strip() == line:
            break
    driver.kill()
    driver.communicate(timeout=LIMIT_S)
    with server.open() as device:
        check_work(device)
    with server.open() as device:
        assert device.info()["start"] == "warm"
        check_work(device)


def test_serving_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeviceNotFound, match="cannot be served"):
        serve.run(serve.ServeOptions(tmp_path / "s", "virtual:none"), Output(True))
