"""Sources of NVIDIA's headers: clones of public git repositories, or folders of clones.

A clone holds no file contents until they are requested (`--filter=blob:none`), so fetching one
release costs a few megabytes. Unpacked files stay in a cache folder.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

from ugpu.hcq.errors import HostError, MissingDependency, UsageError
from ugpu.tools.clang2py.nvidia.catalogue import (
    BINDINGS_COMMIT,
    BINDINGS_FOLDER,
    BINDINGS_REPOSITORY,
    BRANCHES,
    DOCUMENT_COMMIT,
    DOCUMENT_FOLDERS,
    DOCUMENT_REPOSITORY,
    DRIVER_FOLDERS,
    DRIVER_REPOSITORY,
    FIRMWARE_SOURCES,
)

_DONE = ".unpacked"


def _git(arguments: Sequence[str]) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True)
    except FileNotFoundError:
        raise MissingDependency("git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise HostError(
            f"git {arguments[0]} failed; pass --nvidia-src DIR to use existing clones",
            said=error.stderr.decode(errors="replace").strip()[-300:],
        ) from None
    return done.stdout


def clone(address: str, folder: Path) -> Path:
    """Fetch a repository without its contents, once."""
    if not (folder / "HEAD").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"regen: cloning {address} into {folder}")
        _git(["clone", "--bare", "--filter=blob:none", address, str(folder)])
    return folder


def _given(folder: Path, name: str) -> Path:
    for place in (folder / name, folder / f"{name}.git", folder / name / ".git"):
        if (place / "HEAD").exists() or (place / ".git").exists():
            return place
    raise UsageError(f"{folder} does not contain a clone named {name}", folder=str(folder))


def unpack(repository: Path, commit: str, folders: Iterable[str], place: Path) -> Path:
    """Extract folders of one commit from a repository, once."""
    if (place / _DONE).exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    archive = _git(["-C", str(repository), "archive", commit, "--", *folders])
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
    (place / _DONE).touch()
    return place


class NvidiaSources:
    """The unpacked trees: `release(branch's release)` and `documents()`.

    `clones` is a folder that holds clones named open-gpu-kernel-modules, open-gpu-doc and tinygrad;
    without it, they are cloned into the cache. HostError if git fails, UsageError if a clone is
    missing.
    """

    def __init__(self, cache: Path, clones: Path | None = None) -> None:
        self.cache = cache
        self.clones = clones

    def _repository(self, address: str) -> Path:
        name = address.rpartition("/")[2]
        return _given(self.clones, name) if self.clones else clone(address, self.cache / name)

    def release(self, tag: str) -> Path:
        """Return the needed folders of one driver release."""
        place = self.cache / f"nvidia-{tag}"
        return unpack(self._repository(DRIVER_REPOSITORY), tag, DRIVER_FOLDERS, place)

    def firmware(self, tag: str) -> Path:
        """Return the folders of one driver release that describe its firmware's interface too."""
        place = self.cache / f"nvidia-gsp-{tag}"
        return unpack(self._repository(DRIVER_REPOSITORY), tag, FIRMWARE_SOURCES, place)

    def documents(self) -> Path:
        """Return the class headers of the documents' repository."""
        place = self.cache / f"nvidia-doc-{DOCUMENT_COMMIT[:12]}"
        repository = self._repository(DOCUMENT_REPOSITORY)
        return unpack(repository, DOCUMENT_COMMIT, DOCUMENT_FOLDERS, place)

    def bindings(self, branch: str) -> Path:
        """Return the file of bindings for a branch whose headers are not read."""
        place = self.cache / f"nvidia-bindings-{BINDINGS_COMMIT[:12]}"
        name = f"{BINDINGS_FOLDER}/nv_{branch}.py"
        repository = self._repository(BINDINGS_REPOSITORY)
        return unpack(repository, BINDINGS_COMMIT, [name], place / branch) / name

    @property
    def origin(self) -> str:
        """Return the text that names the origin in a manifest."""
        tags = " ".join(BRANCHES.values())
        return f"open-gpu-kernel-modules {tags}; open-gpu-doc {DOCUMENT_COMMIT[:12]}"
