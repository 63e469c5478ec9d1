"""Command streams in a recording: the work of the GPU's command processor in each submission.

A page has the content of its last change before a submission; a page without one is zeros. The
calls that created a GPU object give its number, address and size. The mapping, whose offset is the
object's number, gives its place in the program. Memory that the program did not map through the
device (imports) is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ugpu.tools.debug.sniff.decode import Decoded, Values
from ugpu.tools.debug.sniff.kgsl.packets import Packet, Packets
from ugpu.tools.debug.sniff.memory import PAGE
from ugpu.tools.debug.sniff.recording import Call

_SHIFT = 12  # an object's number, shifted by this, is the offset that maps it
_INDIRECT = ("CP_INDIRECT_BUFFER",)
_LOADS = ("CP_LOAD_STATE6_FRAG", "CP_LOAD_STATE6", "CP_LOAD_STATE6_GEOM")
_LAUNCHES = ("CP_EXEC_CS", "CP_EXEC_CS_INDIRECT")
_IB = 0x1  # KGSL_CMDLIST_IB
_DEEPEST = 4
_MOST_LINES = 2000  # per submission
_MOST_WORDS = 1 << 20
# ST6_CONSTANTS, SB6_CS_SHADER, SS6_INDIRECT. Source: Mesa 25.0.7, adreno_pm4.xml.
_CONSTANTS, _COMPUTE, _IN_MEMORY = 1, 13, 2
_VEC4 = 16
_ZEROS = bytes(PAGE)


@dataclass(frozen=True)
class Dispatch:
    """The state at a launch. registers: those that its submission had written, by dword offset;
    constants: the loaded words of the constant file, by number."""

    packet: Packet
    registers: Mapping[int, int]
    constants: Mapping[int, int]


@dataclass
class Submission:
    """One submission: its indirect buffers, and the objects' content at that time."""

    buffers: list[tuple[int, int]]
    memory: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class _Object:
    address: int = 0
    size: int = 0
    here: int = 0


