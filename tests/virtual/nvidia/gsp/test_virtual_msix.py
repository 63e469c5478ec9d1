"""Messages by a table that the virtual card keeps: masks, pending bits, and who may program it.

The offsets are those of dev_vm.h (NV_VIRTUAL_FUNCTION_PRIV_MSIX_TABLE), written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.pci.vfio_user_served import served
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.bus.served import ServedCard
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

TABLE, PENDING, CONTROL = 0xB90000, 0xBA0000, 0xC8
ENABLE, MASK_ALL = 1 << 31, 1 << 30
TOP_SET, ENABLE_SET, TRIGGER, REARM = 0xB81608, 0xB81200, 0xB81640, 0x88704
LEAF = 0xB81000


@pytest.fixture
def card() -> Iterator[Card]:
    made = build_card("ga100", CardOptions(memory=256 << 20))
    yield made
    made.close()


@pytest.fixture
def transport(card: Card) -> Iterator[VirtualTransport]:
    with VirtualTransport(card) as made:
        made.config_write(4, 6, 2)
        yield made


def trigger(transport: VirtualTransport) -> None:
    """Have the card's interrupt tree send a message."""
    registers = transport.window(0)
    for offset, value in ((REARM, 0xFF), (TOP_SET, 1), (ENABLE_SET, 1), (TRIGGER, 0)):
        registers.write32(offset, value)


@pytest.mark.parametrize(("chip", "vectors"), [("ga100", 6), ("gh100", 9)])
def test_the_capability_names_table_and_pending_bits(chip: str, vectors: int) -> None:
    card = build_card(chip, CardOptions(memory=256 << 20))
    at, seen = card.config.read(0x34, 1), []
    while at:
        seen.append(card.config.read(at, 1))
        last, at = at, card.config.read(at + 1, 1)
    assert seen == [0x01, 0x05, 0x10, 0x11]
    raw = struct.pack("<3I", *(card.config.read(last + word, 4) for word in (0, 4, 8)))
    assert struct.unpack("<BBHII", raw) == (0x11, 0, vectors - 1, TABLE, PENDING)
    card.close()


@pytest.mark.parametrize("chip", ["ad102", "tu102", "gb202"])
def test_boards_with_a_display_have_msi_alone(chip: str) -> None:
    card = build_card(chip, CardOptions(memory=256 << 20))
    assert card.config.messages is None
    card.close()


@pytest.mark.parametrize(("enabled", "messages"), [(True, 2), (False, 1)])
def test_only_msi_waits_for_a_rearm(card: Card, enabled: bool, messages: int) -> None:
    """kbifCheckAndRearmMSI: with MSI-X the module switches top enables off and on instead."""
    card.config.write(4, 6, 2)
    card.config.write(CONTROL, ENABLE * enabled, 4)
    card.write32(TABLE + 12, 0)
    sent: list[int] = []
    card.msi = sent.append
    for offset in (TOP_SET, ENABLE_SET):
        card.write32(offset, 1)
    for _ in range(2):
        card.write32(TRIGGER, 0)
        card.write32(LEAF, 1)
    assert len(sent) == messages
    card.write32(REARM, 0xFF)
    card.write32(TRIGGER, 0)
    assert len(sent) == messages + 1


@pytest.mark.parametrize("by_entry", [True, False])
def test_a_masked_message_is_pending_until_it_is_unmasked(
    transport: VirtualTransport, by_entry: bool
) -> None:
    registers, interrupts = transport.window(0), transport.interrupts
    control = transport.config_read(CONTROL)
    assert control & ENABLE and registers.read32(TABLE + 12) == 0, "vector 0 from the start"
    assert registers.read32(TABLE + 16 + 12) == 1, "the others are masked"

    def mask(on: bool) -> None:
        if by_entry:
            registers.write32(TABLE + 12, int(on))
        else:
            transport.config_write(CONTROL, control | (MASK_ALL if on else 0))

    mask(True)
    trigger(transport)
    assert not interrupts.wait(0) and registers.read32(PENDING) == 1
    registers.write32(PENDING, 0)
    assert registers.read32(PENDING) == 1, "read-only"
    mask(False)
    assert interrupts.wait(0) and registers.read32(PENDING) == 0
    trigger(transport)
    assert interrupts.wait(0)


def test_without_msi_x_messages_come_by_msi(transport: VirtualTransport) -> None:
    transport.config_write(CONTROL, 0)
    trigger(transport)
    assert transport.interrupts.wait(0)


@pytest.mark.parametrize("kind", list(ResetKind))
def test_a_reset_disables_the_table_and_the_system_restores_it(
    card: Card, transport: VirtualTransport, kind: ResetKind
) -> None:
    transport.interrupts.enable(3)
    transport.reset(kind)
    table = card.config.messages
    assert table is not None and table.enabled
    assert [table.read_table(16 * vector + 12) for vector in range(6)] == [0, 0, 0, 1, 1, 1]
    transport.close()
    assert not card.config.read(CONTROL, 4) & ENABLE, "it is off once its user has left"


def test_entries_keep_what_was_written(transport: VirtualTransport) -> None:
    registers = transport.window(0)
    for word, (value, kept) in enumerate(
        [(0xFEE0_1007, 0xFEE0_1004), (5, 5), (77, 77), (~2 & 0xFF, 1)]
    ):
        registers.write32(TABLE + 80 + 4 * word, value)
        assert registers.read32(TABLE + 80 + 4 * word) == kept
    before = registers.read32(TABLE + 96)
    assert before >> 16 == 0xBADF, "past the table"


def test_the_server_enables_what_has_an_eventfd(card: Card) -> None:
    with served(ServedCard(card)) as server:
        assert not card.config.read(CONTROL, 4) & ENABLE
        with VfioUserTransport(str(server.path)) as client:
            interrupts, registers = client.interrupts, client.window(0)
            assert interrupts is not None and interrupts.vectors == 6
            client.config_write(4, 6, 2)
            interrupts.enable(2)
            masks = [registers.read32(TABLE + 16 * vector + 12) for vector in range(6)]
            assert masks == [0, 0, 1, 1, 1, 1]
            registers.write32(TABLE + 12, 1)  # the table is the card's: its mask counts
            assert client.present()
            assert card.config.messages is not None
            card.config.messages.signal(0)
            assert not interrupts.wait(0.05) and registers.read32(PENDING) == 1
            registers.write32(TABLE + 12, 0)
            assert interrupts.wait(5)


@pytest.mark.parametrize("is_served", [False, True])
def test_each_vector_arrives_alone_and_after_the_data(card: Card, is_served: bool) -> None:
    with ExitStack() as stack:
        transport: Transport
        if is_served:
            server = stack.enter_context(served(ServedCard(card)))
            transport = stack.enter_context(VfioUserTransport(str(server.path)))
        else:
            transport = stack.enter_context(VirtualTransport(card))
        transport.config_write(4, 6, 2)
        assert transport.present()
        interrupts, table = transport.interrupts, card.config.messages
        assert interrupts is not None and table is not None
        memory = transport.allocate_dma(4096)
        interrupts.enable(6)
        for vector in range(6):
            data = bytes([vector + 1]) * 64
            assert card.bus_write(memory.segments[0].address, data)
            table.signal(vector)
            assert interrupts.wait(5, vector) and bytes(memory.view[:64]) == data
            assert not any(interrupts.wait(0, other) for other in range(6))
        memory.close()
