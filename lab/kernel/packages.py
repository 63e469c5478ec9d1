"""The laboratory's programs: Debian packages, downloaded with a private apt and unpacked, never
installed.

Nothing of this machine's package state is read or written: apt runs with its own lists, status and
cache below the laboratory's folder, so root is not needed. Versions are what the suites hold today
(point releases vanish from mirrors, so none is pinned); what was taken is noted with its SHA-256 in
`packages.txt`. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab.kernel import machine
from lab.kernel.machine import LabUnavailable

MIRROR = "http://deb.debian.org/debian"
SUITES = ("trixie", "trixie-backports")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# QEMU has `vfio-user-pci` since 10.1, which the backports hold. The kernel comes from the release
# itself; the cloud kernel will not do, as it has neither 9p nor USB.
EMULATOR = "qemu-system-x86"
KERNEL = "linux-image-amd64"
TOOLS = ("busybox-static", "zstd")
NOTE = "packages.txt"
RECIPE = "2"  # part of the cache's key: raise it when what is unpacked, or how, changes
FETCH_LIMIT_S = 480  # TIMEOUT: 160 MB at 0.5 MB/s, and the unpacking; our choice


@dataclass(frozen=True)
class Programs:
    """What is unpacked: `emulator` (QEMU with its libraries), `kernel` (boot, modules), `tools`."""

    root: Path

    @property
    def emulator(self) -> Path:
        return self.root / "emulator"

    @property
    def kernel(self) -> Path:
        return self.root / "kernel"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    def run(self, program: str, *arguments: str) -> list[str]:
        """The command line of an unpacked program, under the C library it was built for."""
        libraries = self.emulator / "usr/lib/x86_64-linux-gnu"
        found = next(
            (base / program for base in (self.emulator, self.tools) if (base / program).exists()),
            None,
        )
        if found is None:
            raise LabUnavailable(f"{program} is in none of the unpacked packages")
        path = f"{libraries}:{libraries / 'pulseaudio'}:{self.tools}/usr/lib/x86_64-linux-gnu"
        loader = libraries / "ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", path, str(found), *arguments]

    def kernel_release(self) -> str:
        return next((self.kernel / "usr/lib/modules").iterdir()).name


def is_ready(folder: Path) -> bool:
    """Whether the programs are below `folder` already, unpacked as this version wants them."""
    note = folder / "programs" / NOTE
    return note.is_file() and note.read_text().startswith(f"# recipe {RECIPE}\n")


def ensure(folder: Path, *, mirror: str = MIRROR, keyring: Path = KEYRING) -> Programs:
    """The programs below `folder`, downloaded when they are not there yet.

    LabUnavailable when this machine cannot have them: no apt, no network, no room, too slow a line.
    """
    ready = folder / "programs"
    if is_ready(folder):
        return Programs(ready)
    machine.need_tools(machine.PACKAGE_TOOLS)
    if not keyring.is_file():
        raise LabUnavailable(f"{keyring} is missing (package debian-archive-keyring)")
    machine.need_room(folder, machine.ROOM_COLD)
    partial = folder / "programs.partial"
    for stale in (partial, ready):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    apt = _Apt(folder / "apt", mirror, keyring)
    try:
        apt.update()
        lines = [f"# recipe {RECIPE}"]
        for target, wanted in (
            ("emulator", apt.download_with_dependencies((EMULATOR,), SUITES[-1])),
            ("kernel", apt.download([apt.kernel_package()])),
            ("tools", apt.download(TOOLS)),
        ):
            for package in wanted:
                lines.append(f"{target} {package.name} {_sha256(package)}")
                apt.unpack(package, partial / target)
        (partial / NOTE).write_text("\n".join(lines) + "\n")
        partial.rename(ready)
    finally:
        for rest in (folder / "apt", partial):
            shutil.rmtree(rest, ignore_errors=True)
    return Programs(ready)


def unpack(
    names: tuple[str, ...],
    target: Path,
    folder: Path,
    suites: tuple[str, ...] = SUITES,
    areas: tuple[str, ...] = ("main",),
) -> None:
    """Download further packages by name, without what they depend on, and unpack them."""
    apt = _Apt(folder / "apt", MIRROR, KEYRING, suites, areas)
    try:
        apt.update()
        for package in apt.download(names):
            apt.unpack(package, target)
    finally:
        shutil.rmtree(folder / "apt", ignore_errors=True)


def unpack_kernel(suite: str, target: Path, folder: Path) -> None:
    """Download a suite's newest kernel with its modules, and unpack it."""
    apt = _Apt(folder / "apt", MIRROR, KEYRING)
    try:
        apt.update()
        image = apt.kernel_package(suite)
        # Debian's packages of Linux 7 have image and modules apart.
        parts = [
            word
            for word in apt.depends("look up the kernel's parts", image)
            if word.startswith(("linux-binary-", "linux-modules-"))
        ]
        for package in apt.download(parts or [image]):
            apt.unpack(package, target)
    finally:
        shutil.rmtree(folder / "apt", ignore_errors=True)


