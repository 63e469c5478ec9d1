"""Declarations of variables and parameters, with their initial data.

Source: PTX ISA 8.x, "Variables".
"""

from __future__ import annotations

import struct

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.cursor import Cursor
from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Reference, Variable

_MOST_BYTES = 1 << 32
_MOST_INITIAL = 64 << 20  # bytes of a variable with initial values, whose zeros are stored too
_DEEPEST = 64  # braces inside each other, one for each dimension of an array
_PACKS = {"f32": "<f", "f64": "<d"}


def variables(cursor: Cursor, external: bool, one: bool = False) -> list[Variable]:
    """Parse `.space .align 4 .type name[n] = {...}, name2;` at its space."""
    line = cursor.peek.line
    space = cursor.next().text[1:]
    align, width, kind = 0, 1, ""
    while cursor.peek.kind == "dot":
        word = cursor.next().text[1:]
        if word == "align":
            align = cursor.integer()
        elif word in ("v2", "v4", "v8"):
            width = int(word[1:])
        elif word == "ptr":
            kind = kind or "b64"
        elif word in ("global", "const", "shared", "local") and kind:
            continue  # the state space that a pointer parameter points to
        elif word in SIZES:
            kind = word
        elif word == "attribute":
            cursor.skip_past(")")
        elif kind and align and cursor.peek.kind == "number":
            continue
        else:
            raise NotSupported(f"PTX line {line}: a variable of type .{word}")
        if word == "align" and kind:
            align = 0  # the alignment of the memory that a pointer parameter points to
    if not kind:
        raise bad(line, "a variable must have a type")
    unit = SIZES[kind] * width
    found = []
    while True:
        found.append(_one(cursor, space, kind, align or unit, unit, line, external))
        if one:
            return found
        if not cursor.take(","):
            break
    cursor.expect(";")
    return found


def _one(
    cursor: Cursor, space: str, kind: str, align: int, unit: int, line: int, external: bool
) -> Variable:
    name = cursor.name()
    size: int | None = unit
    while cursor.take("["):
        if cursor.take("]"):
            size = None
            continue
        count = cursor.integer()
        if count < 0 or size is None or size * count > _MOST_BYTES:
            raise bad(line, f"{name} has an invalid size")
        size *= count
        cursor.expect("]")
    if align < 1 or align & (align - 1):
        raise bad(line, f"{name}: alignment must be a power of two, got {align}")
    variable = Variable(name, space, kind, align, size, line, external=external)
    if not cursor.take("="):
        return variable
    data = bytearray()
    references: list[Reference] = []
    _values(cursor, kind, data, references, 0)
    if size is None:
        size = len(data)
    if len(data) > size:
        raise bad(line, f"{name} has more initial values than elements")
    if size > _MOST_INITIAL:
        raise bad(
            line, f"{name} has {size} bytes with initial values, the limit is {_MOST_INITIAL}"
        )
    data.extend(bytes(size - len(data)) if any(data) or references else b"")
    return Variable(name, space, kind, align, size, line, bytes(data), tuple(references), external)


def _values(
    cursor: Cursor, kind: str, data: bytearray, references: list[Reference], depth: int
) -> None:
    if cursor.take("{"):
        if depth == _DEEPEST:
            raise bad(cursor.peek.line, f"at most {_DEEPEST} braces may be inside each other")
        while not cursor.take("}"):
            _values(cursor, kind, data, references, depth + 1)
            if not cursor.take(",") and cursor.peek.text != "}":
                raise bad(cursor.peek.line, "expected ',' or '}' in the initial values")
        return
    token = cursor.peek
    size = SIZES[kind]
    if token.kind == "name":
        _reference(cursor, size, data, references)
    elif kind in ("f32", "f64", "f16", "bf16") and token.text[:2].lower() in ("0f", "0d"):
        cursor.next()
        value = int(token.text[2:], 16)
        if len(token.text) != 2 + 2 * size:
            raise bad(token.line, f"expected a constant of type .{kind}, got {token.text}")
        data += value.to_bytes(size, "little")
    elif kind in _PACKS and "." in cursor.ahead(1 if token.text == "-" else 0).text:
        sign = -1.0 if cursor.take("-") else 1.0
        try:
            data += struct.pack(_PACKS[kind], sign * float(cursor.next().text))
        except (ValueError, OverflowError) as error:
            raise bad(token.line, f"{token.text}: {error}") from error
    else:
        value = cursor.integer() & ((1 << 8 * size) - 1)
        data += value.to_bytes(size, "little")


def _reference(cursor: Cursor, size: int, data: bytearray, references: list[Reference]) -> None:
    line = cursor.peek.line
    name = cursor.name()
    generic = name == "generic"
    if cursor.peek.text == "(":
        if not generic:
            raise NotSupported(f"PTX line {line}: {name}() in initial values")
        cursor.expect("(")
        name = cursor.name()
        cursor.expect(")")
    addend = cursor.integer() if cursor.peek.text in ("+", "-") else 0
    if size != 8:
        raise NotSupported(f"PTX line {line}: part of an address in initial values")
    references.append(Reference(len(data), name, addend, generic))
    data += bytes(8)
