"""Facts that differ between NVIDIA chips, shared by the driver and the models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChipFacts:
    """One chip. Classes are numbers from open-gpu-doc `classes/`; sizes are bytes.

    name: lower case ("gh100"). family: "turing", "ampere", "ada", "hopper", "blackwell".
    target: the compiler's name of the target ("sm_90"). qmd: major and minor version of the launch
    descriptor that its compute class takes. mmu: page table version (2 Pascal to Ada, 3 from
    Hopper). shared_carveouts: shared memory sizes that an SM can be configured for, ascending.
    most_cluster: most groups of a cluster, 0 without clusters. products: boards that have the chip.
    proven: the board that ran our driver and its report in docs/hardware; "" if none has.
    """

    name: str
    family: str
    pci_device: int
    target: str
    compute_capability: tuple[int, int]
    usermode_class: int
    gpfifo_class: int
    compute_class: int
    copy_class: int
    qmd: tuple[int, int]
    mmu: int
    sm_count: int
    warps_per_sm: int
    shared_carveouts: tuple[int, ...]
    shared_per_group: int
    memory_size: int
    most_cluster: int = 0
    products: tuple[str, ...] = ()
    proven: str = ""