class Streams:
    """Decode the command streams of one recording, call by call with `take`."""

    def __init__(self) -> None:
        self.chip_id = self.gpu_id = 0
        self.submissions: list[Submission] = []
        self.dispatches: list[Dispatch] = []
        self._objects: dict[int, _Object] = {}
        self._pages: dict[int, bytes] = {}
        self._fresh = False  # memory was recorded for the next submission
        self._packets: Packets | None = None

    @property
    def packets(self) -> Packets:
        """Names of the generation's packets; generation 6 if the recording names no chip."""
        if self._packets is None:
            self._packets = Packets(7 if self.generation == 7 else 6)
        return self._packets

    @property
    def generation(self) -> int:
        """Return the generation by the chip's number, as Mesa does: 7 from 0x07000000 on, X1 and
        A7xx by 0x43."""
        major = self.chip_id >> 24
        return 7 if major == 7 or major & 0x40 else major

    def take(self, decoded: Decoded) -> Iterator[str]:
        """Process the next call. Yield lines about what it submits."""
        call = decoded.call
        if call.kind == "memory":
            if call.after is not None:
                self._pages[call.address] = call.after
        elif call.kind == "doorbell":
            self._fresh = True
        elif call.kind == "mmap" and not call.errno:
            self._map(call)
        elif call.kind == "ioctl" and not call.errno:
            self._learn(decoded)
            if decoded.title in ("GPU_COMMAND", "SUBMIT_COMMANDS", "RINGBUFFER_ISSUEIBCMDS"):
                yield from self._submitted(decoded)

    def _map(self, call: Call) -> None:
        for at in range(call.result, call.result + call.length, PAGE):
            self._pages.pop(at, None)
        self._objects.setdefault(call.offset >> _SHIFT, _Object()).here = call.result

    def _learn(self, decoded: Decoded) -> None:
        own = (decoded.own.after if decoded.own is not None else None) or {}
        if decoded.title in ("GPUMEM_ALLOC_ID", "GPUMEM_GET_INFO", "GPUOBJ_INFO", "GPUOBJ_ALLOC"):
            memory = self._objects.setdefault(number(own, "id"), _Object())
            if decoded.title == "GPUMEM_ALLOC_ID":
                memory.here = 0  # a reused number is another object
            memory.address = number(own, "gpuaddr") or memory.address
            memory.size = number(own, "mmapsize") or number(own, "size") or memory.size
        elif decoded.title.endswith("KGSL_PROP_DEVICE_INFO"):
            for block in decoded.blocks:
                self.chip_id = number(block.after or {}, "chip_id")
                self.gpu_id = number(block.after or {}, "gpu_id")

    def read(self, address: int, size: int) -> bytes | None:
        """Return memory at a GPU address; None if no mapped object contains it."""
        for memory in self._objects.values():
            if memory.here and memory.address <= address <= memory.address + memory.size - size:
                return self._here(memory.here + address - memory.address, size)
        return None

    def _here(self, at: int, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            page, start = self._pages.get(at & -PAGE, _ZEROS), at % PAGE
            part = page[start : start + size - len(content)]
            content += part
            at += len(part)
        return bytes(content)

    def _submitted(self, decoded: Decoded) -> Iterator[str]:
        if not self._fresh:
            return  # recorded without memory
        self._fresh = False
        listed = decoded.blocks[0].before if decoded.blocks else None
        buffers = list(_buffers(listed or {}))
        self.submissions.append(Submission(buffers, self._content()))
        state = _State()
        lines = [line for span in buffers for line in self._buffer(*span, state, 0)]
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} lines more"]
        yield from lines

    def _content(self) -> list[tuple[int, bytes]]:
        """Return every mapped object that is not all zeros, up to its last page that is not
        zeros."""
        contents = []
        for memory in self._objects.values():
            pages = range(memory.here, memory.here + memory.size, PAGE) if memory.here else ()
            last = max((at for at in pages if self._pages.get(at, _ZEROS) != _ZEROS), default=0)
            if last:
                size = min(last + PAGE - memory.here, memory.size)
                contents.append((memory.address, self._here(memory.here, size)))
        return contents

    def _buffer(self, address: int, size: int, state: _State, depth: int) -> Iterator[str]:
        indent = "  " * depth
        yield f"{indent}{size // 4} words at {address:#x}"
        raw = self.read(address, size) if size <= 4 * _MOST_WORDS else None
        if raw is None:
            yield f"{indent}  not in memory that was recorded"
            return
        for packet in self.packets.read(struct.unpack(f"<{size // 4}I", raw[: size & ~3])):
            yield f"{indent}  {self.packets.text(packet)}"
            state.registers.update(packet.writes)
            if packet.name in _INDIRECT and len(packet.body) == 3 and depth < _DEEPEST:
                low, high, words = packet.body
                yield from self._buffer(low | high << 32, 4 * (words & 0xFFFFF), state, depth + 1)
            elif packet.name in _LOADS and len(packet.body) >= 3:
                self._load(packet, state)
            elif packet.name in _LAUNCHES:
                launch = Dispatch(packet, dict(state.registers), dict(state.constants))
                self.dispatches.append(launch)

    def _load(self, packet: Packet, state: _State) -> None:
        first, low, high, *direct = packet.body
        head = self.packets.word("CP_LOAD_STATE6_0", first)
        if head["STATE_TYPE"] != _CONSTANTS or head["STATE_BLOCK"] != _COMPUTE:
            return
        words = tuple(direct)
        if head["STATE_SRC"] == _IN_MEMORY:
            raw = self.read(low & ~3 | high << 32, _VEC4 * head["NUM_UNIT"])
            words = struct.unpack(f"<{len(raw) // 4}I", raw) if raw is not None else ()
        for place, word in enumerate(words[: 4 * head["NUM_UNIT"]]):
            state.constants[4 * head["DST_OFF"] + place] = word


@dataclass
class _State:
    registers: dict[int, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)


def number(values: Values, name: str) -> int:
    """Return a member that is a number; 0 if it is missing or not a number."""
    value = values.get(name, 0)
    return value if isinstance(value, int) else 0


def _buffers(listed: Values) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each indirect buffer in a list of commands."""
    many = sorted({name.partition(".")[0] for name in listed if name.startswith("[")},
                  key=lambda text: int(text[1:-1]))  # fmt: skip
    for stem in [f"{element}." for element in many] or [""]:
        if not number(listed, f"{stem}flags") & _IB and f"{stem}flags" in listed:
            continue
        size = number(listed, f"{stem}size") or 4 * number(listed, f"{stem}sizedwords")
        if size:
            yield number(listed, f"{stem}gpuaddr"), size
