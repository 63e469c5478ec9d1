"""Clusters of groups in a launch: their size, and their encoding in descriptor and constant bank.

Sources: open-gpu-doc classes/compute/clcbc0qmd.h, clcdc0qmd.h (QMD_TYPE, GPC_CGA_*); PTX ISA 8.x,
"Cluster Dimension Directives"; nv.packets.families for the words of the constant bank. If QMD_TYPE
is GRID_GPC_CGA, the grid sizes in the descriptor count clusters; those in the constant bank count
groups (recorded from CUDA on an H200, driver 580.159.04).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command import Launch
from ugpu.nv import abi
from ugpu.nv.code.cubin import MAX_CLUSTER, KernelCode
from ugpu.nv.packets.families import ClusterWords

_ALONE = (1, 1, 1)


@dataclass(frozen=True)
class Bits:
    """A field of a descriptor: its first bit, and its number of bits."""

    first: int
    width: int

    @classmethod
    def of(cls, table: abi.Descriptor, name: str) -> Bits:
        """The field `name` of a table."""
        return cls(table.field(name).lsb, table.field(name).width)

    def insert(self, qmd: bytearray, value: int) -> None:
        """Replace the field's value."""
        start, end = self.first // 8, (self.first + self.width + 7) // 8
        mask = ((1 << self.width) - 1) << self.first % 8
        held = int.from_bytes(qmd[start:end], "little") & ~mask
        held |= value << self.first % 8 & mask
        qmd[start:end] = held.to_bytes(end - start, "little")


@dataclass(frozen=True)
class ClusterFields:
    """Fields of a descriptor's version for a grid of clusters: its kind, and a cluster's groups."""

    kind: Bits
    clusters_kind: int
    groups: tuple[Bits, Bits, Bits]

    @classmethod
    def of(cls, table: abi.Descriptor) -> ClusterFields | None:
        """The fields of a version; None for a version without clusters."""
        if "GPC_CGA_WIDTH" not in table.fields:
            return None
        kind = table.field("QMD_TYPE")
        width, height, depth = (
            Bits.of(table, f"GPC_CGA_{axis}") for axis in ("WIDTH", "HEIGHT", "DEPTH")
        )
        return cls(Bits(kind.lsb, kind.width), kind.values["GRID_GPC_CGA"], (width, height, depth))

    def insert(self, qmd: bytearray, cluster: tuple[int, int, int]) -> None:
        """Make the grid one of clusters of size `cluster`."""
        self.kind.insert(qmd, self.clusters_kind)
        for field, size in zip(self.groups, cluster, strict=True):
            field.insert(qmd, size)


def cluster_of(launch: Launch, code: KernelCode) -> tuple[int, int, int] | None:
    """Return the cluster size of a launch: its own, or the one that the kernel requires.

    Raises BadArgument if the two differ, if the kernel requires the launch to give a size and it
    does not, and for a cluster that is too large or does not divide the grid.
    """
    name, said, required = code.name, launch.cluster, code.required_cluster
    cluster = said or required
    if cluster is None:
        if code.explicit_cluster:
            raise BadArgument(f"{name} requires a cluster size at launch: pass cluster=")
        return None
    if required not in (None, cluster):
        raise BadArgument(f"{name}: the cluster must be {required} (as compiled)", cluster=cluster)
    most = code.max_cluster or MAX_CLUSTER
    if cluster[0] * cluster[1] * cluster[2] > most:
        raise BadArgument(f"{name}: a cluster must have at most {most} groups", cluster=cluster)
    if any(groups % part for groups, part in zip(launch.grid, cluster, strict=True)):
        raise BadArgument(
            f"{name}: the grid must be a multiple of the cluster", grid=launch.grid, cluster=cluster
        )
    return cluster


def clusters_of(
    grid: tuple[int, int, int], cluster: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """Return the sizes of a grid in its descriptor: counted in clusters if it has any, else in
    groups."""
    x, y, z = cluster or _ALONE
    return grid[0] // x, grid[1] // y, grid[2] // z


def fill_bank(
    bank: bytearray,
    words: ClusterWords,
    grid: tuple[int, int, int],
    cluster: tuple[int, int, int] | None,
) -> None:
    """Write the values that code reads about clusters; without clusters each group is its own."""
    x, y, z = cluster or _ALONE
    struct.pack_into("<I", bank, words.explicit, cluster is not None)
    struct.pack_into("<3I", bank, words.groups, x, y, z)
    struct.pack_into("<2f", bank, words.reciprocals, 1 / y, 1 / z)
    struct.pack_into("<3I", bank, words.clusters, *clusters_of(grid, cluster))
    struct.pack_into("<I", bank, words.count, x * y * z)
