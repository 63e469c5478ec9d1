"""Assembles PTX text: with NVIDIA's link library from the Python package, else with ptxas.

Neither needs a GPU or a driver. Results are cached on disk by content, in a folder of limited size.
The library's interface: nvJitLink.h of the package nvidia-nvjitlink 13.5.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.errors import BadCodeObject, MissingDependency

log = logging.getLogger(__name__)

INSTALL = "pip install 'ugpu[nv]'"
_INPUT_PTX = 2  # NVJITLINK_INPUT_PTX
_LIMIT_S = 120.0  # TIMEOUT: of ptxas for one module; the largest kernels known take seconds
_REJECTED = 3  # exit status of a child for text that does not assemble
_CHILD_MEMORY = 8 << 30  # bytes of addresses; the largest kernels known take less than one
_CHILD = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory})); "
    "sys.path[:] = {path!r}; "
    "from ugpu.nv.code.assemble import assemble_in_child; assemble_in_child()"
)
_apart = False
QUICK = ("-O0",)  # options, of both assemblers, for machine code that nothing runs
_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")


class Assembler(Protocol):
    """Something that turns PTX into machine code. `name` identifies the version in the cache."""

    name: str

    def assemble(self, ptx: bytes, target: str, options: tuple[str, ...] = ()) -> bytes:
        """Return the cubin; BadCodeObject contains the assembler's own message."""
        ...


