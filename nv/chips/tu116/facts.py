"""TU116: the small Turing, as on the GeForce GTX 1660 Ti.

Sources: classes, open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c; launch
descriptor, open-gpu-doc classes/compute/clc5c0qmd.h; warps and shared memory of an SM, CUDA C++
Programming Guide 12.9, "Compute Capabilities"; PCI id, open-gpu-kernel-modules 580.142 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="tu116",
    family="turing",
    pci_device=0x2182,
    target="sm_75",
    compute_capability=(7, 5),
    usermode_class=0xC461,
    gpfifo_class=0xC46F,
    compute_class=0xC5C0,
    copy_class=0xC5B5,
    qmd=(2, 3),
    mmu=2,
    sm_count=24,
    warps_per_sm=32,
    shared_carveouts=tuple(kib << 10 for kib in (32, 64)),
    shared_per_group=64 << 10,
    memory_size=6 << 30,
    products=("GTX 1660 Ti", "GTX 1650 Super"),
)
