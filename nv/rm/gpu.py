"""One GPU of a session: its device and subdevice objects, doorbells, identity and shape.

Sources: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc: class/cl0080.h, cl2080.h,
clc361.h (the user-mode window), ctrl/ctrl2080/ctrl2080gpu.h and ctrl2080gr.h.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ugpu.hcq.errors import AccessDenied, DeviceNotFound, DriverRefused, NotSupported, UgpuError
from ugpu.hcq.transport.node import NodeMapping
from ugpu.nv.rm.client import address_of
from ugpu.nv.rm.contexts import ContextRanges
from ugpu.nv.rm.mig import Instance, enter_instance

if TYPE_CHECKING:
    from ugpu.nv.rm.memory import Memory
    from ugpu.nv.rm.session import Session

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
# Values of NV2080_CTRL_GR_INFO_INDEX_SM_VERSION that do not consist of major and minor.
_CAPABILITIES = {0xA04: (12, 0), 0xA05: (12, 1)}


class Gpu:
    """See the module. `close` frees its objects; idempotent."""

    def __init__(self, session: Session, index: int, mig: str | None = None) -> None:
        self.session = session.take(self)
        self.client = session.client
        self.index = index
        self.path = f"/dev/nvidia{index}"
        self.closed = False
        self._ended = False
        self.device = self.subdevice = 0
        self.memories: dict[Memory, None] = {}  # in the order of creation, and of closing
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

    def _open(self, mig: str | None) -> None:
        client, number = self.client, self.client.constants
        self.file = client.open_gpu_file(self.path)
        self.card = self._find_card()
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
        """Return whether a doorbell stays behind earlier writes to video memory."""
        return self.bell is not self.window

    def _find_card(self) -> Any:  # Any: the tables define the members
        cards = self.client.cards()
        for card in cards:
            if card.minor_number == self.index:
                return card
        have = ", ".join(str(card.minor_number) for card in cards) or "none"
        raise DeviceNotFound(f"the NVIDIA driver has no GPU {self.index}; available: {have}")

    def choose(self, names: Sequence[str]) -> int:
        """The first class among `names`, newest first, that the GPU supports."""
        constants = self.client.constants
        for name in names:  # older drivers lack the newest
            if name in constants and constants[name] in self.classes:
                return constants[name]
        raise NotSupported(
            f"the GPU supports none of the classes {', '.join(names)}: it is older than Turing "
            "or newer "
            "than this driver",
            device_id=self.card.pci_info.device_id,
        )

    def _read_shape(self) -> None:
        """Read the numbers of SMs, TPCs and GPCs that the graphics engine reports."""
        names = ("SM_VERSION", "MAX_WARPS_PER_SM", "LITTER_NUM_GPCS", "LITTER_NUM_TPC_PER_GPC",
                 "LITTER_NUM_SM_PER_TPC", "SHADER_PIPE_SUB_COUNT")  # fmt: skip
        found = self.query_graphics(names)
        version, self.warps_per_sm = found["SM_VERSION"], found["MAX_WARPS_PER_SM"]
        self.sass_version = (version & 0xF00) >> 4 | version & 0xF
        self.gpcs = found["LITTER_NUM_GPCS"]
        self.tpcs_per_gpc = found["LITTER_NUM_TPC_PER_GPC"]
        self.sms_per_tpc = found["LITTER_NUM_SM_PER_TPC"]
        # The TPCs that are present: src/nvidia/src/kernel/rmapi/nv_gpu_ops.c, tpcCount.
        self.tpcs = found["SHADER_PIPE_SUB_COUNT"]
        self.capability = _CAPABILITIES.get(version, (version >> 8, version & 0xFF))

    def query_graphics(self, names: Sequence[str]) -> dict[str, int]:
        """Values of NV2080_CTRL_GR_INFO_INDEX_<name>."""
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

    @property
    def sm_count(self) -> int:
        return self.tpcs * self.sms_per_tpc

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

    def boost(self, *, clear: bool = False) -> bool:
        """Request the clocks of compute clients, until `clear` or the end of this client.

        Each client has a boost of its own (ctrl2080perf.h, "Boosts from different clients are being
        tracked independently"). Return whether the driver accepted; a refusal is not raised.
        """
        client = self.client
        number = client.constants
        flags = number.NV2080_CTRL_PERF_BOOST_FLAGS_CMD_BOOST_TO_MAX
        if clear:
            flags = number.NV2080_CTRL_PERF_BOOST_FLAGS_CMD_CLEAR
        for name, value in (("CUDA", "YES"), ("CUDA_PRIORITY", "HIGH")):
            field = number.field(f"NV2080_CTRL_PERF_BOOST_FLAGS_{name}")
            flags = field.insert(flags, number[f"NV2080_CTRL_PERF_BOOST_FLAGS_{name}_{value}"])
        try:
            client.ask(
                self.subdevice,
                "NV2080_CTRL_CMD_PERF_BOOST",
                flags=flags,
                duration=number.NV2080_CTRL_PERF_BOOST_DURATION_INFINITE,
            )
        except (DriverRefused, AccessDenied, NotSupported) as error:
            log.debug("%s: no boost: %s", self.path, error)
            return False
        return True

    def enable_peer(self, other: Gpu) -> None:
        """Let the two GPUs reach each other's memory; DriverRefused if the machine cannot."""
        uvm = self.session.space
        uvm.call(
            "UVM_ENABLE_PEER_ACCESS",
            gpuUuidA=uvm.uuid(self.uuid),
            gpuUuidB=uvm.uuid(other.uuid),
        )

    def ring(self, token: int) -> None:
        """Tell the GPU that a channel has new entries."""
        assert self.bell is not None
        self.bell.write32(_DOORBELL, token)

    def lost(self) -> bool:
        """Return whether the GPU reads as all ones; the upper half of its clock never does."""
        return self.window is not None and self.window.read32(_TIME_HIGH) == _ALL_ONES

    def close(self) -> None:
        """Release everything; idempotent.

        Each step can be repeated: a second call continues a close that an exception interrupted.
        """
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

    def __repr__(self) -> str:
        return f"<Gpu {self.path}>"
