"""Errors from the chip's reports: decoded interrupt entries and fault registers.

Source: Linux 6.12 gmc_v11_0.c, gfxhub_v3_0.c, gmc_v12_0.c, gfxhub_v12_0.c (page faults),
kfd_int_process_v11.c (SQ words, of gfx12 too: kfd_device.c), ivsrcid/gfx/irqsrcs_gfx_11_0_0.h
(sources, which gfx_v12_0.c uses too), soc15_ih_clientid.h (clients; SDMA shares GFX's).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.am.chip import remedies as advice
from ugpu.hcq.errors import (
    BadPacket,
    ChipError,
    DeviceHang,
    IllegalInstruction,
    PageFault,
    UgpuError,
)
from ugpu.hcq.paging.location import Region, place_of

if TYPE_CHECKING:
    from ugpu.am.units.ih import Interrupt

CLIENT_GFX = 0x0A
CLIENT_VMC = 0x12
CLIENT_GRBM_CP = 0x14

SOURCE_UTCL2 = 0
SOURCE_SDMA_TRAP = 49
SOURCE_SDMA_HANG = 55
SOURCE_CP_EOP = 181
SOURCE_SQ = 239
_CP_PACKETS = {
    180: "a reserved bit is set",
    183: "unknown opcode",
    184: "access to a privileged register",
    185: "privileged instruction",
}
# Errors in the chip's own memories, and use of data marked as bad; each engine has a source.
_UNCORRECTABLE = {
    (CLIENT_GFX, 1): "the graphics hub consumed poisoned data",
    (CLIENT_VMC, 1): "the memory hub consumed poisoned data",
    (CLIENT_GFX, 128): "the graphics core detected a fatal error",
    (CLIENT_GRBM_CP, 197): "uncorrectable error in the memory of the command processor",
    (CLIENT_GRBM_CP, 201): "fatal uncorrectable error in the command processor",
}
# Source 50 is "SRBM write protection" by name; its counterpart on older chips reports illegal
# packets too (Linux 6.12 sdma_v3_0.c registers it as the illegal instruction interrupt). UNSURE:
# whether gfx11 does so; a bad packet on a board would settle it.
_SDMA_SOURCES = {
    50: "illegal packet, or write of a protected register",
    54: "doorbell of an invalid queue",
    56: "atomic operation timed out",
    57: "poll ran out of retries",
    58: "page request timed out",
    59: "null page",
    60: "page fault",
    61: "address in the canonical hole",
    62: "ECC error",
    63: "frozen",
    64: "SRAM ECC error",
    65: "semaphore incomplete",
    66: "semaphore wait failed",
}
_SDMA_PACKET = 50
_SDMA_PAGE = (59, 60, 61)
_SDMA_HANGS = (56, 57, 58)

_INSTRUCTION_FETCH = 9
_WAVES = ("TCP", "SQC (inst)", "SQC (data)", "SQG")  # clients that act for a kernel
_ACCESSES = {"read": "a read of", "write": "a write to", "execute": "a jump to"}
# What hubs report of an address in the aperture of private memory: its low 48 bits. UNSURE: whether
# a board reports an access beyond a wave's scratch, or lets it reach the next wave's.
_PRIVATE_END = 1 << 32
_NULL_ZONE = 1 << 16  # addresses that a null pointer to a structure reaches

ILLEGAL_INSTRUCTION = 1
_SQ_ERRORS = {
    0: "EDC FUE", ILLEGAL_INSTRUCTION: "illegal instruction", 2: "memory violation", 3: "EDC FED",
}  # fmt: skip
_SQ_ENCODING_ERROR = 2
_PERMISSIONS = ("valid", "read", "write", "execute")
_ADDRESS_HIGH = 0xF
_WRITE_FAULT = 1 << 5


@dataclass(frozen=True)
class HubFault:
    """A latched L2_PROTECTION_FAULT_STATUS with its page address. The fields that are read are in
    the same place on gfx11 and gfx12. clients: names of the hub's clients, by number."""

    hub: str
    address: int
    status: int
    clients: Mapping[int, str]

    def _bits(self, low: int, width: int) -> int:
        return self.status >> low & ((1 << width) - 1)

    @property
    def client_id(self) -> int:
        return self._bits(9, 9)

    @property
    def client(self) -> str:
        return self.clients.get(self.client_id, f"client {self.client_id}")

    @property
    def write(self) -> bool:
        return bool(self._bits(18, 1))

    @property
    def vmid(self) -> int:
        return self._bits(20, 4)

    @property
    def refused(self) -> tuple[str, ...]:
        """Checks of the entry that failed."""
        permission = self._bits(4, 4)
        return tuple(name for bit, name in enumerate(_PERMISSIONS) if permission >> bit & 1)

    @property
    def access(self) -> str:
        if self.hub == "GFXHUB" and self.client_id == _INSTRUCTION_FETCH:
            return "execute"
        return "write" if self.write else "read"

    def facts(self) -> dict[str, object]:
        return {
            "status": self.status,
            "refused": "+".join(self.refused) or "none",
            "walker_error": self._bits(1, 3),
            "mapping_error": bool(self._bits(8, 1)),
            "atomic": bool(self._bits(19, 1)),
            "more_faults": bool(self._bits(0, 1)),
        }


