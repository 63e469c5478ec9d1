"""The card behind a bridge: found, given addresses, reached; and every way in which it is not."""

from __future__ import annotations

import pytest

from tests.support.clocks import Manual
from tests.support.pci.pci_tree import Node, TreeBridge, chain, gpu
from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceLost,
    DeviceNotFound,
    LinkDegraded,
    LinkDown,
    LinkError,
    NotSupported,
    OutOfMemory,
)
from ugpu.hcq.transport.base import ResetKind
from ugpu.usbgpu.bridge.transport import UsbTransport


def opened(bridge: TreeBridge) -> UsbTransport:
    transport = UsbTransport(bridge, "usb:0", clock=Manual())
    transport.config_write(4, 6, 2)
    return transport


# ---- finding it --------------------------------------------------------------------------------


def test_the_card_is_powered_found_and_given_its_addresses() -> None:
    bridge = TreeBridge(chain(gpu()))
    with opened(bridge) as transport:
        assert bridge.powered == [1]
        assert str(transport.identity) == "1002:744c" and transport.present()
        assert transport.card.function.bus == 3 and len(transport.card.above) == 3
        assert transport.card.bars == {
            0: (32 << 30, 1 << 30),  # resized to the largest that it offers
            2: (33 << 30, 2 << 20),
            5: (0x1000_0000, 1 << 20),
        }
        assert not transport.traits.host_memory and transport.traits.dma_bytes == 0
        assert transport.interrupts is None
        assert transport.facts() == {
            "bridge_firmware": "tree", "bridge_serial": "0badcafe", "usb_port": "2-1",
            "usb_link_mbit_s": 10_000, "pcie_lanes": 4, "pcie_generation": 4,
        }  # fmt: skip
    assert bridge.usb.closed and bridge.powered == [1], "it stays powered, for a warm start"


def test_what_was_read_when_the_card_was_found_is_not_read_again() -> None:
    """Up to the first request to its memory: a reset that the card does itself clears registers."""
    bridge = TreeBridge(chain(gpu()))
    with UsbTransport(bridge, "usb:0", clock=Manual()) as transport:
        function = transport.card.function
        place = transport.card.capabilities[0x10] + 0x10  # link control
        before = bridge.transfers
        assert transport.config_read(4, 2) == 0
        found = transport.config_read(place, 2)
        assert bridge.transfers == before
        assert (function.read(4, 2), function.read(place, 2)) == (0, found)
        transport.config_write(4, 2, 2)
        assert transport.config_read(4, 2) == 2, "what was written is read"
        transport.window(5).read32(0)
        function.write(place, found ^ 3, 2)
        assert transport.config_read(place, 2) == found ^ 3


@pytest.mark.parametrize("given", [1 << 30, 2 << 30, 4 << 30, 32 << 30])
@pytest.mark.parametrize("resizable", [False, True])
def test_bars_of_any_size(given: int, resizable: bool) -> None:
    """The halves of a register that hold no bits of an address are not written."""
    card = gpu()
    card.sizes = given >> 20 if resizable else 0
    card.bars[0].size = 256 << 20 if resizable else given
    card.__post_init__()
    with opened(TreeBridge(chain(card))) as transport:
        assert transport.card.bars == {
            0: (32 << 30, given),
            2: ((32 << 30) + given, 2 << 20),
            5: (0x1000_0000, 1 << 20),
        }
        assert card.get(0x10, 8) == (32 << 30) | 0xC
        assert card.get(0x18, 8) == (32 << 30) + given | 0xC
        assert card.get(0x24) == 0x1000_0000 and card.get(0x20) == 1


def test_a_bar_that_keeps_its_size_is_taken_as_it_is() -> None:
    card = gpu()
    card.sizes, card.stays = 32 << 10, True
    card.__post_init__()
    with opened(TreeBridge(chain(card))) as transport:
        assert transport.card.bars[0] == (32 << 30, 256 << 20)
        assert card.get(0x10, 8) == (32 << 30) | 0xC


def test_a_card_that_is_up_is_not_powered_again() -> None:
    bridge = TreeBridge(chain(gpu()), up=True)
    with opened(bridge):
        assert bridge.powered == []


def test_bridges_pass_on_no_other_memory() -> None:
    bridge = TreeBridge(chain(gpu()))
    with opened(bridge) as transport:
        for above in transport.card.above:
            low = above.read(0x20), above.read(0x24)
            assert low == (0x1000_1000, 0x4010_0000)
            assert (above.read(0x28), above.read(0x2C)) == (8, 8)
            # All buses below: numbered once, while the depth of the tree is not known.
            assert (above.read(0x18, 1), above.read(0x19, 1)) == (above.bus, above.bus + 1)
            assert above.read(0x1A, 1) == 0xFF