class JitLink:
    """The library of the Python package nvidia-nvjitlink. Thread-safe: one module at a time."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._lock = threading.Lock()
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        self._library.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor))
        self.name = f"nvjitlink {major.value}.{minor.value}"

    def assemble(self, ptx: bytes, target: str, options: tuple[str, ...] = ()) -> bytes:
        with self._lock:
            words = [option.encode() for option in (f"-arch={target}", *options)]
            given = (ctypes.c_char_p * len(words))(*words)
            handle = ctypes.c_void_p()
            status = self._library.nvJitLinkCreate(ctypes.byref(handle), len(given), given)
            if status:
                raise BadCodeObject(
                    f"{self.name} does not support {target}; a newer version may: {INSTALL} -U",
                    target=target,
                    status=status,
                )
            try:
                return self._link(handle, ptx, target)
            finally:
                self._library.nvJitLinkDestroy(ctypes.byref(handle))

    def _link(self, handle: ctypes.c_void_p, ptx: bytes, target: str) -> bytes:
        text = ptx.rstrip(b"\0") + b"\0"
        library = self._library
        size = ctypes.c_size_t(len(text))
        status = library.nvJitLinkAddData(handle, _INPUT_PTX, text, size, b"module")
        status = status or library.nvJitLinkComplete(handle)
        if status:
            words = self._fetch(handle, "ErrorLog").rstrip(b"\0").decode("utf-8", "replace")
            raise BadCodeObject(_first_words(words), target=target, log=words)
        return self._fetch(handle, "LinkedCubin")

    def _fetch(self, handle: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        if getattr(self._library, f"nvJitLinkGet{what}Size")(handle, ctypes.byref(size)):
            return b""
        data = ctypes.create_string_buffer(max(1, size.value))
        if getattr(self._library, f"nvJitLinkGet{what}")(handle, data):
            return b""
        return data.raw[: size.value]


class JitLinkApart:
    """The same library, in a process of its own for each module: text that makes it crash, or take
    all memory, ends that process alone. Costs about 0.2 s a module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = JitLink(path).name  # the library gets no text here

    def assemble(self, ptx: bytes, target: str, options: tuple[str, ...] = ()) -> bytes:
        start = _CHILD.format(path=sys.path, memory=_CHILD_MEMORY)
        command = [sys.executable, "-c", start, str(self._path), target, *options]
        try:
            done = subprocess.run(command, input=ptx, capture_output=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise BadCodeObject(f"{self.name} did not finish within {_LIMIT_S} s") from None
        if not done.returncode:
            return done.stdout
        words = done.stderr.decode("utf-8", "replace")
        if done.returncode != _REJECTED:
            ended = f"ended with status {done.returncode}"
            raise BadCodeObject(f"{self.name} {ended} at this PTX", target=target, log=words)
        raise BadCodeObject(_first_words(words), target=target, log=words)


def assemble_in_child() -> None:
    """The process that JitLinkApart starts: PTX in, a cubin out, or the assembler's log."""
    path, target, *options = sys.argv[1:]
    try:
        cubin = JitLink(Path(path)).assemble(sys.stdin.buffer.read(), target, tuple(options))
    except BadCodeObject as error:
        sys.stderr.write(str(error.facts.get("log", error.message)))
        sys.exit(_REJECTED)
    sys.stdout.buffer.write(cubin)


class Ptxas:
    """The program ptxas of a CUDA toolkit."""

    def __init__(self, path: str) -> None:
        self.path = path
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        found = re.search(r"V(\d+\.\d+\.\d+)", told.stdout)
        self.name = f"ptxas {found.group(1) if found else 'of unknown version'}"

    def assemble(self, ptx: bytes, target: str, options: tuple[str, ...] = ()) -> bytes:
        with tempfile.TemporaryDirectory(prefix="ugpu-ptxas-") as folder:
            source, output = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
            source.write_bytes(ptx.rstrip(b"\0"))
            try:
                done = subprocess.run(
                    [self.path, f"-arch={target}", *options, "-o", str(output), str(source)],
                    capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise BadCodeObject(f"ptxas did not finish within {_LIMIT_S} s") from None
            if done.returncode or not output.exists():
                words = (done.stderr or done.stdout).replace(str(source), "module.ptx")
                raise BadCodeObject(_first_words(words), target=target, log=words)
            return output.read_bytes()


def assemble_apart() -> None:
    """From now on, assemble in processes apart: for programs that serve clients."""
    global _apart
    _apart = True
    find_assembler.cache_clear()


@cache
def find_assembler() -> Assembler:
    """The library if its package is installed, else ptxas; MissingDependency without either."""
    library = find_library()
    if library is not None:
        try:
            return JitLinkApart(library) if _apart else JitLink(library)
        except OSError as error:
            log.warning("%s cannot be loaded: %s", library, error)
    program = shutil.which("ptxas")
    if program is not None:
        return Ptxas(program)
    raise MissingDependency(
        f"PTX needs an assembler: {INSTALL} (nvidia-nvjitlink, needs no GPU), or ptxas on PATH",
        install=INSTALL,
    )


def find_library() -> Path | None:
    """The shared library inside the package nvidia-nvjitlink, of any CUDA version."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None:
        return None
    found = [
        path
        for folder in spec.submodule_search_locations or ()
        for path in Path(folder).glob("*/lib/libnvJitLink.so*")
    ]
    return max(found, key=_version, default=None)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def assemble(
    ptx: bytes, target: str, cache_folder: Path | None = None, options: tuple[str, ...] = ()
) -> bytes:
    """Return the cubin of a PTX module for `target` ("sm_90"), from the cache if it is there.

    options: for the assembler. BadCodeObject carries the assembler's log, MissingDependency the
    command that installs an assembler.
    """
    if not _ARCHITECTURE.fullmatch(target):
        raise BadCodeObject("target must be an architecture such as sm_90", target=target)
    assembler = find_assembler()
    if cache_folder is None:
        return assembler.assemble(ptx, target, options)
    cubins = DiskCache(cache_folder)
    content = hashlib.sha256(ptx).hexdigest()
    key = DiskCache.key(assembler.name, target, content, *options)
    code = cubins.get(key)
    if code is None:
        make = partial(assembler.assemble, ptx, target, options)
        code = kept(make, Path(__file__), assembler.name, target, content, *options)
        cubins.put(key, code)
    return code


def _first_words(words: str) -> str:
    """The first error of an assembler's log, for the message; the error also has the whole log."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    return f"PTX does not assemble: {first or 'the assembler printed no message'}"
