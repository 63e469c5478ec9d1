"""The first graphics context of a card, made on a channel that is freed afterwards."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from ugpu.nv.gsp.rm.channels import USERD_SIZE, take_memory
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.contexts import ChannelContext, Contexts
from ugpu.nv.gsp.rm.space import GspSpace

if TYPE_CHECKING:
    from ugpu.nv.gsp.rm.card import GspCard

_PAGE = 4096
_RESERVED, _RESERVED_SIZE = 0x1_0000_0000, 0x2000_0000  # addresses of the resource manager's own
_VIDEO_MEMORY = 1  # in levels[].aperture
_CHANNEL = 1  # nouveau's: the resource manager of release 570 refuses number 0
_ENTRIES = 256  # of the ring, in the first half of a page; USERD is at its end


def make_first_context(card: GspCard[Any], methods: int) -> Contexts:
    """Make the first context. methods: bytes of a channel's method buffer. The card's lock is
    held."""
    contexts, facts, clock = Contexts(card), card.chip.facts, card.transport.clock
    space, owner = card.memory, object()
    assert isinstance(space, GspSpace)
    # The client frees the channel, before what it used.
    with closing(space), ExitStack() as held, closing(GspClient(card.calls, clock)) as client:
        space.own()
        client.open_device()
        parameters = client.structs.NV_VASPACE_ALLOCATION_PARAMETERS.new()
        vaspace = client.allocate(client.device, "FERMI_VASPACE_A", parameters)
        scratch = card.heap.allocate(_PAGE, _PAGE, owner)
        held.callback(card.heap.free, scratch, owner)
        card.chip.vram.write(scratch, bytes(_PAGE))
        # This mapping creates the directories of the resource manager's own addresses.
        anchor = space.map_vram(scratch, _PAGE, space.format.data_flags, _PAGE)
        held.callback(space.release, anchor)
        _hand_over(client, vaspace, space)
        memory = take_memory(card, methods)
        held.callback(memory.close)
        block = memory.block(
            client, scratch + _PAGE - USERD_SIZE, _CHANNEL,
            gpFifoOffset=int(anchor.address), gpFifoEntries=_ENTRIES, hVASpace=vaspace,
            engineType=client.constants.NV2080_ENGINE_TYPE_GRAPHICS,
        )  # fmt: skip
        channel = client.allocate(client.device, facts.gpfifo_class, block)
        contexts.read_sizes(client)
        context = ChannelContext(contexts, space)
        held.callback(context.close)
        context.promote(client, channel, first=True)
        client.allocate(channel, facts.compute_class)
    return contexts


def _hand_over(client: GspClient, vaspace: int, space: GspSpace) -> None:
    """Let the resource manager enter its own directories into ours."""
    block: Any = client.structs.NV90F1_CTRL_VASPACE_COPY_SERVER_RESERVED_PDES_PARAMS.new(
        pageSize=_RESERVED_SIZE,
        virtAddrLo=_RESERVED,
        virtAddrHi=_RESERVED + _RESERVED_SIZE - 1,
    )
    shapes = [level for level in space.format.levels if level.shift >= 29]
    tables = space.tables.path(_RESERVED)[: len(shapes)]
    block.numLevelsToCopy = len(tables)
    for number, (table, shape) in enumerate(zip(tables, shapes, strict=False)):
        level = block.levels[number]
        level.physAddress, level.size = table, 8 << shape.bits
        level.aperture, level.pageShift = _VIDEO_MEMORY, shape.shift
    space.flush()
    client.control(vaspace, "NV90F1_CTRL_CMD_VASPACE_COPY_SERVER_RESERVED_PDES", block)
