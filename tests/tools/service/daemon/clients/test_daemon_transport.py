"""A chip that ugpud hands out without a driver, and takes back; a daemon that is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service.daemon import ROOT, DaemonProcess, scaled
from ugpu import hcq
from ugpu.hcq.errors import DeviceBusy, LinkError
from ugpu.hcq.remote.lease import lease_transport

DEVICE = "virtual:navi31"


@pytest.mark.slow
def test_a_chip_is_handed_out_and_taken_back() -> None:
    with DaemonProcess([DEVICE]) as daemon:
        with lease_transport("gfx11*", daemon=daemon.socket) as lent:
            with pytest.raises(DeviceBusy):
                hcq.lease(daemon=daemon.socket)
            with hcq.open(lent.name, firmware=lent.grant.firmware) as own:
                assert scaled(own)
        assert not Path(lent.grant.socket).exists()
        with hcq.lease(daemon=daemon.socket, wait_s=60) as gpu:
            assert scaled(gpu)
        lent = lease_transport(daemon=daemon.socket, wait_s=60)
        own = hcq.open(lent.name, firmware=lent.grant.firmware)
        lent.close()
        with hcq.lease(daemon=daemon.socket, wait_s=60) as gpu:
            assert scaled(gpu), "the driver that held the chip did not go"
            with pytest.raises(LinkError):
                own.synchronize()
                own.alloc(64).fill(1)
            own.close()


@pytest.mark.slow
def test_a_daemon_that_was_killed_takes_its_card_over(tmp_path: Path) -> None:
    """The chip is in a process of its own, as a card in a machine."""
    words = ["serve", "--vfio-user", str(tmp_path / "gpu.sock"), "--json", DEVICE]
    images = tmp_path / "images"
    served = subprocess.Popen(
        [sys.executable, "-m", "ugpu.tools.cli", *words, "--firmware", str(images)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None and served.stdout.readline()
        name = f"vfio-user:{tmp_path / 'gpu.sock'}"
        with DaemonProcess([name], f'options = {{ firmware = "{images}" }}', last=True) as daemon:
            gpu = hcq.lease(daemon=daemon.socket)
            assert scaled(gpu)
            daemon.kill()
            gpu.close()
            daemon.start()
            with hcq.lease(daemon=daemon.socket) as gpu:
                assert scaled(gpu)
            assert "attached warm after" not in daemon.log()  # it was killed
            daemon.stop()
            daemon.start()
            with hcq.lease(daemon=daemon.socket) as gpu:
                assert scaled(gpu)
            assert "attached warm after" in daemon.log()
    finally:
        served.terminate()
        served.communicate()
