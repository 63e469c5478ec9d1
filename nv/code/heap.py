"""`malloc` and `free` of kernels, which CUDA's driver has and a cubin lacks: a heap, and routines.

The routine replaces a declaration `.extern .func ... malloc(...);`, as nv.code.output_routines does
for printf. Signatures: CUDA C++ Programming Guide 12.9, "Dynamic Global Memory Allocation". Memory
remains allocated from one kernel to the next until a thread frees it, and is aligned to 16 bytes.
The heap has 8 MiB, CUDA's default (cudaLimitMallocHeapSize).

Block sizes are powers of two. The first 16 bytes of a block precede the part that the program gets:
4 bytes the power, and from byte 8 on the offset of the next free block. Free blocks are not joined
or split. The heap, little endian: 8 bytes the end of the part ever allocated, 8 bytes the heap's
size; from byte 64 on a word of 8 bytes for each power. The word has the offset of the first free
block of this size in its low 40 bits and a count of changes above. By the count, a thread detects
that other threads have changed the list meanwhile.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from ugpu.hcq.work.command import Barrier, Command, Fill
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.nv.code.image import Image
from ugpu.nv.rm.memory import Memory, allocate_reachable

if TYPE_CHECKING:
    from ugpu.nv.rm.holder import Holder

STATE = "__ugpu_heap"  # variable that holds the heap's address; 0: no heap
SIZE = 8 << 20
_HEAD = struct.Struct("<QQ")
_HEAD_SIZE = 1024
_EMPTY = _HEAD.pack(_HEAD_SIZE, SIZE).ljust(_HEAD_SIZE, b"\0")
_PLACE = (1 << 40) - 1  # bits of an offset in the word of a list
_CHANGE = 1 << 40

_LIST = """
  mul.wide.u32 %list, %power, 8; add.u64 %list, %list, %heap; add.u64 %list, %list, 64;
"""
_MALLOC = f"""
.func (.param .b64 malloc_result) malloc(.param .b64 malloc_size)
{{
  .reg .pred %p; .reg .b32 %power; .reg .b64 %heap, %size, %list, %at, %old, %new, %next, %got;
  ld.param.u64 %size, [malloc_size]; mov.u64 %got, 0;
  mov.u64 %heap, {STATE}; ld.global.u64 %heap, [%heap]; setp.eq.u64 %p, %heap, 0; @%p bra NONE;
  sub.u64 %at, %size, 1; setp.ge.u64 %p, %at, {_PLACE}; @%p bra NONE;
  add.u64 %size, %size, 15; or.b64 %size, %size, 31;
  clz.b64 %power, %size; sub.u32 %power, 64, %power;
  mov.u64 %size, 1; shl.b64 %size, %size, %power;
{_LIST}
POP:
  ld.relaxed.gpu.global.u64 %old, [%list];
  and.b64 %at, %old, {_PLACE}; setp.eq.u64 %p, %at, 0; @%p bra GROW;
  add.u64 %at, %at, %heap; ld.relaxed.gpu.global.u64 %next, [%at+8];
  and.b64 %new, %old, {-_CHANGE}; add.u64 %new, %new, {_CHANGE}; or.b64 %new, %new, %next;
  atom.global.cas.b64 %next, [%list], %old, %new;
  setp.ne.u64 %p, %next, %old; @%p bra POP;
  bra TAKEN;
GROW:
  ld.relaxed.gpu.global.u64 %old, [%heap]; ld.global.u64 %at, [%heap+8];
  add.u64 %new, %old, %size; setp.gt.u64 %p, %new, %at; @%p bra NONE;
  atom.global.cas.b64 %next, [%heap], %old, %new;
  setp.ne.u64 %p, %next, %old; @%p bra GROW;
  add.u64 %at, %heap, %old;
TAKEN:
  st.global.u32 [%at], %power; add.u64 %got, %at, 16;
NONE:
  st.param.b64 [malloc_result], %got; ret;
}}
"""
_FREE = f"""
.func free(.param .b64 free_place)
{{
  .reg .pred %p; .reg .b32 %power; .reg .b64 %heap, %list, %at, %old, %new, %next, %place;
  ld.param.u64 %at, [free_place]; setp.eq.u64 %p, %at, 0; @%p bra DONE;
  mov.u64 %heap, {STATE}; ld.global.u64 %heap, [%heap];
  sub.u64 %at, %at, 16; sub.u64 %place, %at, %heap;
  ld.global.u64 %old, [%heap]; setp.ge.u64 %p, %place, %old; @%p trap;
  ld.global.u32 %power, [%at];
{_LIST}
PUSH:
  ld.relaxed.gpu.global.u64 %old, [%list];
  and.b64 %next, %old, {_PLACE}; st.relaxed.gpu.global.u64 [%at+8], %next;
  and.b64 %new, %old, {-_CHANGE}; add.u64 %new, %new, {_CHANGE}; or.b64 %new, %new, %place;
  membar.gl; atom.global.cas.b64 %next, [%list], %old, %new;
  setp.ne.u64 %p, %next, %old; @%p bra PUSH;
DONE:
  ret;
}}
"""
_ROUTINES = {b"malloc": _MALLOC, b"free": _FREE}
_DECLARED = re.compile(rb"\.extern\s+\.func\s*(?:\([^()]*\)\s*)?(malloc|free)\s*\([^()]*\)\s*;")


def with_heap(ptx: bytes) -> bytes:
    """The text with routines in place of declarations; unchanged if it declares neither."""
    seen: set[bytes] = set()

    def routine(found: re.Match[bytes]) -> bytes:
        name = found[1]
        state = "" if seen else f".global .align 8 .u64 {STATE};\n"
        text = "" if name in seen else state + _ROUTINES[name]
        seen.add(name)
        return text.encode()

    return _DECLARED.sub(routine, ptx)


class Heap:
    """The heap of one device, created for the first program that allocates."""

    def __init__(self, driver: Holder) -> None:
        self._driver = driver
        self._memory: Memory | None = None

    def connect(self, image: Image, data: bytes) -> bytes:
        """Return the bytes of a program to load, with the heap's address inserted."""
        place = next((v for v in image.variables() if v.name == STATE), None)
        if place is None:
            return data
        assert place.section is not None
        if self._memory is None:
            memory = allocate_reachable(self._driver.gpu, SIZE)
            memory.view[:_HEAD_SIZE] = _EMPTY
            self._memory = memory
        linked = bytearray(data)
        at = image.offsets[place.section] + place.value
        struct.pack_into("<Q", linked, at, self._memory.address)
        return bytes(linked)

    def clear(self) -> list[Command]:
        """Commands that zero all blocks and make them free."""
        if self._memory is None:
            return []
        address = self._memory.address
        commands: list[Command] = [Fill(Symbol.constant(address), 0, SIZE), Barrier()]
        for at, (word,) in enumerate(struct.iter_unpack("<I", _HEAD.pack(_HEAD_SIZE, SIZE))):
            commands.append(Fill(Symbol.constant(address + 4 * at), word, 4))
        return commands
