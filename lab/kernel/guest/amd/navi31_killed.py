"""Guest tests: the driver's process is killed while it boots the card."""

from __future__ import annotations

import pytest

from lab.kernel.guest.amd import navi31

BOOT = """
from ugpu import hcq
print("booting", flush=True)
hcq.open({name!r}, force_cold=True, on_stage=lambda stage, seconds: print(stage, flush=True))
"""


@pytest.mark.parametrize("stage", ["booting", "IP firmware"])
def test_killed_during_boot(stage: str) -> None:
    with navi31.bound() as name:
        navi31.kill(navi31.run_until(BOOT.format(name=name), stage))
        with navi31.open_card(name) as device:
            assert device.info()["start"] == "cold", "what died half way is not trusted"
            navi31.check_copies(device)
