"""GB100: Blackwell for data centres, as on the B200.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clcdc0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="gb100",
    family="blackwell",
    pci_device=0x2901,
    target="sm_100",
    compute_capability=(10, 0),
    usermode_class=0xC761,
    gpfifo_class=0xC96F,
    compute_class=0xCDC0,
    copy_class=0xC9B5,
    qmd=(5, 0),
    mmu=3,
    sm_count=148,
    warps_per_sm=64,
    shared_carveouts=tuple(kib << 10 for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)),
    shared_per_group=227 << 10,
    memory_size=180 << 30,
    most_cluster=16,
    products=("B200",),
)
