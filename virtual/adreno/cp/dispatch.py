"""Build a dispatch from registers and loaded state.

Source: Mesa 25.0.7 src/freedreno/registers/adreno/a6xx.xml and adreno_pm4.xml; the registers'
meaning in a dispatch, src/freedreno/vulkan/tu_shader.cc and tu_cmd_buffer.cc.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ugpu.qcom.regs import constants
from ugpu.virtual.adreno.cp.state import ProcessorState
from ugpu.virtual.adreno.faults import Cause, GpuFault
from ugpu.virtual.adreno.shader import (
    MOST_CONSTANTS,
    SHARED_CONSTANTS,
    SHARED_CONSTANTS_END,
    Dispatch,
    Table,
)

_INSTRUCTIONS = 16 * 8  # bytes of the unit of SP_CS_INSTRLEN
_USER = "CP_EXEC_CS"
_ST_SHADER, _ST_CONSTANTS, _ST_UBO, _ST_IBO = range(4)
_DIRECT, _BINDLESS, _INDIRECT, _FROM_UBO = range(4)
_CS_TEX, _CS_SHADER, _IBO, _CS_IBO = 5, 13, 14, 15


class ComputeState:
    """State that CP_LOAD_STATE6 has loaded for compute: constants, and tables of constant buffers.

    constants: the constant file. UNSURE: whether it keeps its contents from one submission to the
    next, as here; no document mentions that anything clears it; a board would settle it.
    """

    def __init__(self, constants: NDArray[np.uint32]) -> None:
        self.constants = constants
        self.shared = np.zeros(64, np.uint32)
        self.ubos = Table()

    def load(self, cp: ProcessorState, body: list[int], at: int) -> None:
        """Execute one CP_LOAD_STATE6_FRAG. Prefetches of shaders and descriptors have no effect."""
        if len(body) < 3:
            raise GpuFault(Cause.HANG, f"CP_LOAD_STATE6 with {len(body)} words", at)
        head = cp.packets.CP_LOAD_STATE6_0.decode(body[0])
        address = body[1] & ~3 | body[2] << 32
        kind, block, count = head.STATE_TYPE, head.STATE_BLOCK, head.NUM_UNIT
        first = head.DST_OFF
        if block == _CS_SHADER and kind == _ST_CONSTANTS:
            words = self._words(cp, head.STATE_SRC, body, address, 4 * count, at)
            if 4 * (first + count) > len(self.constants):
                raise GpuFault(Cause.HANG, f"constants c{first} to c{first + count - 1}", at)
            self.constants[4 * first : 4 * first + len(words)] = words
        elif block == _IBO and kind == _ST_UBO and head.STATE_SRC == _DIRECT:
            words = self._words(cp, _DIRECT, body, 0, count, at)
            if first + count > len(self.shared):
                raise GpuFault(Cause.HANG, f"shared constants {first} to {first + count}", at)
            self.shared[first : first + count] = words
        elif block == _CS_SHADER and kind == _ST_UBO and head.STATE_SRC == _INDIRECT:
            self.ubos = Table(address - 8 * first, first + count)
        elif block == _CS_SHADER and kind == _ST_UBO and head.STATE_SRC == _DIRECT:
            if len(body) != 3 + 2 * count:
                raise GpuFault(Cause.HANG, f"{count} descriptors in {len(body) - 3} words", at)
            place = cp.scratch(8 * first, body[3:])
            self.ubos = Table(place, first + count)
        elif kind == _ST_SHADER and block == _CS_SHADER and head.STATE_SRC == _INDIRECT:
            cp.space.read(address, _INSTRUCTIONS * count, "CP_LOAD_STATE6 (shader)")
        elif head.STATE_SRC == _DIRECT or (block == _CS_SHADER and kind == _ST_UBO):
            raise cp.gap(f"CP_LOAD_STATE6 type {kind} source {head.STATE_SRC} block {block}", at)

    def _words(
        self, cp: ProcessorState, source: int, body: list[int], address: int, count: int, at: int
    ) -> list[int]:
        if source == _DIRECT:
            if len(body) != 3 + count:
                raise GpuFault(
                    Cause.HANG,
                    f"CP_LOAD_STATE6 with {len(body) - 3} words of data, NUM_UNIT requires {count}",
                    at,
                )
            return body[3:]
        if source == _INDIRECT:
            return cp.words(address, count)
        raise cp.gap(f"CP_LOAD_STATE6 source {source}", at)


def decode(
    cp: ProcessorState, compute: ComputeState, groups: tuple[int, int, int], at: int
) -> Dispatch:
    """Return the dispatch that the current state describes. at: address of the packet, for
    faults."""
    facts, state = cp.machine.facts, cp.registers
    control = state.get("SP_CS_CTRL_REG0", _USER)
    config = state.get("SP_CS_CONFIG", _USER)
    if not config.ENABLED:
        raise GpuFault(Cause.HANG, "CP_EXEC_CS while SP_CS_CONFIG.ENABLED is 0", at)
    limit = state.get("HLSQ_CS_CNTL", _USER)
    if not limit.ENABLED:
        raise GpuFault(Cause.HANG, "CP_EXEC_CS while HLSQ_CS_CNTL.ENABLED is 0", at)
    names = ("HLSQ_CS_CNTL_0", "HLSQ_CS_CNTL_1")
    if facts.generation == 7:
        names = ("SP_CS_CNTL_0", "SP_CS_CNTL_1")
    places, more = (state.get(name, _USER) for name in names)
    size = state.get("HLSQ_CS_NDRANGE_0", _USER)
    threads = (size.LOCALSIZEX + 1, size.LOCALSIZEY + 1, size.LOCALSIZEZ + 1)
    _check_range(cp, groups, threads)
    shift = constants(f"a{facts.generation}xx").SP_CS_PVT_MEM_PARAM__MEMSIZEPERITEM__SHR
    private = state.get("SP_CS_PVT_MEM_PARAM", _USER).MEMSIZEPERITEM << shift
    layout = state.get("SP_CS_PVT_MEM_SIZE", _USER)
    local = state.get("SP_CS_CTRL_REG1", _USER).SHARED_SIZE + 1 << 10
    if local > facts.local_memory:
        raise GpuFault(Cause.HANG, f"{local} bytes of local memory, {facts.name} has less", at)
    values = compute.constants.copy()
    shared = state.optional("HLSQ_SHARED_CONSTS")
    if shared is not None and shared.ENABLE:
        values[SHARED_CONSTANTS:SHARED_CONSTANTS_END] = compute.shared[:32]
    # Boards read the whole file where CONSTLEN is 0: tinygrad's KGSL driver writes 256 into its
    # eight bits, which leaves 0, and its kernels read their constants on a Snapdragon 845.
    constant_limit = 4 * (limit.CONSTLEN << 2) or MOST_CONSTANTS
    return Dispatch(
        gpu_id=facts.gpu_id or 100 * facts.generation,
        code_address=state.pair("SP_CS_OBJ_START", _USER),
        code_size=int(state.get("SP_CS_INSTRLEN", _USER)) * _INSTRUCTIONS,
        groups=groups,
        threads=threads,
        thread_size=facts.wave_base << control.THREADSIZE,
        full_registers=control.FULLREGFOOTPRINT,
        half_registers=control.HALFREGFOOTPRINT,
        merged_registers=bool(control.MERGEDREGS),
        branch_stack=control.BRANCHSTACK,
        group_register=places.WGIDCONSTID,
        thread_register=places.LOCALIDREGID,
        linear_register=more.LINEARLOCALIDREGID,
        constants=values,
        constant_limit=constant_limit,
        shared_constants=shared is not None and bool(shared.ENABLE),
        ubos=compute.ubos,
        uavs=_table(cp, "SP_CS_IBO", config.NIBO, config.BINDLESS_IBO),
        textures=_table(cp, "SP_CS_TEX_CONST", config.NTEX, config.BINDLESS_TEX),
        samplers=_table(cp, "SP_CS_TEX_SAMP", config.NSAMP, config.BINDLESS_SAMP),
        border_colours=_border(cp),
        bindless=_bindless(cp),
        local_size=local,
        private_base=state.pair("SP_CS_PVT_MEM_ADDR", _USER) if private else 0,
        private_size=private,
        private_per_wave=bool(layout.PERWAVEMEMLAYOUT),
        private_stride=layout.TOTALPVTMEMSIZE << 12,
        early_preamble=bool(control.EARLYPREAMBLE),
        scalar_unit=facts.scalar_unit,
        predication_nops=facts.predication_nops,
        immediates=_immediates(cp),
    )


def _check_range(
    cp: ProcessorState, groups: tuple[int, int, int], threads: tuple[int, int, int]
) -> None:
    """Check HLSQ_CS_NDRANGE_1.., the grid in threads; a driver that does not set them gets wrong
    ids."""
    for axis, name in enumerate(("X", "Y", "Z")):
        wanted = cp.registers.optional(f"HLSQ_CS_NDRANGE_{1 + 2 * axis}")
        if wanted is None or cp.indirect:
            continue
        if int(wanted) != groups[axis] * threads[axis]:
            cp.machine.violate(
                f"HLSQ_CS_NDRANGE is {int(wanted)} threads along {name}, CP_EXEC_CS runs "
                f"{groups[axis]} groups of {threads[axis]}"
            )


def _table(cp: ProcessorState, name: str, count: int, bindless: int) -> Table:
    """Return the descriptors outside of sets. turnip's count includes those in sets, and it then
    writes no address: an instruction that selects one outside of sets finds none."""
    if not count or (bindless and cp.registers.optional(f"{name}_LO") is None):
        return Table()
    return Table(cp.registers.pair(name, _USER), count)


def _border(cp: ProcessorState) -> int:
    names = ("SP_TP_BORDER_COLOR_BASE_ADDR", "TPL1_BORDER_COLOR_BASE_ADDR")
    for name in names:
        low, high = (cp.registers.optional(f"{name}_{half}") for half in ("LO", "HI"))
        if low is not None and high is not None:
            return int(low) | int(high) << 32
    return 0


def _bindless(cp: ProcessorState) -> tuple[int, ...]:
    found = []
    for number in range(8 if cp.machine.facts.generation == 7 else 5):
        name = f"SP_CS_BINDLESS_BASE_{number}_DESCRIPTOR"
        low, high = (cp.registers.optional(f"{name}_{half}") for half in ("LO", "HI"))
        address = int(low or 0) | int(high or 0) << 32
        if address & 3 == 1:
            raise cp.gap("descriptor sets of 16-byte descriptors", 0)
        found.append(address & ~0x3F)
    return tuple(found)


def _immediates(cp: ProcessorState) -> tuple[int, ...]:
    if cp.machine.facts.generation == 6:
        return ()
    first = cp.registers.map["HLSQ_SHARED_CONSTS_IMM_0"].offset
    return tuple(cp.registers.values.get(first + number, 0) for number in range(64))
