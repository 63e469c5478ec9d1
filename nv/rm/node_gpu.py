"""One GPU through the stock driver: its objects, doorbells, identity and address space.

Sources: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc: class/cl0080.h, cl2080.h,
clc361.h (the user-mode window), ctrl/ctrl2080/ctrl2080gpu.h and ctrl2080gr.h.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import DeviceNotFound, DriverRefused, UgpuError
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv.rm.client import RmClient, address_of
from ugpu.nv.rm.contexts import ContextRange, ContextRanges
from ugpu.nv.rm.gpu import ChannelParts, Gpu
from ugpu.nv.rm.memory import Memory
from ugpu.nv.rm.mig import Instance, enter_instance
from ugpu.nv.rm.node_memory import allocate_in_node
from ugpu.nv.rm.session import NodeSession, Region

log = logging.getLogger(__name__)

# The address space: all but the first page, as tinygrad's ops_nv.py requests on boards of Ampere to
# Blackwell (nvos.h: a size of 0 selects the driver's default). Every MMU has 49 bits.
_VA_BASE, _VA_SIZE = 0x1000, 0x1_FFFF_FB00_0000
USERMODE_SIZE = 0x10000  # NVC361_NV_USERMODE__SIZE
_DOORBELL, _TIME_HIGH = 0x90, 0x84  # NVC361_NOTIFY_CHANNEL_PENDING, NVC361_TIME_1
_ALL_ONES = 0xFFFF_FFFF
_UUID_SIZE = 16
_USERMODE_CLASSES = ("BLACKWELL_USERMODE_A", "HOPPER_USERMODE_A", "AMPERE_USERMODE_A",
                     "TURING_USERMODE_A")  # fmt: skip
_WITH_BAR1 = _USERMODE_CLASSES[:2]
_GRAPHICS_COPY = (0, 0x01)  # NV2080_CTRL_CE_CAPS_CE_GRCE: byte and mask in capsTbl


class NodeGpu(Gpu):
    """See Gpu. The GPU with minor number `index`; mig: an instance of a divided one."""

    session: NodeSession

    def __init__(self, session: NodeSession, index: int, mig: str | None = None) -> None:
        super().__init__(index)
        self.session = session.take(self)
        self.path = f"/dev/nvidia{index}"
        self._ended = False
        self.peers: set[int] = set()  # GPUs of the session whose memory this one reaches
        self.contexts = ContextRanges(self)
        self.file: int | None = None
        self.window: NodeMapping | None = None
        self.bell: NodeMapping | None = None
        self.instance: Instance | None = None
        try:
            self._open(mig)
        except BaseException:
            self.close()
            raise

    @property
    def client(self) -> RmClient:
        return self.session.client

    def _open(self, mig: str | None) -> None:
        client, number = self.client, self.client.constants
        self.file = client.open_gpu_file(self.path)
        self.card = self._find_card()
        self.device_id = int(self.card.pci_info.device_id)
        identity = client.ask(
            client.root, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", gpuId=self.card.gpu_id
        )
        self.device = client.allocate(
            client.root,
            "NV01_DEVICE_0",
            client.structs.NV0080_ALLOC_PARAMETERS.new(
                deviceId=identity.deviceInstance,
                hClientShare=client.root,
                vaMode=number.NV_DEVICE_ALLOCATION_VAMODE_OPTIONAL_MULTIPLE_VASPACES,
            ),
        )
        self.subdevice = client.allocate(
            self.device,
            "NV20_SUBDEVICE_0",
            client.structs.NV2080_ALLOC_PARAMETERS.new(subDeviceId=identity.subDeviceInstance),
        )
        self.instance = enter_instance(self, mig)
        listed = client.ask(self.device, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2")
        self.classes = frozenset(listed.classList[: listed.numClasses])
        gid = client.ask(
            self.subdevice,
            "NV2080_CTRL_CMD_GPU_GET_GID_INFO",
            flags=number.NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY,
        )
        self.uuid = bytes(gid.data)[:_UUID_SIZE]
        self._map_doorbell()
        self._read_shape()
        self._register()

    def _map_doorbell(self) -> None:
        """Map the user-mode window as CUDA does: in BAR0, and from Hopper on also in BAR1.

        The time is read in BAR0. From Hopper on the doorbell is rung in BAR1; that mapping cannot
        be read (nvidia-push-init.c). On a machine without BAR1 both mappings are in BAR0
        (usermode_api.c).
        """
        client, number = self.client, self.choose(_USERMODE_CLASSES)
        usermode = client.allocate(self.subdevice, number)
        self.window = self.bell = client.map(self.device, usermode, USERMODE_SIZE, self.path)
        known = client.constants
        if number not in [known[name] for name in _WITH_BAR1 if name in known]:
            return
        parameters = client.structs.NV_HOPPER_USERMODE_A_PARAMS.new(bBar1Mapping=1)
        behind = client.allocate(self.subdevice, number, parameters)
        self.bell = client.map(self.device, behind, USERMODE_SIZE, self.path)

    @property
    def rings_in_order(self) -> bool:
        return self.bell is not self.window

    def _find_card(self) -> Any:  # Any: the tables define the members
        cards = self.client.cards()
        for card in cards:
            if card.minor_number == self.index:
                return card
        have = ", ".join(str(card.minor_number) for card in cards) or "none"
        raise DeviceNotFound(f"the NVIDIA driver has no GPU {self.index}; available: {have}")

    def query_graphics(self, names: Sequence[str]) -> dict[str, int]:
        client = self.client
        numbers = [client.constants[f"NV2080_CTRL_GR_INFO_INDEX_{name}"] for name in names]
        block = client.structs.NV2080_CTRL_GR_GET_INFO_V2_PARAMS.new(grInfoListSize=len(names))
        for position, number in enumerate(numbers):
            block.grInfoList[position].index = number
        try:
            client.control(self.subdevice, "NV2080_CTRL_CMD_GR_GET_INFO_V2", block)
        except DriverRefused as error:
            log.debug("%s: %s", self.path, error)
            return dict(zip(names, self._query_graphics_old(numbers), strict=True))
        return {name: int(block.grInfoList[at].data) for at, name in enumerate(names)}

    def _query_graphics_old(self, numbers: Sequence[int]) -> list[int]:
        """Query the same values with the older control, which is the one that sandboxes allow."""
        client = self.client
        pairs = bytearray(8 * len(numbers))
        words = memoryview(pairs).cast("I")
        for position, number in enumerate(numbers):
            words[2 * position] = number
        block = client.structs.NV2080_CTRL_GR_GET_INFO_PARAMS.new(
            grInfoListSize=len(numbers), grInfoList=address_of(memoryview(pairs))
        )
        client.control(self.subdevice, "NV2080_CTRL_CMD_GR_GET_INFO", block)
        return [int(word) for word in words[1::2]]

    def _register(self) -> None:
        """Create the GPU's address space and register it with UVM."""
        client, number, uvm = self.client, self.client.constants, self.session.space
        partition = self.instance.partition if self.instance is not None else 0
        uvm.call(
            "UVM_REGISTER_GPU",
            gpu_uuid=uvm.uuid(self.uuid),
            rmCtrlFd=client.control_file if partition else -1,
            hClient=client.root if partition else 0,
            hSmcPartRef=partition,
        )
        flags = number.NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING
        flags |= number.NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED
        self.address_space = client.allocate(
            self.device,
            "FERMI_VASPACE_A",
            client.structs.NV_VASPACE_ALLOCATION_PARAMETERS.new(
                flags=flags, vaBase=_VA_BASE, vaSize=_VA_SIZE
            ),
        )
        uvm.call(
            "UVM_REGISTER_GPU_VASPACE",
            gpuUuid=uvm.uuid(self.uuid),
            rmCtrlFd=client.control_file,
            hClient=client.root,
            hVaSpace=self.address_space,
        )

    def enable_peer(self, other: NodeGpu) -> None:
        """Let the two GPUs reach each other's memory; DriverRefused if the machine cannot."""
        uvm = self.session.space
        uvm.call(
            "UVM_ENABLE_PEER_ACCESS",
            gpuUuidA=uvm.uuid(self.uuid),
            gpuUuidB=uvm.uuid(other.uuid),
        )
        self.peers.add(other.index)
        other.peers.add(self.index)

    # ---- memory and channels -----------------------------------------------------------------

    def new_memory(
        self,
        size: int,
        placement: Placement,
        region: Region,
        *,
        reachable: bool | None = None,
        notifier: bool = False,
    ) -> Memory:
        return allocate_in_node(
            self, size, placement, region, reachable=reachable, notifier=notifier
        )

    def new_userd(self, size: int) -> Memory:
        return self.new_memory(size, Placement.DEVICE, Region.DEVICE, reachable=True)

    def channel_block(self, parts: ChannelParts) -> Struct:
        block: Struct = self.client.structs.NV_CHANNEL_ALLOC_PARAMS.new(
            hObjectError=parts.notifier.handle,
            hObjectBuffer=parts.ring.handle,
            gpFifoOffset=parts.ring.address,
            gpFifoEntries=parts.entries,
            hContextShare=parts.share,
            engineType=parts.engine,
        )
        block.hUserdMemory[0] = parts.userd.handle
        block.userdOffset[0] = 0
        return block

    def prepare_channel(self, handle: int, engine: int) -> None:
        return

    def register_channel(self, handle: int, engine: int, memory: Memory) -> ContextRange:
        """Register with UVM, which maps the context's buffers and handles the channel's faults."""
        uvm = self.session.space
        graphics = engine == self.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        contexts = self.contexts.take(handle if graphics else 0)
        try:
            uvm.call(
                "UVM_REGISTER_CHANNEL",
                gpuUuid=uvm.uuid(self.uuid),
                rmCtrlFd=self.client.control_file,
                hClient=self.client.root,
                hChannel=handle,
                base=contexts.base,
                length=contexts.size,
            )
        except BaseException:
            self.contexts.leave(contexts)
            raise
        return contexts

    def leave_channel(self, handle: int, registration: object) -> None:
        assert isinstance(registration, ContextRange)
        uvm = self.session.space
        with contextlib.suppress(UgpuError):
            uvm.call_known(  # no gpuUuid since branch 595
                "UVM_UNREGISTER_CHANNEL",
                gpuUuid=uvm.uuid(self.uuid),
                hClient=self.client.root,
                hChannel=handle,
            )
        self.contexts.leave(registration)

    # ---- engines and facts -------------------------------------------------------------------

    def copy_engines(self) -> list[int]:
        client = self.client
        number = client.constants
        listed = client.ask(self.subdevice, "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2")
        first = number.NV2080_ENGINE_TYPE_COPY0
        last = number.NV2080_ENGINE_TYPE_COPY9
        found = []
        for engine in sorted(listed.engineList[: listed.engineCount]):
            if first <= engine <= last and not self._is_graphics_copy(engine):
                found.append(engine)
        return sorted(found, key=self.physical_engines, reverse=True)

    def physical_engines(self, engine: int) -> int:
        """Return how many physical copy engines serve a copy engine; 0 if the driver refuses.

        Within an H200, 2 of them copy 41 GB/s and 12 of them 224 GB/s.
        """
        try:
            found = self.client.ask(
                self.subdevice, "NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK", ceEngineType=engine
            )
        except DriverRefused as error:
            log.debug("%s: copy engine %d: %s", self.path, engine, error)
            return 0
        return int(found.pceMask).bit_count()

    def _is_graphics_copy(self, engine: int) -> bool:
        """Return whether a copy engine shares the graphics engine's ring.

        Such an engine works too, but waits for kernels. If the driver refuses the query, the engine
        is assumed not to share the ring.
        """
        try:
            caps = self.client.ask(
                self.subdevice, "NV2080_CTRL_CMD_CE_GET_CAPS_V2", ceEngineType=engine
            )
        except DriverRefused as error:
            log.debug("%s: copy engine %d: %s", self.path, engine, error)
            return False
        byte, mask = _GRAPHICS_COPY
        return bool(caps.capsTbl[byte] & mask)

    def describe(self) -> dict[str, Any]:
        card = self.card.pci_info
        facts: dict[str, Any] = {
            "pci_id": f"{card.vendor_id:04x}:{card.device_id:04x}",
            "bus": f"{card.domain:04x}:{card.bus:02x}:{card.slot:02x}.{card.function}",
            "driver": self.client.version,
            "driver_interface": self.client.abi.branch,
            "transport": self.client.node.name,
        }
        if self.instance is not None:
            facts["mig"] = f"{self.instance.gpu_instance}/{self.instance.compute_instance}"
        return facts

    # ---- doorbell and state ------------------------------------------------------------------

    def ring(self, token: int) -> None:
        assert self.bell is not None
        self.bell.write32(_DOORBELL, token)

    def lost(self) -> bool:
        """Return whether the GPU reads as all ones; the upper half of its clock never does."""
        return self.window is not None and self.window.read32(_TIME_HIGH) == _ALL_ONES

    def add_evidence(self, found: Evidence) -> None:
        found.missing["registers.json"] = "the kernel driver does not show them"

    def close(self) -> None:
        if self._ended:
            return
        self.closed = True
        for memory in list(self.memories):
            memory.close()
        for mapping in (self.bell, self.window):
            if mapping is not None:
                mapping.close()
        with contextlib.suppress(UgpuError):
            if hasattr(self, "uuid") and not self.client.closed:
                uvm = self.session.space
                uvm.call("UVM_UNREGISTER_GPU_VASPACE", gpuUuid=uvm.uuid(self.uuid))
                uvm.call("UVM_UNREGISTER_GPU", gpu_uuid=uvm.uuid(self.uuid))
        self.contexts.close()
        with contextlib.suppress(UgpuError):
            if self.device:
                self.client.free(self.client.root, self.device)
        if self.file is not None:
            with contextlib.suppress(UgpuError):
                self.client.node.release(self.file)
            self.file = None
        self.session.leave(self)
        self._ended = True