def test_a_card_at_another_port_of_the_switch_is_found() -> None:
    root = chain(None)
    switch = root.below[0]
    nic = Node(0x15338086, 0x02)
    switch.below[0].below[0] = nic
    switch.below[3] = Node(0x14791002, 0x06, below={0: gpu()}, port=6)
    bridge = TreeBridge(root, up=True)
    transport = UsbTransport(bridge, "usb:0", clock=Manual())
    assert transport.card.port.device == 3
    transport.close()


def test_a_card_that_is_not_ready_is_asked_again() -> None:
    bridge = TreeBridge(chain(gpu(retries=5)))
    pauses: list[float] = []
    UsbTransport(bridge, "usb:0", clock=Manual(on_sleep=pauses.append)).close()
    assert len(pauses) >= 4  # the guess that it is a bus further down met the first
    with pytest.raises(DeviceNotFound):
        UsbTransport(TreeBridge(chain(gpu(retries=10_000))), "usb:0", clock=Manual())


@pytest.mark.parametrize(
    ("root", "supply", "error"),
    [
        (chain(None), True, DeviceNotFound),
        (chain(Node(0x15338086, 0x02)), True, DeviceNotFound),
        (None, True, DeviceNotFound),
        (chain(gpu()), False, LinkDown),
        (chain(gpu(), width=1), True, LinkDegraded),
    ],
    ids=["empty slot", "network card", "nothing", "no supply", "one lane"],
)
def test_what_cannot_be_used_is_named_and_left_as_it_was(
    root: Node | None, supply: bool, error: type[Exception]
) -> None:
    bridge = TreeBridge(root, supply=supply)
    with pytest.raises(error):
        UsbTransport(bridge, "usb:0", clock=Manual())
    assert bridge.powered == [1, 0] and bridge.usb.closed
    if supply:
        up = TreeBridge(root, up=True)
        with pytest.raises(error):
            UsbTransport(up, "usb:0", clock=Manual())
        assert up.powered == [] and up.usb.closed, "it was powered before"


def test_what_else_is_there_is_named() -> None:
    with pytest.raises(DeviceNotFound, match="8086:1533 of class 0x02"):
        UsbTransport(TreeBridge(chain(Node(0x15338086, 0x02))), "usb:0", clock=Manual())


# ---- accesses ----------------------------------------------------------------------------------


def test_registers_and_memory_are_reached_through_the_windows() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        registers, memory = transport.window(5), transport.window(0)
        assert (registers.size, memory.size) == (1 << 20, 1 << 30)
        registers.write32(0x40, 0x11223344)
        assert bridge.registers[0x40:0x44] == bytes.fromhex("44332211")
        memory.write(0x100, b"12345678")
        assert memory.read(0x100, 8) == b"12345678" and memory.read64(0x100) == int.from_bytes(
            b"12345678", "little"
        )
        transport.config_write(4, 0, 2)
        assert registers.read32(0x40) == 0xFFFF_FFFF, "memory decoding is off"


def test_accesses_end_where_the_window_does() -> None:
    with opened(TreeBridge(chain(gpu()))) as transport:
        window = transport.window(5)
        for access in (
            lambda: window.read32(window.size),
            lambda: window.read64(window.size),
            lambda: window.write32(window.size, 1),
            lambda: window.read(window.size - 4, 8),
            lambda: window.write(window.size - 4, bytes(8)),
            lambda: window.read(0, window.size + 4),
        ):
            with pytest.raises(BadArgument, match="inside the window"):
                access()


def test_configuration_is_read_after_the_writes_before_it() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        window = transport.window(5)
        with transport.batch():
            window.write32(0x10, 7)
            assert bridge.registers[0x10] == 0
            transport.config_read(0)
            assert bridge.registers[0x10] == 7
            window.write32(0x14, 9)
            transport.config_write(0x3C, 1, 1)
            assert bridge.registers[0x14] == 9


def test_a_batch_joins_ascending_writes() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        window = transport.window(5)
        bridge.log.clear()
        with transport.batch():
            for offset in (0x10, 0x14, 0x18):
                window.write32(offset, offset)
            with transport.batch():
                window.write64(0x20, 1)
            assert [entry[2] for entry in bridge.log] == [12]
            assert window.read32(0x20) == 1
            window.write32(0x28, 2)
            window.write32(0x28, 3)
        base = transport.card.bars[5][0]
        assert bridge.log == [
            ("write", base + 0x10, 12),
            ("write", base + 0x20, 8),
            ("write", base + 0x28, 4),
            ("write", base + 0x28, 4),
        ]
        assert window.read32(0x28) == 3


