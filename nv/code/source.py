"""Reads what users load: PTX text, which is assembled for a GPU, or a cubin."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.config import config
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.bulk_copies import to_own_memory
from ugpu.nv.code.cubin import Cubin, parse_cubin
from ugpu.nv.code.heap import with_heap
from ugpu.nv.code.output_routines import with_routines

log = logging.getLogger(__name__)

# A module of one entry, whose variables are its own, as LLVM writes it: what begins a line belongs
# to the module or to the entry.
_ALONE = re.compile(
    rb"(?P<head>(?:[ \t]*(?://[^\n]*)?\n)*\.version [^\n]*\n\.target [^\n]*\n\.address_size 64\n)"
    rb"(?P<body>(?:[ \t]*(?://[^\n]*)?\n)*\.visible \.entry (?P<name>[\w$]+)\(.*)",
    re.DOTALL,
)
_DIRECTIVE = re.compile(rb"^\.(?:visible \.)?\w+", re.MULTILINE)
_OF_ENTRIES = frozenset((b".visible .entry", b".reqntid", b".maxntid", b".minnctapersm",
                         b".maxnreg"))  # fmt: skip
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


def read_source(
    data: bytes, capability: tuple[int, int], options: tuple[str, ...] = (),
    together: Mapping[bytes, Cubin] | None = None,
) -> Source:  # fmt: skip
    """Assemble PTX text, or take a cubin, and check it for a GPU. Raises BadCodeObject. options:
    for the assembler. together: texts that have been assembled (`assemble_together`)."""
    ptx, target = b"", ""
    if not data.startswith(b"\x7fELF"):
        ptx, target = _prepared(data, capability)
        cubin = (together or {}).get(ptx) or parse_cubin(_assembled(ptx, target, options))
    else:
        cubin = parse_cubin(data)
    _check_target(cubin, capability)
    return Source(cubin, ptx, target, _parameters(ptx))


def assemble_together(
    texts: Sequence[bytes], capability: tuple[int, int], options: tuple[str, ...]
) -> dict[bytes, Cubin]:
    """Assemble the texts that can share a module as one, which takes a fraction of the time.

    Return, by the text as `read_source` assembles it, a cubin whose only kernel is the text's.
    Texts of which one is invalid are left out: each is reported when it is loaded.
    """
    modules: dict[tuple[bytes, str], dict[str, bytes]] = {}  # by header and target: entry to text
    for data in texts:
        if data.startswith(b"\x7fELF"):
            continue
        try:
            ptx, target = _prepared(data, capability)
        except BadCodeObject:
            continue
        alone = _ALONE.fullmatch(ptx)
        if alone is not None and not set(_DIRECTIVE.findall(alone["body"])) - _OF_ENTRIES:
            modules.setdefault((alone["head"], target), {})[alone["name"].decode()] = ptx
    cubins: dict[bytes, Cubin] = {}
    for (head, target), entries in modules.items():
        if len(entries) < 2:
            continue
        bodies = [ptx[len(head) :] for ptx in entries.values()]
        try:
            cubin = parse_cubin(_assembled(b"\n".join([head, *bodies]), target, options))
        except BadCodeObject as error:
            log.debug("%d kernels are assembled one by one: %s", len(entries), error)
            continue
        cubins |= {ptx: cubin.only(name) for name, ptx in entries.items()}
    return cubins


def _prepared(data: bytes, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Return the text to assemble, and for which architecture. Raises BadCodeObject."""
    ptx = data.rstrip(b"\0")
    target = _check_text(ptx, capability)
    return to_own_memory(with_heap(with_routines(ptx)), target), target


def _assembled(ptx: bytes, target: str, options: tuple[str, ...]) -> bytes:
    return assemble(ptx, target, config().cache_folder / "cubins", options)


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
