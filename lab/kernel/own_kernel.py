"""Build the laboratory's own small kernel: `python -m lab.kernel.own_kernel [CACHE]`.

Debian's kernel source, `make allnoconfig` with own.config on top. The compiler and make are this
machine's; flex, bison, bc and libelf are unpacked with the source, never installed. Takes about ten
minutes on two cores and 2 GB of disk while it builds; what stays is one file, own/vmlinux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.kernel import packages
from lab.kernel.lab import CACHE
from lab.kernel.machine import LabUnavailable

SOURCE, TOOLS = "linux-source-6.12", ("flex", "bison", "m4", "bc")
TOOL_LIBRARIES = ("libreadline8t64", "libtinfo6")  # bc's
# objtool is linked with this machine's C library, which may be older than that of the suite the
# tools come from; an archive built for an older one links everywhere.
LIBRARIES, LIBRARY_SUITE = ("libelf-dev", "zlib1g-dev"), ("bookworm",)
CONFIG = Path(__file__).resolve().parent / "own.config"
LIMIT_S = 3600


def path(folder: Path) -> Path:
    """Where the kernel lies in a laboratory's folder."""
    return folder / "own" / "vmlinux"


def build(folder: Path) -> Path:
    """Download and build; LabUnavailable says what this machine lacks. Ctrl-C leaves no half."""
    programs = packages.ensure(folder)
    missing = [tool for tool in ("gcc", "make", "tar", "xz") if not shutil.which(tool)]
    if missing:
        raise LabUnavailable(f"needed to build a kernel: sudo apt install {' '.join(missing)}")
    work = folder / "own.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        packages.unpack((SOURCE, *TOOLS, *TOOL_LIBRARIES), work / "unpacked", folder)
        packages.unpack(LIBRARIES, work / "libraries", folder, LIBRARY_SUITE)
        archive = next((work / "unpacked/usr/src").glob("linux-source-*.tar.xz"))
        _run(["tar", "xJf", str(archive)], work)
        tree = next(work.glob("linux-source-*"))
        environment = dict(
            os.environ,
            PATH=f"{_wrappers(programs, work)}:{os.environ['PATH']}",
            KCONFIG_ALLCONFIG=str(CONFIG),
        )
        _run(["make", "allnoconfig"], tree, environment)
        command = ["nice", "make", f"-j{os.cpu_count() or 1}", *_libelf(work), "vmlinux"]
        _run(command, tree, environment)
        target = path(folder)
        target.parent.mkdir(exist_ok=True)
        shutil.move(tree / "vmlinux", target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wrappers(programs: packages.Programs, work: Path) -> Path:
    """Scripts that run the unpacked tools under the C library they were built for."""
    folder = work / "bin"
    folder.mkdir()
    unpacked = work / "unpacked"
    libraries = programs.emulator / "usr/lib/x86_64-linux-gnu"
    for tool in TOOLS:
        script = folder / tool
        script.write_text(
            "#!/bin/sh\n"
            f"export M4={folder}/m4 BISON_PKGDATADIR={unpacked}/usr/share/bison\n"
            f"exec {libraries}/ld-linux-x86-64.so.2 --library-path "
            f'{libraries}:{unpacked}/usr/lib/x86_64-linux-gnu {unpacked}/usr/bin/{tool} "$@"\n'
        )
        script.chmod(0o755)
    return folder


def _libelf(work: Path) -> list[str]:
    """Variables of objtool's makefile that have it find the unpacked libelf, and no other."""
    root = work / "libraries/usr"
    archives = [root / f"lib/x86_64-linux-gnu/{name}" for name in ("libelf.a", "libz.a")]
    return [
        f"LIBELF_FLAGS=-I{root}/include",
        f"LIBELF_LIBS={' '.join(str(archive) for archive in archives)}",
    ]


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise LabUnavailable(f"{' '.join(command)} failed: {' / '.join(last)}")


def main() -> int:
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else CACHE
    try:
        sys.stdout.write(f"{build(folder)}\n")
    except LabUnavailable as reason:
        sys.stderr.write(f"own kernel: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
