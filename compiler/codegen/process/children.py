"""Compiling in child processes, so that LLVM can end one without harm.

A few warm processes (compiler.codegen.process.worker) are kept, each started when there is work for
it; several kernels are compiled at the same time. A process that dies or does not answer is
replaced, and its kernel is a CompileError that carries the IR.

A request is JSON: the text, the target's fields, and whether it is for a kernel's first version. An
answer is a status byte, the seconds it took (a double) and the object, or a message in UTF-8. This
process does not load LLVM.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import struct
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import llvmlite  # only its version; this does not load LLVM

from ugpu.compiler.codegen.adreno.version import adreno_version
from ugpu.compiler.codegen.process.complaints import brief, locate
from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import CompileError, HostError, MissingDependency
from ugpu.hcq.objects.child import Ended, Process
from ugpu.hcq.state.target import TargetSpec

# TIMEOUT: of processor time. The largest kernels of the tests take 2 s, the slowest known one 33 s;
# LLVM may also never end
LIMIT_S = 120.0
MOST = 4  # maximum processes, and at most the host's processors
ANSWER = struct.Struct("<Bd")
DONE, REFUSED, MISSING = 0, 1, 2
NEEDED = (
    "name",
    "abi",
    "triple",
    "cpu",
    "features",
    "quick",
)  # the fields of a target that LLVM needs
WORKER = "ugpu.compiler.codegen.process.worker"
PASSES = 3  # raised when the same text is optimised otherwise (compiler.codegen.process.objects)
KEPT = 20  # IR files of failed kernels kept in their folder


@dataclass(frozen=True)
class Compiled:
    """An object (or PTX), and the seconds that LLVM took for it."""

    image: bytes
    seconds: float


def request(text: str, target: TargetSpec, *, first: bool = False) -> bytes:
    """Return the message that requests compilation of `text`; see objects.compile_here."""
    fields = {name: getattr(target, name) for name in NEEDED}
    return json.dumps({"text": text, "target": fields, "first": first}).encode()


@functools.cache
def version() -> str:
    """Return the inputs of the generated code besides its text and target."""
    return f"llvmlite {llvmlite.__version__}, passes {PASSES}, {adreno_version()}"


class Child:
    """One compiling process. Only one thread may use it at a time. nice: by how much its priority
    is below this process's."""

    def __init__(self, limit_s: float = LIMIT_S, nice: int = 0) -> None:
        self.limit_s = limit_s
        self.worker = Process(WORKER, (str(nice),))

    def compile(self, text: str, target: TargetSpec, *, first: bool = False) -> Compiled:
        """Compile in the child. CompileError reports how it ended otherwise."""
        who = "Mesa" if target.abi == "ir3" else "LLVM"
        try:
            message = self._answer(request(text, target, first=first))
        except TimeoutError:
            raise CompileError(f"{who} exceeded its time limit", limit_s=self.limit_s) from None
        except Ended as ended:
            where = locate(text, ended.said)
            raise CompileError(f"{who} ended its process ({ended})", **where) from None
        except HostError as error:
            raise CompileError(f"cannot start a compiler process: {error}") from None
        status, seconds = ANSWER.unpack_from(message)
        rest = message[ANSWER.size :]
        if status == DONE:
            return Compiled(rest, seconds)
        said = rest.decode(errors="replace")
        if status == MISSING:
            missing = json.loads(said)
            raise MissingDependency(missing["message"], **missing["facts"])
        raise CompileError(f"{who} rejected the code: {brief(said)}", **locate(text, said))

    def _answer(self, request: bytes) -> bytes:
        try:
            return self.worker.ask(request, self.limit_s)
        except Ended as ended:
            if ended.code:
                raise
            return self.worker.ask(request, self.limit_s)  # it had ended while idle

    def interrupt(self) -> None:
        """End the process while another thread uses it, which gets a CompileError."""
        self.worker.kill()

    def close(self) -> None:
        """End the process; idempotent."""
        self.worker.close()


class Children:
    """Up to `most` children, a thread each. Thread-safe."""

    def __init__(self, most: int, limit_s: float = LIMIT_S) -> None:
        self.owner = os.getpid()
        self.limit_s = limit_s
        self.local = threading.local()
        self.all: list[Child] = []
        self.threads = ThreadPoolExecutor(most, "ugpu-compile")

    def submit(
        self, text: str, target: TargetSpec, kernel: str, keep: Path | None = None,
        *, first: bool = False,
    ) -> Future[Compiled]:  # fmt: skip
        """Compile `text`. keep: a folder for the IR of a kernel that fails. first: as in
        objects.compile_here. The result's error is a CompileError that names the kernel and has the
        IR as `ir`."""
        return self.threads.submit(self._compile, text, target, kernel, keep, first)

    def _compile(
        self, text: str, target: TargetSpec, kernel: str, keep: Path | None, first: bool
    ) -> Compiled:
        child = getattr(self.local, "child", None)
        if child is None:
            child = self.local.child = Child(self.limit_s)
            self.all.append(child)
        try:
            return child.compile(text, target, first=first)
        except CompileError as error:
            facts: dict[str, object] = {"kernel": kernel, "target": target.name}
            path = _kept(text, kernel, keep)
            if path is not None:
                facts["ir_file"] = path
            found = CompileError(error.message, **facts, **error.facts)
            found.ir = text
            raise found from None

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for child in self.all:
            child.close()


def _kept(text: str, kernel: str, keep: Path | None) -> Path | None:
    """Write the IR into a folder that keeps the last few; None if it cannot be written."""
    if keep is None:
        return None
    path = keep / f"{kernel}.ll"
    try:
        os.close(ownfolder.open_folder(keep, make=True))
        path.write_text(text)
        files = sorted(keep.glob("*.ll"), key=lambda file: file.stat().st_mtime)
        for old in files[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


_lock = threading.Lock()
_shared: Children | None = None


def shared() -> Children:
    """Return the children of this process (a forked one gets its own); ended at exit."""
    global _shared
    with _lock:
        if _shared is None or _shared.owner != os.getpid():
            if _shared is None:
                atexit.register(_close)
            _shared = Children(min(MOST, len(os.sched_getaffinity(0))))
        return _shared


def _close() -> None:
    if _shared is not None and _shared.owner == os.getpid():
        _shared.close()
