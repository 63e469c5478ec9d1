"""What a compiler must know of a device: data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TargetSpec:
    """A code generation target. Sizes are bytes, counts are per compute unit unless said otherwise.

    `abi` names the calling convention of kernels:
    - "amdhsa": ELF code object, kernel descriptors `<name>.kd`, explicit arguments in the kernarg
      segment at natural alignment.
    - "host": relocatable ELF for this machine. A kernel is
      `void name(ptr kernarg, ptr launch)`, where launch points to hcq.cpu's HostLaunch
      {u64 first_group, u64 last_group, u32 grid[3], u32 block[3]}; it runs the flat group numbers
      [first, last), x fastest. A data symbol `<name>.ugpu` {u32 version=1, u32 kernarg_size} marks
      it.
    """

    name: str
    abi: str
    triple: str
    cpu: str
    features: str = ""
    wave_size: int = 1
    max_threads_per_group: int = 1
    local_memory: int = 0
    compute_units: int = 1
    vector_bytes: int = 16  # what one load moves at best, per thread
    has_matrix_f16: bool = False
    extra: dict[str, int] = field(default_factory=dict, compare=False)
