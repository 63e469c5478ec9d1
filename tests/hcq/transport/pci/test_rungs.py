"""Reset rungs outside of the chip, and eject: precondition, action and proof on a made-up slot;
each survives a failure at any of its steps."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.slot_machine import AUDIO, BELOW, GPU, INNER, SLOT, SWITCH, SlotMachine
from ugpu.hcq.errors import (
    AccessDenied,
    BarUnassigned,
    DeviceBusy,
    DeviceLost,
    NotSupported,
    TransportError,
    UgpuError,
    UnitTimeout,
)
from ugpu.hcq.state.ladder import Rung, climb
from ugpu.hcq.transport.pci.eject import eject, steps
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import slot_port
from ugpu.hcq.transport.pci.rungs import BusReset, ColdCycle, RemoveRescan

RUNGS = (BusReset, ColdCycle, RemoveRescan)


@pytest.fixture
def machine(tmp_path: Path) -> SlotMachine:
    made = SlotMachine(tmp_path)
    made.own(GPU, "vfio-pci")
    return made


def gpu(machine: SlotMachine) -> PciFunction:
    return PciFunction.find(machine, GPU)


def made(kind: type[BusReset] | type[ColdCycle] | type[RemoveRescan], machine: SlotMachine) -> Rung:
    return kind(gpu(machine), machine)


def test_the_slot_is_above_the_cards_own_switch(machine: SlotMachine) -> None:
    port = slot_port(gpu(machine))
    assert port is not None and port.address == SLOT


def test_a_bus_reset_loses_nothing_that_software_owns(machine: SlotMachine) -> None:
    files = settled()
    done = climb(made(BusReset, machine), machine)
    assert machine.events == ["reset"] and machine.whole()
    assert done.proof["port"] == SLOT and done.proof["identity"] == "1002:744c"
    assert done.seconds == pytest.approx(0.102, abs=1e-3)  # held for 2 ms, quiet for 100 ms
    assert not leaked(files)


def test_the_kernels_own_reset_of_a_port_is_preferred(machine: SlotMachine) -> None:
    (machine.folder(SLOT) / "reset_subordinate").touch()
    climb(made(BusReset, machine), machine)
    assert machine.events == ["kernel's reset"]


def test_a_card_that_stays_dark_is_lost(machine: SlotMachine) -> None:
    machine.stays_dark = True
    with pytest.raises(DeviceLost) as caught:
        climb(made(BusReset, machine), machine)
    assert caught.value.facts["phase"] == "prove" and caught.value.facts["rung"] == "bus reset"


def test_a_reset_is_let_go_and_undone_when_it_is_interrupted(machine: SlotMachine) -> None:
    calls = 0

    def sleep(seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt

    machine.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        climb(made(BusReset, machine), machine)
    assert machine.functions[SLOT].config[0x3E] & 0x40 == 0 and machine.whole()


def test_a_power_cycle_wakes_everything_again(machine: SlotMachine) -> None:
    (machine.folder(AUDIO) / "power/control").write_text("auto\n")
    done = climb(made(ColdCycle, machine), machine)
    assert machine.events == ["D3cold", "D0"] and machine.whole()
    assert done.proof["reached"] == "D3cold"
    everybody = (SLOT, *BELOW)
    controls = [(machine.folder(one) / "power/control").read_text().strip() for one in everybody]
    assert controls == ["on", "on", "on", "on", "auto"]


def test_a_platform_that_cuts_no_power_says_so(machine: SlotMachine) -> None:
    machine.deepest = "D3hot"
    with pytest.raises(NotSupported, match="expected D3cold, got D3hot") as caught:
        climb(made(ColdCycle, machine), machine)
    assert caught.value.facts["phase"] == "act"
    assert machine.state(SLOT) == "D0" and machine.whole()


@pytest.mark.parametrize("refused", [GPU, SWITCH, SLOT])
def test_a_power_cycle_that_fails_half_way_wakes_what_sleeps(
    machine: SlotMachine, refused: str
) -> None:
    count = 0
    write = machine.write_text

    def once(path: Path, text: str) -> None:
        nonlocal count
        if path.name == "control" and path.parent.parent.name == refused and count == 0:
            count += 1
            raise OSError(errno.EIO, "refused")
        write(path, text)

    machine.write_text = once  # type: ignore[method-assign]
    with pytest.raises(TransportError):
        climb(made(ColdCycle, machine), machine)
    assert machine.state(SLOT) == "D0" and machine.whole()
    for one in (SLOT, *BELOW):
        assert (machine.folder(one) / "power/control").read_text().strip() == "on"


def test_removed_and_found_again_without_its_vendors_driver(machine: SlotMachine) -> None:
    machine.natural = {GPU: "amdgpu"}
    machine.own(AUDIO, "snd_hda_intel")
    done = climb(made(RemoveRescan, machine), machine)
    assert machine.driver(GPU) == "vfio-pci" and machine.driver(AUDIO) == "snd_hda_intel"
    assert done.proof["identity"] == "1002:744c"
    assert machine.events == [
        "autoprobe 0", f"{AUDIO} unbound", f"{GPU} removed", f"{AUDIO} removed",
        f"{SWITCH} removed", "rescan", "autoprobe 1",
    ]  # fmt: skip


def test_a_card_that_comes_back_without_addresses(machine: SlotMachine) -> None:
    rung = made(RemoveRescan, machine)
    rung.check()
    rung.act()
    (machine.folder(GPU) / "resource").write_text("0x0 0xfffffff 0x2014220c\n")
    with pytest.raises(BarUnassigned):
        rung.prove()


def test_probing_is_switched_on_again_when_removing_fails(machine: SlotMachine) -> None:
    machine.fail[f"{AUDIO}/remove"] = errno.EIO
    with pytest.raises(TransportError):
        climb(made(RemoveRescan, machine), machine)
    assert machine.events[-2:] == ["rescan", "autoprobe 1"]
    assert machine.folder(GPU).exists() and machine.folder(AUDIO).exists()


@pytest.mark.parametrize("kind", RUNGS)
def test_what_others_use_is_not_touched(
    machine: SlotMachine, kind: type[BusReset] | type[ColdCycle] | type[RemoveRescan]
) -> None:
    def refused(error: type[UgpuError], words: str) -> None:
        before = len(machine.log), list(machine.events)
        with pytest.raises(error, match=words) as caught:
            climb(made(kind, machine), machine)
        assert caught.value.facts["phase"] == "check"
        assert (len(machine.log), machine.events) == before

    machine.open_by(GPU)
    refused(DeviceBusy, r"server \(pid 4242\)")
    (machine.root / "proc/4242/fd/3").unlink()
    PciFunction.find(machine, GPU)
    machine.write_text(machine.root / "sys/bus/pci/drivers/vfio-pci/unbind", GPU)
    machine.own(GPU, "amdgpu")
    refused(DeviceBusy, "amdgpu")


@pytest.mark.parametrize("kind", RUNGS)
def test_a_card_on_a_root_bus(
    tmp_path: Path, kind: type[BusReset] | type[ColdCycle] | type[RemoveRescan]
) -> None:
    machine = SlotMachine(tmp_path)
    machine.add("0000:00:08.0")
    with pytest.raises(NotSupported, match="root bus"):
        kind(PciFunction.find(machine, "0000:00:08.0"), machine).check()


def test_a_card_that_may_not_go_cold(machine: SlotMachine) -> None:
    (machine.folder(INNER) / "d3cold_allowed").write_text("0\n")
    with pytest.raises(NotSupported, match=INNER):
        climb(made(ColdCycle, machine), machine)


# ---- eject -------------------------------------------------------------------------------------


def test_eject_drains_releases_and_takes_the_switch_along(machine: SlotMachine) -> None:
    machine.own(AUDIO, "snd_hda_intel")
    machine.pending = 3
    shown = steps(gpu(machine))
    assert shown[1] == f"{AUDIO}: released by snd_hda_intel" and SWITCH in shown[-1]
    eject(gpu(machine), clock=machine)
    assert machine.events == [
        f"{AUDIO} unbound", f"{GPU} removed", f"{AUDIO} removed", f"{SWITCH} removed"
    ]  # fmt: skip
    assert machine.pending == 0 and machine.functions[GPU].config[0x04] & 4 == 0


def test_eject_waits_for_what_is_in_flight_no_longer_than_a_second(machine: SlotMachine) -> None:
    machine.pending = 1 << 30
    with pytest.raises(UnitTimeout, match="pending transactions"):
        eject(gpu(machine), clock=machine)
    assert machine.folder(GPU).exists() and machine.events == []


def test_eject_names_who_uses_the_audio(machine: SlotMachine) -> None:
    machine.own(AUDIO, "snd_hda_intel")
    node = machine.folder(AUDIO).resolve() / "sound/card1/pcmC1D3p"
    node.mkdir(parents=True)
    (node / "dev").write_text("116:3\n")
    (node / "uevent").write_text("DEVNAME=snd/pcmC1D3p\n")
    fd = machine.root / "proc/77/fd"
    fd.mkdir(parents=True)
    (fd.parent / "comm").write_text("pipewire\n")
    (fd / "9").symlink_to("/dev/snd/pcmC1D3p")
    with pytest.raises(DeviceBusy, match=rf"{AUDIO} is in use .*pipewire \(pid 77\)"):
        eject(gpu(machine), clock=machine)
    assert machine.events == []


def test_eject_that_fails_half_way_looks_for_the_card_again(machine: SlotMachine) -> None:
    machine.fail[f"{SWITCH}/remove"] = errno.EIO
    with pytest.raises(TransportError):
        eject(gpu(machine), clock=machine)
    assert machine.events[-1] == "rescan" and machine.folder(GPU).exists()


def test_eject_without_rights(machine: SlotMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(AccessDenied):
        eject(gpu(machine), clock=machine)
    assert machine.events == []
