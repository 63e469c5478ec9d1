"""Turn a queue's COMPUTE_* registers into a launch of shader waves, or report why SPI cannot.

Sources: Linux 6.12 gc_11_0_0_sh_mask.h (fields), RDNA3 ISA document section 3 (wave state, register
allocation), LLVM AMDGPUUsage (COMPUTE_PGM_RSRC1..3 of gfx11: granules of VGPRs and LDS, user
SGPRs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ugpu.hcq.registers.fields import Register, RegisterMap
from ugpu.virtual.amd.engines.cp.pm4.packets import SH_REGISTERS
from ugpu.virtual.amd.shader import Dispatch

GC_SEGMENT0 = 0x1260  # base of the SH registers, implied by SET_SH_REG's numbering
SH_COUNT = len(SH_REGISTERS)
USER_DATA_COUNT = 16
SHADER_ENGINES = 6

MAXIMUM_THREADS = 1024
LDS_GRANULE = 512
LDS_LIMIT = 65536  # bytes per workgroup
SCRATCH_GRANULE = 256
# Vector registers per lane of a SIMD -> allocation granule, wave32; both are halved in wave64
# (LLVM AMDGPUBaseInfo.cpp, getVGPRAllocGranule; gfx1100 and gfx1101 have the larger file).
GRANULES = {1536: 24, 1024: 16}
SIMD_WAVES = 16
SIMDS = {False: 2, True: 4}  # CU mode, WGP mode
MEMORY = 4096  # number of valid register settings that are cached
LAUNCHES = 1024  # number of launches that are cached: more than a replayed program has


class BadDispatch(Exception):
    """The launch never happens: SPI waits forever for resources that cannot exist."""


@dataclass(frozen=True, slots=True)
class ShadowRegister:
    """A compute register inside a queue's SH state."""

    name: str
    register: Register
    undefined: int


class ShRegisters:
    """Locations of the compute registers in SH space (0x2C00 to 0x2FFF); shared by all queues and
    chips with the same register table, see `of`.

    A queue's own values are a list of SH_COUNT integers, indexed as in `SET_SH_REG`.
    """

    @staticmethod
    @cache
    def of(table: RegisterMap) -> ShRegisters:
        """Return the compute registers of a table."""
        return ShRegisters(table)

    def __init__(self, table: RegisterMap) -> None:
        self.known: dict[int, ShadowRegister] = {}
        self.undefined = [0xFFFF_FFFF] * SH_COUNT  # bits that must be written as zero
        self._at: dict[str, int] = {}
        for name in table:
            if not name.startswith("COMPUTE_") or "DESTINATION_EN" in name:
                continue
            register = table[name]
            index = register.offset + GC_SEGMENT0 - SH_REGISTERS.start
            if register.segment != 0 or not 0 <= index < SH_COUNT:
                continue
            defined = register.defined
            undefined = 0xFFFF_FFFF & ~defined if defined else 0
            self.known[index] = ShadowRegister(name, register, undefined)
            self.undefined[index] = undefined
            self._at[name] = index

    def at(self, name: str) -> int:
        """Return the index of a register within a queue's SH state."""
        return self._at[name]

    def items(self) -> Mapping[str, int]:
        """Return all compute registers as a mapping of name to index."""
        return self._at

    def power_on(self) -> list[int]:
        """Return a queue's SH state after reset: zeros, with all CUs on (gc_11_0_0_default.h)."""
        values = [0] * SH_COUNT
        for engine in range(8):
            values[self._at[f"COMPUTE_STATIC_THREAD_MGMT_SE{engine}"]] = 0xFFFF_FFFF
        return values


class Shape(NamedTuple):
    """Properties of a launch from checked registers, except its grid and addresses."""

    threads: tuple[int, int, int]
    wave32: bool
    dims_are_threads: bool
    scratch_wave_size: int
    scratch_waves: int


