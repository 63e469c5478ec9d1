"""LLVM's disassembler through its C API, as a source of instruction tables and as a judge.

A shared libLLVM with the AMDGPU target is needed: Debian's libllvm22, or a Rust toolchain's.
"""

from __future__ import annotations

import ctypes
import glob
import multiprocessing
import os
import pwd
import re
import resource
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from typing import Self

from ugpu.hcq.errors import MissingDependency

_TRIPLE = b"amdgcn-amd-amdhsa"
_LONGEST_TEXT = 512
_PLACES = (
    "/usr/lib/llvm-2[2-9]/lib/libLLVM.so*",
    "/usr/lib/*/libLLVM.so.2[2-9]*",
    "~/.rustup/toolchains/*/lib/libLLVM.so.2[2-9]*",
)
_REFUSALS = ("Warning:", "/*")


def _candidates() -> Iterator[str]:
    home = pwd.getpwuid(os.getuid()).pw_dir
    for pattern in _PLACES:
        yield from sorted(glob.glob(pattern.replace("~", home)))


@cache
def library() -> ctypes.CDLL:
    """Load libLLVM and start its AMDGPU target. MissingDependency where none is found."""
    for path in _candidates():
        try:
            found = ctypes.CDLL(path)
            for part in ("TargetInfo", "TargetMC", "Disassembler"):
                getattr(found, f"LLVMInitializeAMDGPU{part}")()
        except (OSError, AttributeError):
            continue
        found.LLVMCreateDisasmCPUFeatures.restype = ctypes.c_void_p
        found.LLVMCreateDisasmCPUFeatures.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        found.LLVMDisasmInstruction.restype = ctypes.c_size_t
        found.LLVMDisasmInstruction.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p,
            ctypes.c_size_t,
        ]  # fmt: skip
        return found
    raise MissingDependency(
        "a shared libLLVM 22 with the AMDGPU target is needed (Debian: libllvm22)"
    )


def version() -> str:
    """Return LLVM's version, such as "22.1.2"."""
    parts = [ctypes.c_uint() for _ in range(3)]
    library().LLVMGetVersion(*(ctypes.byref(part) for part in parts))
    return ".".join(str(part.value) for part in parts)


Disassemble = Callable[[bytes], tuple[int, str]]


class Disassembler:
    """Disassemble for one processor. features: such as "+wavefrontsize64"."""

    def __init__(self, processor: str, features: str = "") -> None:
        self._library = library()
        self._context = self._library.LLVMCreateDisasmCPUFeatures(
            _TRIPLE, processor.encode(), features.encode(), None, 0, None, None
        )
        if not self._context:
            raise MissingDependency(f"this libLLVM does not support {processor}")
        self._text = ctypes.create_string_buffer(_LONGEST_TEXT)

    def __call__(self, code: bytes) -> tuple[int, str]:
        """Return the size and the text of the first instruction; (0, "") where it is not legal.

        An instruction that LLVM shows with a warning counts as illegal. Spaces are single.
        """
        size = self._library.LLVMDisasmInstruction(
            self._context, code, len(code), 0, self._text, _LONGEST_TEXT
        )
        if not size:
            return 0, ""
        text = self._text.value.decode("ascii", "replace")
        if any(refusal in text for refusal in _REFUSALS):
            return 0, ""
        return size, re.sub(r"\s+", " ", text.split(" ;")[0]).strip()


class Isolated:
    """A disassembler in a forked process: LLVM ends its process at some illegal words, which count
    as illegal here. Use it as a context manager."""

    def __init__(self, processor: str, features: str = "") -> None:
        self._disassemble = Disassembler(processor, features)
        self._context = multiprocessing.get_context("fork")
        self._start()

    def _start(self) -> None:
        self._connection, other = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(self._disassemble, other))
        self._process.start()
        other.close()

    def __call__(self, code: bytes) -> tuple[int, str]:
        """See Disassembler."""
        try:
            self._connection.send_bytes(code)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._stop()
            self._start()
            return 0, ""
        size, _, text = answer.decode().partition(" ")
        return int(size), text

    def _stop(self) -> None:
        self._connection.close()
        self._process.kill()  # a forked process has its own copy of this end of the pipe
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def _serve(disassemble: Disassembler, connection: Connection) -> None:
    """Answer code with size and text, until the other end closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            size, text = disassemble(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(f"{size} {text}".encode())
