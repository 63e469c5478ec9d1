"""GH100: Hopper, as on the H100 SXM5; the H200 is the same chip with other memory.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clcbc0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="gh100",
    family="hopper",
    pci_device=0x2330,
    target="sm_90",
    compute_capability=(9, 0),
    usermode_class=0xC661,
    gpfifo_class=0xC86F,
    compute_class=0xCBC0,
    copy_class=0xC8B5,
    qmd=(4, 0),
    mmu=3,
    sm_count=132,
    warps_per_sm=64,
    shared_carveouts=tuple(kib << 10 for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)),
    shared_per_group=227 << 10,
    memory_size=80 << 30,
    most_cluster=16,
    products=("H100", "H200"),
)