class Launcher:
    """Build the Dispatch of a queue from its registers, whose indices it looks up once."""

    def __init__(self, registers: ShRegisters, vector_registers: int) -> None:
        self._vector_registers = vector_registers
        at = registers.at
        self._initiator = registers.known[at("COMPUTE_DISPATCH_INITIATOR")].register
        self._rsrc1 = registers.known[at("COMPUTE_PGM_RSRC1")].register
        self._rsrc2 = registers.known[at("COMPUTE_PGM_RSRC2")].register
        # GFX 12: a wave asks for vector registers while it runs. GFX 11 has the trap handler there.
        self._dynamic = "DYNAMIC_VGPR" in self._rsrc2.fields
        self._ring = registers.known[at("COMPUTE_TMPRING_SIZE")].register
        self._rsrc1_at = at("COMPUTE_PGM_RSRC1")
        self._rsrc2_at = at("COMPUTE_PGM_RSRC2")
        self._rsrc3_at = at("COMPUTE_PGM_RSRC3")
        self._ring_at = at("COMPUTE_TMPRING_SIZE")
        self._code_at = at("COMPUTE_PGM_LO")
        self._scratch_at = at("COMPUTE_DISPATCH_SCRATCH_BASE_LO")
        self._threads_at = at("COMPUTE_NUM_THREAD_X")
        self._start_at = at("COMPUTE_START_X")
        self._user_at = at("COMPUTE_USER_DATA_0")
        self._initiator_at = at("COMPUTE_DISPATCH_INITIATOR")
        self._dim_at = at("COMPUTE_DIM_X")
        self._restart_at = at("COMPUTE_RESTART_X")
        # The registers that `_check` reads, with the code address, form two contiguous ranges.
        self._last_at = at("COMPUTE_RESTART_Z") + 1
        self._more_at = at("COMPUTE_STATIC_THREAD_MGMT_SE4")
        self._more_last = at("COMPUTE_STATIC_THREAD_MGMT_SE7") + 1
        self._sound: dict[tuple[int, ...], Shape] = {}
        # A launch depends on no other registers than those in this range, and on the apertures.
        self._every = slice(self._initiator_at, self._user_at + USER_DATA_COUNT)
        self._launches: dict[tuple[int, ...], Dispatch | None] = {}
        self._enabled_at = tuple(
            at(f"COMPUTE_STATIC_THREAD_MGMT_SE{engine}") for engine in range(SHADER_ENGINES)
        )

    def build(
        self,
        sh: list[int],
        dims: Sequence[int],
        initiator: int,
        shared_aperture: int,
        private_aperture: int,
    ) -> Dispatch | None:
        """Latch dims and initiator into `sh`; return the launch, or None for zero waves.

        dims: payload of DISPATCH_DIRECT. Apertures are base addresses. From their second time on,
        equal registers give the same object, by which a shader core recognises a launch that it has
        checked before. Raises BadDispatch.
        """
        sh[self._dim_at : self._dim_at + 3] = dims
        sh[self._initiator_at] = initiator
        key = (shared_aperture, private_aperture, *sh[self._every])
        launch = self._launches.get(key)
        if launch is not None:
            return launch
        repeats = key in self._launches
        launch = self._new(sh, dims, initiator, shared_aperture, private_aperture, repeats)
        if len(self._launches) > LAUNCHES:
            self._launches.clear()
        self._launches[key] = launch if repeats else None
        return launch

    def _new(
        self,
        sh: list[int],
        dims: Sequence[int],
        initiator: int,
        shared_aperture: int,
        private_aperture: int,
        repeats: bool,
    ) -> Dispatch | None:
        key = (initiator, *sh[self._start_at : self._last_at], *sh[self._more_at : self._more_last])
        shape = self._sound.get(key)
        if shape is None:
            shape = self._check(sh, initiator)
            if len(self._sound) > MEMORY:
                self._sound.clear()
            self._sound[key] = shape
        groups = self._groups(dims, shape)
        if not all(groups):
            return None
        at = self._code_at
        scratch = self._scratch_at
        return Dispatch(
            code_address=(sh[at] | (sh[at + 1] & 0xFF) << 32) << 8,
            groups=groups,
            threads=shape.threads,
            rsrc1=sh[self._rsrc1_at],
            rsrc2=sh[self._rsrc2_at],
            rsrc3=sh[self._rsrc3_at],
            user_data=tuple(sh[self._user_at : self._user_at + USER_DATA_COUNT]),
            wave32=shape.wave32,
            scratch_base=(sh[scratch] | (sh[scratch + 1] & 0xFF) << 32) << 8,
            scratch_wave_size=shape.scratch_wave_size,
            scratch_waves=shape.scratch_waves,
            shared_aperture=shared_aperture,
            private_aperture=private_aperture,
            repeats=repeats,
        )

    def _check(self, sh: list[int], initiator: int) -> Shape:
        """Check all registers except the grid."""
        flags = self._initiator.decode(initiator)
        if not flags.COMPUTE_SHADER_EN:
            raise BadDispatch(
                "COMPUTE_DISPATCH_INITIATOR.COMPUTE_SHADER_EN must be 1 to launch, got 0"
            )
        for name in ("ORDERED_APPEND_ENBL", "PARTIAL_TG_EN", "RESTORE", "AMP_SHADER_EN"):
            if flags[name]:
                raise BadDispatch(f"initiator {name} is not modelled")
        threads = self._threads(sh)
        if not flags.FORCE_START_AT_000 and any(sh[self._start_at : self._start_at + 3]):
            raise BadDispatch("COMPUTE_START is not zero: a start inside the grid is not modelled")
        if any(sh[self._restart_at : self._restart_at + 3]):
            raise BadDispatch("COMPUTE_RESTART is not zero: resuming a grid is not modelled")
        wave32 = bool(flags.CS_W32_EN)
        self._check_resources(sh, threads, wave32)
        ring = self._ring.decode(sh[self._ring_at])
        if sh[self._rsrc2_at] & 1 and not (ring.WAVESIZE and ring.WAVES):
            raise BadDispatch(f"SCRATCH_EN is set, but COMPUTE_TMPRING_SIZE is {ring!r}")
        return Shape(
            threads,
            wave32,
            bool(flags.USE_THREAD_DIMENSIONS),
            ring.WAVESIZE * SCRATCH_GRANULE,
            ring.WAVES,
        )

    def _threads(self, sh: list[int]) -> tuple[int, int, int]:
        full = [value & 0xFFFF for value in sh[self._threads_at : self._threads_at + 3]]
        threads = (full[0], full[1], full[2])
        product = threads[0] * threads[1] * threads[2]
        if not 1 <= product <= MAXIMUM_THREADS:
            raise BadDispatch(
                f"COMPUTE_NUM_THREAD {threads[0]}x{threads[1]}x{threads[2]} is {product} threads, "
                f"a workgroup has 1 to {MAXIMUM_THREADS}"
            )
        return threads

    def _groups(self, dims: Sequence[int], shape: Shape) -> tuple[int, int, int]:
        if not shape.dims_are_threads:
            return dims[0], dims[1], dims[2]
        groups = []
        for axis in range(3):
            count, rest = divmod(dims[axis], shape.threads[axis])
            if rest:
                raise BadDispatch(
                    f"{dims[axis]} threads on axis {axis} leave a partial workgroup, "
                    "but PARTIAL_TG_EN is 0"
                )
            groups.append(count)
        return groups[0], groups[1], groups[2]

    def _check_resources(self, sh: list[int], threads: tuple[int, int, int], wave32: bool) -> None:
        if not any(sh[index] for index in self._enabled_at):
            raise BadDispatch("COMPUTE_STATIC_THREAD_MGMT enables no compute unit")
        rsrc1 = self._rsrc1.decode(sh[self._rsrc1_at])
        rsrc2 = self._rsrc2.decode(sh[self._rsrc2_at])
        if self._dynamic and rsrc2.DYNAMIC_VGPR:
            raise BadDispatch("RSRC2.DYNAMIC_VGPR: dynamic vector registers are not modelled")
        if rsrc2.USER_SGPR > USER_DATA_COUNT:
            raise BadDispatch(
                f"RSRC2.USER_SGPR must be at most {USER_DATA_COUNT}, got {rsrc2.USER_SGPR}"
            )
        lds = rsrc2.LDS_SIZE * LDS_GRANULE
        if lds > LDS_LIMIT:
            raise BadDispatch(f"requested {lds} bytes of LDS, a workgroup has at most {LDS_LIMIT}")
        # The encoding granule is 8 registers (wave32) or 4 (wave64).
        file, granule = self._vector_registers, GRANULES[self._vector_registers]
        encoded = 8
        if not wave32:
            encoded, file, granule = encoded // 2, file // 2, granule // 2
        vgprs = (rsrc1.VGPRS + 1) * encoded
        if vgprs > 256:
            raise BadDispatch(f"requested {vgprs} VGPRs, a wave has at most 256")
        wave = 32 if wave32 else 64
        waves = -(-threads[0] * threads[1] * threads[2] // wave)
        allocated = -(-vgprs // granule) * granule
        per_simd = min(SIMD_WAVES, file // allocated)
        slots = per_simd * SIMDS[bool(rsrc1.WGP_MODE)]
        if waves > slots:
            raise BadDispatch(
                f"a workgroup of {waves} waves with {vgprs} VGPRs each needs more registers than "
                f"{'a WGP' if rsrc1.WGP_MODE else 'a CU'} has ({slots} such waves fit)"
            )
