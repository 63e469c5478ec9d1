"""The data symbol that marks a kernel of a host object and declares its arguments.

`name.ugpu` marks the kernel `name`:

    offset 0   u32    version, 2
    4          u32    bytes of all arguments
    8                 NUL-terminated text: "ptr out, ptr x, i32 count, float scale"

Each argument is LLVM's name of its type and its own name; they lie at natural alignment in this
order. Version 1 has no text and declares no arguments: their total size alone is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.argument import Argument

MARK = ".ugpu"
MAX_KERNARG_SIZE = 64 << 10
_SIZE_ALONE, _DECLARED = 1, 2  # versions
_HEAD = struct.Struct("<II")
# Bytes of a type, and its kind (hcq.objects.argument.Argument).
_TYPES = {
    "ptr": (8, ""), "i1": (1, "integer"), "i8": (1, "integer"), "i16": (2, "integer"),
    "i32": (4, "integer"), "i64": (8, "integer"), "half": (2, "float"), "bfloat": (2, "float"),
    "float": (4, "float"), "double": (8, "float"),
}  # fmt: skip


def declared(kernel: str, data: bytes) -> tuple[int, tuple[Argument, ...] | None]:
    """Read a kernel's mark: the bytes of its arguments, and the arguments, None if it does not
    declare them. BadCodeObject for a malformed mark."""
    if len(data) < _HEAD.size:
        raise BadCodeObject("the kernel's .ugpu symbol is truncated", kernel=kernel)
    version, size = _HEAD.unpack_from(data)
    if version not in (_SIZE_ALONE, _DECLARED) or size > MAX_KERNARG_SIZE:
        raise BadCodeObject(
            "the kernel's .ugpu symbol has an unknown version or size",
            kernel=kernel,
            version=version,
            size=size,
        )
    if version == _SIZE_ALONE:
        return size, None
    text, end, _ = data[_HEAD.size :].partition(b"\0")
    if not end:
        raise BadCodeObject("the kernel's .ugpu symbol is truncated", kernel=kernel)
    arguments = _arguments(kernel, text.decode("utf-8", "replace"))
    total = max((argument.offset + argument.size for argument in arguments), default=0)
    if total != size:
        raise BadCodeObject(
            "the size of the declared arguments differs from the size in the kernel's .ugpu symbol",
            kernel=kernel,
            declared=total,
            size=size,
        )
    return size, arguments


def _arguments(kernel: str, text: str) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    end = 0
    for declaration in text.split(",") if text else ():
        kind, _, name = declaration.strip().partition(" ")
        if kind not in _TYPES:
            raise BadCodeObject(
                f"argument {len(arguments)} of {kernel} must have one of the types "
                f"{', '.join(_TYPES)}, got {kind!r}",
                kernel=kernel,
            )
        size, scalar = _TYPES[kind]
        offset = -(-end // size) * size
        arguments.append(Argument(offset, size, name.strip(), kind == "ptr", scalar))
        end = offset + size
    return tuple(arguments)


def marked(kernel: str, arguments: Sequence[str]) -> str:
    """Return the mark of a kernel in LLVM IR. arguments: "ptr out" and the like."""
    text = ", ".join(arguments)
    parsed = _arguments(kernel, text)
    size = max((argument.offset + argument.size for argument in parsed), default=0)
    kind = f"[{len(text) + 1} x i8]"
    return (
        f'@"{kernel}{MARK}" = constant {{ i32, i32, {kind} }} '
        f'{{ i32 {_DECLARED}, i32 {size}, {kind} c"{text}\\00" }}'
    )
