"""GMC: the two memory hubs, their translation contexts, TLB flushes and fault registers.

MMHUB serves PSP, SMU and IH; GFXHUB serves CP, shaders and SDMA. Source: Linux 6.12 gfxhub_v3_0.c,
mmhub_v3_0.c (set-up order and values), gmc_v11_0.c (TLB flush, fault decoding).

Contexts: VMID 0 belongs to the firmware. It reaches device memory through the system aperture and
everything else through ugpu's tables. The first holder's work runs in VMID QUEUE_VMID, which has no
aperture: every unmapped address faults, a null pointer too. Holders have contexts with their own
tables, in GFXHUB alone: no unit behind MMHUB works for them. A holder without its own tables
(am.device.card) uses those of VMID 0. Other contexts stay off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import QUEUE_VMID
from ugpu.am.units.faults import HubFault
from ugpu.am.units.memory import VIRTUAL_END, Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.bare.program import HostPrograms
from ugpu.hcq.errors import ChipError, UnitTimeout
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock

VMIDS = (0, QUEUE_VMID)
FLUSH_ENGINE = 17  # of 18; the kernel's choice for the host's own flushes
_ENGINES = 18
_CONTEXTS = 16
_DEPTH = 3  # page directory levels above the leaf table
_PAGE_SHIFT = 12
_APERTURE_SHIFT = 18
_AGP_SHIFT = 24
_MTYPE_UC = 3
# Reset values that the kernel starts from (gfxhub_v3_0.c, mmhub_v3_0.c), except replaced bits.
_L2_CNTL3_DEFAULT = 0x80120007
_L2_CNTL4_DEFAULT = 0xC1
_L2_CNTL5_DEFAULT = 0x3FE0
# TIMEOUT: the kernel waits usec_timeout, 100 ms, for semaphore and acknowledgement.
FLUSH_LIMIT_S = 0.1

_FAULTS = ("RANGE", "DUMMY_PAGE", "PDE0", "VALID", "READ", "WRITE", "EXECUTE")
_CONTEXT_FAULTS = {
    f"{kind}_PROTECTION_FAULT_ENABLE_{what}": 1
    for kind in _FAULTS
    for what in ("INTERRUPT", "DEFAULT")
}
_HUB_FAULTS = (
    "RANGE", "PDE0", "PDE1", "PDE2", "TRANSLATE_FURTHER", "NACK", "DUMMY_PAGE", "VALID", "READ",
    "WRITE", "EXECUTE",
)  # fmt: skip


class Hub:
    """One hub: `prefix` is GC or MM, as in GCVM_L2_CNTL and MMMC_VM_FB_OFFSET."""

    def __init__(self, chip: Chip, block: RegisterBlock, prefix: str, number: int = 0) -> None:
        self.chip = chip
        self.block = block
        self.prefix = prefix
        kind = "GFXHUB" if prefix == "GC" else "MMHUB"
        self.name = f"{kind}{number}" if number else kind
        self.on = False
        # Whether the semaphore may still be held for this driver: by a killed process or an
        # interrupted flush. The device's lock excludes other users of this engine.
        self._held = True
        # Registers and values that each flush uses, looked up once.
        self._semaphore = self.vm(f"INVALIDATE_ENG{FLUSH_ENGINE}_SEM")
        self._request = self.vm(f"INVALIDATE_ENG{FLUSH_ENGINE}_REQ")
        self._acknowledge = self.vm(f"INVALIDATE_ENG{FLUSH_ENGINE}_ACK")
        evidence = chip.generation.evidence
        self._clients = evidence.gfx_clients if prefix == "GC" else evidence.memory_clients
        self.fault_status = self.vm(chip.generation.hub_fault_status)
        self._everything = {vmid: self._invalidation(vmid) for vmid in VMIDS}
        self._end = VIRTUAL_END  # end of the addresses of contexts without their own tables
        self._own: dict[int, int] = {}  # VMID -> entry that points to the root table of a holder
        self._pages: tuple[Carveout, int] | None = None  # of `_set_fault_pages`, for `finish`
        self._left = False  # whether the holder in QUEUE_VMID has closed its context

    def _invalidation(self, vmid: int) -> int:
        return self._request.register.encode(
            PER_VMID_INVALIDATE_REQ=1 << vmid,
            FLUSH_TYPE=0,
            INVALIDATE_L2_PTES=1,
            INVALIDATE_L2_PDE0=1,
            INVALIDATE_L2_PDE1=1,
            INVALIDATE_L2_PDE2=1,
            INVALIDATE_L1_PTES=1,
            CLEAR_PROTECTION_FAULT_STATUS_ADDR=0,
        )

    def vm(self, name: str) -> BoundRegister:
        return self.block[f"{self.prefix}VM_{name}"]

    def mc(self, name: str) -> BoundRegister:
        return self.block[f"{self.prefix}MC_VM_{name}"]

    def write64(self, name: str, value: int) -> None:
        """Write a pair of VM registers, low half first."""
        self.vm(f"{name}_LO32").write(value & 0xFFFF_FFFF)
        self.vm(f"{name}_HI32").write(value >> 32)

    # ---- set-up ------------------------------------------------------------------------------

    @batched
    def start(self, carveout: Carveout, root: int, end: int, dummy_address: int) -> None:
        """Set up what VMID 0 needs; `finish` does the rest. root: entry that points to the root
        table of contexts without their own tables. end: the end of their addresses. dummy_address:
        bus address of the host page that faulting accesses go to. Writes are in address order where
        the hub allows it: neighbours may travel together (hcq.bare.bus)."""
        bus, tlb = self.chip.bus, self.mc("MX_L1_TLB_CNTL")
        # Nothing behind the graphics core's hub runs before `finish`.
        self._pages = (carveout, dummy_address) if self.prefix == "GC" else None
        self._end = end
        bus.read_ahead(self.vm("L2_CNTL"), self.vm("L2_PROTECTION_FAULT_CNTL2"))
        bus.read_ahead(tlb, tlb)
        self._set_contexts(root)
        self._set_apertures(carveout, dummy_address)
        self._set_caches()
        self._enable_context(0)
        self.on = True

    @batched
    def finish(self) -> None:
        """As a step: do the rest of `start`, and clear an earlier fault. Nothing runs in the other
        contexts yet, and the fault defaults are enabled by their reset value."""
        if self._pages is not None:
            self._set_fault_pages(*self._pages)
        self._disable_identity()
        if not self._left:
            self._enable_context(QUEUE_VMID)
        self.vm("L2_PROTECTION_FAULT_CNTL").update(
            **{f"{kind}_PROTECTION_FAULT_ENABLE_DEFAULT": 1 for kind in _HUB_FAULTS}
        )
        self.clear_fault()
        for vmid, tables in self._own.items():
            if vmid != QUEUE_VMID:
                self._set_context(vmid, tables)

    def open_context(self, vmid: int, root: int) -> None:
        """Translate a holder's VMID by its own tables: at once if the hub is on, and at every start
        of the hub. root: entry that points to the root table."""
        self._everything[vmid] = self._invalidation(vmid)
        self._own[vmid] = root
        if self.on:
            self._set_context(vmid, root)

    @batched
    def _set_context(self, vmid: int, root: int) -> None:
        self.write64(f"CONTEXT{vmid}_PAGE_TABLE_BASE_ADDR", root)
        self.write64(f"CONTEXT{vmid}_PAGE_TABLE_START_ADDR", 0)
        self.write64(f"CONTEXT{vmid}_PAGE_TABLE_END_ADDR", (VIRTUAL_END >> _PAGE_SHIFT) - 1)
        self._enable_context(vmid)

    def close_context(self, vmid: int) -> None:
        """Switch a holder's context off. The caller then flushes its VMID. Can be repeated."""
        self._own.pop(vmid, None)
        self._left = self._left or vmid == QUEUE_VMID
        if self.on:
            self.vm(f"CONTEXT{vmid}_CNTL").write(0)

    def _set_contexts(self, root: int) -> None:
        """Set up the tables of all contexts, and the range of each flush. As in the kernel
        (setup_vmid_config), this includes contexts that stay off, where that costs nothing because
        the registers are neighbours. The ends of the last ones in MMHUB are left alone: they hold
        notes (am.units.psp.psp, am.device.rest).

        The hub's table walk uses the distance from START: at 0 all contexts can share the tables.
        """
        for engine in range(_ENGINES):
            self.write64(f"INVALIDATE_ENG{engine}_ADDR_RANGE", 0x1F_FFFF_FFFF)
        vmids = self.chip.bus.worthwhile(range(_CONTEXTS), VMIDS)
        for vmid in vmids:
            self.write64(f"CONTEXT{vmid}_PAGE_TABLE_BASE_ADDR", self._own.get(vmid, root))
        for vmid in vmids:
            self.write64(f"CONTEXT{vmid}_PAGE_TABLE_START_ADDR", 0)
        for vmid in (vmid for vmid in vmids if vmid <= QUEUE_VMID):
            self.write64(f"CONTEXT{vmid}_PAGE_TABLE_END_ADDR", (self._end >> _PAGE_SHIFT) - 1)

    @batched
    def extend(self, end: int) -> None:
        """Raise the end of QUEUE_VMID's addresses; the caller then flushes its TLB. Units in VMID 0
        can use only addresses that were mapped when the hub was started.

        UNSURE: whether a hub applies a new end to a context that is on, from the next walk on.
        Linux writes these registers when the context is switched on (gfxhub_v3_0.c,
        setup_vmid_config).
        """
        if self.on and self._end < end:
            self.write64(f"CONTEXT{QUEUE_VMID}_PAGE_TABLE_END_ADDR", (end >> _PAGE_SHIFT) - 1)
            self._end = end

    def _set_apertures(self, carveout: Carveout, dummy_address: int) -> None:
        low, high = carveout.fb_base, carveout.fb_base + carveout.size - 1
        self.mc("AGP_TOP").write(0)
        self.mc("AGP_BOT").write(0xFFFF_FFFF_FFFF >> _AGP_SHIFT)  # bottom above top: no AGP
        self.mc("AGP_BASE").write(0)
        self.mc("SYSTEM_APERTURE_LOW_ADDR").write(low >> _APERTURE_SHIFT)
        self.mc("SYSTEM_APERTURE_HIGH_ADDR").write(high >> _APERTURE_SHIFT)
        self.mc("MX_L1_TLB_CNTL").update(
            ENABLE_L1_TLB=1,
            SYSTEM_ACCESS_MODE=3,
            ENABLE_ADVANCED_DRIVER_MODEL=1,
            SYSTEM_APERTURE_UNMAPPED_ACCESS=0,
            ECO_BITS=0,
            MTYPE=_MTYPE_UC,
        )
        if self._pages is None:
            self._set_fault_pages(carveout, dummy_address)

    def _set_fault_pages(self, carveout: Carveout, dummy_address: int) -> None:
        """Set the pages for accesses that fault or that are outside every aperture."""
        scratch = carveout.physical(carveout.scratch_page)
        self.mc("SYSTEM_APERTURE_DEFAULT_ADDR_LSB").write(scratch >> _PAGE_SHIFT & 0xFFFF_FFFF)
        self.mc("SYSTEM_APERTURE_DEFAULT_ADDR_MSB").write(scratch >> (_PAGE_SHIFT + 32))
        self.write64("L2_PROTECTION_FAULT_DEFAULT_ADDR", dummy_address >> _PAGE_SHIFT)
        self.vm("L2_PROTECTION_FAULT_CNTL2").update(ACTIVE_PAGE_MIGRATION_PTE_READ_RETRY=1)

    def _set_caches(self) -> None:
        self.vm("L2_CNTL").update(
            ENABLE_L2_CACHE=1,
            ENABLE_L2_FRAGMENT_PROCESSING=0,
            ENABLE_DEFAULT_PAGE_OUT_TO_SYSTEM_MEMORY=1,
            L2_PDE0_CACHE_TAG_GENERATION_MODE=0,
            PDE_FAULT_CLASSIFICATION=0,
            CONTEXT1_IDENTITY_ACCESS_MODE=1,
            IDENTITY_MODE_FRAGMENT_SIZE=0,
        )
        self.vm("L2_CNTL2").update(INVALIDATE_ALL_L1_TLBS=1, INVALIDATE_L2_CACHE=1)
        self.vm("L2_CNTL3").write(_L2_CNTL3_DEFAULT, BANK_SELECT=9, L2_CACHE_BIGK_FRAGMENT_SIZE=6)
        self.vm("L2_CNTL4").write(
            _L2_CNTL4_DEFAULT, VMC_TAP_PDE_REQUEST_PHYSICAL=0, VMC_TAP_PTE_REQUEST_PHYSICAL=0
        )
        self.vm("L2_CNTL5").write(_L2_CNTL5_DEFAULT, L2_CACHE_SMALLK_FRAGMENT_SIZE=0)

    def _enable_context(self, vmid: int) -> None:
        # Without retry, a faulting access ends at once, at the dummy page, and is reported.
        self.vm(f"CONTEXT{vmid}_CNTL").write(
            ENABLE_CONTEXT=1,
            PAGE_TABLE_DEPTH=_DEPTH,
            PAGE_TABLE_BLOCK_SIZE=0,
            RETRY_PERMISSION_OR_INVALID_PAGE_FAULT=0,
            **_CONTEXT_FAULTS,
        )

    def _disable_identity(self) -> None:
        self.write64("L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR", 0xF_FFFF_FFFF)
        self.write64("L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR", 0)
        self.write64("L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET", 0)

    def stop(self) -> None:
        """Switch translation off: contexts, then the TLB."""
        for vmid in dict.fromkeys((*self._own, *reversed(VMIDS))):
            self.vm(f"CONTEXT{vmid}_CNTL").write(0)
        self.mc("MX_L1_TLB_CNTL").update(ENABLE_L1_TLB=0, ENABLE_ADVANCED_DRIVER_MODEL=0)
        self.vm("L2_CNTL").update(ENABLE_L2_CACHE=0)
        self.vm("L2_CNTL3").write(0)
        self.on = False

    # ---- TLB ---------------------------------------------------------------------------------

    def flush(self, vmids: Sequence[int]) -> None:
        """Invalidate everything cached for `vmids`. The caller has flushed HDP.

        On MMHUB a semaphore keeps the hub from power gating, which would lose the acknowledgement.
        If its holder died or was interrupted, it is released here: writing 0 releases it in any
        state (gmc_v11_0.c).
        """
        if self.prefix != "MM":
            self._invalidate(vmids)
            return
        if self._held:
            self._semaphore.write(0)
        self._held = True
        try:
            self._wait(self._semaphore, 1, "TLB semaphore")
            self._invalidate(vmids)
        finally:
            self._semaphore.write(0)
        self._held = False
        private = self.vm("L2_BANK_SELECT_RESERVED_CID2")
        private.update(RESERVED_CACHE_PRIVATE_INVALIDATION=1)
        self.chip.bus.push(private)  # the invalidation of the hub's private caches

    def _invalidate(self, vmids: Sequence[int]) -> None:
        for vmid in vmids:
            self._request.write(self._everything[vmid])
            self._await(vmid)

    def _await(self, vmid: int) -> None:
        self._wait(self._acknowledge, 1 << vmid, "TLB acknowledgement")

    def _wait(self, register: BoundRegister, mask: int, what: str) -> None:
        try:
            self.chip.wait_bits(
                register, mask, mask, unit=self.name, waiting_for=what, limit_s=FLUSH_LIMIT_S
            )
        except UnitTimeout as error:
            raise ChipError(
                f"{self.name} has not completed a TLB flush ({what})",
                remedy=advice.MODE1,
                **error.facts,
            ) from error

    # ---- faults ------------------------------------------------------------------------------

    def take_fault(self) -> HubFault | None:
        """Read the latched fault and clear it; None if there is none.

        The first read may give a stale value (gmc_v11_0.c issues a dummy read on GFXHUB).
        """
        if self.prefix == "GC":
            self.fault_status.read()
        status = self.fault_status.read()
        if not status or status == 0xFFFF_FFFF:
            return None
        page = int(self.vm("L2_PROTECTION_FAULT_ADDR_LO32").read())
        page |= int(self.vm("L2_PROTECTION_FAULT_ADDR_HI32").read()) << 32
        self.clear_fault()
        return HubFault(self.name, page << _PAGE_SHIFT, status, self._clients)

    def clear_fault(self) -> None:
        register = self.vm("L2_PROTECTION_FAULT_CNTL")
        found = self.chip.bus.current32(register.index)
        register.write(found, CLEAR_PROTECTION_FAULT_STATUS_ADDR=1)
        register.write(found, CLEAR_PROTECTION_FAULT_STATUS_ADDR=0)


