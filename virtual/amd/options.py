"""Options of a virtual chip: sizes, timing and planned faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, Self

from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.planting import unknown
from ugpu.virtual.amd.firmware.images import FIRMWARE_KINDS
from ugpu.virtual.amd.shader import ShaderCore

DiscoveryFlaw = Literal[
    "signature", "checksum", "table signature", "table checksum", "gc checksum", "harvest", "size"
]


@dataclass(frozen=True)
class Delays:
    """Firmware delays in seconds; each use draws a value between half and all of the given one."""

    ifwi: float = 0.004  # power-on to IFWI ready; a board needs 0.1 to 2 s
    bootloader: float = 0.0004  # per component
    secure_os: float = 0.003  # from SOSDRV to the sign of life; boards: over 20 ms, Linux relies
    psp_control: float = 0.0003  # ring creation and destruction
    psp_command: float = 0.0002  # per frame of the ring
    smu_message: float = 0.0001  # 0: answered before the write of the message returns
    autoload: float = 0.003  # AUTOLOAD_RLC to BOOTLOAD_COMPLETE; 0: with the PSP's answer
    tlb: float = 0.00002  # from an INVALIDATE_ENG REQ to its ACK
    gfxoff: float = 0.002  # from idle with GFXOFF allowed to graphics core powered off
    blackout: float = 0.03  # registers read all ones after mode1; a board needs 0.5 to 1 s


class Names(set[str]):
    """A set of names limited to the known ones; BadArgument, listing them, for any other name."""

    def __init__(self, what: str, known: frozenset[str], names: Iterable[str] = ()) -> None:
        super().__init__()
        self._what, self._known = what, known
        self.update(names)

    def add(self, name: str) -> None:
        """Add a known name."""
        self.update((name,))

    def update(self, *others: Iterable[str]) -> None:
        """Add known names."""
        names = set().union(*others)
        for name in sorted(names - self._known):
            _refuse(self._what, name, self._known)
        super().update(names)

    def __deepcopy__(self, memo: object) -> Names:
        return Names(self._what, self._known, self)


def _refuse(what: str, name: str, known: Iterable[str]) -> NoReturn:
    raise unknown(what, name, known)


@dataclass
class FaultPlan:
    """Faults to provoke. Mutable: `chip.faults` is the chip's own copy and may change at any time.

    `psp_reject` contains firmware kinds from firmware/images.py, such as "RS64_MEC" or "SOS".
    BadArgument for an unknown fault, kind or hub.
    """

    ifwi_never: bool = False
    psp_reject: set[str] = field(default_factory=set)
    psp_status: int = 0x000F  # status of a planned refusal
    psp_silent: bool = False  # the ring is read, but fences are never written
    psp_ring_status: int = 0  # low 16 bits of C2PMSG_64 after ring creation
    bootloader_never: bool = False  # accepts a component, then is never ready again
    secure_os_never: bool = False
    ring_never: bool = False  # control commands of the PSP's ring are not answered
    psp_commands: dict[int, int] = field(default_factory=dict)  # command id -> forced status
    smu_silent: bool = False  # the SMU firmware is stuck; the debug mailbox still answers
    smu_debug_silent: bool = False
    smu_responses: dict[int, int] = field(default_factory=dict)  # message -> forced response
    smu_busy: int = 0  # number of the next messages that are answered with busy
    mode1_ignored: bool = False  # mode1 is acknowledged and does nothing
    mode2_ignored: bool = False  # the same for mode2
    gfxoff_stuck: bool = False  # DisallowGfxOff is answered, but the core stays without power
    autoload_never: bool = False
    safe_mode_never: bool = False  # the RLC does not acknowledge safe mode
    mec_crashed: bool = False  # MEC firmware has stopped; a reset of the block restarts it
    sdma_crashed: bool = False  # the same for the copy engines
    dequeue_never: bool = False  # dequeue requests for a compute queue have no effect
    doorbells_lost: bool = False  # doorbell writes reach no engine
    tlb_no_ack: set[str] = field(default_factory=set)  # hubs, out of "gc", "mmhub"
    tlb_needs_semaphore: bool = False  # an MMHUB invalidation without it is never acknowledged
    interrupts_lost: bool = False  # entries are written, but the MSI never arrives
    lost_at_access: int | None = None  # the card drops off the bus at this register access
    ones_at_access: int | None = None  # completion of this access times out: it reads all ones
    dma_refused: bool = False  # the IOMMU rejects every access

    def __new__(cls, *_: object, **plan: object) -> Self:
        for name in plan:
            cls._check(name)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: object) -> None:
        self._check(name)
        if name in _NAMES and not isinstance(value, Names):
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise BadArgument(f"{name} must be a set of names, got {value!r}")
            value = Names(*_NAMES[name], value)
        super().__setattr__(name, value)

    @classmethod
    def _check(cls, name: str) -> None:
        known = cls.__dataclass_fields__
        if name not in known:
            _refuse("fault", name, known)


_NAMES = {
    "psp_reject": ("kind of firmware", FIRMWARE_KINDS),
    "tlb_no_ack": ("hub", frozenset({"gc", "mmhub"})),
}


@dataclass(frozen=True)
class ChipOptions:
    """Build options of a virtual card. Sizes are bytes.

    vram, shader_engines, arrays_per_engine, wgps_per_array, smu_version, smu_driver_if: 0 selects
    the value of boards with the chip. registers: size of BAR5; 0 selects that of the generation.

    visible_vram: size of BAR0; None makes all of VRAM visible. shared_vram: VRAM is a memfd that
    other processes can map; their writes to it bypass the host data path. noise: number of bytes at
    the start of VRAM that hold noise after power-on (on a board all of VRAM does; the rest of the
    model's VRAM is sparse and zero). poison: a 32-bit word that fills these bytes instead of noise,
    such as a NaN, which shows in results that depend on unwritten memory.
    manual_time: the scheduler has no thread; tests call `chip.scheduler.advance`.
    launch_in_order: run a queue's dispatches in order where no wait separates them, instead of the
    newest first. check_waits: report each use of a register before the wait for its load
    (virtual/amd/isa/waits.py) and races between waves in LDS (virtual/amd/isa/runtime/races.py),
    which costs about a microsecond for each access of LDS by 32 lanes.
    shader_core: creates the shader cores at the first dispatch.
    platform: the host's firmware assigns BAR addresses at power-on and enlarges BAR0; False behind
    a bus whose driver does that (bus.endpoint).
    index_latch: an indirect index takes effect only once it is read back (posted writes).
    """

    vram: int = 0
    visible_vram: int | None = None
    shared_vram: bool = False
    function_reset: bool = False  # supports a function-level reset through configuration space
    platform: bool = True
    registers: int = 0
    doorbells: int = 2 << 20
    noise: int = 8 << 20
    poison: int | None = None
    seed: int = 1
    manual_time: bool = False
    index_latch: bool = False
    delays: Delays = Delays()
    faults: FaultPlan = field(default_factory=FaultPlan)
    harvested: tuple[tuple[int, int], ...] = ()  # (hardware id, instance) in the harvest table
    discovery_header: int = 1  # 2: a counted list of tables
    discovery_place: int = 0  # bytes before the end of VRAM; 0: where drivers look first
    discovery_version: int = 3
    discovery_flaw: DiscoveryFlaw | None = None
    shader_engines: int = 0
    arrays_per_engine: int = 0
    wgps_per_array: int = 0
    tmr_size: int = 0x1300000  # the answer to LOAD_TOC
    smu_version: int = 0
    smu_driver_if: int = 0  # a mismatch should only cause a warning in the driver
    secure_os_version: int = 0  # 0: the generation's
    # What the secure OS keeps at the end of VRAM, 0: as the VBIOS states; and elsewhere, as bytes
    # before the end and size.
    firmware_vram: int = 0
    firmware_vram_extended: tuple[int, int] = (0, 0)
    # The first read of a hub's fault status after a fault may be stale on boards, which is why
    # Linux 6.12 gmc_v11_0_process_interrupt reads it twice.
    stale_fault_status: bool = False
    aspm: int = 2  # Link Control [1:0] as platforms leave it: 1 is L0s, 2 is L1
    # False: memory decoding and BARs survive mode1. tinygrad's AM driver relies on this with
    # boards: after a reset it sets only bus mastering. True: they are lost, which Linux's driver
    # and ours tolerate.
    config_lost_on_mode1: bool = False
    # Whether the secure OS obeys GFX_CTRL_CMD_ID_MODE1_RST (psp_gfx_if.h): Linux 6.12 uses it only
    # up to PSP 12, so a board's PSP 13 may not obey it.
    psp_mode1: bool = False
    debug_mode1: bool = True  # the SMU's debug mailbox supports mode1
    launch_in_order: bool = False
    check_waits: bool = False
    shader_core: Callable[[], ShaderCore] | None = None  # None: the one that runs gfx11 code

    def __post_init__(self) -> None:
        if (self.vram and self.vram < 16 << 20) or self.vram % (1 << 20):
            raise BadArgument(
                f"vram must be a multiple of 1 MiB and at least 16 MiB, got {self.vram} bytes"
            )

    def on(self, facts: ChipFacts) -> ChipOptions:
        """Replace zeros by the values of boards with the chip."""
        board = facts.board
        return replace(
            self,
            vram=self.vram or board.vram,
            shader_engines=self.shader_engines or board.shader_engines,
            arrays_per_engine=self.arrays_per_engine or board.arrays_per_engine,
            wgps_per_array=self.wgps_per_array or board.wgps_per_array,
            smu_version=self.smu_version or board.smu_version,
            smu_driver_if=self.smu_driver_if or facts.smu.version,
        )
