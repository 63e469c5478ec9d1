"""Signatures of synthetic firmware: the model's own scheme.

NVIDIA's keys are not public, and no loader verifies a signature. The fields that carry one have the
real sizes. A signature covers the code, the data (without the field that holds the signature), the
program's number and its fuse version, as the boot ROM's RSA-3072 signatures do.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

KEY = b"ugpu synthetic NVIDIA firmware"
SIZE = 0x180  # of RSA-3072
_HEAD = struct.Struct("<8sIIII32s")
_MAGIC = b"UGPUSIG1"


class Terms(NamedTuple):
    """What a signature is valid for. fuse: the version that the fuses must have. engine: mask of
    engines (1 SEC2, 0x400 GSP). program: the number of the program for this engine."""

    fuse: int
    engine: int
    program: int


def sign(terms: Terms, content: bytes, size: int = SIZE) -> bytes:
    """Return a signature of `size` bytes (at least 56)."""
    return _HEAD.pack(_MAGIC, *terms, 0, _digest(terms, content)).ljust(size, b"\0")


def short(content: bytes, size: int = 16) -> bytes:
    """Return a signature without terms for a field of 16 bytes, as Turing's booter has."""
    return hmac.new(KEY, content, hashlib.sha256).digest()[:size]


def problem(field: bytes, terms: Terms, content: bytes) -> str:
    """Return why a signature is not valid, or "" if it is."""
    if len(field) < _HEAD.size:
        return f"a signature has at least {_HEAD.size} bytes, got {len(field)}"
    magic, fuse, engine, program, _, digest = _HEAD.unpack_from(field)
    if magic != _MAGIC:
        return "there is no signature in its place"
    if (engine, program) != (terms.engine, terms.program):
        return (
            f"signed for engine {engine:#x}, program {program:#x}; expected "
            f"{terms.engine:#x}, {terms.program:#x}"
        )
    if fuse != terms.fuse:
        return f"signed for fuse version {fuse}, the fuses say {terms.fuse}"
    if not hmac.compare_digest(digest, _digest(terms, content)):
        return "the signature does not match the content"
    return ""


def _digest(terms: Terms, content: bytes) -> bytes:
    return hmac.new(KEY, struct.pack("<III", *terms) + content, hashlib.sha256).digest()
