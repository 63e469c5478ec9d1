"""Sources of the headers: a kernel tree that the user has, or Debian's source package of the
kernel.

Downloads stay in a cache folder. Nothing is installed, and nothing needs root.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import HostError, MissingDependency, UsageError


@dataclass(frozen=True)
class KernelTree:
    """An unpacked tree and the words that name its origin in a manifest."""

    folder: Path
    origin: str


def given_tree(folder: Path, needed: Sequence[str]) -> KernelTree:
    """Use a tree that the user has unpacked; UsageError if a header is missing."""
    missing = [path for path in needed if not (folder / path).is_file()]
    if missing:
        raise UsageError(f"{folder} is not a usable Linux source tree", missing=missing[0])
    makefile = folder / "Makefile"
    text = makefile.read_text(encoding="utf-8") if makefile.is_file() else ""
    parts = re.findall(r"^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", text, flags=re.M)
    return KernelTree(folder, f"linux {'.'.join(parts) or 'of unknown version'}")


def _run(command: Sequence[str], *, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise MissingDependency(
            f"{command[0]} is not installed; on other distributions pass --kernel-src"
        ) from None
    except subprocess.CalledProcessError as error:
        raise HostError(
            f"{' '.join(command[:3])} failed; pass --kernel-src DIR to use an unpacked "
            "Linux source tree",
            said=error.stderr.strip()[-300:],
        ) from None
    return done.stdout


def _unpack(package: Path, folder: Path, needed: Sequence[str], name: str) -> None:
    """Unpack the needed headers of a source package: a .tar.xz inside the package's own tar."""
    folder.mkdir(parents=True)
    _run(["dpkg-deb", "-x", str(package), str(folder)])
    archive = folder / "usr" / "src" / f"{name}.tar.xz"
    members = [f"{name}/{path}" for path in needed]
    _run(["tar", "-C", str(folder), "--strip-components=1", "-xJf", str(archive), *members])
    archive.unlink()


def debian_tree(cache: Path, name: str, needed: Sequence[str]) -> KernelTree:
    """Fetch a source package by apt-get, without root, and unpack the needed headers.

    The package's version is the archive's current one: point releases replace each other. HostError
    if the download fails.
    """
    cache.mkdir(parents=True, exist_ok=True)
    print(f"regen: fetching {name} (about 150 MB) into {cache}")
    _run(["apt-get", "download", name], cwd=cache)
    package = max(cache.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
    version = _run(["dpkg-deb", "-f", str(package), "Version"]).strip()
    folder = cache / f"{name}_{version}"
    if not all((folder / path).is_file() for path in needed):
        print(f"regen: unpacking {package.name} (half a minute)")
        if folder.exists():
            folder = cache / f"{name}_{version}_{len(list(cache.iterdir()))}"
        _unpack(package, folder, needed, name)
    return KernelTree(folder, f"{name} {version}")
