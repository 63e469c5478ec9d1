"""Guest tests: a card that the kernel cannot reset stays up from process to process, killed ones
included."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.amd.navi31_killed import BOOT
from lab.kernel.guest.host import within
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System

WORK = """
import numpy as np
from ugpu import hcq
from ugpu.compiler import Tensor
with hcq.open({name!r}) as device:
    a = Tensor(np.ones((64, 64), np.float32), device=device)
    assert (a @ a).numpy()[0, 0] == 64
    print("working", flush=True)
    while True:
        (a @ a).numpy()
"""


def test_warm_open(record_property: Callable[[str, object], None]) -> None:
    with navi31.bound() as name:
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "cold"
        begin = time.monotonic()
        with navi31.open_card(name) as device:
            record_property("warm open (s)", f"{time.monotonic() - begin:.2f}")
            assert device.info()["start"] == "warm"
            navi31.check_copies(device)


def test_a_small_bar_reaches_all_of_vram() -> None:
    """The BAR shows a quarter of VRAM, and more than that is in use between the pieces."""
    function = PciFunction.find(System(), navi31.address())
    assert {bar.index: bar.size for bar in function.bars()}[0] == 256 << 20
    data = np.arange(1 << 12, dtype=np.uint32)
    with (
        navi31.bound() as name,
        navi31.open_card(name) as device,
        contextlib.ExitStack() as kept,
    ):
        pieces = []
        for number in range(6):
            kept.enter_context(device.alloc(64 << 20))
            pieces.append(kept.enter_context(device.alloc(data.nbytes)))
            pieces[-1].copy_from(data + np.uint32(number))
        for number, piece in enumerate(pieces):
            assert np.array_equal(piece.numpy(np.uint32), data + np.uint32(number))


def test_killed_during_work_then_opened_again() -> None:
    with navi31.bound() as name:
        process = navi31.run_until(WORK.format(name=name), "working")
        try:
            done = subprocess.run(
                [sys.executable, "-c", f"from ugpu import hcq\nhcq.open({name!r})"],
                env=navi31.environment(), capture_output=True, text=True, check=False,
                timeout=within(navi31.PROGRAM_LIMIT_S),
            )  # fmt: skip
            assert done.returncode and "DeviceBusy" in done.stderr, done.stderr[-500:]
        finally:
            navi31.kill(process)
        with navi31.open_card(name) as device:  # left dirty: reset by the driver, if it must
            navi31.check_copies(device)
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "warm"
            navi31.check_copies(device)


@pytest.mark.parametrize("stage", ["IH", "PSP bootloader"])
def test_killed_during_boot_where_the_slot_cannot_be_reset(stage: str) -> None:
    with navi31.bound() as name:
        navi31.kill(navi31.run_until(BOOT.format(name=name), stage))
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "cold"
            navi31.check_copies(device)