def test_writes_of_a_batch_that_failed_arrive() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        window = transport.window(5)
        with pytest.raises(BadArgument), transport.batch():
            window.write32(0x10, 7)
            window.write32(0x11, 8)
        assert bridge.registers[0x10] == 7


# ---- memory ------------------------------------------------------------------------------------


def test_no_page_is_dma_memory() -> None:
    """The host sees no whole page that the card sees."""
    with opened(TreeBridge(chain(gpu()))) as transport:
        with pytest.raises(OutOfMemory, match="no DMA memory"):
            transport.allocate_dma(1)
        with pytest.raises(BadArgument):
            transport.allocate_dma(0)


def test_data_goes_through_the_rest_of_the_sram() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        bulk = transport.traits.bulk
        assert bulk is not None and (bulk.address, bulk.size) == (0x20_4000, 496 << 10)
        bulk.send(16 << 10, 700, [b"x" * 700])
        assert bridge.sram[32 << 10 : (32 << 10) + 700] == b"x" * 700
        begun: list[int] = []
        found: list[tuple[int, bytes]] = []
        bulk.receive(
            16 << 10, [3], lambda: begun.append(1), lambda at, data: found.append((at, data))
        )
        assert found == [(0, b"xxx")] and begun == [1]
        bridge.fence[:8] = (5 << 32 | 7).to_bytes(8, "little")
        assert bulk.read_fence() == 5 << 32 | 7
        bridge.fence[16:20] = b"\xff" * 4
        bulk.clear()
        assert bulk.read_fence() == 0 and bytes(bridge.fence) == bytes(32)
        bulk.write_start(255)
        assert bridge.fence[16:20] == bytes.fromhex("ff000000")
        assert (bulk.fence, bulk.start, bulk.release) == (0x82_0800, 0x82_0810, 0x82_200C)


# ---- resets, loss ------------------------------------------------------------------------------


def test_a_closed_card_makes_no_requests() -> None:
    card = gpu()
    with opened(TreeBridge(chain(card))):
        assert card.get(4, 2) == 6  # memory decoding, bus mastering
    assert card.get(4, 2) == 2


@pytest.mark.parametrize("kind", [ResetKind.BUS, ResetKind.POWER])
def test_bars_have_their_size_again_after_a_reset(kind: ResetKind) -> None:
    card = gpu()
    with opened(TreeBridge(chain(card))) as transport:
        assert card.bars[0].size == 1 << 30
        transport.reset(kind)
        assert card.bars[0].size == transport.window(0).size == 1 << 30


def test_resets() -> None:
    with opened(bridge := TreeBridge(chain(gpu()))) as transport:
        transport.window(5).write32(0, 5)
        transport.reset(ResetKind.BUS)
        assert transport.window(5).read32(0) == 5
        transport.reset(ResetKind.POWER)
        assert bridge.powered == [1, 0, 1]
        assert transport.window(5).read32(0) == 5
        with pytest.raises(NotSupported):
            transport.reset(ResetKind.FUNCTION)


def test_a_bridge_that_was_unplugged_says_so_at_once() -> None:
    bridge = TreeBridge(chain(gpu()))
    transport = opened(bridge)
    window = transport.window(0)
    (departed,) = bridge.usb.departures
    departed()
    before = bridge.transfers
    for use in (
        lambda: window.read32(0),
        lambda: window.write(0, b"1234"),
        lambda: transport.config_read(0),
        lambda: transport.allocate_dma(4096),
        lambda: transport.batch(),
    ):
        with pytest.raises(DeviceLost):
            use()
    assert not transport.present() and bridge.transfers == before
    bridge.gone = True
    transport.close()
    with pytest.raises(Closed):
        window.read32(0)


@pytest.mark.parametrize("transfers", range(0, 160, 3))
def test_unplugged_while_it_is_opened(transfers: int) -> None:
    """At every third transfer."""
    bridge = TreeBridge(chain(gpu()))
    check = bridge._check

    def unplug() -> None:
        bridge.gone = bridge.transfers >= transfers
        check()

    bridge._check = unplug  # type: ignore[method-assign]
    try:
        transport = UsbTransport(bridge, "usb:0", clock=Manual())
    except LinkError:
        assert bridge.usb.closed
    except DeviceNotFound:
        pytest.fail("a bridge that is gone is not an empty one")
    else:
        transport.close()
        assert transfers > 60 and bridge.usb.closed
