"""Guest tests of the laboratory itself: the checkout, the line to the outside, the IOMMU."""

from __future__ import annotations

import os
from pathlib import Path

from lab.kernel.guest.host import Host
from ugpu import hcq


def test_the_guest_runs_this_checkout() -> None:
    assert hcq.__file__ is not None
    assert Path(hcq.__file__).parts[-2] == "hcq"
    assert "deb" in os.uname().release


def test_the_root_does_not_reach_the_outside() -> None:
    Path("/only-in-the-guest").write_text("x")


def test_the_outside_answers() -> None:
    host = Host()
    assert host.monitor("query-status")["running"] is True
    host.close()


def test_the_iommu_is_on() -> None:
    assert any(Path("/sys/kernel/iommu_groups").iterdir())
