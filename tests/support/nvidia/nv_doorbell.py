"""A program that rings a doorbell on files that only bear the names of NVIDIA's nodes: a ring and a
push buffer in a mapping of the control file, two doorbells in ones of the GPU's, of which it rings
the second, as CUDA does on Hopper. Its calls fail with ENOTTY, which is enough for who watches.

Run as a script with the nodes' folder, and what to do: `ring`, or `threads` for two threads that
ring at the same time with 64-bit stores, or `replaced` where other memory takes a doorbell's place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import threading
from pathlib import Path

from ugpu.nv import abi
from ugpu.tools.debug.sniff.memory import Range, Ring

DONE = 5
ADDRESS = 0x10_0000_0000
CLIENT, MEMORY, BELL, BAR1_BELL, ENTRIES = 1, 0x77, 0x88, 0x89, 64
PUSH, SIZE = 4096, 8192
BELL_SIZE, ROUNDS = 0x10000, 20


def make_nodes(folder: Path) -> Path:
    """Make the files; return the prefix to watch."""
    (folder / "nvidiactl").write_bytes(bytes(SIZE))
    (folder / "nvidia0").write_bytes(bytes(BELL_SIZE))
    (folder / "nvidia-uvm").write_bytes(b"")
    return folder / "nvidia"


def ring(address: int) -> Ring:
    return Ring(address, 4)


def mapped(base: int, length: int, memory: int) -> Range:
    return Range(base, length, memory, 0)


class _Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = abi.select("580.142")
        self.library = ctypes.CDLL(None, use_errno=True)
        self.library.mmap.restype = ctypes.c_void_p
        self.control = os.open(folder / "nvidiactl", os.O_RDWR)

    def call(self, file: int, name: str, **values: int) -> None:
        block = self.table.structs[self.table.ioctls[name].struct].new()
        for path, value in values.items():
            place = block
            *steps, last = path.split("__")
            for step in steps:
                place = place[step]
            place[last] = value
        raw = (ctypes.c_char * len(block.raw)).from_buffer(block.raw)
        request = ctypes.c_ulong(self.table.request(name))
        self.library.ioctl(ctypes.c_int(file), request, ctypes.byref(raw))

    def map(
        self, file: int, size: int, handle: int, access: int = mmap.PROT_READ | mmap.PROT_WRITE
    ) -> int:
        self.call(
            self.control, "NV_ESC_RM_MAP_MEMORY", params__hMemory=handle, params__length=size,
            fd=file,
        )  # fmt: skip
        place = self.library.mmap(
            None, ctypes.c_size_t(size), access, mmap.MAP_SHARED, file, ctypes.c_long(0)
        )  # fmt: skip
        return int(place)

    def run(self, what: str) -> int:
        constants, structs = self.table.constants, self.table.structs
        params = structs.NV_CHANNEL_ALLOC_PARAMS.new(gpFifoOffset=ADDRESS, gpFifoEntries=ENTRIES)
        held = (ctypes.c_char * len(params.raw)).from_buffer(params.raw)
        self.call(
            self.control, "NV_ESC_RM_ALLOC", hRoot=CLIENT, hObjectParent=2, hObjectNew=3,
            hClass=constants.HOPPER_CHANNEL_GPFIFO_A, pAllocParms=ctypes.addressof(held),
            paramsSize=len(params),
        )  # fmt: skip
        uvm = os.open(self.folder / "nvidia-uvm", os.O_RDWR)
        self.call(uvm, "UVM_MAP_EXTERNAL_ALLOCATION", base=ADDRESS, length=SIZE, hMemory=MEMORY)
        bells = []
        for handle in (BELL, BAR1_BELL):
            self.call(
                self.control, "NV_ESC_RM_ALLOC", hRoot=CLIENT, hObjectNew=handle,
                hClass=constants.HOPPER_USERMODE_A,
            )  # fmt: skip
            file = os.open(self.folder / "nvidia0", os.O_RDWR)
            bells.append(self.map(file, BELL_SIZE, handle, mmap.PROT_WRITE))
            os.close(file)  # the next one gets its number
        memory = self.map(os.open(self.folder / "nvidiactl", os.O_RDWR), SIZE, MEMORY)
        bell = bells[1]
        if what == "threads":
            return self.together(bells)
        if what == "replaced":
            return self.replace(*bells)
        pushes = ((0x2001_8000, 0xC8B5), (0x2001_80C0, 0x182), (0, 0))
        for number, words in enumerate(pushes):
            ctypes.memmove(memory + PUSH + 8 * number, struct.pack("<II", *words), 8)
            at = ADDRESS + PUSH + 8 * number
            entry = struct.pack("<II", at & 0xFFFF_FFFF, at >> 32 | 2 << 10)
            ctypes.memmove(memory + 8 * number, entry, 8)
            ctypes.c_uint32.from_address(bell + 0x90).value = number + 1
        rung = ctypes.c_uint32.from_address(bell + 0x90).value
        return DONE if rung == len(pushes) else 1

    def together(self, bells: list[int]) -> int:
        """Ring from two threads, without the interpreter's lock; memset may store twice."""

        def ring_often(bell: int) -> None:
            for _ in range(ROUNDS):
                self.library.memset(ctypes.c_void_p(bell + 0x90), 1, ctypes.c_size_t(8))

        threads = [threading.Thread(target=ring_often, args=(bell,)) for bell in bells]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rung = ctypes.c_uint64.from_address(bells[0] + 0x90).value
        return DONE if rung == 0x0101_0101_0101_0101 else 1

    def replace(self, kept: int, bell: int) -> int:
        """Map memory where the second doorbell was; ring the first one, and write that memory."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        place = self.library.mmap(
            ctypes.c_void_p(bell), ctypes.c_size_t(BELL_SIZE), mmap.PROT_READ | mmap.PROT_WRITE,
            flags, -1, ctypes.c_long(0),
        )  # fmt: skip
        for address in (kept, bell):
            ctypes.c_uint32.from_address(address + 0x90).value = 1
        return DONE if place == bell else 1


if __name__ == "__main__":
    sys.exit(_Program(Path(sys.argv[1])).run(sys.argv[2]))
