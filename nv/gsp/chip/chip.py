"""GspChip: an NVIDIA GPU behind a transport: presence, identity, registers, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import DeviceLost, DeviceNotFound, NotSupported
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock
from ugpu.hcq.transport.base import Transport
from ugpu.nv import chips
from ugpu.nv.chips.boot import BootFacts, BootWay
from ugpu.nv.chips.facts import ChipFacts
from ugpu.nv.gsp.chip.vram import FbVram
from ugpu.nv.regs import block

REGISTER_BAR, MEMORY_BAR = 0, 1
GSP_BASE, SEC2_BASE, PMU_BASE = 0x11_0000, 0x84_0000, 0x10_A000  # falcons in BAR 0
_LOCKED, _LOCKED_MASK = 0xBADF_0000, 0xFFFF_0000
_GFW_LIMIT_S = 4.0  # TIMEOUT: nouveau and nova-core; GFW takes 1 to 2 s after power-on
_FSP_LIMIT_S = 5.0
_DONE = 0xFF
_FLUSH_LIMIT_S = 2.0  # TIMEOUT: as nouveau's for the TLB, which is the slower of the two


def is_locked(value: int) -> bool:
    """Return whether a register's value says that its privilege level denies the access."""
    return value & _LOCKED_MASK == _LOCKED


def chip_behind(transport: Transport) -> GspChip:
    """Return the chip that the PCI id names. DeviceLost if it does not answer on the bus,
    DeviceNotFound if ugpu boots none with this id."""
    if not transport.present():
        raise DeviceLost(f"{transport.name} does not answer on the bus", remedy=remedies.LINK)
    identity = transport.identity
    facts = chips.find(identity.vendor, identity.device)
    boot = chips.boot_facts(facts.name) if facts is not None else None
    if facts is None or boot is None:
        raise DeviceNotFound(f"PCI id {identity} is not a chip that ugpu boots")
    return GspChip(transport, facts, boot)


