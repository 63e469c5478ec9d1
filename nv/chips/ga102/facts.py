"""GA102: Ampere, as on the GeForce RTX 3090.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clc7c0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="ga102",
    family="ampere",
    pci_device=0x2204,
    target="sm_86",
    compute_capability=(8, 6),
    usermode_class=0xC561,
    gpfifo_class=0xC56F,
    compute_class=0xC7C0,
    copy_class=0xC7B5,
    qmd=(3, 0),
    mmu=2,
    sm_count=82,
    warps_per_sm=48,
    shared_carveouts=tuple(kib << 10 for kib in (0, 8, 16, 32, 64, 100)),
    shared_per_group=99 << 10,
    memory_size=24 << 30,
    products=("RTX 3090", "RTX 3080", "A40"),
)
