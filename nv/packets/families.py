"""Differences between NVIDIA's generations that matter for launches.

A generation is identified by its compute class, a chip within it by its compute capability.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace
from functools import cache

from ugpu.hcq.errors import NotSupported
from ugpu.nv import chips
from ugpu.nv.chips.facts import ChipFacts


@dataclass(frozen=True)
class BankLayout:
    """Byte offsets in constant bank 0 of the values that code expects from the driver.

    block, grid: three 32-bit sizes each. shared_window, local_window: 64-bit addresses. stack: the
    32-bit offset in the local window where a thread's stack starts; it grows downwards.
    environment: the words of %envreg0, %envreg1 and so on.
    """

    block: int
    grid: int
    shared_window: int
    local_window: int
    stack: int
    environment: int
    cluster: ClusterWords | None = None


@dataclass(frozen=True)
class ClusterWords:
    """Byte offsets in constant bank 0 of the values that code reads about clusters.

    explicit: a 32-bit word, whether the launch gives the cluster size. groups: three 32-bit sizes
    of a cluster. reciprocals: of the second and the third size as f32; code uses them to divide.
    clusters: three 32-bit sizes of the grid in clusters. count: 32 bits, groups of a cluster.
    """

    explicit: int
    groups: int
    reciprocals: int
    clusters: int
    count: int


# Observed in the code that nvJitLink 13.5.37 generates for each architecture: the words of constant
# bank 0 that %ntid, %nctaid, cvta, the stack's set-up, %is_explicit_cluster, %cluster_nctaid,
# %clusterid, %nclusterid and %cluster_nctarank load.
_BANK_TURING = BankLayout(
    block=0x0, grid=0xC, shared_window=0x18, local_window=0x20, stack=0x28, environment=0x88
)
# Words that code reads and the driver leaves 0: the memory descriptor of LDG and STG (0x118 from
# sm_80, 0x208 on sm_90, 0x358 from sm_100). CUDA writes 0 there on an H100 (maxime-peim/
# libcuda-research, "Compute kernel launch"), and tinygrad's ops_nv.py leaves it 0 on boards of
# sm_8x and sm_120.
# %envreg: ptxas 13.5.37 generates loads of these words; 1 and 2 hold the address of a grid's
# workspace (nv.packets.cooperative). UNSURE: 0xd0 of sm_90 (a bound that isspacep.global compares
# with): the value that CUDA writes there would settle it; lab.hw.first_contact records it.
_BANK_HOPPER = replace(
    _BANK_TURING,
    environment=0x40,
    cluster=ClusterWords(
        explicit=0x140, groups=0x144, reciprocals=0x154, clusters=0x15C, count=0x188
    ),
)
_BANK_BLACKWELL = BankLayout(
    block=0x360,
    grid=0x370,
    shared_window=0x2F0,
    local_window=0x2F8,
    stack=0x37C,
    environment=0x250,
    cluster=ClusterWords(
        explicit=0x36C, groups=0x2A0, reciprocals=0x2B4, clusters=0x2C0, count=0x2CC
    ),
)

STACK_START = 0xFFFDC0  # in the 16 MiB local window; the 0x240 bytes above it are the system's
STACK_RESERVED = 0x240


@dataclass(frozen=True)
class Family:
    """One generation.

    compute_class: its name in the resource manager. qmd: the descriptor's version. reserved_shared:
    bytes of each group's shared memory that the system takes. grid_type: value of QMD_TYPE, in
    versions that have it, for a launch without clusters. With GRID_CTA an H100 and an H200 ran
    kernels; with 0, the value that Mesa's NVK leaves (qmd.rs, Qmd4_0), an H100 ran nothing.
    """

    name: str
    compute_class: str
    qmd: str
    bank: BankLayout
    reserved_shared: int
    grid_type: int | str = "GRID_CTA"


# Newest first. Reserved shared memory: CUDA C++ Programming Guide 12.9, "Shared Memory" of compute
# capability 8.x on.
FAMILIES = (
    Family("blackwell", "BLACKWELL_COMPUTE_B", "5.0", _BANK_BLACKWELL, 1024),
    Family("blackwell", "BLACKWELL_COMPUTE_A", "5.0", _BANK_BLACKWELL, 1024),
    Family("hopper", "HOPPER_COMPUTE_A", "4.0", _BANK_HOPPER, 1024),
    Family("ada", "ADA_COMPUTE_A", "3.0", _BANK_TURING, 1024),
    Family("ampere", "AMPERE_COMPUTE_B", "3.0", _BANK_TURING, 1024),
    Family("ampere", "AMPERE_COMPUTE_A", "3.0", _BANK_TURING, 1024),
    Family("turing", "TURING_COMPUTE_A", "2.3", _BANK_TURING, 0),
)
COPY_CLASSES = (
    "BLACKWELL_DMA_COPY_B",
    "BLACKWELL_DMA_COPY_A",
    "HOPPER_DMA_COPY_A",
    "AMPERE_DMA_COPY_B",
    "AMPERE_DMA_COPY_A",
    "TURING_DMA_COPY_A",
)


@cache
def all_facts() -> tuple[ChipFacts, ...]:
    """The facts of every chip that has a folder."""
    found = []
    for entry in pkgutil.iter_modules(chips.__path__):
        if entry.ispkg:
            module = importlib.import_module(f"{chips.__name__}.{entry.name}.facts")
            found.append(module.FACTS)
    return tuple(found)


def facts_of(capability: tuple[int, int]) -> ChipFacts:
    """The facts of the nearest chip: same major capability, highest minor that is not above."""
    major, minor = capability
    near = [
        facts
        for facts in all_facts()
        if facts.compute_capability[0] == major and facts.compute_capability[1] <= minor
    ]
    if not near:
        raise NotSupported(f"compute capability {major}.{minor} is not supported")
    return max(near, key=lambda facts: facts.compute_capability)
