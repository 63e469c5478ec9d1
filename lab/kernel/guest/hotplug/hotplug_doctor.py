"""Guest tests: misconfigurations of a card behind a hot-plug port; the doctor finds each on a real
kernel's sysfs, its own command mends it, and eject takes the card with its audio."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.edu import slots
from lab.kernel.guest.host import Host, within
from ugpu.hcq.errors import BarUnassigned, DeviceBusy
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.checks import check_bars
from ugpu.hcq.transport.pci.eject import steps
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import ports
from ugpu.hcq.transport.system import System
from ugpu.tools.base.finding import Finding
from ugpu.tools.inspect.doctor import Doctor

Note = Callable[[str, object], None]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    line = Host()
    yield line
    line.close()


@pytest.fixture(scope="module")
def card(host: Host) -> Iterator[PciFunction]:
    """The card with its audio function, in vfio-pci's hands."""
    function = slots.plugged(host, 0, 0, audio=True)
    slots.wait_for(lambda: audio(function).folder.is_dir(), "the audio function")
    binding = Binding.bind_alone(function)
    yield function
    binding.restore()


def audio(card: PciFunction) -> PciFunction:
    return PciFunction(card.system, card.address.replace(".0", ".1"))


def port(card: PciFunction) -> PciFunction:
    above = card.parent
    assert above is not None
    return above


def about(words: str) -> list[Finding]:
    found = Doctor(firmware_folders=(navi31.FIRMWARE,)).findings()
    return [one for one in found if words in one.detail and one.state != "ok"]


def carry_out(finding: Finding) -> None:
    command = finding.remedy.split("   #")[0].replace("sudo ", "")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def mended(words: str) -> str:
    """Have the doctor's own command mend what it says with `words`; what it said."""
    (finding,) = about(words)
    carry_out(finding)
    assert not about(words)
    return finding.detail


def test_an_audio_function_in_its_drivers_hands(card: PciFunction) -> None:
    slots.wait_for(lambda: audio(card).driver == "snd_hda_intel", "the audio driver")
    detail = mended("audio function")
    assert f"{audio(card).address} is bound to the kernel driver snd_hda_intel" in detail
    assert audio(card).driver is None


def test_runtime_power_management_on_the_way(card: PciFunction) -> None:
    for one in (card, audio(card), port(card)):
        (one.folder / "power/control").write_text("auto")
    detail = mended("runtime power management")
    assert all(one.address in detail for one in (card, audio(card), port(card)))


def test_a_kernel_driver_in_the_way(card: PciFunction) -> None:
    """Any driver stands for the vendor's: the finding and its command are the same."""
    address = card.address
    (card.folder / "driver_override").write_text("pcieport")
    (card.folder / "driver/unbind").write_text(address)
    assert card.driver is None
    (finding,) = about("unbound; must be bound")
    carry_out(Finding("", "", "", finding.remedy.split("or by hand: ")[1]))
    assert card.driver == "vfio-pci"


def test_a_program_that_has_it_open(card: PciFunction) -> None:
    code = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print('open', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"/dev/vfio/{card.group}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(DeviceBusy, match=f"pid {process.pid}"):
            steps(card)
        assert about(f"pid {process.pid}")
    finally:
        process.kill()
        process.communicate()


def test_a_bar_without_room_names_the_bridge(card: PciFunction, host: Host) -> None:
    """A card with more VRAM than the machine has addresses for."""
    try:
        slots.plug(host, 2, 1)
        slots.wait_for(lambda: len(slots.cards()) > 1, "the second card")
        address = next(one for one in slots.cards() if one != card.address)
        second = PciFunction.find(System(), address)
        with pytest.raises(BarUnassigned):
            check_bars(second, {0: 1})
        (finding,) = [one for one in about("BAR 0 has no address") if address in one.check]
        assert any(f"of the bridge {one.address}" in finding.detail for one in ports(second))
        assert "pci=realloc" in finding.remedy
    finally:
        host.monitor("device_del", id="gpu2")
        slots.wait_for(lambda: len(slots.cards()) == 1, "the second card's removal")


def test_ejected_with_its_audio(card: PciFunction, host: Host) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ugpu.tools.cli", "eject", f"pci:{card.address}"],
        capture_output=True, text=True, check=False, timeout=within(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not card.folder.is_dir() and not audio(card).folder.is_dir()
    assert not Path(f"/dev/vfio/{card.group}").exists()
    host.monitor("device_del", id="gpu0")
