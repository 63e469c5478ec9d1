"""GA100: Ampere for data centres, as on the A100.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clc6c0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="ga100",
    family="ampere",
    pci_device=0x20B0,
    target="sm_80",
    compute_capability=(8, 0),
    usermode_class=0xC561,
    gpfifo_class=0xC56F,
    compute_class=0xC6C0,
    copy_class=0xC6B5,
    qmd=(3, 0),
    mmu=2,
    sm_count=108,
    warps_per_sm=64,
    shared_carveouts=tuple(kib << 10 for kib in (0, 8, 16, 32, 64, 100, 132, 164)),
    shared_per_group=163 << 10,
    memory_size=40 << 30,
    products=("A100",),
)
