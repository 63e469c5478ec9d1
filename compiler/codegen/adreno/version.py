"""Inputs of machine code for Adreno besides its LLVM IR: Mesa's version and these files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ugpu.hcq.objects.ir3_object import VERSION

MESA = "25.2.7.2"  # of tinymesa; Mesa 25.2.7


def adreno_version() -> str:
    """Return Mesa's version, that of the object's format, and a digest of this folder's sources."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"tinymesa {MESA} object {VERSION} {digest.hexdigest()}"
