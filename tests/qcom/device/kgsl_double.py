"""A node with the calls of KGSL and msm that our driver makes, for tests of the driver alone.

It takes command streams apart with constants written by hand from Mesa 25.0.7 (freedreno_pm4.h,
adreno_pm4.xml, a6xx.xml), checks each packet, and runs code by the oracle in NumPy. Submissions run
at once, or, while `paused`, when `run` is called. A packet that is wrong makes the context guilty.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import struct
from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from lab.oracles.ir3 import Machine
from lab.oracles.ir3_texels import Buffer
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.clock import ModelClock

BASE = 0x5_0000_0000  # where the GPU sees the first object
ROOM = 64 << 20
PAGE = 4096
_COUNTS = {  # opcode: words that it may have
    0x10: range(0x4000), 0x12: (0,), 0x26: (0,), 0x33: (4,), 0x34: range(3, 0x4000),
    0x3C: (6,), 0x3D: range(3, 0x4000), 0x3E: (3,), 0x46: (1, 4), 0x65: (1,), 0x17: (1,),
}  # fmt: skip
Disassemble = Callable[[bytes], list[str]]


class BadStream(Exception):
    """The stream is not what the command processor takes."""


class Mapping:
    """See NodeMapping."""

    def __init__(self, view: memoryview, address: int) -> None:
        self.size = len(view)
        self.view: memoryview | None = view
        self.address = address

    def read32(self, offset: int) -> int:
        assert self.view is not None
        return int.from_bytes(self.view[offset : offset + 4], "little")

    def write32(self, offset: int, value: int) -> None:
        assert self.view is not None
        self.view[offset : offset + 4] = value.to_bytes(4, "little")

    def close(self) -> None:
        self.view = None


class _Memory:
    """All of the GPU's memory, as the oracle takes it."""

    def __init__(self, double: Double) -> None:
        self.double = double
        self.bytes = double.bytes

    def at(self, addresses: np.ndarray, size: int) -> np.ndarray:
        offsets = addresses.astype(np.int64) - BASE
        for offset in {int(one) for one in (offsets // PAGE)}:
            if offset not in self.double.pages:
                raise BadStream(f"page fault at {BASE + offset * PAGE:#x}")
        return offsets[:, None] + np.arange(size)


class Double:
    """chip_id: as the kernel driver reports it. disassemble: code to text, for the oracle."""

    def __init__(
        self, chip_id: int, generation: int, disassemble: Disassemble | None = None
    ) -> None:
        self.name = "double"
        self.clock = ModelClock()
        self.chip_id, self.generation = chip_id, generation
        self.disassemble = disassemble
        self.paused = False
        self.calls: Counter[str] = Counter()
        self.refuse: dict[str, int] = {}  # call -> errno, once
        self.files: dict[str, str] = {}
        self.problem = ""
        self.tells_faults = False
        self.state = 0
        self.faults: list[tuple[int, int]] = []  # address, flags
        self.launches: list[dict[str, int]] = []
        self.packets: list[tuple[str, int, list[int]]] = []
        self.objects: dict[int, tuple[int, int, int]] = {}  # number: page, size, flags
        self.pages: set[int] = set()
        self.dirty: Counter[int] = Counter()  # syncs by object
        self.contexts: set[int] = set()
        self.queued: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self.submissions = 0
        self._numbers = itertools.count(1)
        self._next_page = 0
        self._map = mmap.mmap(-1, ROOM)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.opened: dict[int, str] = {}
        self.closed = False

    # ---- Node ------------------------------------------------------------------------------------

    def open(self, path: str) -> int:
        self._refused("open")
        if path not in ("/dev/kgsl-3d0", "/dev/dri/renderD128"):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        handle = next(self._numbers) + 100
        self.opened[handle] = path
        return handle

    def release(self, handle: int) -> None:
        del self.opened[handle]

    def read_text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.files[path]

    def close(self) -> None:
        self.closed = True

    def map(self, handle: int, size: int, offset: int = 0) -> Mapping:
        self._refused("map")
        number = offset >> 12
        if handle not in self.opened or number not in self.objects:
            raise OSError(errno.EINVAL, "no such object")
        page, have, _ = self.objects[number]
        if size > have:
            raise OSError(errno.EINVAL, "larger than the object")
        view = memoryview(self._map)[page * PAGE : page * PAGE + size]
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + page * PAGE
        return Mapping(view, address)

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        if handle not in self.opened:
            raise BadArgument("the handle is not open")
        raw = memoryview(argument).cast("B")
        if len(raw) != request >> 16 & 0x3FFF:
            raise OSError(errno.EINVAL, "size of the argument")
        kinds = _KGSL if request >> 8 & 0xFF == 0x09 else _DRM
        name = kinds.get(request & 0xFF)
        if name is None:
            raise OSError(errno.ENOTTY, "no such call")
        self.calls[name] += 1
        self._refused(name)
        getattr(self, f"_{name}")(raw)

    def _refused(self, name: str) -> None:
        code = self.refuse.pop(name, 0)
        if code:
            raise OSError(code, os.strerror(code))

    # ---- memory ----------------------------------------------------------------------------------

    def _allocate(self, size: int, flags: int) -> int:
        if size % PAGE or not size:
            raise OSError(errno.EINVAL, "size")
        pages = size // PAGE
        if (self._next_page + pages + 1) * PAGE > ROOM:
            raise OSError(errno.ENOMEM, "memory")
        number, page = next(self._numbers), self._next_page
        self._next_page += pages + 1  # an unmapped page behind each
        self.objects[number] = (page, size, flags)
        self.pages.update(range(page, page + pages))
        self.bytes[page * PAGE : (page + pages) * PAGE] = 0
        return number

    def _free(self, number: int) -> None:
        if number not in self.objects:
            raise OSError(errno.EINVAL, "no such object")
        page, size, _ = self.objects.pop(number)
        self.pages.difference_update(range(page, page + size // PAGE))

    def _address(self, number: int) -> int:
        return BASE + self.objects[number][0] * PAGE

    # ---- KGSL ------------------------------------------------------------------------------------

    def _getproperty(self, raw: memoryview) -> None:
        kind, value, size = struct.unpack("<I4xQQ", raw)
        out = (ctypes.c_char * size).from_address(value)
        if kind == 1 and size == 40:
            out[:] = struct.pack("<IIIxxxxQIxxxxQ", 1, self.chip_id, 1, 0, 0, 1 << 20)
        elif kind == 9 and size == 4:
            context = struct.unpack("<I", bytes(out))[0]
            if context not in self.contexts:
                raise OSError(errno.EINVAL, "no such context")
            out[:] = struct.pack("<I", self.state)
            self.state = 0
        else:
            raise OSError(errno.EINVAL, "property")

    def _gpumem_alloc_id(self, raw: memoryview) -> None:
        flags, size = struct.unpack_from("<IQ", raw, 4)
        number = self._allocate(size, flags)
        struct.pack_into("<I", raw, 0, number)
        struct.pack_into("<QQ", raw, 16, size, self._address(number))

    def _gpumem_free_id(self, raw: memoryview) -> None:
        self._free(struct.unpack_from("<I", raw)[0])

    def _gpuobj_sync(self, raw: memoryview) -> None:
        address, size, count = struct.unpack("<QII", raw)
        assert (size, count) == (24, 1)
        offset, length, number, operation = struct.unpack(
            "<QQII", (ctypes.c_char * 24).from_address(address)
        )
        if number not in self.objects or offset + length > self.objects[number][1]:
            raise OSError(errno.EINVAL, "no such part of an object")
        if operation not in (0x8000_0001, 0x8000_0003):
            raise OSError(errno.EINVAL, "operation")
        self.dirty[number] += 1

    def _drawctxt_create(self, raw: memoryview) -> None:
        if struct.unpack_from("<I", raw)[0] & 0x12 != 0x12:
            raise OSError(errno.EINVAL, "legacy context")
        # KGSL_CONTEXT_FAULT_INFO, and NO_FAULT_TOLERANCE: a fault ends the context
        self.tells_faults = struct.unpack_from("<I", raw)[0] & 0x4000_0200 == 0x4000_0200
        context = next(self._numbers)
        self.contexts.add(context)
        struct.pack_into("<I", raw, 4, context)

    def _drawctxt_destroy(self, raw: memoryview) -> None:
        self.contexts.discard(struct.unpack_from("<I", raw)[0])
        self.queued.clear()
        self.problem = ""

    def _readtimestamp(self, raw: memoryview) -> None:
        struct.pack_into("<I", raw, 8, self.submissions - len(self.queued))

    def _gpu_command(self, raw: memoryview) -> None:
        flags, commands, size, count = struct.unpack_from("<QQII", raw)
        context = struct.unpack_from("<I", raw, 56)[0]
        if context not in self.contexts or flags != 4 or size != 32 or not count:
            raise OSError(errno.EINVAL, "command")
        if self.problem:
            raise OSError(errno.EDEADLK, "context invalid")
        ranges = []
        for at in range(count):
            _, address, length, kind, number = struct.unpack(
                "<QQQII", (ctypes.c_char * 32).from_address(commands + 32 * at)
            )
            if kind != 1 or number not in self.objects or length % 4 or not length:
                raise OSError(errno.EINVAL, "command object")
            ranges.append((address, length))
        self._queue(ranges)
        struct.pack_into("<I", raw, 60, self.submissions)

    def _get_fault_report(self, raw: memoryview) -> None:
        address, entries, size, _ = struct.unpack_from("<QIII", raw)
        assert (entries, size) == (1, 24)
        if not self.tells_faults:
            raise OSError(errno.EINVAL, "made without FAULT_INFO")
        place, kind, count, width = struct.unpack(
            "<QIII4x", (ctypes.c_char * 24).from_address(address)
        )
        assert kind == 1 and width == 32
        found = self.faults[:count]
        for at, (fault, flags) in enumerate(found):
            out = (ctypes.c_char * 32).from_address(place + 32 * at)
            out[:] = struct.pack("<QQQII", fault, 0, 0, flags, 0)

    # ---- msm -------------------------------------------------------------------------------------

    def _get_param(self, raw: memoryview) -> None:
        known = {1: 630, 2: 1 << 20, 3: self.chip_id, 4: 710_000_000, 9: len(self.faults)}
        pipe, kind = struct.unpack_from("<II", raw)
        if pipe != 0x10 or kind not in known:
            raise OSError(errno.EINVAL, "parameter")
        struct.pack_into("<Q", raw, 8, known[kind])

    def _gem_new(self, raw: memoryview) -> None:
        size, flags = struct.unpack_from("<QI", raw)
        struct.pack_into("<I", raw, 12, self._allocate(size, flags))

    def _gem_info(self, raw: memoryview) -> None:
        number, kind = struct.unpack_from("<II", raw)
        if number not in self.objects or kind not in (0, 1):
            raise OSError(errno.EINVAL, "info")
        struct.pack_into("<Q", raw, 8, self._address(number) if kind else number << 12)

    def _gem_close(self, raw: memoryview) -> None:
        self._free(struct.unpack_from("<I", raw)[0])

    def _submitqueue_new(self, raw: memoryview) -> None:
        context = next(self._numbers)
        self.contexts.add(context)
        struct.pack_into("<I", raw, 8, context)

    def _submitqueue_close(self, raw: memoryview) -> None:
        self.contexts.discard(struct.unpack_from("<I", raw)[0])
        self.queued.clear()
        self.problem = ""

    def _submitqueue_query(self, raw: memoryview) -> None:
        data, number, kind, size = struct.unpack_from("<QIII", raw)
        if number not in self.contexts or kind or size != 4:
            raise OSError(errno.EINVAL, "query")
        (ctypes.c_char * 4).from_address(data)[:] = struct.pack("<I", self.state)

    def _gem_submit(self, raw: memoryview) -> None:
        _, _, objects, count, bos, commands = struct.unpack_from("<IIIIQQ", raw)
        queue = struct.unpack_from("<I", raw, 36)[0]
        if queue not in self.contexts or not count:
            raise OSError(errno.EINVAL, "submit")
        known = []
        for at in range(objects):
            _, number, presumed = struct.unpack(
                "<IIQ", (ctypes.c_char * 16).from_address(bos + 16 * at)
            )
            if number not in self.objects or presumed != self._address(number):
                raise OSError(errno.EINVAL, "object")
            known.append(number)
        ranges = []
        for at in range(count):
            place = (ctypes.c_char * 32).from_address(commands + 32 * at)
            kind, index, offset, size, _, relocations, _ = struct.unpack("<IIIIIIQ", place)
            if kind != 1 or relocations:
                raise OSError(errno.EINVAL, "command")
            ranges.append((self._address(known[index]) + offset, size))
        self._queue(ranges)
        struct.pack_into("<I", raw, 4, self.submissions)

    # ---- running ---------------------------------------------------------------------------------

    def _queue(self, ranges: list[tuple[int, int]]) -> None:
        self.submissions += 1
        self.queued.append((self.submissions, ranges))
        if not self.paused:
            self.run()

    def run(self) -> None:
        """Run what was submitted; a wrong stream makes the context guilty."""
        while self.queued and not self.problem:
            _, ranges = self.queued[0]
            try:
                registers: dict[int, int] = {}  # nothing survives between submissions
                constants = np.full(2048, 0xDEAD_BEEF, np.uint32)
                for address, size in ranges:
                    self._stream(address, size, registers, constants)
            except BadStream as error:
                self.problem, self.state = str(error), 1
            self.queued.popleft()

    def word(self, address: int) -> int:
        page = (address - BASE) // PAGE
        if page not in self.pages:
            raise BadStream(f"page fault at {address:#x}")
        return int(self.bytes[address - BASE : address - BASE + 4].view(np.uint32)[0])

    def _store(self, address: int, *words: int) -> None:
        self.word(address)
        start = address - BASE
        self.bytes[start : start + 4 * len(words)].view(np.uint32)[:] = words

    def _stream(
        self, address: int, size: int, registers: dict[int, int], constants: np.ndarray
    ) -> None:
        end = address + size
        while address < end:
            header = self.word(address)
            kind, count = header >> 28, header & (0x7F if header >> 28 == 4 else 0x3FFF)
            words = [self.word(address + 4 * at) for at in range(1, count + 1)]
            address += 4 * (count + 1)
            if address > end:
                raise BadStream("a packet goes past the end")
            if kind == 4:
                register = header >> 8 & 0x3FFFF
                if (header >> 7 & 1) == count.bit_count() & 1:
                    raise BadStream("parity of a count")
                if (header >> 27 & 1) == register.bit_count() & 1:
                    raise BadStream("parity of a register")
                self.packets.append(("write", register, words))
                registers.update(enumerate(words, register))
            elif kind == 7:
                opcode = header >> 16 & 0x7F
                if (header >> 15 & 1) == count.bit_count() & 1:
                    raise BadStream("parity of a count")
                if (header >> 23 & 1) == opcode.bit_count() & 1:
                    raise BadStream("parity of an opcode")
                if opcode not in _COUNTS or count not in _COUNTS[opcode]:
                    raise BadStream(f"opcode {opcode:#x} with {count} words")
                self.packets.append(("packet", opcode, words))
                self._packet(opcode, words, registers, constants)
            else:
                raise BadStream(f"header {header:#x}")

    def _packet(
        self, opcode: int, words: list[int], registers: dict[int, int], constants: np.ndarray
    ) -> None:
        if opcode == 0x3D:
            self._store(words[0] | words[1] << 32, *words[2:])
        elif opcode == 0x46 and len(words) == 4:
            self._store(words[1] | words[2] << 32, words[3])
        elif opcode == 0x3C:
            if words[0] != 0x13:
                raise BadStream("poll of something else")
            if self.word(words[1] | words[2] << 32) & words[4] != words[3]:
                raise BadStream("a wait in the stream that nothing ends")
        elif opcode == 0x3E:
            if words[0] != 0x980 | 2 << 18 | 1 << 30:
                raise BadStream("not the counter")
            ticks = int(self.clock.now() * 19.2e6)
            self._store(words[1] | words[2] << 32, ticks & 0xFFFF_FFFF, ticks >> 32)
        elif opcode == 0x34:
            kind, source, block = words[0] >> 14 & 3, words[0] >> 16 & 3, words[0] >> 18 & 15
            if block == 5:  # SB6_CS_TEX: descriptors, loaded before they are used
                if source != 2 or kind != 1:
                    raise BadStream("textures that are not constants in memory")
                return
            if block != 13:
                raise BadStream("state of another block")
            if (kind, source) == (1, 0):
                if len(words) - 3 != 4 * (words[0] >> 22):
                    raise BadStream("units of constants")
                first = 4 * (words[0] & 0x3FFF)
                constants[first : first + len(words) - 3] = words[3:]
        elif opcode == 0x33:
            self._launch(words[1:], registers, constants)

    def _launch(self, grid: list[int], registers: dict[int, int], constants: np.ndarray) -> None:
        newer = self.generation == 7
        ranges, numbers = (0xA9D4, 0xA9C2) if newer else (0xB990, 0xB997)
        try:
            size = registers[ranges]
            block = [(size >> shift & 0x3FF) + 1 for shift in (2, 12, 22)]
            totals = [registers[ranges + at] for at in (1, 3, 5)]
            where = registers[numbers]
            code = registers[0xA9B4] | registers[0xA9B5] << 32
            length = 128 * registers[0xA9BC]
            local = 1024 * ((registers[0xA9B1] & 31) + 1)
            assert registers[0xA9BB] & 0x100 and registers[0xA9CD if newer else 0xB987] & 0x100
        except (KeyError, AssertionError) as error:
            raise BadStream(f"a launch without its registers: {error}") from error
        if totals != [one * many for one, many in zip(block, grid, strict=True)]:
            raise BadStream("sizes that contradict each other")
        self.launches.append({"code": code, "groups": grid[0] * grid[1] * grid[2]})
        if self.disassemble is None:
            return
        self.word(code)
        text = self.disassemble(bytes(self.bytes[code - BASE : code - BASE + length]))
        machine = Machine(
            text, (grid[0], grid[1], grid[2]), block[0] * block[1] * block[2], local, constants,
            _Memory(self), where & 0xFF, where >> 24, self._textures(registers),
        )  # fmt: skip
        machine.run()

    def _textures(self, registers: dict[int, int]) -> list[Buffer]:
        """SP_CS_CONFIG.NTEX descriptors of 16 words at SP_CS_TEX_CONST: buffers of integers."""
        found = []
        for number in range(registers[0xA9BB] >> 9 & 0xFF):
            at = (registers[0xA9E6] | registers[0xA9E7] << 32) + 64 * number
            words = [self.word(at + 4 * k) for k in range(6)]
            bits, components = _FORMATS[words[0] >> 22 & 0xFF]
            if words[2] >> 29 != 4 or words[4] & 63:
                raise BadStream("not a buffer of texels")
            start = (words[2] >> 16 & 63) * bits * components // 8
            address = words[4] | (words[5] & 0x1FFFF) << 32
            texels = words[1] & 0x7FFF | (words[1] >> 15 & 0x7FFF) << 15
            found.append(Buffer(address + start, bits, components, texels))
        return found


# FMT6_32_UINT, 32_32, 32_32_32_32; 16, 16_16_16_16.
_FORMATS = {0x4B: (32, 1), 0x68: (32, 2), 0x83: (32, 4), 0x18: (16, 1), 0x63: (16, 4)}


_KGSL = {
    0x02: "getproperty", 0x34: "gpumem_alloc_id", 0x35: "gpumem_free_id", 0x49: "gpuobj_sync",
    0x13: "drawctxt_create", 0x14: "drawctxt_destroy", 0x16: "readtimestamp",
    0x4A: "gpu_command", 0x5E: "get_fault_report",
}  # fmt: skip
_DRM = {
    0x40: "get_param", 0x42: "gem_new", 0x43: "gem_info", 0x09: "gem_close",
    0x4A: "submitqueue_new", 0x4B: "submitqueue_close", 0x4C: "submitqueue_query",
    0x46: "gem_submit",
}  # fmt: skip
