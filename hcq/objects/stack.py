"""Stack size of native code, and threads with such a stack.

Code of very large functions keeps values that do not fit in registers in its frame: translated
kernels of tens of thousands of instructions take more than the 8 MB that threads usually have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ugpu.hcq.objects.elf import read_object
from ugpu.hcq.state.life import ModuleLock

USUAL = 4 << 20  # bytes of a frame that any thread has room for
DEEPEST = 60 << 20  # the same for a thread started in `deep`
_SIZE = 64 << 20  # address space; memory is taken as it is touched
_SUB_RSP = b"\x48\x81\xec"  # sub rsp, imm32: Intel SDM volume 2, SUB
_PROLOGUE = 64  # bytes: pushes and the alignment of the frame come before

_starting = ModuleLock()


def frame_of(image: bytes, name: str) -> int:
    """Return the bytes of stack that a function of an x86-64 object takes; 0 for less than 128,
    and for other processors.

    Raises BadCodeObject for data that is not an object, KeyError for one without the function.
    """
    elf = read_object(image)
    symbol = elf.find(name)
    if symbol is None or symbol.section is None:
        raise KeyError(name)
    return frame_at(elf.sections[symbol.section].data, symbol.value)


def frame_at(section: bytes, start: int) -> int:
    """Return what `frame_of` does for the function that starts at a place in a section."""
    code = section[start : start + _PROLOGUE]
    at = code.find(_SUB_RSP)
    return int.from_bytes(code[at + 3 : at + 7], "little") if at >= 0 else 0


@contextmanager
def deep() -> Iterator[None]:
    """Give threads started in the block a stack for frames of DEEPEST bytes."""
    with _starting.lock:
        before = threading.stack_size(_SIZE)
        try:
            yield
        finally:
            threading.stack_size(before)