class GspChip(BareChip):
    """One chip. facts, boot: of the kind of chip that its PCI id names; `identify` checks BOOT_42.

    memory_size: bytes of VRAM, known once the board's firmware has run. logs: words of each of the
    GSP's logs, while its driver has them.
    """

    vram: FbVram

    def __init__(self, transport: Transport, facts: ChipFacts, boot: BootFacts) -> None:
        super().__init__(transport, REGISTER_BAR)
        self.facts = facts
        self.boot = boot
        self.nv: RegisterBlock = block("bar0", 0, self.bus)
        self.gsp = block("falcon", GSP_BASE, self.bus)
        self.sec2 = block("falcon", SEC2_BASE, self.bus)
        self.pmu = block("falcon", PMU_BASE, self.bus)
        self.fsp = block("fsp", 0, self.bus)
        self.logs: dict[str, Callable[[], list[str]]] = {}
        self.memory_size = 0

    def silent(self) -> bool:
        boot_0, boot_42 = self.nv.NV_PMC_BOOT_0.read(), self.nv.NV_PMC_BOOT_42.read()
        return int(boot_0) == ALL_ONES and int(boot_42) == ALL_ONES

    def blocks(self) -> Iterable[RegisterBlock]:
        return (self.nv, self.gsp, self.sec2)

    def identify(self) -> int:
        """Check that the chip is what its PCI id names; return BOOT_0, which falcons are told."""
        nv = self.nv
        value = int(nv.NV_PMC_BOOT_0.read())
        if value == ALL_ONES:
            raise DeviceLost(
                "the GPU's registers read as all ones: memory decoding is off, or it has left the "
                "bus",
                config_space="responds" if self.transport.present() else "all ones",
                remedy=remedies.LINK,
            )
        if nv.NV_PMC_BOOT_1.read().VGPU:
            raise NotSupported("the GPU is a part of another one, given to a guest (vGPU)")
        found = nv.NV_PMC_BOOT_42.read()
        chip = found.ARCHITECTURE << 4 | found.IMPLEMENTATION
        if chip not in self.boot.chip_ids:
            raise NotSupported(
                f"the chip is not one that boots like {self.facts.name}: expected BOOT_42 of "
                f"{', '.join(f'{each:#x}' for each in self.boot.chip_ids)}",
                found=chip,
            )
        return value

    def await_board_firmware(self) -> None:
        """Wait until the board's own firmware (GFW, from Hopper on FSP) has finished;
        FirmwareSilent if it does not.

        Sources: Linux 7.3 nova-core gfw.rs, nouveau subdev/gsp/ga100.c; open-gpu-kernel-modules
        570.144 kernel_gsp_tu102.c, kern_fsp_gh100.c.
        """
        nv, by_fsp = self.nv, self.boot.way is BootWay.FSP
        who = "FSP" if by_fsp else "the board's firmware (GFW)"
        with or_silent(f"{who} has not finished its start", remedy="power the card off and on"):
            if by_fsp:
                scratch = nv[f"NV_THERM_I2CS_SCRATCH_{self.facts.family.upper()}"]
                what = "end of FSP's start"
                self.await_fields("FSP", scratch, what, _FSP_LIMIT_S, FSP_BOOT_COMPLETE=_DONE)
                return
            mask = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK
            progress = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT
            what = "access to its progress"
            self.await_fields("GFW", mask, what, _GFW_LIMIT_S, READ_PROTECTION_LEVEL0=1)
            self.await_fields("GFW", progress, "end of its start", _GFW_LIMIT_S, PROGRESS=_DONE)

    # ---- memory ------------------------------------------------------------------------------

    def open_memory(self, size: int) -> None:
        """Note VRAM's size, and open the window to it."""
        self.memory_size = size
        self.vram = FbVram(self.transport.window(MEMORY_BAR), size, self.nv, self.boot)

    @property
    def flush_bits(self) -> int:
        """The bits of the address that `set_flush_page` takes."""
        page = self.boot.flush_page
        return self.boot.bus_bits if page.high else 32 + page.shift

    def set_flush_page(self, address: int) -> None:
        """Give the GPU the page that it reads to flush its writes to host memory. ORDER: the low
        half takes effect with its write, so the high half comes first."""
        page, value = self.boot.flush_page, address >> self.boot.flush_page.shift
        if page.high:
            self.nv[page.high].write(value >> 32)
        self.nv[page.low].write(value & ALL_ONES)

    def flush_writes(self) -> None:
        """Let the host's writes to VRAM arrive."""
        flush, what = self.nv.NV_UFLUSH_FB_FLUSH, "flush of writes to VRAM"
        flush.write(1)
        self.await_fields("FB", flush, what, _FLUSH_LIMIT_S, PENDING=0, OUTSTANDING=0)

    def flush_translations(self, root: int) -> None:
        """Drop the translations of one address space. root: address of its directory in VRAM."""
        nv = self.nv
        self.flush_writes()
        nv.NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB.write(root >> 8 & ALL_ONES)
        nv.NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB.write(root >> 40)
        self._invalidate()

    def replay_faults(self, how: int) -> None:
        """Let all accesses go that wait for a replay. how: REPLAY of the register."""
        self._invalidate(ALL_PDB=1, REPLAY=how)

    def _invalidate(self, **fields: int) -> None:
        register = self.nv.NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE
        register.write(ALL_VA=1, TRIGGER=1, **fields)
        self.await_fields("MMU", register, "end of an invalidation", _FLUSH_LIMIT_S, TRIGGER=0)

    def await_fields(
        self, unit: str, register: BoundRegister, what: str, limit_s: float, **fields: int
    ) -> None:
        """Wait until fields of a register have these values. See wait_bits."""
        mask = sum(register.register.field(name).mask for name in fields)
        value = register.register.encode(**fields)
        self.wait_bits(register, mask, value, unit=unit, waiting_for=what, limit_s=limit_s)
