"""The host's processor, as LLVM names it, without the instruction sets that a setting excludes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

from ugpu.hcq.state.config import config

# Processors for which LLVM prefers 256-bit vectors although 512-bit vectors are faster: two 256-bit
# ports work as one 512-bit port beside another one, and clocks do not fall as on Skylake.
# Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Golden Cove". Names are
# LLVM's; measured on a Sapphire Rapids. Zen 4 and 5 are not listed: LLVM uses 512 bits there
# already (measured on Zen 4).
WIDE = frozenset({"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"})

# Processors of Intel's with AVX-512 that precede the first one with TILES. Names are LLVM's.
BEFORE = frozenset({
    "skylake-avx512", "cascadelake", "cooperlake", "cannonlake", "icelake-client",
    "icelake-server", "rocketlake", "tigerlake",
})  # fmt: skip
TILES = ("amx-tile", "avx512fp16")
OLDEST = "sapphirerapids"  # the first processor that has TILES


@cache
def features(without: tuple[str, ...] | None = None) -> dict[str, bool]:
    """Return LLVM's feature names of this processor, each with whether code may use it.

    without: prefixes of names to switch off (default: UGPU_HOST_WITHOUT). AVX10 names are left out:
    LLVM warns about them on processors that have the same instructions as AVX-512.
    """
    excluded = config().host_without if without is None else without
    return {
        name: present and not (excluded and name.startswith(excluded))
        for name, present in llvm.get_host_cpu_features().items()
        if not name.startswith("avx10")
    }


def feature_string(named: dict[str, bool]) -> str:
    """Return features in the format of LLVM's target machines: "+avx2,-avx512f,..."."""
    return ",".join(("+" if present else "-") + name for name, present in sorted(named.items()))


def tuning(cpu: str, named: dict[str, bool]) -> dict[str, bool]:
    """Return LLVM's tuning flags for a processor that has these features."""
    return {"prefer-256-bit": False} if cpu in WIDE and named.get("avx512f") else {}


@cache
def cpu_name() -> str:
    """Return LLVM's name of this processor, which selects the instruction scheduling."""
    return named_by(str(llvm.get_host_cpu_name()), llvm.get_host_cpu_features())


def named_by(model: str, present: Mapping[str, bool]) -> str:
    """Return the name of the processor that has these features, if its model's name is one of an
    older processor, which lacks them: LLVM goes by the model that CPUID reports, which hypervisors
    may set."""
    newer = all(present.get(name) for name in TILES)
    return OLDEST if newer and model in BEFORE else model
