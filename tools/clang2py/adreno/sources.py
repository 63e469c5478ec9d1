"""Sources of Mesa's files: a tree that the user has unpacked, or a clone of its public repository.

A clone holds no file contents until they are requested (`--filter=blob:none`), and takes a few
megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import UsageError
from ugpu.tools.clang2py.adreno.catalogue import FOLDERS, INPUTS, RELEASE, REPOSITORY, TAG
from ugpu.tools.clang2py.nvidia.sources import clone, unpack


@dataclass(frozen=True)
class MesaTree:
    """An unpacked tree and the words that name its origin in a manifest."""

    folder: Path
    origin: str = f"Mesa {RELEASE}"


def mesa_tree(cache: Path, tree: Path | None = None) -> MesaTree:
    """Return the tree at `tree`, or fetch the release's files into the cache.

    UsageError if a file is missing, HostError if git fails.
    """
    if tree is None:
        repository = clone(REPOSITORY, cache / "mesa")
        tree = unpack(repository, TAG, FOLDERS, cache / TAG)
    missing = [path for path in INPUTS if not (tree / path).is_file()]
    if missing:
        raise UsageError(f"{tree} is not a usable tree of Mesa", missing=missing[0])
    return MesaTree(tree)
