"""Exceptions at every line of opening and closing a tenant: the card loses nothing, and the other
holders work on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.am.device.test_am_tenants import opened, tenant, work
from tests.support.interrupts import interrupted
from ugpu.am.chips import facts_of
from ugpu.am.device.driver import AmDriver
from ugpu.hcq.device.device import Device
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions

EVERY = 32  # so many lines apart, holders have work


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(facts_of("navi31"), ChipOptions(vram=256 << 20, noise=0))
    yield made
    made.close()


def test_opening_that_is_cut_off(chip: Any) -> None:
    with opened(chip) as device, tenant(device, "one") as one:
        work(one)
        tenant(device, "other").close()
        used, kept = device.driver.memory.used, list[AmDriver]()

        def keep() -> None:
            for driver in kept:
                driver.core.close()
            kept.clear()

        def open_tenant() -> None:
            kept.append(device.driver.open_tenant("other"))

        lines = 0
        for line in interrupted(open_tenant, prepare=keep):
            lines += 1
            keep()
            assert len(device.driver.card.holders) == 2, line
            assert device.driver.memory.used == used, line
            if lines % EVERY == 0:
                with tenant(device, "other") as other:
                    work(other)
                work(one)
        assert lines > 200 and len(kept) == 1
        keep()
        assert device.driver.memory.used == used and not device.driver.card.stuck
        work(one)
    assert chip.violations == []


def test_closing_that_is_cut_off(chip: Any) -> None:
    with opened(chip) as device, tenant(device, "one") as one:
        used, kept = device.driver.memory.used, list[Device]()

        def close() -> None:
            kept[-1].close()

        def prepare() -> None:
            kept.append(tenant(device, "other"))

        lines = 0
        for line in interrupted(close, prepare=prepare):
            lines += 1
            close()
            assert len(device.driver.card.holders) == 2, line
            assert device.driver.memory.used == used, line
            if lines % EVERY == 0:
                work(one)
        assert lines > 60
        assert device.driver.memory.used == used and not device.driver.card.stuck
        work(one)
        work(device)
    assert chip.violations == []
