"""Launches of groups' kernels, stored on disk: a second process does not lower known kernels.

An object's key is the LLVM text it was made of. Finding that text requires lowering the group,
which is most of the work of a second process. A record has the result of lowering: the object's
key, and the launch. It depends on the group's structure, the target, the compiler's sources and the
results of searches.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ugpu.compiler.codegen.process.children import version
from ugpu.compiler.kernel import ir
from ugpu.compiler.runtime.kernels.store import Store
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.state.target import TargetSpec

FOLDER = Path(__file__).parents[2]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """A lowered kernel. object: key of its object file in the cache. grid: groups; block: threads;
    dynamic_local: bytes that the launch gives. origin: the tensor operations it computes."""

    object: str
    name: str
    origin: str
    grid: tuple[int, int, int]
    block: int
    dynamic_local: int

    @classmethod
    def of(cls, kernel: ir.Kernel, key: str) -> Record:
        return cls(key, kernel.name, kernel.origin, kernel.grid, kernel.block, kernel.dynamic_local)


def object_key(text: str, target: TargetSpec) -> str:
    """Return the key of the object that LLVM text becomes for a target."""
    quick = "quick" * target.quick
    machine = target.triple, target.cpu, target.features, target.abi, quick
    return DiskCache.key(text, *machine, version())


class Known:
    """The records of one device's target, stored with the objects. tuned: results of searches; a
    change in them invalidates all records."""

    def __init__(self, target: TargetSpec, disk: DiskCache, tuned: Store) -> None:
        self._target = repr(sorted(dataclasses.asdict(target).items(), key=str))
        self._disk = disk
        self._tuned = tuned
        self._hash = ""

    def get(self, group: Group) -> Record | None:
        """Return the record of a group; one that cannot be read is deleted."""
        key = self._key(group)
        data = None if key is None else self._disk.get(key)
        if key is None or data is None:
            return None
        try:
            fields = json.loads(data)
            first, second, third = fields.pop("grid")
            return Record(grid=(first, second, third), **fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("discarding the invalid record of a kernel: %s", error)
            self._disk.forget(key)
            return None

    def put(self, group: Group, record: Record) -> None:
        """Keep a record if the group's structure has the same meaning in all processes."""
        key = self._key(group)
        if key is not None:
            self._disk.put(key, json.dumps(dataclasses.asdict(record)).encode())

    def _key(self, group: Group) -> str | None:
        if self._disk.folder is None:
            return None
        text = repr(group.key)
        if " at 0x" in text:  # an object whose text has its address
            return None
        return DiskCache.key(
            "launch", text, self._target, self._sources(), version(), self._searches()
        )

    def _sources(self) -> str:
        """Return the hash of the compiler's sources. It is kept on disk by the state of the files,
        as reading them takes ten times as long as checking their state."""
        if not self._hash:
            kept = self._disk.get(state())
            self._hash = sources() if kept is None else kept.decode()
            if kept is None:
                self._disk.put(state(), self._hash.encode())
        return self._hash

    def _searches(self) -> str:
        """Return a value that changes with each new result of a search."""
        folder = self._tuned.disk.folder
        try:
            return "" if folder is None else str(folder.stat().st_mtime_ns)
        except OSError:  # no search has been run
            return ""


@cache
def sources() -> str:
    """Return a hash of the compiler's sources."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        data: Any = path.read_bytes()
        digest.update(f"{path.relative_to(FOLDER)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


@cache
def state() -> str:
    """Return the key of the state of the compiler's sources."""
    return DiskCache.key("sources", *states(FOLDER))


def states(folder: Path) -> list[str]:
    """Return path, size and times of each source. A modification sets a file's time of change,
    which programs cannot choose."""
    found = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                found += states(Path(entry.path))
            elif entry.name.endswith(".py"):
                is_ = entry.stat()
                found.append(f"{entry.path} {is_.st_size} {is_.st_mtime_ns} {is_.st_ctime_ns}")
    return found
