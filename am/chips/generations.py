"""The facts that chips of a generation share, as a typed record; the models may read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Doorbells:
    """Doorbell slots of 64 bits, by index. copy_range: dwords of one copy engine's part."""

    compute_ring0: int
    compute_first: int  # range that the compute engine listens to
    compute_last: int
    copy_engine0: int
    copy_stride: int
    copy_range: int


@dataclass(frozen=True)
class SmuInterface:
    """The interface of an SMU's firmware, by the names of its generated tables in am/regs.

    messages: constants PPSMC_MSG_*. tables: structures and constants of the tables that it
    exchanges. version: the result of GetDriverIfVersion if both sides have the same headers.
    shutdown_place, pptable_place: of software_shutdown_temp, 16 bits, and of PPTable_t, in the
    board's table (TABLE_COMBO_PPTABLE), which is packed, in bytes. fan_offset: the member of
    PPTable_t by which that limit changes while a fan does not turn. power_limits: the member of it
    that has the board's power limits. power_floor_place: of the percentage by which a power limit
    may be lower, 16 bits, in the board's table.
    """

    messages: str
    tables: str
    version: int
    shutdown_place: int
    pptable_place: int
    fan_offset: str
    power_limits: str
    power_floor_place: int


@dataclass(frozen=True)
class FirmwareFile:
    """One image of linux-firmware, named after the version of a block: "psp_{}_sos.bin". headers:
    versions of its header that fit the generation; empty for all that are known. kicker: boards of
    ChipFacts.kickers have one of their own. marked: the upper half of its version belongs to one
    chip (ChipFacts.marks)."""

    name: str
    block: str
    optional: bool = False
    headers: tuple[tuple[int, int], ...] = ()
    kicker: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Evidence:
    """Registers that describe a failed chip. registers: by block; names may be patterns. queue: of
    the compute queue that GRBM_GFX_CNTL selects. wave: SQ_WAVE_<name>; trap: the one of them that
    has why a wave stopped. gfx_clients, memory_clients: what hubs' faults name by number."""

    registers: Mapping[str, tuple[str, ...]]
    queue: tuple[str, ...]
    wave: tuple[str, ...]
    trap: str
    gfx_clients: Mapping[int, str]
    memory_clients: Mapping[int, str]


@dataclass(frozen=True)
class GenerationFacts:
    """One generation. Register indices and bases are in dwords, sizes in bytes, times in seconds.

    register_tables: block -> version -> table in am/regs; a version that is missing is not
    supported. naming_blocks: blocks whose version must be the chip's, because firmware is named
    after it. optional_blocks: may be missing. typical_bases: one entry per segment; the driver uses
    those of the discovery table. boot_components: (name, command for C2PMSG_35, fw_type in the
    PSP's container) in order. boot_gates: by command, another fw_type without which the component
    is left out. ip_firmware: (psp_gfx_fw_type, name of the part) in the order of
    loading. smu_firmware: the same, loaded before the TMR. mode2_firmware: parts that must be
    loaded again after a reset of the graphics core. psp_mailbox, hub_fault_status, copy_processor,
    doorbell_route: registers that are named otherwise elsewhere: the PSP's mailboxes without their
    number, a hub's latched fault behind GCVM_ or MMVM_, the control of a copy engine's processor
    behind its name, the routes of doorbells without their number. boot_time_tmr: the board's
    firmware has reserved the TMR, so the driver does not give one away. by_clock: registers that
    the driver accesses periodically, as (BAR, offset in bytes): RCC_CONFIG_MEMSIZE (is the chip
    present), IH_RB_RPTR (the chip's reports were taken) and mailbox 81 (does the PSP's secure OS
    still run).
    """

    name: str
    # PCI
    vendor: int
    class_code: int
    vram_bar: int
    doorbell_bar: int
    register_bar: int
    least_bars: tuple[tuple[int, int], ...]
    by_clock: tuple[tuple[int, int], ...]
    # blocks
    register_tables: Mapping[str, Mapping[Version, str]]
    wave_register_table: str
    psp_mailbox: str
    hub_fault_status: str
    copy_processor: str
    doorbell_route: str
    evidence: Evidence
    naming_blocks: frozenset[str]
    optional_blocks: frozenset[str]
    hardware_ids: Mapping[str, int]
    typical_bases: Mapping[str, tuple[int, ...]]
    # before discovery
    memory_size_register: int
    ifwi_register: int
    ifwi_neighbours: tuple[int, ...]
    discovery_version_register: int
    ifwi_limit_s: float
    # memory
    discovery_offset: int
    discovery_size: int
    reserved_vram: int
    physical_bits: int
    virtual_bits: int
    # geometry
    compute_pipes: int
    queues_per_pipe: int
    wave_size: int
    local_memory: int
    max_threads_per_group: int
    scratch_waves_per_cu: int
    clock_hertz: float
    doorbells: Doorbells
    # firmware
    boot_time_tmr: bool
    firmware: tuple[FirmwareFile, ...]
    secure_os_type: int
    toc_type: int
    boot_components: tuple[tuple[str, int, int], ...]
    boot_gates: Mapping[int, int]
    bootloader_tells_refusal: bool
    ip_firmware: tuple[tuple[int, str], ...]
    smu_firmware: tuple[int, str]
    mode2_firmware: tuple[str, ...]
    smu_interfaces: Mapping[Version, SmuInterface]
    smu_debug_mode1_message: int
    smu_firmware_flags: int
    mode1_quiet_s: float
