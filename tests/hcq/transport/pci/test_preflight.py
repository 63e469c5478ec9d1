"""Pre-flight: each condition on the way to a card is a named error with its step, before anything
is opened; what is opened and then refused is closed again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.fake_vfio import VfioMachine
from tests.support.usb.thunderbolt_tree import GEN3, GEN4, ThunderboltTree
from ugpu.hcq.errors import (
    AccessDenied,
    DecodingOff,
    DeviceAsleep,
    DeviceLost,
    LinkDegraded,
    LinkDown,
    UgpuError,
)
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.life import absence_of, end_absence
from ugpu.hcq.transport.pci import preflight
from ugpu.hcq.transport.pci.function import PciFunction

PORT, GPU = "0000:00:07.0", "0000:24:00.0"
SOCKET, INNER = "0000:21:01.0", "0000:22:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[ThunderboltTree]:
    machine = VfioMachine(tmp_path)
    made = ThunderboltTree(machine)
    (port, _) = made.host_on_die()
    assert made.card_behind(port) == GPU
    machine.load("vfio-pci")
    machine.write_text(tmp_path / "sys/bus/pci/drivers/vfio-pci/bind", GPU)
    machine.log.clear()
    yield made
    machine.free()


def open_and_close(tree: ThunderboltTree, via: str) -> None:
    if via == "sysfs":
        (tree.machine.folder(GPU) / "driver").unlink()
    attach_pci(GPU, via=via, system=tree.machine).close()


@pytest.mark.parametrize("via", ["vfio", "sysfs"])
def test_a_card_in_order_opens(tree: ThunderboltTree, via: str) -> None:
    open_and_close(tree, via)


def sleeping_port(tree: ThunderboltTree) -> None:
    tree.write(SOCKET, "power_state", "D3cold")
    tree.write(SOCKET, "power/runtime_status", "active")


def silent_port(tree: ThunderboltTree) -> None:
    tree.machine.functions[SOCKET].config[:] = b"\xff" * 4096


def silent_card(tree: ThunderboltTree) -> None:
    tree.machine.functions[GPU].config[:] = b"\xff" * 4096


def half_gone_card(tree: ThunderboltTree) -> None:
    tree.machine.functions[GPU].config[0x0E] = 0x7F


def unreadable_card(tree: ThunderboltTree) -> None:
    del tree.machine.functions[GPU]
    tree.machine.fail[f"{GPU}/config"] = errno.EIO


def one_lane(tree: ThunderboltTree) -> None:
    tree.write(INNER, "current_link_width", "1")


def no_lanes(tree: ThunderboltTree) -> None:
    tree.write(INNER, "current_link_width", "0")


BEFORE = [
    (sleeping_port, DeviceAsleep, "ports"),
    (silent_port, DeviceLost, "configuration space"),
    (silent_card, DeviceLost, "configuration space"),
    (unreadable_card, DeviceLost, "configuration space"),
    (half_gone_card, DeviceLost, "header type"),
    (no_lanes, LinkDown, "link"),
    (one_lane, LinkDegraded, "link"),
]


@pytest.mark.parametrize("via", ["vfio", "sysfs"])
@pytest.mark.parametrize(("spoil", "error", "step"), BEFORE)
def test_each_step_is_named_and_touches_nothing(
    tree: ThunderboltTree, spoil: object, error: type[UgpuError], step: str, via: str
) -> None:
    assert callable(spoil)
    spoil(tree)
    files = settled()
    with pytest.raises(error) as caught:
        open_and_close(tree, via)
    assert caught.value.facts["step"] == step and caught.value.facts["remedy"]
    assert tree.machine.log == []
    assert not leaked(files)


def test_nothing_is_unbound_for_a_card_that_cannot_be_reached(tree: ThunderboltTree) -> None:
    one_lane(tree)
    with pytest.raises(LinkDegraded):
        attach_pci(GPU, bind=True, system=tree.machine)
    assert tree.machine.log == []


@pytest.mark.parametrize("via", ["vfio", "sysfs"])
@pytest.mark.parametrize(("place", "command"), [(SOCKET, 0x4), (SOCKET, 0x2)])
def test_a_port_that_passes_nothing_on(
    tree: ThunderboltTree, via: str, place: str, command: int
) -> None:
    tree.machine.functions[place].config[0x04] = command
    files = settled()
    with pytest.raises(DecodingOff, match=f"{place} does not forward") as caught:
        open_and_close(tree, via)
    assert caught.value.facts["step"] == "memory decoding"
    assert not leaked(files)


def test_a_card_that_does_not_switch_its_decoding_on(tree: ThunderboltTree) -> None:
    function = PciFunction.find(tree.machine, GPU)
    with pytest.raises(DecodingOff, match=GPU):
        preflight.after(function)


def test_a_port_that_does_not_wake_with_the_card(tree: ThunderboltTree) -> None:
    """It slept by the kernel's doing, so that opening was tried; it sleeps still."""
    sleeping_port(tree)
    tree.write(SOCKET, "power/runtime_status", "suspended")
    preflight.before(PciFunction.find(tree.machine, GPU))
    with pytest.raises(DeviceAsleep, match=f"port {SOCKET} above {GPU}") as caught:
        open_and_close(tree, "vfio")
    assert str(caught.value.facts["remedy"]).endswith(f"{SOCKET}/power/control")


