"""Reads what users load: PTX text, which is assembled for a GPU, or a cubin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.config import config
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.bulk_copies import to_own_memory
from ugpu.nv.code.cubin import Cubin, parse_cubin
from ugpu.nv.code.heap import with_heap
from ugpu.nv.code.output_routines import with_routines

# Clients give the text: each expression takes time in proportion to it, whatever it contains.
_TARGET = re.compile(rb"^[ \t]*\.target\s+sm_(\d{1,9})([af]?)", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^()]*)\)")
_NAME = re.compile(r"[\w$%]+")
_SCALAR = re.compile(r"\.([usf])(?:8|16|32|64)\b")
_KINDS = {"u": "integer", "s": "integer", "f": "float"}  # bits, .b, are of any kind


@dataclass(frozen=True)
class Source:
    """A program before it is loaded. ptx: the text that was assembled for `target`; empty for a
    cubin. names: names and kinds of parameters by entry."""

    cubin: Cubin
    ptx: bytes
    target: str
    names: Mapping[str, tuple[tuple[str, str], ...]]

    def arguments(self, entry: str) -> tuple[Argument, ...] | None:
        """Return the arguments of a kernel, with their names where the text has them."""
        arguments, names = self.cubin.kernels[entry].arguments, self.names.get(entry)
        if arguments is None or names is None or len(names) != len(arguments):
            return arguments
        return tuple(
            replace(argument, name=name, kind="" if argument.is_address else kind)
            for argument, (name, kind) in zip(arguments, names, strict=True)
        )


def read_source(data: bytes, capability: tuple[int, int]) -> Source:
    """Assemble PTX text, or take a cubin, and check it for a GPU. Raises BadCodeObject."""
    ptx, target = b"", ""
    if not data.startswith(b"\x7fELF"):
        ptx = data.rstrip(b"\0")
        target = _check_text(ptx, capability)
        ptx = to_own_memory(with_heap(with_routines(ptx)), target)
        data = assemble(ptx, target, config().cache_folder / "cubins")
    cubin = parse_cubin(data)
    _check_target(cubin, capability)
    return Source(cubin, ptx, target, _parameters(ptx))


def _check_text(ptx: bytes, capability: tuple[int, int]) -> str:
    """Return the architecture to assemble for: the GPU's, with the text's suffix ("sm_90a").

    BadCodeObject, before an assembler runs, if the text is not PTX or is for other GPUs.
    """
    found = _TARGET.search(ptx)
    if found is None:
        starts = ptx[:16].decode("ascii", "replace")
        raise BadCodeObject("expected PTX text with a .target line, or a cubin", starts=starts)
    try:
        ptx.decode("utf-8")
    except UnicodeDecodeError:
        raise BadCodeObject("PTX must be UTF-8 text") from None
    own = capability[0] * 10 + capability[1]
    number, suffix = int(found[1]), found[2].decode()
    if number > own or (suffix == "a" and number != own):
        raise BadCodeObject(
            "the PTX requires a newer GPU"
            if number > own
            else "the PTX runs on one architecture only",
            found=f"sm_{number}{suffix}",
            expected=f"sm_{own} or older",
        )
    return f"sm_{own}{suffix}"


def _check_target(cubin: Cubin, capability: tuple[int, int]) -> None:
    """Raise BadCodeObject unless the GPU has the cubin's major version and at least its minor."""
    major, minor = cubin.capability
    if major != capability[0] or minor > capability[1]:
        raise BadCodeObject(
            "the cubin is built for another architecture",
            found=cubin.target,
            expected=f"sm_{capability[0]}{capability[1]}",
        )


def _parameters(ptx: bytes) -> dict[str, tuple[tuple[str, str], ...]]:
    """Names and kinds of parameters by entry: PTX has them, machine code does not."""
    return {
        entry[1]: tuple(_parameter(part) for part in entry[2].split(",") if part.strip())
        for entry in _ENTRY.finditer(_COMMENT.sub(" ", ptx.decode("utf-8", "replace")))
    }


def _parameter(text: str) -> tuple[str, str]:
    declared = text.strip()
    array = declared.endswith("]")
    if array:
        declared, _, count = declared[:-1].rpartition("[")
        if count and not count.isdecimal():
            return "", ""
    name, kind = _NAME.match(declared.rstrip()[::-1]), _SCALAR.search(text)
    if name is None:
        return "", ""
    return name[0][::-1], _KINDS[kind[1]] if kind is not None and not array else ""
