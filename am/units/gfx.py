"""GFX: the graphics core as a compute engine: RLC, MEC, shader configuration, hardware queues.

Source: Linux 6.12 gfx_v11_0.c (start of RS64, constants, RLC, interrupts, soft reset) and
amdgpu_amdkfd_gfx_v11.c (loading and destroying a hardware queue).
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import QUEUE_VMID
from ugpu.am.packets import mqd
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import UnitTimeout
from ugpu.hcq.registers.fields import Register, RegisterMap
from ugpu.hcq.registers.layout import Struct

log = logging.getLogger(__name__)

LIST_PIPE = 1  # its queue 0 executes lists (am.units.lists); the device queue is on pipe 0
MEC = 1  # micro engine number of the first MEC
_UNALIGNED = 3
_PREFETCH = 3
SHARED_BASE = 1  # apertures, as address bits 63:48: LDS, then scratch
PRIVATE_BASE = 2
_WAVE_SCALARS, _WAVE_VECTORS = 0x200, 0x400  # SQIND_WAVE_SGPRS_OFFSET, _VGPRS_ (gfx_v11_0.c)
_READ_TIMEOUT = 0xFF
_SPM_VMID = 0xF
_MICRO_PAUSE_S = 50e-6
_RESET_PAUSE_S = 0.05
# TIMEOUT: the kernel polls usec_timeout (100 ms) for autoload and for a queue to drain.
AUTOLOAD_LIMIT_S = 1.0
DRAIN_LIMIT_S = 0.1
DEQUEUE_DRAIN = 1
DEQUEUE_RESET_WAVES = 2
_SAFE_MODE_ENTER, _SAFE_MODE_LEAVE = 1, 0
_SOFT_RESETS = tuple(f"SOFT_RESET_{part}" for part in ("CP", "GFX", "CPF", "CPC", "CPG"))
# With these interrupts the command processor reports to the RLC that it is idle (gfx_v11_0.c).
IDLE_INTERRUPTS = (
    "CNTX_BUSY_INT_ENABLE",
    "CNTX_EMPTY_INT_ENABLE",
    "CMP_BUSY_INT_ENABLE",
    "GFX_IDLE_INT_ENABLE",
)
_ALL_VMIDS_BUT_0 = 0xFFFF_FFFE
_VMID_RESET_READS = 3  # gives the queues time to leave
_SIMDS = 4  # per workgroup processor


class Gfx:
    """Drive one graphics core for compute. golden: bits that the kernel sets (golden_settings)."""

    golden: ClassVar[Mapping[str, int]] = {"TCP_CNTL": 0x2000_0000}

    def __init__(self, chip: Chip, nbio: Nbio) -> None:
        self.chip = chip
        self.nbio = nbio
        self.pipes = chip.generation.compute_pipes
        self._units = 0  # compute units counted
        self._vmids = [0, QUEUE_VMID]  # VMIDs that are set up

    @contextmanager
    def select(
        self, *, me: int = 0, pipe: int = 0, queue: int = 0, vmid: int = 0, goes_on: bool = False
    ) -> Iterator[None]:
        """Aim banked registers at one queue or VMID; a leftover selection misdirects other
        accesses. goes_on: another `select` follows at once, which is enough (gfx_v11_0.c,
        init_compute_vmid)."""
        register = self.chip.gc.GRBM_GFX_CNTL
        register.write(MEID=me, PIPEID=pipe, QUEUEID=queue, VMID=vmid)
        left = False
        try:
            yield
            left = goes_on
        finally:
            if not left:
                register.write(0)

    # ---- start -------------------------------------------------------------------------------

    def loaded(self) -> bool:
        """Return whether the micro engines have their firmware; before that, the chip does not
        accept writes here."""
        if self.chip.dark:
            return False
        return bool(self.chip.gc.RLC_RLCS_BOOTLOAD_STATUS.read().BOOTLOAD_COMPLETE)

    def wait_autoload(self) -> None:
        """Wait until the RLC has loaded and started every micro engine."""
        gc = self.chip.gc

        def state() -> dict[str, int]:
            words = {"bootload_status": gc.RLC_RLCS_BOOTLOAD_STATUS, "cp_stat": gc.CP_STAT}
            return {name: int(register.read()) for name, register in words.items()}

        with or_silent(
            "the RLC has not finished loading the graphics core's firmware",
            state,
            limit_s=AUTOLOAD_LIMIT_S,
            remedy=advice.MODE1,
        ):
            self.chip.wait(
                gc.RLC_RLCS_BOOTLOAD_STATUS,
                lambda value: bool(value.BOOTLOAD_COMPLETE) and not gc.CP_STAT.read(),
                unit="RLC",
                waiting_for="autoload of the graphics core's firmware",
                limit_s=AUTOLOAD_LIMIT_S,
            )

    def start_front(self, starts: Mapping[str, int]) -> None:
        """Point the engines of graphics at their programs, where they have one."""

    @batched
    def start_mec(self, start_address: int) -> None:
        """Point all MEC pipes at their program and pulse their resets; leaves them inactive."""
        gc = self.chip.gc
        for pipe in range(self.pipes):
            with self.select(me=MEC, pipe=pipe, goes_on=pipe < self.pipes - 1):
                gc.CP_MEC_RS64_PRGRM_CNTR_START.write(start_address >> 2 & 0xFFFF_FFFF)
                gc.CP_MEC_RS64_PRGRM_CNTR_START_HI.write(start_address >> 34)
        resets = {f"MEC_PIPE{pipe}_RESET": 1 for pipe in range(self.pipes)}
        gc.CP_MEC_RS64_CNTL.update(**resets)
        gc.CP_MEC_RS64_CNTL.update(**dict.fromkeys(resets, 0))
        self.chip.bus.keep(gc.CP_MEC_RS64_CNTL)  # for `_run_pipes`

    @batched
    def configure(self) -> None:
        """As a step: set the constants of the shader core and the RLC, let only doorbells signal
        work, and have the pipes report packets that they refuse."""
        self._poll_nothing()
        self._enable_doorbells()
        self._set_core()
        self._set_rlc()
        self._enable_reports()

    @batched
    def start_pipes(self) -> None:
        """Set what is banked, or what the pipes need, and let all pipes run. `configure` comes
        before it, or before the first queue."""
        self._set_all_apertures()
        self.nbio.route_compute_doorbells()
        self._set_doorbells()
        self._run_pipes()
        self.chip.clock.sleep(_MICRO_PAUSE_S)

    def _set_core(self) -> None:
        gc = self.chip.gc
        gc.CP_DEBUG.update(CPG_UTCL1_ERROR_HALT_DISABLE=1)  # go on after a page fault
        for name, bits in self.golden.items():
            gc[name].write(int(gc[name].read()) | bits)
        gc.GRBM_CNTL.update(READ_TIMEOUT=_READ_TIMEOUT)

    def _set_rlc(self) -> None:
        gc = self.chip.gc
        gc.RLC_SRM_CNTL.update(SRM_ENABLE=1, AUTO_INCR_ADDR=1)
        gc.RLC_SPM_MC_CNTL.write(RLC_SPM_VMID=_SPM_VMID)
        gc.RLC_CNTL.update(RLC_ENABLE_F32=1)

    def _set_doorbells(self) -> None:
        gc, doorbells = self.chip.gc, self.chip.generation.doorbells
        gc.CP_MEC_DOORBELL_RANGE_LOWER.write(doorbells.compute_first * 8)
        gc.CP_MEC_DOORBELL_RANGE_UPPER.write(doorbells.compute_last * 8)

    def open_vmid(self, vmid: int) -> None:
        """Set up local memory and scratch for waves of another VMID, now and after each reset."""
        if vmid not in self._vmids:
            self._vmids.append(vmid)
        self._set_apertures(vmid)

    def _set_all_apertures(self) -> None:
        for vmid in self._vmids:
            self._set_apertures(vmid, goes_on=vmid != self._vmids[-1])

    def _set_apertures(self, vmid: int, *, goes_on: bool = False) -> None:
        with self.select(vmid=vmid, goes_on=goes_on):
            self.chip.gc.SH_MEM_CONFIG.write(
                ADDRESS_MODE=0, ALIGNMENT_MODE=_UNALIGNED, INITIAL_INST_PREFETCH=_PREFETCH
            )
            if vmid:  # as in Linux: no waves run in VMID 0
                self.chip.gc.SH_MEM_BASES.write(SHARED_BASE=SHARED_BASE, PRIVATE_BASE=PRIVATE_BASE)

    def _enable_reports(self) -> None:
        gc = self.chip.gc
        for pipe in range(self.pipes):
            gc[f"CP_ME1_PIPE{pipe}_INT_CNTL"].update(
                TIME_STAMP_INT_ENABLE=1,
                PRIV_REG_INT_ENABLE=1,
                OPCODE_ERROR_INT_ENABLE=1,
                RESERVED_BIT_ERROR_INT_ENABLE=1,
            )

    def _run_pipes(self) -> None:
        self.chip.gc.CP_MEC_RS64_CNTL.update(
            **{f"MEC_PIPE{pipe}_RESET": 0 for pipe in range(self.pipes)},
            **{f"MEC_PIPE{pipe}_ACTIVE": 1 for pipe in range(self.pipes)},
            MEC_INVALIDATE_ICACHE=0,
            MEC_HALT=0,
        )

    def disable_mec(self) -> None:
        self.chip.gc.CP_MEC_RS64_CNTL.update(
            **{f"MEC_PIPE{pipe}_RESET": 1 for pipe in range(self.pipes)},
            **{f"MEC_PIPE{pipe}_ACTIVE": 0 for pipe in range(self.pipes)},
            MEC_INVALIDATE_ICACHE=1,
            MEC_HALT=1,
        )
        self.chip.clock.sleep(_MICRO_PAUSE_S)

    def compute_units(self) -> int:
        """Return the number of CUs that discovery lists and the harvest registers leave on."""
        if not self.counted:
            self.count_units()
        return self._units

    @property
    def counted(self) -> bool:
        """Whether `compute_units` knows the number."""
        return bool(self._units)

    def count_units(self) -> None:
        """As a step: count the CUs for `compute_units`."""
        gc, info = self.chip.gc, self.chip.discovery.gc
        assert info is not None
        wgps = 0
        try:
            for engine in range(info.shader_engines):
                for array in range(info.arrays_per_engine):
                    gc.GRBM_GFX_INDEX.write(
                        SE_INDEX=engine, SA_INDEX=array, INSTANCE_BROADCAST_WRITES=1
                    )
                    off = int(gc.CC_GC_SHADER_ARRAY_CONFIG.read().INACTIVE_WGPS)
                    off |= int(gc.GC_USER_SHADER_ARRAY_CONFIG.read().INACTIVE_WGPS)
                    present = (1 << info.wgps_per_array) - 1
                    wgps += (present & ~off).bit_count()
        finally:
            self._broadcast()
        self._units = wgps * 2

    def _broadcast(self) -> None:
        self.chip.gc.GRBM_GFX_INDEX.write(
            SE_BROADCAST_WRITES=1, SA_BROADCAST_WRITES=1, INSTANCE_BROADCAST_WRITES=1
        )

    # ---- hardware queues ---------------------------------------------------------------------

    @batched
    def load_queue(self, pipe: int, queue: int, descriptor: Struct, *, fresh: bool = False) -> None:
        """Load a queue's MQD into its registers and activate it. fresh: the MEC was just reset. The
        queue is then idle, and `configure` was called or a list will call it."""
        gc, bus = self.chip.gc, self.chip.bus
        with self.select(me=MEC, pipe=pipe, queue=queue):
            if not fresh:
                if gc.CP_HQD_ACTIVE.read() & 1:
                    self._dequeue(DEQUEUE_DRAIN)
                self._poll_nothing()
            first = gc.CP_MQD_BASE_ADDR.index
            for position, value in enumerate(mqd.mirrored(descriptor)):
                bus.write32(first + position, value)
            gc.CP_HQD_EOP_RPTR.write(INIT_FETCHER=1)
            gc.CP_HQD_ACTIVE.write(ACTIVE=1)
            if not fresh:
                self._enable_doorbells()

    def _poll_nothing(self) -> None:
        """Do not poll memory: the doorbell signals work."""
        self.chip.gc.CP_PQ_WPTR_POLL_CNTL.update(EN=0)

    def _enable_doorbells(self) -> None:
        self.chip.gc.CP_PQ_STATUS.update(DOORBELL_ENABLE=1)

    def stop_queue(self, pipe: int, queue: int, *, reset_waves: bool = False) -> bool:
        """Take a queue off the hardware; False if it stays active.

        reset_waves kills running waves; without it the queue leaves when its waves have ended.
        """
        gc = self.chip.gc
        with self.select(me=MEC, pipe=pipe, queue=queue):
            gc.CP_HQD_PQ_DOORBELL_CONTROL.update(DOORBELL_EN=0)
            if not gc.CP_HQD_ACTIVE.read() & 1:
                return True
            if not reset_waves:
                return self._dequeue(DEQUEUE_DRAIN)
        with self.safe_mode(), self.select(me=MEC, pipe=pipe, queue=queue):
            return self._dequeue(DEQUEUE_RESET_WAVES)

    def _dequeue(self, request: int) -> bool:
        """Request that the selected queue leaves the hardware, wait, and return whether it left.

        ORDER: the request, then the reset of its waves (mes_v11_0.c, reset_queue_mmio).
        """
        gc = self.chip.gc
        gc.CP_HQD_DEQUEUE_REQUEST.write(DEQUEUE_REQ=request)
        if request == DEQUEUE_RESET_WAVES:
            gc.SPI_COMPUTE_QUEUE_RESET.write(RESET=1)
        try:
            self.chip.wait(
                gc.CP_HQD_ACTIVE,
                lambda value: not value & 1,
                unit="MEC",
                waiting_for="the queue to leave the hardware",
                limit_s=DRAIN_LIMIT_S,
            )
        except UnitTimeout:
            return False
        finally:
            gc.CP_HQD_DEQUEUE_REQUEST.write(0)
        return True

    def queue_state(self, pipe: int, queue: int) -> dict[str, object]:
        """Return the registers that show why a queue has stalled."""
        gc = self.chip.gc
        with self.select(me=MEC, pipe=pipe, queue=queue):
            state: dict[str, object] = {
                "active": int(gc.CP_HQD_ACTIVE.read()) & 1,
                "rptr": int(gc.CP_HQD_PQ_RPTR.read()),
                "wptr": int(gc.CP_HQD_PQ_WPTR_LO.read()),
                "hqd_error": int(gc.CP_HQD_ERROR.read()),
            }
        state["cp_stat"] = int(gc.CP_STAT.read())
        state["cpc_status"] = int(gc.CP_CPC_STATUS.read())
        state["grbm_status"] = int(gc.GRBM_STATUS.read())
        return state

    # ---- waves -------------------------------------------------------------------------------

    def wave_state(self, array: int, wgp: int, simd: int, wave: int) -> dict[str, object]:
        """Return program counter and status of a stopped wave; empty if no such wave is found.

        The interrupt does not contain the shader engine: the first one with a halted wave is taken.
        """
        info = self.chip.discovery.gc
        assert info is not None
        for engine in range(info.shader_engines):
            with self.aim(engine, array, wgp, simd):
                status = self.wave_register(wave, "STATUS")
                if status in (0, ALL_ONES):
                    continue
                low, high = self.wave_register(wave, "PC_LO"), self.wave_register(wave, "PC_HI")
                return {
                    "pc": high << 32 | low,
                    "shader_engine": engine,
                    "wave_status": status,
                    "trap_status": self.wave_register(wave, self.chip.generation.evidence.trap),
                }
        return {}

    def simds(self) -> Iterator[tuple[int, int, int, int]]:
        """Return each SIMD as (shader engine, array, workgroup processor, SIMD). Harvested SIMDs,
        which have no waves, are included."""
        info = self.chip.discovery.gc
        assert info is not None
        return itertools.product(
            range(info.shader_engines), range(info.arrays_per_engine),
            range(info.wgps_per_array), range(_SIMDS),
        )  # fmt: skip

    @contextmanager
    def aim(self, engine: int, array: int, wgp: int, simd: int) -> Iterator[None]:
        """Make wave registers refer to one SIMD, and to all SIMDs again at the end."""
        with self.aiming():
            self.aim_at(engine, array, wgp, simd)
            yield

    @contextmanager
    def aiming(self) -> Iterator[None]:
        """Make wave registers refer to all SIMDs again at the end; see `aim_at`."""
        try:
            yield
        finally:
            self._broadcast()

    def aim_at(self, engine: int, array: int, wgp: int, simd: int) -> None:
        """Make wave registers refer to one SIMD, inside `aiming`."""
        register = self.chip.gc.GRBM_GFX_INDEX
        register.write(_place(register.register, engine, array, wgp << 2 | simd))

    def wave_register(self, slot: int, name: str) -> int:
        """Return SQ_WAVE_<name> of a wave slot of the SIMD that `aim` selected."""
        register = self.chip.gc.SQ_IND_INDEX
        register.write(_wave_index(register.register, self.chip.wave_registers, slot, name))
        return int(self.chip.gc.SQ_IND_DATA.read())

    def wave_scalars(self, slot: int) -> list[int]:
        """Return the scalar registers of a wave, by their encoding: s0 to s105, VCC, trap
        temporaries, M0 (125), EXEC (126, 127)."""
        return self._wave_words(slot, _WAVE_SCALARS, 128)

    def wave_vectors(self, slot: int, lanes: int, count: int, first: int = 0) -> list[list[int]]:
        """Return `count` vector registers of a wave, with `lanes` of each. Those of a running wave
        change meanwhile."""
        at = _WAVE_VECTORS + first
        found = [self._wave_words(slot, at, count, lane) for lane in range(lanes)]
        return [list(register) for register in zip(*found, strict=True)]

    def _wave_words(self, slot: int, first: int, count: int, lane: int = 0) -> list[int]:
        """Read words of a wave's registers (gfx_v11_0.c, wave_read_regs)."""
        self.chip.gc.SQ_IND_INDEX.write(WAVE_ID=slot, WORKITEM_ID=lane, AUTO_INCR=1, INDEX=first)
        return [int(self.chip.gc.SQ_IND_DATA.read()) for _ in range(count)]

    # ---- resets ------------------------------------------------------------------------------

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        """Keep the RLC from power gating while registers are reset."""
        self._safe_mode(_SAFE_MODE_ENTER)
        try:
            yield
        finally:
            self._safe_mode(_SAFE_MODE_LEAVE)

    def _safe_mode(self, message: int) -> None:
        """Send a message to the RLC. As in the kernel, a silent RLC does not stop a reset."""
        register = self.chip.gc.RLC_SAFE_MODE
        register.write(CMD=1, MESSAGE=message)
        try:
            command = register.register.fields["CMD"].mask
            self.chip.wait_bits(register, command, 0, unit="RLC", waiting_for="safe mode")
        except UnitTimeout as error:
            log.warning("%s", error)

    def reset_compute(self) -> None:
        """Reset the compute engine alone, as a driver that attaches to a running chip does. Every
        compute queue is gone afterwards; `configure` and `start_pipes` must follow.

        Order, bits and pause: tinygrad 0.14 at each start on a warm board. Milder than
        `soft_reset`, which resets the whole graphics core.
        """
        gc = self.chip.gc
        program = self._mec_program()
        for pipe in range(self.pipes):
            for queue in range(self.chip.generation.queues_per_pipe):
                with self.select(me=MEC, pipe=pipe, queue=queue):
                    if gc.CP_HQD_ACTIVE.read() & 1:
                        self._dequeue(DEQUEUE_RESET_WAVES)
        self._strike(("SOFT_RESET_CP", "SOFT_RESET_CPC"))
        self.start_mec(program)

    def _strike(self, bits: tuple[str, ...]) -> None:
        """Reset parts of the graphics core by GRBM."""
        reset = self.chip.gc.GRBM_SOFT_RESET
        reset.update(**dict.fromkeys(bits, 1))
        self.chip.clock.sleep(_RESET_PAUSE_S)
        reset.update(**dict.fromkeys(bits, 0))

    def soft_reset(self) -> None:
        """Reset the command processors by GRBM; every hardware queue is gone afterwards.

        Order and values: gfx_v11_0.c, soft_reset. The caller is in safe mode, and restores what
        `configure` and `start_pipes` set.
        """
        gc = self.chip.gc
        program = self._mec_program()
        gc.CP_INT_CNTL.update(**dict.fromkeys(IDLE_INTERRUPTS, 0))
        for pipe in range(self.pipes):
            for queue in range(self.chip.generation.queues_per_pipe):
                with self.select(me=MEC, pipe=pipe, queue=queue):
                    gc.CP_HQD_DEQUEUE_REQUEST.write(DEQUEUE_REQ=DEQUEUE_RESET_WAVES)
                    gc.SPI_COMPUTE_QUEUE_RESET.write(RESET=1)
        gc.CP_VMID_RESET.write(_ALL_VMIDS_BUT_0)
        for _ in range(_VMID_RESET_READS):
            gc.CP_VMID_RESET.read()
        self._strike(_SOFT_RESETS)
        gc.CP_SOFT_RESET_CNTL.update(CMP_HQD_REG_RESET=1)
        gc.CP_MEC_RS64_CNTL.write(0)
        self.chip.wait(
            gc.CP_VMID_RESET, lambda value: value == 0, unit="CP", waiting_for="VMID reset"
        )
        gc.CP_INT_CNTL.update(**dict.fromkeys(IDLE_INTERRUPTS, 1))
        self.start_mec(program)

    def _mec_program(self) -> int:
        """Return the byte address at which the MEC's program starts, as `start_mec` set it."""
        gc = self.chip.gc
        with self.select(me=MEC):
            low = int(gc.CP_MEC_RS64_PRGRM_CNTR_START.read())
            return (low | int(gc.CP_MEC_RS64_PRGRM_CNTR_START_HI.read()) << 32) << 2


# The evidence of a failure looks at each SIMD of the chip.
@functools.lru_cache(maxsize=1 << 10)
def _place(register: Register, engine: int, array: int, instance: int) -> int:
    return register.encode(SE_INDEX=engine, SA_INDEX=array, INSTANCE_INDEX=instance)


@functools.lru_cache(maxsize=1 << 10)
def _wave_index(register: Register, table: RegisterMap, slot: int, name: str) -> int:
    return register.encode(WAVE_ID=slot, INDEX=table[f"SQ_WAVE_{name}"].offset)
