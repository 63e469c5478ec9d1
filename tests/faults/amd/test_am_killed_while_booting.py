"""A driver's process that is killed in the middle of a boot: the next one gets the card up, also
where the slot cannot be reset because another function sits in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.pci.vfio_user_served import served
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.device.device import open_device
from ugpu.am.units.psp import psp
from ugpu.am.units.smu import smu
from ugpu.hcq.errors import DeviceBusy
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.tools.control.serve import write_firmware
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve.model import Client

ROOT = Path(__file__).resolve().parents[3]
STAGES = [
    "config space", "discovery", "memory", "NBIO", "MMHUB", "IH", "PSP bootloader", "PSP ring",
    "TMR", "IP firmware", "SMU", "RLC autoload", "GFX", "compute queue", "copy queues",
]  # fmt: skip
# Boots until the stage in argv ends, or until the bootloader has that many components; then it
# says so and waits for its end.
BOOT = """
import signal, sys
from ugpu.am.units.psp import psp
from ugpu.am.device.device import open_device
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport

socket, firmware, until = sys.argv[1:]

def tell():
    print("here", flush=True)
    signal.pause()

def on_stage(stage, seconds):
    if stage == until:
        tell()

give = psp.Psp._command
def count(self, position, command):
    give(self, position, command)
    if until == f"component {position}":
        tell()
psp.Psp._command = count
open_device("card", Attachment(VfioUserTransport(socket)), firmware=firmware, on_stage=on_stage)
tell()
"""


class TwoFunctions(ServedChip):
    """A card with another function in its slot, which a reset of the slot would hit."""

    def attach(self, client: Client) -> Transport:
        transport = super().attach(client)
        assert isinstance(transport, VirtualTransport)

        def refuse(kind: ResetKind) -> None:
            raise DeviceBusy("a bus reset would hit its neighbour", holder="snd_hda_intel")

        transport.reset = refuse
        return transport


@contextmanager
def card(functions: int, options: ChipOptions) -> Iterator[tuple[Chip, str]]:
    chip = build_chip(options)
    model = ServedChip(chip) if functions == 1 else TwoFunctions(chip)
    with served(model) as server:
        yield chip, str(server.path)
    chip.close()


def kill_at(socket: str, firmware: Path, until: str) -> None:
    command = [sys.executable, "-c", BOOT, socket, str(firmware), until]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n", until
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("firmware")
    write_firmware(NAVI31, folder)
    return folder


def check_works(socket: str, firmware: Path) -> None:
    transport = VfioUserTransport(socket)
    with open_device("card", Attachment(transport), firmware=firmware) as device:
        data = np.arange(4096, dtype=np.uint32)
        with device.alloc(data.nbytes) as buffer:
            buffer.copy_from(data)
            assert np.array_equal(buffer.numpy(np.uint32), data)


@pytest.mark.slow
@pytest.mark.parametrize("functions", [1, 2])
def test_killed_after_each_stage(firmware: Path, functions: int) -> None:
    for stage in STAGES:
        with card(functions, ChipOptions(vram=256 << 20)) as (_, socket):
            kill_at(socket, firmware, stage)
            check_works(socket, firmware)


@pytest.mark.parametrize("position", [0, 3, 7])
def test_killed_while_the_psp_loads(firmware: Path, position: int) -> None:
    """The bootloader goes on where the dead process stopped: no reset is needed, none is had."""
    with card(2, ChipOptions(vram=256 << 20)) as (chip, socket):
        kill_at(socket, firmware, f"component {position}")
        check_works(socket, firmware)
        assert chip.violations == []


@pytest.mark.parametrize("stage", ["PSP bootloader", "PSP ring"])
def test_killed_between_the_secure_os_and_the_smu(firmware: Path, stage: str) -> None:
    with card(2, ChipOptions(vram=256 << 20)) as (chip, socket):
        kill_at(socket, firmware, stage)
        assert chip.psp.state.value == "secure OS runs" and not chip.smu.running
        check_works(socket, firmware)
        assert chip.violations == []


@pytest.fixture
def dead_smu(firmware: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a card whose SMU died with the driver, and does not answer before a reset."""
    monkeypatch.setattr(smu, "MESSAGE_LIMIT_S", 0.1)

    @contextmanager
    def make(*, obeys: bool) -> Iterator[tuple[Chip, str]]:
        with card(2, ChipOptions(vram=256 << 20, psp_mode1=obeys)) as (chip, socket):
            kill_at(socket, firmware, "GFX")
            chip.faults.smu_silent = chip.faults.smu_debug_silent = True
            reset = chip.mode1_reset

            def cured() -> None:
                chip.faults.smu_silent = chip.faults.smu_debug_silent = False
                reset()

            monkeypatch.setattr(chip, "mode1_reset", cured)
            yield chip, socket

    return make


def test_the_psp_resets_a_card_whose_smu_died(dead_smu: Callable[..., Any], firmware: Path) -> None:
    with dead_smu(obeys=True) as (chip, socket):
        check_works(socket, firmware)
        assert not chip.faults.smu_silent, "it was reset"


def test_where_nothing_resets_it_the_neighbour_is_named(
    dead_smu: Callable[..., Any], firmware: Path
) -> None:
    with dead_smu(obeys=False) as (_, socket):
        transport = VfioUserTransport(socket)
        with pytest.raises(DeviceBusy, match="reset"):
            open_device("card", Attachment(transport), firmware=firmware)


@pytest.mark.parametrize("functions", [1, 2])
def test_a_wrong_note_is_forgotten_with_the_boot_it_spoils(
    firmware: Path, monkeypatch: pytest.MonkeyPatch, functions: int
) -> None:
    """Killed between the note and the command: the boot that goes on is refused, and begins again
    after a reset of the slot."""
    with card(functions, ChipOptions(vram=256 << 20)) as (chip, socket):
        kill_at(socket, firmware, "IH")
        monkeypatch.setattr(psp, "BOOTLOADER_LIMIT_S", 0.2)
        chip.mm.set("MMVM_CONTEXT14_PAGE_TABLE_END_ADDR_LO32", 0x7547_0002)
        if functions == 2:
            with pytest.raises(DeviceBusy, match="reset"):
                open_device("card", Attachment(VfioUserTransport(socket)), firmware=firmware)
        else:
            check_works(socket, firmware)