@dataclass(frozen=True)
class Place:
    """The faulting instruction. offset: in bytes from the entry of `kernel`; both None where
    `pc` lies outside all programs. source: "file:line", or empty."""

    pc: int
    text: str
    kernel: str | None
    offset: int | None
    source: str

    def __str__(self) -> str:
        where = f"{self.pc:#x}" if self.offset is None else f"byte {self.offset} of the kernel"
        source = f", {self.source}" if self.source else ""
        return f", by `{self.text}` at {where}{source}"

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"pc": self.pc, "instruction": self.text}
        if self.offset is not None:
            facts["offset"] = self.offset
        return facts | ({"source_line": self.source} if self.source else {})


def faulted_page(interrupt: Interrupt) -> int:
    """Return the address of the page from a page fault's interrupt."""
    return interrupt.data[0] << 12 | (interrupt.data[1] & _ADDRESS_HIGH) << 44


def page_fault(
    interrupt: Interrupt | None,
    latched: HubFault | None,
    *,
    device: str,
    kernels: Sequence[str],
    null: Sequence[str],
    stacks: Sequence[str] = (),
    regions: Iterable[Region],
    culprit: Place | None = None,
) -> PageFault:
    """Return the error for a page fault, from its interrupt, the latched registers, or both.

    kernels: names of kernels that may have caused it. null: null pointers that these kernels
    declare. stacks: the stacks that they have, which a thread may have left. regions: mapped
    regions. culprit: the instruction, if it is known.
    """
    if interrupt is not None:
        address = faulted_page(interrupt)
        access = "write" if interrupt.data[1] & _WRITE_FAULT else "read"
        vmid, hub = interrupt.vmid, "MMHUB" if interrupt.client == CLIENT_VMC else "GFXHUB"
    else:
        assert latched is not None
        address, access, vmid, hub = latched.address, latched.access, latched.vmid, latched.hub
    client, details = "unknown", dict[str, object]()
    # The latch keeps the first fault; it describes this one only if page and VMID agree.
    if latched is not None and latched.address >> 12 == address >> 12 and latched.vmid == vmid:
        access, client, details = latched.access, latched.client, latched.facts()
    place = place_of(address, regions)
    if address < _PRIVATE_END and stacks:
        place = f"{'; '.join(stacks)} (device.dynamic_stack), and an access behind it appears here"
    elif address < _NULL_ZONE and null:
        place += f"; this driver does not provide {', '.join(null)}, which the kernel declares"
    names = ", ".join(kernels) if client in _WAVES or client == "unknown" else ""
    what = f"{_ACCESSES[access]} {address:#x} faulted{culprit or ''}"
    return PageFault(
        f"{device}: {names or client}: {what}: {place}",
        kernel=names or None,
        remedy=advice.RESET,
        address=address,
        access=access,
        client=client,
        vmid=vmid,
        hub=hub,
        **(culprit.facts() if culprit is not None else {}),
        **details,
    )


