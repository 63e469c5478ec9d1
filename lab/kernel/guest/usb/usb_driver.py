"""Guest tests: the unmodified driver on a card behind the bridge, through the system's libusb."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import libusb_package

from lab.kernel.guest.amd.navi31 import PROGRAM_LIMIT_S, environment
from lab.kernel.guest.host import within
from lab.kernel.guest.usb.usb_stack import hand

Note = Callable[[str, object], None]


def test_demo(tmp_path: Path, record_property: Note) -> None:
    # The library comes in a Python package here; the driver looks for the system's.
    (tmp_path / "libusb-1.0.so.0").symlink_to(libusb_package.get_library_path())
    variables = {**environment(), "LD_LIBRARY_PATH": str(tmp_path)}
    with hand() as host:
        before = host.ask("count")
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "ugpu.tools.cli", "demo", "--json", "--device", "usb:0"],
            env=variables, capture_output=True, text=True, check=False,
            timeout=within(PROGRAM_LIMIT_S),
        )  # fmt: skip
        seconds = time.monotonic() - begin
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout)
        assert result["verdict"] == "PASS" and result["accuracy"] > 0.98
        after = host.ask("count")
    record_property("demo over the bridge, all of it (s)", f"{seconds:.1f}")
    record_property("boot of the card (ms)", result["boot_ms"])
    transfers = {kind: after[kind] - before.get(kind, 0) for kind in after}
    record_property("transfers", json.dumps(transfers))
