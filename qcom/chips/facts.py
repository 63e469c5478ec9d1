"""Facts that differ between Adreno GPUs, shared by the driver and the models."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.hcq.state.target import TargetSpec, adreno_target


@dataclass(frozen=True)
class ChipFacts:
    """One GPU. Sizes are bytes.

    name: as in Mesa ("a630"). gpu_id: three digits, as Mesa numbers it; 0 where it has none.
    chip_ids: ids that kernel drivers report, the usual one first. generation: 6 or 7, which
    determines registers and packets; step: within the generation, as Linux counts. registers: vec4
    of the register file that a wave's threads share, at its base size. wave_base: threads of a
    single wave; a double one has twice as many. max_waves: of a shader processor. wave_granularity:
    waves that run as one. constants: vec4 of a compute kernel's constant file. fibers: threads per
    shader processor for which private memory is laid out. gmem: on-chip memory. scalar_unit: a
    separate arithmetic unit executes instructions on shared registers. predication_nops: code must
    have nops after `prede` and after the second of `predt` and `predf` (prede_nop_quirk,
    predtf_nop_quirk in Mesa). has_lpac: compute has registers of its own, in addition to those it
    shares with graphics. wide_atomics: atomics on 64 bits of global memory (has_64b_ssbo_atomics in
    Mesa). settings: chip-specific values of registers that a command stream must set ("magic_regs"
    in Mesa's freedreno_devices.py); only those of compute. register_base: address of the registers
    in the host's memory (gpu@ in Linux' arch/arm64/boot/dts/qcom), which is part of the GPU's name
    in sysfs.
    products: products that contain it.
    """

    name: str
    gpu_id: int
    chip_ids: tuple[int, ...]
    generation: int
    step: int
    shader_processors: int
    registers: int
    wave_base: int
    max_waves: int
    wave_granularity: int
    constants: int
    local_memory: int
    fibers: int
    instruction_cache: int
    gmem: int
    highest_bank_bit: int
    scalar_unit: bool = False
    predication_nops: bool = False
    has_lpac: bool = False
    wide_atomics: bool = False
    settings: tuple[tuple[str, int], ...] = ()
    register_base: int = 0x3D0_0000
    products: tuple[str, ...] = ()
    proven: str = ""

    def target(self) -> TargetSpec:
        """Return the compiler's target."""
        return adreno_target(
            self.name, self.chip_ids[0], self.generation, self.local_memory, self.shader_processors,
            wide_atomics=self.wide_atomics,
        )  # fmt: skip