def unpack_whole(
    names: tuple[str, ...], target: Path, folder: Path, suite: str = SUITES[0]
) -> None:
    """Download packages of a suite with all that they depend on, and unpack them."""
    apt = _Apt(folder / "apt", MIRROR, KEYRING)
    try:
        apt.update()
        for package in apt.download_with_dependencies(names, suite):
            apt.unpack(package, target)
    finally:
        shutil.rmtree(folder / "apt", ignore_errors=True)


class _Apt:
    """An apt of its own in `root`: lists, status and cache; the system's are never touched."""

    def __init__(
        self,
        root: Path,
        mirror: str,
        keyring: Path,
        suites: tuple[str, ...] = SUITES,
        areas: tuple[str, ...] = ("main",),
    ) -> None:
        self.root = root
        self._end = time.monotonic() + FETCH_LIMIT_S
        shutil.rmtree(root, ignore_errors=True)
        for name in (
            "state/lists/partial",
            "cache/archives/partial",
            "etc/apt.conf.d",
            "etc/preferences.d",
            "debs",
        ):
            (root / name).mkdir(parents=True)
        (root / "state/status").touch()
        words = " ".join(areas)
        sources = [f"deb [signed-by={keyring}] {mirror} {suite} {words}\n" for suite in suites]
        (root / "sources.list").write_text("".join(sources))
        (root / "apt.conf").write_text(
            f'Dir "{root}/";\nDir::State "{root}/state";\n'
            f'Dir::State::status "{root}/state/status";\nDir::Cache "{root}/cache";\n'
            f'Dir::Etc "{root}/etc";\nDir::Etc::sourcelist "{root}/sources.list";\n'
            'Dir::Etc::sourceparts "-";\nAPT::Architecture "amd64";\n'
            'APT::Architectures { "amd64"; };\nAPT::Install-Recommends "false";\n'
            'Acquire::Languages "none";\nAPT::Sandbox::User "";\nAcquire::Retries "2";\n'
            'Acquire::http::Timeout "10";\nDPkg::Post-Invoke "";\nDebug::NoLocking "true";\n'
        )
        self.environment = dict(os.environ, APT_CONFIG=str(root / "apt.conf"))

    def update(self) -> None:
        # Without Error-Mode apt calls a mirror it cannot reach a warning and goes on with nothing.
        self._run("update the package lists", "apt-get", "update", "--error-on=any")

    def kernel_package(self, suite: str = SUITES[0]) -> str:
        """The package that a suite's meta package of the kernel asks for today."""
        for word in self.depends("look up the kernel", KERNEL, suite):
            if word.startswith("linux-image-"):
                return word
        raise LabUnavailable(f"{KERNEL} names no kernel package")

    def depends(self, what: str, package: str, suite: str = SUITES[0]) -> list[str]:
        """The words of the package's dependencies."""
        shown = self._run(
            what, "apt-cache", "show", "--no-all-versions",
            "-o", f"APT::Default-Release={suite}", package,
        )  # fmt: skip
        lines = [line for line in shown.splitlines() if line.startswith("Depends:")]
        return " ".join(lines).replace(",", " ").split()

    def download(self, names: list[str] | tuple[str, ...]) -> list[Path]:
        folder = self.root / "debs"
        before = set(folder.iterdir())
        self._run(f"download {names}", "apt-get", "download", *names, cwd=folder)
        return sorted(set(folder.iterdir()) - before)

    def download_with_dependencies(self, names: tuple[str, ...], suite: str) -> list[Path]:
        self._run(f"download {names}", "apt-get", "install", "-y", "--download-only",
                  "--no-install-recommends", "-t", suite, *names)  # fmt: skip
        return sorted((self.root / "cache/archives").glob("*.deb"))

    def unpack(self, package: Path, target: Path) -> None:
        self._run(f"unpack {package.name}", "dpkg-deb", "-x", str(package), str(target))

    def _run(self, what: str, *command: str, cwd: Path | None = None) -> str:
        try:
            done = subprocess.run(
                command, env=self.environment, cwd=cwd, capture_output=True, text=True,
                timeout=max(1.0, self._end - time.monotonic()), stdin=subprocess.DEVNULL,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LabUnavailable(
                f"could not {what}: the packages were not here within {FETCH_LIMIT_S} s"
            ) from None
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise LabUnavailable(f"could not {what}: {' '.join(last)}")
        return done.stdout


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
