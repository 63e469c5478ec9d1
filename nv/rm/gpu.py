"""One GPU of a session: its device and subdevice objects, doorbell, identity and shape.

What differs between the ways to the resource manager are the abstract methods: the stock driver
(nv.rm.node_gpu), and the GSP's firmware without a kernel driver (nv.gsp.rm).

Sources: open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc: class/cl0080.h, cl2080.h,
ctrl/ctrl2080/ctrl2080gr.h, ctrl2080perf.h.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ugpu.hcq.errors import AccessDenied, DriverRefused, NotSupported
from ugpu.hcq.state.memory import Placement

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence
    from ugpu.hcq.registers.layout import Struct
    from ugpu.nv.rm.memory import Memory
    from ugpu.nv.rm.requests import Requests
    from ugpu.nv.rm.session import Region, Session

log = logging.getLogger(__name__)

# Values of NV2080_CTRL_GR_INFO_INDEX_SM_VERSION that do not consist of major and minor.
_CAPABILITIES = {0xA04: (12, 0), 0xA05: (12, 1)}
_SHAPE = ("SM_VERSION", "MAX_WARPS_PER_SM", "LITTER_NUM_GPCS", "LITTER_NUM_TPC_PER_GPC",
          "LITTER_NUM_SM_PER_TPC", "SHADER_PIPE_SUB_COUNT")  # fmt: skip


@dataclass(frozen=True)
class ChannelParts:
    """What a channel is made of. ring, userd, notifier: its memory. entries: of the ring. engine:
    an NV2080_ENGINE_TYPE number. share: handle of the group's context share, or 0."""

    ring: Memory
    userd: Memory
    notifier: Memory
    entries: int
    engine: int
    share: int


class Gpu(ABC):
    """See the module. `close` frees its objects; idempotent.

    instance: of a divided GPU (nv.rm.mig), None otherwise. memories: in the order of creation, and
    of closing. classes: numbers of the classes that the GPU supports.
    """

    session: Session
    path: str
    device: int
    subdevice: int
    address_space: int
    uuid: bytes
    classes: frozenset[int]
    device_id: int  # PCI

    def __init__(self, index: int) -> None:
        self.index = index
        self.closed = False
        self.device = self.subdevice = self.address_space = 0
        self.memories: dict[Memory, None] = {}
        self.uuid = b""

    @property
    def client(self) -> Requests:
        """Return the client that its objects belong to."""
        return self.session.client

    # ---- identity ----------------------------------------------------------------------------

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
            device_id=self.device_id,
        )

    def _read_shape(self) -> None:
        """Read the numbers of SMs, TPCs and GPCs that the graphics engine reports."""
        found = self.query_graphics(_SHAPE)
        version, self.warps_per_sm = found["SM_VERSION"], found["MAX_WARPS_PER_SM"]
        self.sass_version = (version & 0xF00) >> 4 | version & 0xF
        self.gpcs = found["LITTER_NUM_GPCS"]
        self.tpcs_per_gpc = found["LITTER_NUM_TPC_PER_GPC"]
        self.sms_per_tpc = found["LITTER_NUM_SM_PER_TPC"]
        # The TPCs that are present: src/nvidia/src/kernel/rmapi/nv_gpu_ops.c, tpcCount.
        self.tpcs = found["SHADER_PIPE_SUB_COUNT"]
        self.capability = _CAPABILITIES.get(version, (version >> 8, version & 0xFF))

    @abstractmethod
    def query_graphics(self, names: Sequence[str]) -> dict[str, int]:
        """Values of NV2080_CTRL_GR_INFO_INDEX_<name>."""

    @abstractmethod
    def copy_engines(self) -> list[int]:
        """Return the copy engines (NV2080_ENGINE_TYPE) that are separate from the graphics engine,
        fastest first."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return facts to show: name, address on the bus, driver. Any: of several types."""

    @property
    def sm_count(self) -> int:
        return self.tpcs * self.sms_per_tpc

    # ---- memory ------------------------------------------------------------------------------

    def memory_use(self) -> tuple[int, int] | None:
        """Return used and all bytes of video memory, or None where RM manages and reports it."""
        return None

    @abstractmethod
    def new_memory(
        self,
        size: int,
        placement: Placement,
        region: Region,
        *,
        reachable: bool | None = None,
        notifier: bool = False,
    ) -> Memory:
        """See nv.rm.memory.allocate."""

    @abstractmethod
    def new_userd(self, size: int) -> Memory:
        """Allocate video memory for a channel's USERD. The host accesses it at least by words."""

    # ---- channels ----------------------------------------------------------------------------

    @abstractmethod
    def channel_block(self, parts: ChannelParts) -> Struct:
        """Return the parameters that a channel is allocated with."""

    @abstractmethod
    def prepare_channel(self, handle: int, engine: int) -> None:
        """Give a new channel what it needs before it gets engine objects."""

    @abstractmethod
    def register_channel(self, handle: int, engine: int, memory: Memory) -> object:
        """Make a channel with its objects ready for faults; return what `leave_channel` needs.
        memory: its notifier."""

    def doorbell_of(self, registration: object, token: int) -> int:
        """Return what to write to the doorbell for a channel that can run now. token: the resource
        manager's."""
        return token

    @abstractmethod
    def leave_channel(self, handle: int, registration: object) -> None:
        """Undo `register_channel`; the group frees the object. Errors are not raised."""

    @property
    @abstractmethod
    def rings_in_order(self) -> bool:
        """Return whether a doorbell stays behind earlier writes to video memory."""

    @abstractmethod
    def ring(self, token: int) -> None:
        """Tell the GPU that a channel has new entries."""

    # ---- state -------------------------------------------------------------------------------

    @abstractmethod
    def lost(self) -> bool:
        """Return whether the GPU no longer answers."""

    def poll(self) -> None:
        """Handle reports that wait to be read; cheap."""
        return

    @abstractmethod
    def add_evidence(self, found: Evidence) -> None:
        """Add what explains a failure below the channels to a bundle, or why it is missing."""

    @property
    def loses_memory(self) -> bool:
        """Return whether this process resets the GPU, and then writes its memory again."""
        return False

    @property
    def interrupts(self) -> bool:
        """Return whether interrupts of its channels reach this process."""
        return False

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

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent. A second call continues a close that an exception
        interrupted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"
