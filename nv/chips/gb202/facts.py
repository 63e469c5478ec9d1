"""GB202: Blackwell, as on the GeForce RTX 5090.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clcec0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="gb202",
    family="blackwell",
    pci_device=0x2B85,
    target="sm_120",
    compute_capability=(12, 0),
    usermode_class=0xC761,
    gpfifo_class=0xCA6F,
    compute_class=0xCEC0,
    copy_class=0xCAB5,
    qmd=(5, 0),
    mmu=3,
    sm_count=170,
    warps_per_sm=48,
    shared_carveouts=tuple(kib << 10 for kib in (0, 8, 16, 32, 64, 100)),
    shared_per_group=99 << 10,
    memory_size=32 << 30,
    most_cluster=8,
    products=("RTX 5090", "RTX PRO 6000 Blackwell"),
)
