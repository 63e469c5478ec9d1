"""Kinds of kernel arguments, integer or float, from the DWARF of an object.

AMD's metadata contains a scalar's type for OpenCL only; a HIP object compiled with -g has the types
of parameters in DWARF. Read by pyelftools, which is optional (the extra `lines`). Without it, and
if DWARF is missing, is damaged or disagrees with the metadata, kinds stay unknown. Facts: DWARF 5,
section 3.3 (subprograms), 5.1 and 7.8 (base types and their encodings).
"""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.objects.source_lines import resolved

log = logging.getLogger(__name__)
Arguments = tuple[Argument, ...]
_SECTION = b".debug_info\0"
_SAME_AS = ("DW_AT_abstract_origin", "DW_AT_specification")
_QUALIFIERS = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
# DW_ATE: boolean, signed, signed_char, unsigned, unsigned_char, UTF; float
_INTEGERS, _FLOAT = (2, 5, 6, 7, 8, 16), 4
# Bytes of an object beyond which kinds stay unknown: entries are read one by one, each with those
# that it refers to, when a client's program is loaded.
_LARGEST = 2 << 20
_LONGEST_CHAIN = 16  # of references; damaged tables may have cycles


def with_kinds(image: bytes, kernels: Mapping[str, Arguments]) -> dict[str, Arguments]:
    """Return the arguments of each kernel, with the kind from DWARF for those of unknown kind.

    image: the object's file. A kernel's arguments stay as they are if their number differs from
    that of the parameters in DWARF; an argument stays as it is if its size differs.
    """
    typed = dict(kernels)
    untyped = {name for name, arguments in kernels.items() if any(map(_is_untyped, arguments))}
    if not untyped or len(image) > _LARGEST or _SECTION not in image:
        return typed
    try:
        elffile = importlib.import_module("elftools.elf.elffile")
    except ImportError:
        return typed
    try:
        elf = elffile.ELFFile(io.BytesIO(resolved(elffile.ELFFile(io.BytesIO(image)), {})))
        for unit in elf.get_dwarf_info(relocate_dwarf_sections=False).iter_CUs():
            for name, parameters in _functions(unit, untyped):
                typed[name] = _merged(kernels[name], parameters)
    except Exception as error:  # pyelftools raises many classes on damaged tables
        log.warning("the debug information of a program is invalid: %r", error)
        return dict(kernels)
    return typed


def _is_untyped(argument: Argument) -> bool:
    return not argument.kind and not argument.is_address


def _merged(arguments: Arguments, parameters: list[tuple[str, int]]) -> Arguments:
    if len(arguments) != len(parameters):
        return arguments
    return tuple(
        replace(argument, kind=kind)
        if _is_untyped(argument) and argument.size == size
        else argument
        for argument, (kind, size) in zip(arguments, parameters, strict=True)
    )


def _functions(unit: Any, names: set[str]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield (name, kind and size of each parameter); pyelftools has no types."""
    for entry in unit.iter_DIEs():
        if entry.tag != "DW_TAG_subprogram" or "DW_AT_declaration" in entry.attributes:
            continue
        matching = {_text(entry, "DW_AT_linkage_name"), _text(entry, "DW_AT_name")} & names
        if matching:
            children = entry.iter_children()
            parameters = [child for child in children if child.tag == "DW_TAG_formal_parameter"]
            yield matching.pop(), [_kind_and_size(_type_of(child)) for child in parameters]


def _text(entry: Any, attribute: str) -> str:
    """Return the name of an entry, or of the entry that it completes; "" without one."""
    for link in _chain(entry, _SAME_AS):
        if attribute in link.attributes:
            return str(link.attributes[attribute].value.decode("utf-8", "replace"))
    return ""


def _chain(entry: Any, references: Sequence[str]) -> Iterator[Any]:
    """Yield an entry, the one that it refers to by the first of `references` it has, and so on."""
    for _ in range(_LONGEST_CHAIN):
        yield entry
        present = [name for name in references if name in entry.attributes]
        if not present:
            return
        entry = entry.get_DIE_from_attribute(present[0])


def _type_of(entry: Any) -> Any:
    """Return the entry of a parameter's type, without typedefs and qualifiers; None for void."""
    chain = _chain(entry, ("DW_AT_type", *_SAME_AS))
    parameters = ("DW_TAG_formal_parameter", *_QUALIFIERS)
    return next((link for link in chain if link.tag not in parameters), None)


def _kind_and_size(entry: Any) -> tuple[str, int]:
    """Return ("integer" | "float" | "", bytes) of a type; "" for structures and the like."""
    if entry is None or "DW_AT_byte_size" not in entry.attributes:
        return "", 0
    size = int(entry.attributes["DW_AT_byte_size"].value)
    if entry.tag == "DW_TAG_enumeration_type":
        return "integer", size
    if entry.tag != "DW_TAG_base_type":
        return "", size
    encoding = entry.attributes["DW_AT_encoding"].value
    return ("float" if encoding == _FLOAT else "integer" if encoding in _INTEGERS else ""), size
