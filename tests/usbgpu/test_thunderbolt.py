"""What usbgpu.thunderbolt.enclosures reads out of sysfs: enclosures, their cards, and the way to
a card."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pci.pci_machine import PciMachine
from tests.support.usb.thunderbolt_tree import GEN3, GEN4, NAVI31, RAZER, SONNET, ThunderboltTree
from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceNotFound
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import LinkState, header, hops, ports, slowest
from ugpu.usbgpu.thunderbolt import enclosures as thunderbolt


@pytest.fixture
def tree(tmp_path: Path) -> ThunderboltTree:
    return ThunderboltTree(PciMachine(tmp_path))


def function(tree: ThunderboltTree, address: str) -> PciFunction:
    return PciFunction.find(tree.machine, address)


@pytest.mark.parametrize("host", ["die", "chip"])
def test_a_card_in_an_enclosure(tree: ThunderboltTree, host: str) -> None:
    sockets = tree.host_on_die() if host == "die" else tree.host_on_chip()
    tree.enclosure("0-1")
    gpu = function(tree, tree.card_behind(sockets[0]))
    assert len(ports(gpu)) == (5 if host == "die" else 7)
    way = thunderbolt.way_to(gpu)
    assert way.enclosure is not None and way.enclosure.unique_id == RAZER[2]
    assert way.enclosure.tunnel == "Thunderbolt 3, 2 x 20 Gb/s"
    # Bytes by hand: 8 GT/s * 128/130 * 4 lanes / 8; and the card's 16 GT/s x16 less that.
    assert way.rate == 3_938_461_538 and way.cost == 31_507_692_307 - way.rate
    assert "8 GT/s x4" in way.slowest
    assert [hop.tunnelled for hop in way.hops].count(True) == 1
    assert way.hops[0].current == LinkState(16.0, 16)
    shown = thunderbolt.facts(gpu)
    assert shown["authorized"] == "yes" and shown["security"] == "user"
    assert shown["dma_protection"] == "on" and shown["iommu"] == "DMA"
    assert shown["slowest_link"] == ("0000:21:01.0 to 0000:22:00.0 at 8 GT/s x4, 3.9 GB/s")


def test_the_cable_may_be_the_slowest_part(tree: ThunderboltTree) -> None:
    (port, _) = tree.host_on_die()
    tree.enclosure("0-1", speed="10.0 Gb/s", lanes="1", generation="4")
    way = thunderbolt.way_to(function(tree, tree.card_behind(port)))
    assert way.slowest == "tunnel (USB4, 1 x 10 Gb/s)"
    assert way.rate == 1_212_121_212  # 10 Gb/s * 128/132 / 8


def test_the_slowest_cable_of_a_chain_counts(tree: ThunderboltTree) -> None:
    (port, _) = tree.host_on_die()
    tree.enclosure("0-1", SONNET, speed="10.0 Gb/s")
    tree.enclosure("0-301", RAZER)
    first, second = thunderbolt.enclosures(tree.machine)
    assert (first.route, second.route) == ((1,), (1, 3))
    assert first.rate == second.rate == 2 * 1_212_121_212
    tree.add("0000:10:00.0", port, link=("2.5 GT/s PCIe", 4), removable="removable")
    onward = tree.add("0000:11:04.0", "0000:10:00.0", link=("2.5 GT/s PCIe", 4))
    found = thunderbolt.enclosure_of(function(tree, tree.card_behind(onward)))
    assert found is not None and found.name == "Razer Core X"


def test_two_sockets_are_told_apart(tree: ThunderboltTree) -> None:
    first, second = tree.host_on_die()
    tree.enclosure("0-1", RAZER)
    tree.enclosure("0-3", SONNET)
    cards = [tree.card_behind(first, 0x20), tree.card_behind(second, 0x40)]
    named = [thunderbolt.enclosure_of(function(tree, card)) for card in cards]
    assert [one and one.unique_id for one in named] == [RAZER[2], SONNET[2]]
    for (*_, unique_id), card in zip((RAZER, SONNET), cards, strict=True):
        assert thunderbolt.address_of(unique_id, {NAVI31}, tree.machine) == card


@pytest.mark.parametrize(("socket", "router"), [(0, "0-1"), (1, "0-3")])
def test_the_name_stays_when_the_socket_changes(
    tree: ThunderboltTree, socket: int, router: str
) -> None:
    port = tree.host_on_die()[socket]
    tree.enclosure(router)
    gpu = tree.card_behind(port)
    assert thunderbolt.address_of(RAZER[2], {NAVI31}, tree.machine) == gpu
    assert thunderbolt.facts(function(tree, gpu))["name_of_enclosure"] == f"thunderbolt:{RAZER[2]}"


@pytest.mark.parametrize(("socket", "router"), [(0, "0-2"), (1, "0-4")])
def test_both_lanes_of_a_socket_belong_to_its_port(
    tree: ThunderboltTree, socket: int, router: str
) -> None:
    ports_of_host = tree.host_on_die()
    tree.enclosure(router)
    cards = [tree.card_behind(port, 0x20 << n) for n, port in enumerate(ports_of_host)]
    named = [thunderbolt.enclosure_of(function(tree, card)) for card in cards]
    assert [one is not None for one in named] == [socket == 0, socket == 1]


def test_an_enclosure_that_the_machine_does_not_tell_is_not_guessed(tree: ThunderboltTree) -> None:
    (port,) = tree.host_on_die(1)
    tree.enclosure("0-1", RAZER)
    gpu = function(tree, tree.card_behind(port))
    assert thunderbolt.enclosure_of(gpu) is not None
    tree.enclosure("0-3", SONNET)  # of a socket without a port of its own
    assert thunderbolt.enclosure_of(gpu) is None


def test_a_card_in_the_machine_has_no_enclosure(tree: ThunderboltTree) -> None:
    root = tree.add("0000:00:01.0", link=(GEN4, 16))
    gpu = function(tree, tree.add("0000:01:00.0", root, ids=NAVI31, kind=0x030000, link=(GEN4, 16)))
    way = thunderbolt.way_to(gpu)
    assert way.enclosure is None and way.rate == 31_507_692_307 and way.cost == 0
    assert "enclosure" not in thunderbolt.facts(gpu)


def test_an_old_link_between_bridges_is_no_tunnel(tree: ThunderboltTree) -> None:
    root = tree.add("0000:00:01.0", link=("2.5 GT/s PCIe", 4))
    switch = tree.add("0000:01:00.0", root, link=("2.5 GT/s PCIe", 4), removable="fixed")
    (hop,) = hops(function(tree, switch))
    assert not hop.tunnelled and slowest([hop]) is hop


@pytest.mark.parametrize("text", ["Unknown", "", "x GT/s"])
def test_a_speed_that_the_kernel_does_not_know(tree: ThunderboltTree, text: str) -> None:
    root = tree.add("0000:00:01.0", link=(GEN3, 4))
    gpu = tree.add("0000:01:00.0", root, kind=0x030000, link=(text, 255))
    (hop,) = hops(function(tree, gpu))
    assert hop.current == LinkState(0.0, 0) and slowest([hop]) is None
    assert "slowest_link" not in thunderbolt.facts(function(tree, gpu))


def test_what_stands_between_a_name_and_a_card(tree: ThunderboltTree) -> None:
    first, second = tree.host_on_die()

    def open_named(unique_id: str = RAZER[2]) -> str:
        return thunderbolt.address_of(unique_id, {NAVI31}, tree.machine)

    with pytest.raises(BadArgument, match="at least 4 characters"):
        open_named("9c")
    with pytest.raises(DeviceNotFound, match="there are: none"):
        open_named()
    tree.enclosure("0-1", authorized="0")
    with pytest.raises(AccessDenied, match="Core X is not authorised") as denied:
        open_named()
    remedy = "echo 1 | sudo tee /sys/bus/thunderbolt/devices/0-1/authorized"
    assert denied.value.facts["remedy"] == remedy
    (tree.machine.root / "run/boltd").mkdir(parents=True)
    with pytest.raises(AccessDenied, match=f"boltctl enroll --policy auto {RAZER[2]}"):
        open_named()
    (tree.machine.root / "sys/bus/thunderbolt/devices/0-1/authorized").write_text("1\n")
    with pytest.raises(DeviceNotFound, match="no PCI function"):
        open_named()
    gpu = tree.card_behind(first)
    assert open_named() == open_named("9C03") == gpu
    with pytest.raises(DeviceNotFound, match=r"no card that ugpu supports, only .*1002:744c"):
        thunderbolt.address_of("9c03", set(), tree.machine)
    tree.enclosure("0-3", RAZER)  # two enclosures with one serial
    tree.card_behind(second, 0x40)
    with pytest.raises(BadArgument, match="2 enclosures have the id"):
        open_named()


@pytest.mark.parametrize("level", ["dponly", "usbonly", "nopcie"])
def test_a_security_level_without_pcie_is_named(tree: ThunderboltTree, level: str) -> None:
    """Not as an empty enclosure: no card that is seated anew would show up."""
    tree.host_on_die(security=level)
    tree.enclosure("0-1")
    with pytest.raises(AccessDenied, match="not create a PCIe tunnel") as denied:
        thunderbolt.address_of("9c03", {NAVI31}, tree.machine)
    assert denied.value.facts["security"] == level
    assert "firmware setup" in str(denied.value.facts["remedy"])


def test_two_cards_in_one_enclosure(tree: ThunderboltTree) -> None:
    (port, _) = tree.host_on_die()
    tree.enclosure("0-1")
    tree.card_behind(port)
    tree.add("0000:25:00.0", "0000:21:01.0", ids=NAVI31, kind=0x030000, link=(GEN3, 4))
    with pytest.raises(BadArgument, match="several cards"):
        thunderbolt.address_of(RAZER[2], {NAVI31}, tree.machine)


def test_another_host_and_retimers_are_no_enclosures(tree: ThunderboltTree) -> None:
    tree.host_on_die(protection="0", security="none")
    tree.enclosure("0-1")
    bus = tree.machine.root / "sys/bus/thunderbolt/devices"
    for name in ("0-3", "0-1:1.1", "0-1.0"):
        (bus / name).mkdir()  # an XDomain, a retimer, a service: none has `authorized`
    (found,) = thunderbolt.enclosures(tree.machine)
    assert found.dma_protection is False and found.security == "none"


def test_a_machine_without_thunderbolt(tree: ThunderboltTree) -> None:
    assert thunderbolt.enclosures(tree.machine) == []


def test_the_header_of_a_function(tree: ThunderboltTree) -> None:
    gpu = function(tree, tree.add("0000:01:00.0", kind=0x030000))
    read = header(gpu)
    assert read is not None and len(read) == 64 and read[:2] == b"\x86\x80"
    del tree.machine.functions["0000:01:00.0"]
    tree.machine.fail["config"] = 5
    assert header(gpu) is None


@given(st.sampled_from([2.5, 5.0, 8.0, 16.0, 32.0, 64.0]), st.integers(1, 32))
def test_a_link_carries_less_than_its_bits(speed: float, width: int) -> None:
    rate = LinkState(speed, width).rate
    assert 0.79 * speed * 1e9 * width / 8 < rate <= speed * 1e9 * width / 8
    assert rate < LinkState(speed * 2, width).rate
