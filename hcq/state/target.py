"""Properties of a device that a compiler needs: data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Caches:
    """Data caches that belong to one host core. Zen 4's values if unknown.

    Attributes:
        first: bytes of the first level.
        second: bytes of the second level.
    """

    first: int = 32 << 10
    second: int = 1 << 20

    @property
    def far(self) -> int:
        """Bytes of an array from which on it is assumed to come from beyond the second level: other
        kernels of a program, which ran since it was last read, have used these caches too."""
        return self.second // 8


@dataclass(frozen=True)
class TargetSpec:
    """A code generation target. Sizes are bytes; counts are per compute unit unless stated
    otherwise.

    `abi` names the calling convention of kernels:
    - "amdhsa": ELF code object, kernel descriptors `<name>.kd`, explicit arguments in the kernarg
      segment at natural alignment.
    - "host": relocatable ELF for this machine. A kernel is
      `void name(ptr kernarg, ptr launch)`, where launch points to hcq.cpu's HostLaunch
      {u64 first_group, u64 last_group, u32 grid[3], u32 block[3]}; it runs the flat group numbers
      [first, last), x fastest. A data symbol `<name>.ugpu` marks
      it and declares its arguments (hcq.cpu.mark).
    - "ptx": PTX text in UTF-8. A kernel is a `.visible .entry` whose parameters are `.param`s at
      natural alignment in declared order (pointers are .u64 to .global), with its threads in
      `.reqntid`; shared memory is static, or one `.extern .shared` array whose size the launch
      gives. The driver has it assembled for its GPU.
    - "ir3": an object of hcq.objects.ir3_object, launched in groups of at most as many threads as a
      kernel was compiled for. Parameters are in the constant file at natural alignment.
      cpu and features are those of `adreno_target`.

    Attributes:
        name: of the processor, for people.
        abi: see above.
        triple: as LLVM names it.
        cpu: as LLVM or PTX names it.
        features: as LLVM takes them.
        wave_size: threads of a wave.
        max_threads_per_group: the most that a launch may have.
        local_memory: per group, static.
        dynamic_local_memory: per group that takes a share of it dynamically (`Queue.launch`),
            static and dynamic together; 0 if launches cannot have any.
        max_cluster: the most groups that a launch can run together as a cluster; 0 if unsupported.
        cooperative: whether launches can run all of their groups at the same time.
        compute_units: number on the device.
        max_grid: groups per axis.
        vector_bytes: the most that one load moves, per thread.
        matrix: family of matrix instructions, see `matrix_family`.
        caches: of a host's core.
        quick: whether kernels are compiled with few of LLVM's passes, in half the time.
        extra: further facts by name, which comparisons ignore.
    """

    name: str
    abi: str
    triple: str
    cpu: str
    features: str = ""
    wave_size: int = 1
    max_threads_per_group: int = 1
    local_memory: int = 0
    dynamic_local_memory: int = 0
    max_cluster: int = 0
    cooperative: bool = False
    compute_units: int = 1
    max_grid: tuple[int, int, int] = ((1 << 31) - 1,) * 3
    vector_bytes: int = 16
    matrix: str = ""
    caches: Caches = Caches()
    quick: bool = False
    extra: dict[str, int] = field(default_factory=dict, compare=False)


# Processors, and the first one that has the same matrix instructions. RDNA3 and RDNA4 ISA
# documents; CDNA3 and CDNA4 ISA documents; PTX ISA, "mma" (m16n8k16 of 16-bit floats needs sm_80,
# m16n8k32 of float8 sm_89).
MATRIX_FAMILIES = {
    "gfx1100": "gfx11", "gfx1101": "gfx11", "gfx1102": "gfx11",
    "gfx1200": "gfx12", "gfx1201": "gfx12",
    "gfx942": "gfx942", "gfx950": "gfx950",
}  # fmt: skip


def matrix_family(cpu: str) -> str:
    """Return the family of matrix instructions of a processor, as LLVM names it; "" if unknown."""
    if cpu == "sm_90a":
        return "sm_90a"  # and sm_89's
    if cpu.startswith("sm_"):
        number = int(cpu[3:].rstrip("af"))
        return "sm_89" if number >= 89 else "sm_80" if number >= 80 else ""
    return MATRIX_FAMILIES.get(cpu, "")


PTX_STATIC_SHARED = 48 << 10  # PTX ISA: more shared memory than this has to be dynamic
# Maximum shared memory of a group in KiB, by compute capability; others have that of the nearest
# lower one. CUDA C++ Programming Guide, "Compute Capabilities".
PTX_DYNAMIC_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99}
# Groups of a cluster, in the same way. 8 anywhere: CUDA C++ Programming Guide, "Thread Block
# Clusters"; 16: Hopper and Blackwell Tuning Guides, of H100 and B200.
PTX_CLUSTERS = {75: 0, 90: 16, 110: 8}
PTX_MAX_GRID = ((1 << 31) - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities"


def ptx_target(cpu: str, compute_units: int = 1) -> TargetSpec:
    """Return the target of an NVIDIA GPU. cpu: its architecture as PTX names it, from "sm_75" on;
    "sm_90a" and "sm_100a" include features that only that architecture has. compute_units: its
    multiprocessors."""
    number = int(cpu[3:].rstrip("af"))
    shared = max((processor for processor in PTX_DYNAMIC_SHARED if processor <= number), default=75)
    clusters = max((processor for processor in PTX_CLUSTERS if processor <= number), default=75)
    return TargetSpec(
        name=cpu,
        abi="ptx",
        triple="nvptx64-nvidia-cuda",
        cpu=cpu,
        wave_size=32,
        max_threads_per_group=1024,
        local_memory=PTX_STATIC_SHARED,
        dynamic_local_memory=PTX_DYNAMIC_SHARED[shared] << 10,
        max_cluster=PTX_CLUSTERS[clusters],
        cooperative=True,
        compute_units=compute_units,
        max_grid=PTX_MAX_GRID,
        matrix=matrix_family(cpu),
    )


_WIDE_ATOMICS = ",atomics64"


def adreno_target(
    name: str,
    chip_id: int,
    generation: int,
    local_memory: int,
    compute_units: int = 1,
    *,
    wide_atomics: bool = False,
) -> TargetSpec:
    """Return the target of an Adreno GPU of generation 6 or 7. chip_id: as its kernel driver
    reports it. wide_atomics: atomics on 64 bits of global memory. Turnip's limits: 1,024 threads
    per group, 65,535 groups along an axis."""
    return TargetSpec(
        name=f"adreno-{name}",
        abi="ir3",
        triple="adreno",
        cpu=f"gen{generation}",
        features=f"chip={chip_id:#x}{_WIDE_ATOMICS if wide_atomics else ''}",
        wave_size=64,
        max_threads_per_group=1024,
        local_memory=local_memory,
        compute_units=compute_units,
        max_grid=(65535,) * 3,
    )


def adreno_chip(target: TargetSpec) -> tuple[int, int]:
    """Return the chip id and generation of a target made by `adreno_target`."""
    chip_id = target.features.removeprefix("chip=").removesuffix(_WIDE_ATOMICS)
    return int(chip_id, 16), int(target.cpu.removeprefix("gen"))


def adreno_wide_atomics(target: TargetSpec) -> bool:
    """Return whether a target made by `adreno_target` has 64-bit atomics."""
    return target.features.endswith(_WIDE_ATOMICS)
