"""User kernels: from source to a program on a device. `Device.compile` calls `compile_source`.

Source is LLVM IR as text, PTX as text (NVIDIA), or a kernel of our own IR (`ugpu.ir.Kernel`). LLVM
runs in a child process; objects are cached by content.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.children import shared, version
from ugpu.compiler.expression.value import interning
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import BrokenKernel, verify
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import BadArgument, BadCodeObject, CompileError
from ugpu.hcq.state.config import config
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.program import Program

_PTX = re.compile(r"^\s*\.version\s+\d", re.MULTILINE)
_IR = re.compile(r"^\s*(define|declare|target|source_filename|@|%|!|attributes|;)", re.MULTILINE)
_TRIPLE = re.compile(r'^\s*target\s+triple\s*=\s*"([^"-]*)', re.MULTILINE)
_FIRST = re.compile(r'^\s*define\b[^@]*@"?([\w.$-]+)', re.MULTILINE)
_PTX_LINE = re.compile(r"\bline (\d+)")
# How a kernel is marked in LLVM IR, by the target's calling convention (LLVM language reference,
# "Calling Conventions"; hcq.state.target.TargetSpec).
_MARKS = {
    "amdhsa": "`define amdgpu_kernel void @name(...)`",
    "ptx": "`define ptx_kernel void @name(...)`",
    "ir3": '`define spir_kernel void @name(...)` with the attribute "adreno-threads"="<threads>"',
    "host": '`define void @name(ptr %kernarg, ptr %launch)` and its data symbol `@"name.ugpu"`',
}


def compile_source(device: Device, source: str | bytes | Kernel) -> Program:
    """Compile `source` for `device` and load it; the caller owns the program.

    BadArgument: the device does not support this kind of source or its target. CompileError: the
    compiler rejects it; `line` and `code` give the place if the compiler reports it, and `ir` the
    text.
    """
    target, folder = device.target, config().cache_folder / "kernels"
    if isinstance(source, Kernel):
        program = device.load(_object(_lowered(source, target), target, source.name, folder))
        program.source = functools.partial(format_kernel, source)
        return program
    text = _text(source)
    if _PTX.search(text):
        return _from_ptx(device, text)
    if not _IR.search(text):
        raise BadArgument("source must be LLVM IR, PTX or a kernel of ugpu.ir; "
                          f"got text that starts with {text.strip()[:40]!r}")  # fmt: skip
    _check_triple(text, target)
    found = _FIRST.search(text)
    image = _object(text, target, found[1] if found else "module", folder)
    wanted = f"expected a kernel as {_MARKS[target.abi]}"
    try:
        program = device.load(image)
    except BadCodeObject as error:
        raise _failed(f"{error.message}; {wanted}", text, target) from error
    if not len(program):
        program.close()
        raise _failed(f"the source defines no kernel; {wanted}", text, target)
    program.source = lambda: text
    return program


def _text(source: object) -> str:
    if isinstance(source, bytes | bytearray | memoryview):
        try:
            source = bytes(source).decode()
        except UnicodeDecodeError as error:
            raise BadArgument(
                f"source must be UTF-8 text, got other bytes ({error.reason}); pass a "
                "compiled object to `load`"
            ) from None
    if not isinstance(source, str):
        raise BadArgument(
            f"source must be str, bytes or a Kernel of ugpu.ir, got {type(source).__name__}"
        )
    if not source.strip():
        raise BadArgument("source must not be empty")
    return source


def _lowered(kernel: Kernel, target: TargetSpec) -> str:
    """Return a kernel of our IR as LLVM IR."""
    try:
        with interning:
            return emit(verify(kernel), target)
    except BrokenKernel as error:
        text = format_kernel(kernel)
        raise _failed(f"the kernel IR is not valid: {error}", text, target) from None


def _object(text: str, target: TargetSpec, name: str, folder: Path) -> bytes:
    cache = DiskCache(folder)
    key = DiskCache.key(
        "source", text, target.triple, target.cpu, target.features, target.abi, version()
    )
    image = cache.get(key)
    if image is None:
        image = shared().submit(text, target, name).result().image
        cache.put(key, image)
    return image


def _from_ptx(device: Device, text: str) -> Program:
    target = device.target
    if target.abi != "ptx":
        raise BadArgument(f"source is PTX, {device.name} requires LLVM IR for {target.triple}")
    try:
        program = device.load(text.encode())
        program.source = lambda: text
        return program
    except BadCodeObject as error:
        log = str(error.facts.get("log", "")) or error.message
        found = _PTX_LINE.search(log)
        facts: dict[str, object] = {}
        if found is not None:
            number, lines = int(found[1]), text.splitlines()
            if 1 <= number <= len(lines):
                facts = {"line": number, "code": lines[number - 1].strip()}
        raise _failed(error.message, text, target, **facts) from error


def _check_triple(text: str, target: TargetSpec) -> None:
    """Check the module's triple: LLVM would compile a module for another processor, with wrong
    addresses."""
    found = _TRIPLE.search(text)
    wanted = target.triple.split("-")[0]
    if found is not None and found[1] != wanted:
        raise BadArgument(
            f"source is LLVM IR for {found[1]}, the device needs {wanted} ({target.name})"
        )


def _failed(message: str, text: str, target: TargetSpec, **facts: object) -> CompileError:
    error = CompileError(message, target=target.name, **facts)
    error.ir = text
    return error
