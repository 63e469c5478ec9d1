"""One GPU through its GSP, without a kernel driver: objects, memory and channels of a client."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import FirmwareError, NotSupported, UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.memory import Placement
from ugpu.nv.gsp.boot import evidence
from ugpu.nv.gsp.rm.card import ChannelReport
from ugpu.nv.gsp.rm.channels import ChannelMemory, method_buffer_size, take_memory
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.contexts import ChannelContext
from ugpu.nv.gsp.rm.engines import read_engines, separate_copies
from ugpu.nv.gsp.rm.golden import make_first_context
from ugpu.nv.gsp.rm.memory import GspMemory, allocate_in_card
from ugpu.nv.gsp.rm.session import GspSession
from ugpu.nv.gsp.rm.states import as_json
from ugpu.nv.rm.events import FatalFault
from ugpu.nv.rm.gpu import ChannelParts, Gpu
from ugpu.nv.rm.memory import Memory
from ugpu.nv.rm.session import Region

_ENABLE = 1 << 30  # of a doorbell, where the chip has the bit
_NOTIFICATION = struct.Struct("<QIHH")  # timeStamp, info32, info16, status
_ERROR_STATUS = 0xFFFF
_NUMBER_MASK = 0xFFFF
_VIDEO_MEMORY = 0  # NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_FLAGS_APERTURE_VIDMEM


class GspGpu(Gpu):
    """See Gpu. A channel's memory stays until its group has freed the channel."""

    session: GspSession

    def __init__(self, session: GspSession) -> None:
        super().__init__(0)
        self.session = session.take(self)
        self.path = session.name
        self._ended = False
        self._methods = 0
        self._next: ChannelMemory | None = None  # of the channel that is being made
        self._channels: dict[int, ChannelMemory] = {}  # by handle
        self._left: list[ChannelMemory] = []  # whose channel is about to be freed
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        card, client = self.session.card, self.client
        facts, static = card.chip.facts, card.firmware.static
        self.device_id = card.transport.identity.device
        self.classes = frozenset(
            (facts.usermode_class, facts.gpfifo_class, facts.compute_class, facts.copy_class)
        )
        self.uuid = static.uuid or bytes(16)
        client.open_device()
        self.device, self.subdevice = client.device, client.subdevice
        self._methods = method_buffer_size(client)
        self._read_shape()
        self.engines = card.faults.engines = read_engines(client)
        card.faults.enter(self, client)
        self._make_address_space()
        card.enable_interrupts(client)
        card.on_channel_end[self] = self._note_end

    def _make_address_space(self) -> None:
        """Create the address space and give it our page tables."""
        client, number = self.client, self.client.constants
        flags = number.NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING
        flags |= number.NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED
        parameters = client.structs.NV_VASPACE_ALLOCATION_PARAMETERS.new(flags=flags)
        self.address_space = client.allocate(self.device, "FERMI_VASPACE_A", parameters)
        space = self.session.space
        with self.session.card.lock:
            space.flush()
        root = space.format.levels[0]
        client.ask(
            self.device,
            "NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY",
            physAddress=space.root_entry,
            numEntries=1 << root.bits,
            flags=_VIDEO_MEMORY,
            hVASpace=self.address_space,
        )

    @property
    def client(self) -> GspClient:
        return self.session.client

    # ---- identity ----------------------------------------------------------------------------

    def query_graphics(self, names: Sequence[str]) -> dict[str, int]:
        client = self.client
        found = client.ask_gpu("NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO")
        values = {int(entry.index): int(entry.data) for entry in found.engineInfo[0].infoList}
        wanted = {name: client.constants[f"NV2080_CTRL_GR_INFO_INDEX_{name}"] for name in names}
        missing = [name for name, number in wanted.items() if number not in values]
        if missing:
            raise FirmwareError(f"the GSP does not state {missing[0]} of the graphics engine")
        return {name: values[number] for name, number in wanted.items()}

    def copy_engines(self) -> list[int]:
        first = self.client.constants.NV2080_ENGINE_TYPE_COPY0
        return [first + number for number in separate_copies(self.engines)]

    def describe(self) -> dict[str, Any]:
        card = self.session.card
        identity = card.transport.identity
        begin, end = card.places.heap, card.places.heap_end
        return {
            "chip": card.firmware.static.name or card.chip.facts.name.upper(),
            "pci_id": f"{identity.vendor:04x}:{identity.device:04x}",
            "driver": "ugpu",
            "firmware": self.client.version,
            "transport": self.session.name,
            "vram_bytes": card.chip.memory_size,
            "vram_usable_bytes": end - begin,
        }

    # ---- memory ------------------------------------------------------------------------------

    def memory_use(self) -> tuple[int, int]:
        card = self.session.card
        with card.lock:
            return card.heap.used, card.heap.size

    def new_memory(
        self,
        size: int,
        placement: Placement,
        region: Region,
        *,
        reachable: bool | None = None,
        notifier: bool = False,
    ) -> GspMemory:
        return allocate_in_card(self, size, placement, region, reachable=reachable)

    def new_userd(self, size: int) -> GspMemory:
        return allocate_in_card(self, size, Placement.DEVICE, Region.DEVICE, words=True)

    # ---- channels ----------------------------------------------------------------------------

    def channel_block(self, parts: ChannelParts) -> Struct:
        self._free_left()
        card = self.session.card
        if not isinstance(parts.userd, GspMemory):
            raise NotSupported("a channel's USERD must be memory of this card")
        with card.lock:
            if self._next is not None:  # of a channel that could not be made
                self._next.close()
                self._next = None
            self._next = take_memory(card, self._methods)
        return self._next.block(
            self.client, parts.userd.physical,
            gpFifoOffset=parts.ring.address, gpFifoEntries=parts.entries,
            hContextShare=parts.share, engineType=parts.engine,
        )  # fmt: skip

    def prepare_channel(self, handle: int, engine: int) -> None:
        assert self._next is not None
        self._channels[handle], self._next = self._next, None
        registration = self._channels[handle]
        registration.runlist = self._runlist(engine)
        if engine != self.client.constants.NV2080_ENGINE_TYPE_GRAPHICS:
            return
        card = self.session.card
        with card.lock:
            if not card.contexts.shared:
                card.contexts = make_first_context(card, self._methods)
            registration.context = ChannelContext(card.contexts, self.session.space)
            registration.context.promote(self.client, handle)

    def _runlist(self, engine: int) -> int:
        number = self.client.constants
        graphics = engine == number.NV2080_ENGINE_TYPE_GRAPHICS
        kind, at = ("GR", 0) if graphics else ("COPY", engine - number.NV2080_ENGINE_TYPE_COPY0)
        for found in self.engines:
            if (found.kind, found.number) == (kind, at):
                return found.runlist
        raise FirmwareError(f"the GSP's table has no engine {kind}{at}")

    def register_channel(self, handle: int, engine: int, memory: Memory) -> object:
        registration = self._channels[handle]
        registration.notifier = memory
        return registration

    def doorbell_of(self, registration: object, token: int) -> int:
        """The runlist and the channel's number. The firmware's token may lack the runlist (observed
        by tinygrad, which adds it from the table of engines)."""
        assert isinstance(registration, ChannelMemory)
        registration.number = token & _NUMBER_MASK
        enable = _ENABLE if self.session.card.chip.boot.doorbell_enable else 0
        return enable | registration.runlist << 16 | registration.number

    def leave_channel(self, handle: int, registration: object) -> None:
        assert isinstance(registration, ChannelMemory)
        registration.notifier = None
        if self._channels.pop(handle, None) is not None:
            self._left.append(registration)

    def _free_left(self) -> None:
        """Free the memory of channels that their groups have freed."""
        with self.session.card.lock:
            while self._left:
                self.session.card.faults.of(self._left[-1].instance)
                self._left[-1].close()
                self._left.pop()

    def _note_end(self, report: ChannelReport) -> None:
        """Write the notifier of a channel that the GSP stopped, as the stock driver does."""
        for registration in self._channels.values():
            notifier = registration.notifier
            if registration.number != report.chid or not self._runs_on(registration, report.engine):
                continue
            entry = self.session.card.faults.of(registration.instance, report.address)
            if entry is not None or report.address:  # which lacks the kind of access
                self.session.events.add(entry or FatalFault(report.address, "invalid"))
            if notifier is not None:
                _NOTIFICATION.pack_into(
                    notifier.view, 0, 0, report.kind, report.engine, _ERROR_STATUS
                )

    def _runs_on(self, registration: ChannelMemory, engine: int) -> bool:
        """Return whether a channel is on the runlist of an engine. Numbers are of a runlist."""
        try:
            return self._runlist(engine) == registration.runlist
        except FirmwareError:
            return True  # an engine that the table does not have: the number alone is known

    @property
    def rings_in_order(self) -> bool:
        """USERD is written through BAR 1, and the doorbell is in BAR 0."""
        return False

    def ring(self, token: int) -> None:
        self.session.card.chip.nv.NV_VIRTUAL_FUNCTION_DOORBELL.write(token)

    # ---- state -------------------------------------------------------------------------------

    def lost(self) -> bool:
        return self.session.card.lost()

    @property
    def loses_memory(self) -> bool:
        return True

    def renew(self) -> None:
        """Make the objects again, after a reset and a new start of the firmware. Channels were torn
        down before."""
        self._free_left()
        self._next = None
        self._open()

    @property
    def interrupts(self) -> bool:
        return self.session.card.interrupts is not None

    def poll(self) -> None:
        card = self.session.card
        card.faults.serve(self.client)  # ORDER: before the GSP's reports of it
        card.calls.drain()

    def add_evidence(self, found: Evidence) -> None:
        card = self.session.card
        evidence.gather(found, card.firmware.start, card.calls)
        found.take("faults.json", card.faults.as_json)
        found.take("states.json", lambda: as_json(card.chip))

    def close(self) -> None:
        if self._ended:
            return
        self.closed = True
        self.session.card.on_channel_end.pop(self, None)
        if self.device:
            with contextlib.suppress(UgpuError):
                self.session.card.faults.leave(self, self.client)
            with contextlib.suppress(UgpuError):
                self.client.free(self.client.root, self.device)
        for handle, registration in list(self._channels.items()):
            self.leave_channel(handle, registration)
        self._free_left()
        for memory in list(self.memories):
            memory.close()
        self.session.leave(self)
        self._ended = True
