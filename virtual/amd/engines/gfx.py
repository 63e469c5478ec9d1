"""The parts of the graphics block that compute uses: GRBM selects and resets, RLC, MEC, shaders.

Facts: Linux 6.12 soc21.c (soc21_grbm_select), gfx_v11_0.c (soft reset, wave data), gc_11_0_0_*.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ugpu.am import regs
from ugpu.hcq.registers.fields import RegisterValue
from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.engines.cp.commands import CommandSet
from ugpu.virtual.amd.engines.cp.mec import Mec
from ugpu.virtual.amd.engines.cp.rlc import Rlc
from ugpu.virtual.amd.engines.engine import clock_ticks
from ugpu.virtual.amd.engines.sdma.engine import Sdma
from ugpu.virtual.amd.engines.shaders import ShaderArray
from ugpu.virtual.amd.engines.waves import (
    HW_ID1,
    HW_ID2,
    VALID_AND_IDLE,
    WaveRegisters,
    sit,
    word,
)
from ugpu.virtual.amd.shader import Outcome, ShaderCore, WavePlace, place_of

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

VMIDS = 16
SH_MEM_CONFIG_DEFAULT = 0xC000
BROADCAST_ALL = 0xE000_0000  # GRBM_GFX_INDEX at power-on

# Per-VMID registers behind GRBM_GFX_CNTL.VMID.
PER_VMID = (
    "SH_MEM_CONFIG",
    "SH_MEM_BASES",
    "SQ_SHADER_TBA_LO",
    "SQ_SHADER_TBA_HI",
    "SQ_SHADER_TMA_LO",
    "SQ_SHADER_TMA_HI",
    "SPI_GDBG_PER_VMID_CNTL",
)


class Gfx(Block):
    """`chip.gfx`: receives AUTOLOAD_RLC from the PSP and doorbells from the bus interface.

    waves: how the state of waves is read.
    """

    waves: ClassVar[WaveRegisters] = WaveRegisters()

    def __init__(
        self, chip: Board, commands: CommandSet, shader_core: Callable[[bool], ShaderCore]
    ) -> None:
        super().__init__(chip, "gc")
        self.table = regs.load(chip.facts.table("GC"))
        self._select_layout = self.table["GRBM_GFX_CNTL"]
        self.select: RegisterValue = self._select_layout.decode(0)
        self._per_vmid: list[dict[str, int]] = [{} for _ in range(VMIDS)]
        self.sdma: list[Sdma] = []  # set by engines.install; each is also a block of the chip
        self.array = ShaderArray(chip, shader_core)
        self.rlc = Rlc(chip)
        self.mec = Mec(self, self.array, commands)
        self.memory_written = self.mec.memory_written
        self.on_write("GRBM_GFX_CNTL", self._choose)
        for name in PER_VMID:
            self.on_read(name, partial(self._read_per_vmid, name))
            self.on_write(name, partial(self._write_per_vmid, name))
        self.on_write("GRBM_SOFT_RESET", self._soft_reset)
        self.on_write("GCVM_CONTEXT0_CNTL", self._context)
        self.on_read("GRBM_STATUS", self._status)
        self.on_read("GRBM_STATUS2", self._status2)
        self.on_read("SQ_IND_DATA", self._wave_data)
        space = chip.space
        space.on_read("smuio", "GOLDEN_TSC_COUNT_LOWER", lambda: clock_ticks() & 0xFFFF_FFFF)
        space.on_read("smuio", "GOLDEN_TSC_COUNT_UPPER", lambda: clock_ticks() >> 32 & 0xFF_FFFF)

    def reset(self, scope: Reset) -> None:
        """Enter the state after a reset of this scope: no firmware, no queues."""
        self._choose(0)
        self._per_vmid = [{"SH_MEM_CONFIG": SH_MEM_CONFIG_DEFAULT} for _ in range(VMIDS)]
        self.set("GRBM_GFX_INDEX", BROADCAST_ALL)
        self.rlc.reset(scope)
        self.mec.reset(scope)

    def stop(self) -> None:
        """Stop all queues."""
        self.mec.stop()

    def close(self) -> None:
        """Join the queues and free the shader core."""
        self.mec.close()
        self.array.close()

    # ---- from other blocks --------------------------------------------------------------------

    def autoload(self) -> None:
        """Start the autoload for AUTOLOAD_RLC."""
        self.rlc.autoload()

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a doorbell write for the MEC; see board.DoorbellTarget."""
        return self.mec.doorbell(dword, value)

    def busy(self) -> bool:
        """Return whether waves, queues or the RLC are busy."""
        return bool(self.array.running > 0 or self.mec.busy() or self.rlc.loading)

    # ---- selects ------------------------------------------------------------------------------

    def _choose(self, value: int) -> None:
        self.select = self._select_layout.decode(value)

    def sh_mem(self, vmid: int, name: str) -> int:
        """Return the value of a per-VMID register for any VMID."""
        return self._per_vmid[vmid].get(name, 0)

    def _read_per_vmid(self, name: str) -> int:
        return self._per_vmid[self.select.VMID].get(name, 0)

    def _write_per_vmid(self, name: str, value: int) -> None:
        self._per_vmid[self.select.VMID][name] = value

    # ---- resets and status --------------------------------------------------------------------

    def _soft_reset(self, value: int) -> None:
        reset = self.chip.space.register("gc", "GRBM_SOFT_RESET").decode(value)
        if reset.SOFT_RESET_CP or reset.SOFT_RESET_CPC or reset.SOFT_RESET_GFX:
            self.mec.reset(Reset.GFX)
        if reset.SOFT_RESET_RLC:
            self.rlc.reset(Reset.GFX)
        for instance, engine in enumerate(self.sdma):
            if reset[f"SOFT_RESET_SDMA{instance}"]:
                engine.reset(Reset.GFX)

    def _context(self, value: int) -> None:
        """Note engines that run while their translation is switched off.

        Drivers halt the engines before that (gfx_v11_0.c and sdma_v6_0.c, hw_fini), or leave
        translation on.
        """
        if value & 1:
            return
        running = [
            f"MEC pipe {pipe}" for pipe in range(len(self.mec.slots)) if self.mec.running(pipe)
        ]
        running += [f"SDMA{engine.instance}" for engine in self.sdma if engine.running()]
        if running:
            self.chip.note(f"GCVM_CONTEXT0 switched off under {', '.join(running)}")

    def _status(self) -> int:
        register = self.chip.space.register("gc", "GRBM_STATUS")
        waves = int(self.array.running > 0)
        busy = int(self.busy())
        return register.encode(SPI_BUSY=waves, ANY_ACTIVE=busy, CP_BUSY=busy, GUI_ACTIVE=busy)

    def _status2(self) -> int:
        register = self.chip.space.register("gc", "GRBM_STATUS2")
        busy = int(self.mec.busy())
        sdma = int(any(engine.busy() for engine in self.sdma))
        return register.encode(
            CPC_BUSY=busy, CPF_BUSY=busy, SDMA_BUSY=sdma, RLC_BUSY=int(self.rlc.loading)
        )

    # ---- waves --------------------------------------------------------------------------------

    def halted_wave(self) -> tuple[Outcome, WavePlace] | None:
        """Return the first halted wave of a hung queue and its place; None if there is none."""
        return next(((wave, place) for _, wave, place in self._halted()), None)

    def _halted(self) -> Iterator[tuple[int, Outcome, WavePlace]]:
        """Yield all halted waves, each with its VMID and place."""
        for queue in self.mec.queues():
            if queue.wave is not None:
                yield queue.vmid, queue.wave, queue.wave_place

    def _wave_data(self) -> int:
        """Read the state of halted and running waves.

        A wave occupies the SIMD of its group, in the slot of its wave number or the next free one.
        If AUTO_INCR is set, the next read returns the next register.
        """
        index = self.fields("SQ_IND_INDEX")
        if index.AUTO_INCR:
            self.set("SQ_IND_INDEX", INDEX=index.INDEX + 1 & 0xFFFF)
        there: dict[int, dict[int, int]] = {}  # slot -> values by index
        for vmid, wave, place in self._halted():
            if self._aimed(place):
                state = self.waves.standing(wave)
                if wave.state is not None:
                    state |= word(wave.state, index.INDEX, index.WORKITEM_ID)
                sit(there, wave.wave, self._id(vmid) | state)
        options = self.chip.options
        sizes = options.shader_engines, options.arrays_per_engine, options.wgps_per_array
        for vmid, one in self.array.waves():
            if self._aimed(place_of(one.group, one.dispatch.groups, sizes)):
                state = self._id(vmid) | self.waves.running(one)
                state |= word(one, index.INDEX, index.WORKITEM_ID)
                sit(there, one.wave, state)
        if index.INDEX == VALID_AND_IDLE:
            return sum(1 << slot for slot in there) & 0xFFFFF
        found = there.get(index.WAVE_ID)
        if found is None:
            return 0
        if index.INDEX == HW_ID1:
            return self._here() | index.WAVE_ID
        return found.get(index.INDEX, 0)

    def _here(self) -> int:
        """Return HW_ID1 of the SIMD selected by GRBM_GFX_INDEX, for slot 0."""
        where = self.fields("GRBM_GFX_INDEX")
        wgp, simd = divmod(where.INSTANCE_INDEX, 4)
        return simd << 8 | wgp << 10 | where.SA_INDEX << 16 | where.SE_INDEX << 18

    def _id(self, vmid: int) -> dict[int, int]:
        """Return HW_ID2; only its VMID field is modelled."""
        return {HW_ID2: vmid << 24}

    def _aimed(self, place: WavePlace) -> bool:
        """Return whether GRBM_GFX_INDEX selects this SIMD."""
        where = self.fields("GRBM_GFX_INDEX")
        at = where.SE_INDEX, where.SA_INDEX, where.INSTANCE_INDEX
        return at == (place.engine, place.array, place.wgp << 2 | place.simd)