class Gmc:
    """The hubs of both kinds: one for each instance of their blocks, as discovery lists them."""

    def __init__(self, chip: Chip, nbio: Nbio) -> None:
        self.chip = chip
        self.nbio = nbio
        self.mmhubs = self._hubs("MMHUB", "MM")
        self.gfxhubs = self._hubs("GC", "GC")

    def _hubs(self, block: str, prefix: str) -> tuple[Hub, ...]:
        found = enumerate(self.chip.instances(block))
        return tuple(Hub(self.chip, registers, prefix, number) for number, registers in found)

    def __iter__(self) -> Iterator[Hub]:
        return iter((*self.gfxhubs, *self.mmhubs))

    def start(
        self,
        hubs: Sequence[Hub],
        carveout: Carveout,
        root: int,
        end: int,
        dummy_address: int,
        programs: HostPrograms,
    ) -> None:
        """Set hubs up, see Hub.start, and discard their faults and cached translations."""
        for hub in hubs:
            self._start(hub, partial(hub.start, carveout, root, end, dummy_address), programs)
        # As in Linux (gmc_v11_0.c, gart_enable). The start of a queue flushes its VMID.
        self._flush(hubs, VMIDS[:1])

    @batched
    def _start(self, hub: Hub, start: Callable[[], object], programs: HostPrograms) -> None:
        start()
        programs.leave(hub.finish)

    def take_fault(self, hubs: Sequence[Hub]) -> HubFault | None:
        """Read and clear the first fault that one of `hubs` has latched."""
        return next(filter(None, (hub.take_fault() for hub in hubs)), None)

    def forget(self, hubs: Iterable[Hub] | None = None) -> None:
        """Mark `hubs` as off, all hubs if None: they were reset."""
        self.chip.bus.forget()
        for hub in self if hubs is None else hubs:
            hub.on = False

    def flush_tlb(self, vmids: Sequence[int] = VMIDS) -> None:
        """Make page table changes visible to everything in `vmids`. Needed after every change.

        ORDER: the tables must have reached memory (HDP) before they are walked again.
        """
        self._flush(self, vmids)

    def extend(self, end: int) -> None:
        """Raise the end of the addresses of QUEUE_VMID; see Hub.extend."""
        for hub in self:
            hub.extend(end)

    def open_context(self, vmid: int, root: int) -> None:
        """Translate a holder's VMID by its own tables; see Hub.open_context."""
        for hub in self.gfxhubs:
            hub.open_context(vmid, root)

    def close_context(self, vmid: int, *, flush: bool) -> None:
        """Close a holder's context; `flush`: also drop its cached translations. Can be repeated."""
        for hub in self.gfxhubs:
            hub.close_context(vmid)
        if flush:
            self.flush_holder(vmid)

    def flush_holder(self, vmid: int) -> None:
        """Flush the TLBs for a holder with its own tables; see `flush_tlb`."""
        self._flush(self.gfxhubs, (vmid,))

    def _flush(self, hubs: Iterable[Hub], vmids: Sequence[int]) -> None:
        self.nbio.post_hdp()
        self._invalidate(hubs, vmids)

    def invalidate(self, vmids: Sequence[int]) -> None:
        """As a step: flush the TLBs after the tables have reached memory; see `flush_tlb`."""
        self._invalidate(self, vmids)

    def _invalidate(self, hubs: Iterable[Hub], vmids: Sequence[int]) -> None:
        for hub in hubs:
            if hub.on:
                hub.flush(vmids)


def framebuffer_location(chip: Chip) -> tuple[int, int]:
    """(MC address of VRAM's first byte, offset that page tables add), set by the board firmware."""
    bus, mmhub = chip.bus, chip.mmhub
    place, tlb = mmhub.MMMC_VM_FB_LOCATION_BASE, mmhub.MMMC_VM_MX_L1_TLB_CNTL
    with bus.setting_up():
        bus.read_ahead(place, tlb)
        bus.keep(tlb)  # for the start of the hub
        base, offset = place.current(), mmhub.MMMC_VM_FB_OFFSET.read()
    if ALL_ONES in (int(base), int(offset)):
        chip.check_present("reading where device memory lies")
    return int(base.FB_BASE) << _AGP_SHIFT, int(offset.FB_OFFSET) << _AGP_SHIFT
