"""Record through a preload library, built once from recorder/ with the system's compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import HostError, MissingDependency
from ugpu.tools.debug.sniff.rules import Rules

SOURCES = Path(__file__).parent / "recorder"
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_LIMIT_S = 60
#: starts a program with a library in front of those that are preloaded already
_START = 'LD_PRELOAD="$0${LD_PRELOAD:+:$LD_PRELOAD}" exec "$@"'
_LARGEST = 16 << 20  # bytes of a library that was built here


def compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


def library(cache: Path) -> Path:
    """Build the library unless these sources were built before; return its path.

    MissingDependency without a compiler, HostError if the compiler fails.
    """
    text = b"".join(file.read_bytes() for file in sorted(SOURCES.glob("*.[ch]")))
    path = cache / "sniff" / f"recorder-{hashlib.sha256(text).hexdigest()[:16]}.so"
    try:
        with ownfolder.opened(path.parent, make=True) as opened:
            if _usable(opened, path):
                return path
    except OSError as error:
        raise HostError(f"cannot create a folder for the recorder: {error}") from None
    compiler_path = compiler()
    if compiler_path is None:
        raise MissingDependency(
            "no C compiler found (cc, gcc or clang); --backend ptrace works without one"
        )
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / "recorder.so"
        source = str(SOURCES / "recorder.c")
        command = [compiler_path, "-shared", "-fPIC", "-O2", "-w", "-o", str(built), source, "-ldl"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_BUILD_LIMIT_S
        )
        if done.returncode != 0:
            raise HostError("the recorder failed to compile", said=done.stderr.strip()[-500:])
        built.replace(path)  # atomic: another process may build it too
    return path


def _usable(folder: int, path: Path) -> bool:
    """Return whether the library exists. Delete one that another user could have written."""
    try:
        ownfolder.read(folder, path.name, path, _LARGEST)
    except FileNotFoundError:
        return False
    except OSError:
        os.unlink(path.name, dir_fd=folder)
        return False
    return True


def record(
    command: Sequence[str], log: Path, prefix: str, rules: Rules, cache: Path, memory: int = 0
) -> int:
    """Run `command` and append its calls to `log`; return its exit code.

    memory: the number of doorbells at which to record changes of mapped memory; x86-64.

    Programs that it starts are recorded too. A program that is linked statically or makes system
    calls directly is not recorded; ptrace can record it.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".rules", encoding="ascii") as file:
        file.write(rules.text())
        file.flush()
        variables = {
            "UGPU_SNIFF_LOG": str(log.resolve()),
            "UGPU_SNIFF_RULES": file.name,
            "UGPU_SNIFF_PREFIX": prefix,
        }
        if memory:
            variables["UGPU_SNIFF_MEMORY"] = str(memory)
        setting = [f"{name}={value}" for name, value in variables.items()]
        start = ["env", *setting, "sh", "-c", _START, str(library(cache)), *command]
        return subprocess.run(start, check=False).returncode