@dataclass(frozen=True)
class SqWord:
    """An SQ interrupt's two data words, decoded (gfx11)."""

    encoding: int
    error: int
    detail: int
    array: int
    wave: int
    simd: int
    wgp: int
    privileged: bool

    @staticmethod
    def decode(data: tuple[int, ...]) -> SqWord:
        return SqWord(
            encoding=data[1] >> 6 & 3,
            error=data[0] >> 21 & 0xF,
            detail=data[0] & 0x1F_FFFF,
            array=data[0] >> 25 & 1,
            wave=data[0] >> 27 & 0x1F,
            simd=data[1] & 3,
            wgp=data[1] >> 2 & 0xF,
            privileged=bool(data[0] >> 26 & 1),
        )

    @property
    def is_error(self) -> bool:
        return self.encoding == _SQ_ENCODING_ERROR

    def to_error(self, vmid: int, wave_state: dict[str, object], device: str = "") -> UgpuError:
        """Return the error for an SQ error word. wave_state: the wave's registers, or nothing, and
        `instruction`, the words at its program counter, if they are known."""
        what = _SQ_ERRORS.get(self.error, f"error type {self.error}")
        facts: dict[str, object] = {
            "vmid": vmid,
            "array": self.array,
            "wgp": self.wgp,
            "simd": self.simd,
            "wave": self.wave,
            **wave_state,
        }
        kind = IllegalInstruction if self.error == ILLEGAL_INSTRUCTION else ChipError
        name = f"{device}: " if device else ""
        name += f"{wave_state['kernel']}: " if wave_state.get("kernel") else ""
        if wave_state.get("instruction"):
            what += f" {wave_state['instruction']}"
        at = f" at {wave_state['pc']:#x}" if "pc" in wave_state else ""
        if "offset" in wave_state:
            at = f" at byte {wave_state['offset']} of the kernel"
        return kind(f"{name}a wave stopped: {what}{at}", remedy=advice.RESET, **facts)


def uncorrectable_error(interrupt: Interrupt) -> ChipError | None:
    """The error for a source that reports damaged data; None for others."""
    what = _UNCORRECTABLE.get((interrupt.client, interrupt.source))
    if what is None:
        return None
    return ChipError(what, source=interrupt.source, vmid=interrupt.vmid, remedy=advice.DAMAGED)


def is_wave_client(client: str) -> bool:
    """Return whether a hub's client acts for a kernel."""
    return client in _WAVES


def sdma_engine(interrupt: Interrupt) -> str:
    """Return the copy engine that reports a failure by this entry; "" for any other entry."""
    reports = interrupt.client == CLIENT_GFX and interrupt.source in _SDMA_SOURCES
    return f"SDMA{interrupt.ring >> 4 & 0xF}" if reports else ""


def is_packet_error(interrupt: Interrupt) -> bool:
    """Return whether this entry reports a packet that the command processor refused."""
    return interrupt.client == CLIENT_GRBM_CP and interrupt.source in _CP_PACKETS


def command_processor_error(interrupt: Interrupt, state: dict[str, object]) -> BadPacket | None:
    """The error for a CP source; None for other sources."""
    if not is_packet_error(interrupt):
        return None
    what = _CP_PACKETS[interrupt.source]
    engine, pipe, queue = interrupt.queue
    return BadPacket(
        f"the command processor refused a packet: {what}",
        reason=what,
        source=interrupt.source,
        engine=engine,
        pipe=pipe,
        queue=queue,
        vmid=interrupt.vmid,
        remedy=advice.RESET,
        **state,
    )


def sdma_error(interrupt: Interrupt, state: dict[str, object]) -> UgpuError | None:
    """The error for an SDMA source; None for traps and the like."""
    what = _SDMA_SOURCES.get(interrupt.source)
    if what is None or interrupt.client != CLIENT_GFX:
        return None
    facts: dict[str, object] = {
        "engine": sdma_engine(interrupt),
        "queue": interrupt.ring & 0xF,
        "vmid": interrupt.vmid,
        "data": tuple(hex(word) for word in interrupt.data),
        "remedy": advice.RESET,
        **state,
    }
    if interrupt.source in _SDMA_PAGE:
        address = interrupt.data[0] << 12 | (interrupt.data[1] & _ADDRESS_HIGH) << 44
        return PageFault(
            f"SDMA: {what}", address=address, access="unknown", client=facts["engine"], **facts
        )
    if interrupt.source == _SDMA_PACKET:
        return BadPacket(f"SDMA: {what}", reason=what, **facts)
    if interrupt.source in _SDMA_HANGS:
        return DeviceHang(f"SDMA: {what}", **facts)
    return ChipError(f"SDMA: {what}", **facts)