def test_a_narrow_link_may_be_accepted(
    tree: ThunderboltTree, caplog: pytest.LogCaptureFixture
) -> None:
    one_lane(tree)
    attach_pci(GPU, system=tree.machine, narrow_link=True).close()
    assert "could have 4 lanes" in caplog.text


def test_a_slow_generation_is_a_warning(
    tree: ThunderboltTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.write(GPU, "current_link_speed", "2.5 GT/s PCIe")
    attach_pci(GPU, system=tree.machine).close()
    assert "could run at 16 GT/s" in caplog.text


def test_a_tunnel_states_what_it_likes(tree: ThunderboltTree) -> None:
    tree.write("0000:20:00.0", "current_link_width", "1")
    preflight.before(PciFunction.find(tree.machine, GPU))


def test_a_slot_is_judged_by_what_both_ends_can_do(tmp_path: Path) -> None:
    tree = ThunderboltTree(VfioMachine(tmp_path))
    root = tree.add("0000:00:01.0", link=(GEN3, 8))
    card = tree.add("0000:01:00.0", root, kind=0x030000, link=(GEN3, 8), most=(GEN4, 16))
    preflight.before(PciFunction.find(tree.machine, card))


def test_a_user_without_rights_is_told_so(tree: ThunderboltTree) -> None:
    tree.machine.fail[f"{GPU}/config"] = errno.EACCES
    with pytest.raises(AccessDenied):
        preflight.before(PciFunction.find(tree.machine, GPU))


@pytest.mark.parametrize("via", ["vfio", "sysfs"])
def test_a_host_that_was_suspended_meanwhile(tree: ThunderboltTree, via: str) -> None:
    """The card answers, and has lost all that its driver put into it."""
    count = tree.machine.root / "sys/power/suspend_stats/success"
    count.parent.mkdir(parents=True)
    count.write_text("3\n")
    if via == "sysfs":
        (tree.machine.folder(GPU) / "driver").unlink()
    with attach_pci(GPU, via=via, system=tree.machine) as transport:
        assert transport.present() and absence_of(transport) == {}
        count.write_text("4\n")
        assert not transport.present()
        assert "the host was suspended" in str(absence_of(transport)["reason"])
        assert end_absence(transport)
        assert transport.present() and absence_of(transport) == {} and not end_absence(transport)
    with attach_pci(GPU, via=via, system=tree.machine) as transport:
        assert transport.present()
