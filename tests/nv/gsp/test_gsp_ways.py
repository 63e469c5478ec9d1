"""A card without a kernel driver over the other ways to it: vfio-user, and a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvidia.nv_machine import LIMIT_S, work
from tests.support.pci.vfio_user_served import served
from ugpu import hcq
from ugpu.hcq.transport.recorded.replay import ReplayTransport
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.nvidia.gsp.bus.served import ServedCard
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions


@contextlib.contextmanager
def behind_socket(chip: str) -> Iterator[tuple[Card, str]]:
    """A card behind a server: the card and its name for `open`."""
    card = build_card(chip, CardOptions(memory=1 << 30))
    try:
        with served(ServedCard(card)) as server:
            yield card, f"vfio-user:{server.path}"
    finally:
        card.close()


def images(chip: str, folder: Path) -> Path:
    for name, image in whole_set(chip).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return folder


@pytest.mark.parametrize("chip", ["ad102", "gb202"])
def test_a_card_behind_vfio_user_works_and_is_handed_back(chip: str, tmp_path: Path) -> None:
    with behind_socket(chip) as (card, name):
        for _ in range(2):
            with hcq.open(name, firmware=images(chip, tmp_path)) as device:
                device.limit_s = LIMIT_S
                work(device)
        assert card.violations == []


@pytest.mark.parametrize(
    "chip", ["ad102", *(pytest.param(chip, marks=pytest.mark.slow) for chip in ("tu102", "gh100"))]
)
def test_a_recorded_card_boots_and_works_again_without_it(chip: str, tmp_path: Path) -> None:
    path = tmp_path / "boot.txt"
    with hcq.open(f"virtual:{chip}+gsp", memory=1 << 30, record=path) as device:
        assert isinstance(device, NvDevice)
        device.limit_s = LIMIT_S
        work(device)
        stages = [stage for stage, _ in device.boot_stages]
    with hcq.open(f"recording:{path}") as device:
        assert isinstance(device, NvDevice)
        device.limit_s = LIMIT_S
        work(device)
        assert [stage for stage, _ in device.boot_stages] == stages
        transport = device.driver.session.source
        assert isinstance(transport, ReplayTransport)
    transport.finish()
