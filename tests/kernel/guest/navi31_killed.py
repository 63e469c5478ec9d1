"""Guest tests: the driver's process is killed; the next one takes the card over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.kernel.guest import navi31

BOOT = """
import hcq
print("booting", flush=True)
hcq.open({name!r}, force_cold=True, on_stage=lambda stage, seconds: print(stage, flush=True))
"""
WORK = """
import hcq, numpy as np
from compiler import Tensor
with hcq.open({name!r}) as device:
    a = Tensor(np.ones((64, 64), np.float32), device=device)
    assert (a @ a).numpy()[0, 0] == 64
    print("working", flush=True)
    while True:
        (a @ a).numpy()
"""


def run_until(code: str, line: str) -> subprocess.Popen[str]:
    """A process that runs `code`, once it has printed `line`."""
    process = navi31.start(code)
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


@pytest.mark.parametrize("stage", ["booting", "IP firmware"])
def test_killed_during_boot(stage: str) -> None:
    with navi31.bound() as name:
        kill(run_until(BOOT.format(name=name), stage))
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "cold", "what died half way is not trusted"
            navi31.check_copies(device)


def test_warm_open(record_property: Callable[[str, object], None]) -> None:
    with navi31.bound() as name:
        begin = time.monotonic()
        with navi31.open_card(name) as device:
            record_property("warm open (s)", f"{time.monotonic() - begin:.2f}")
            assert device.info()["start"] == "warm"
            navi31.check_copies(device)


def test_killed_during_work_then_opened_again() -> None:
    with navi31.bound() as name:
        process = run_until(WORK.format(name=name), "working")
        try:
            done = subprocess.run(
                [sys.executable, "-c", f"import hcq\nhcq.open({name!r})"],
                env=navi31.environment(), capture_output=True, text=True, check=False,
                timeout=navi31.PROGRAM_LIMIT_S,
            )  # fmt: skip
            assert done.returncode and "DeviceBusy" in done.stderr, done.stderr[-500:]
        finally:
            kill(process)
        with navi31.open_card(name) as device:  # left dirty: reset by the driver, if it must
            navi31.check_copies(device)
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "warm"
            navi31.check_copies(device)
