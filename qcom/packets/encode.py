"""Commands as an image for the command processor: segments of packets, followed by data.

A segment runs without waiting for the host. It starts from no state, since none survives between
submissions (another context may have run). A Wait ends a segment: the image's data names the
timeline and the value it must reach. qcom.work.queue submits the next segment to the kernel driver
once the timeline has that value, or will have it through work submitted before. The command
processor could poll memory itself, but no other work would run then, and the kernel driver would
report a hang.

Sources: Mesa 25.0.7 src/freedreno/vulkan tu_cmd_buffer.cc (tu6_init_hw, tu6_emit_flushes) and
tu_query_pool.cc (CP_ALWAYS_ON_COUNTER); Linux 7.3 drivers/gpu/drm/msm/adreno/a6xx_gpu.c: fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Reference, Symbol
from ugpu.hcq.work.program import Kernel
from ugpu.hcq.work.timeline import Timeline
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.qcom.kernels import SPAN, THREADS
from ugpu.qcom.packets.dispatch import encode_launch
from ugpu.qcom.packets.pm4 import Stream, Tables, halves

MOST_GROUPS = 65535  # of a launch that copies
LONGEST_IB = 1 << 19  # words; CP_INDIRECT_BUFFER counts 20 bits
_ALL = 0xFFFF_FFFF
_POLL_CYCLES = 16  # between polls of memory, as in Mesa


@dataclass(frozen=True)
class Point:
    """A timeline, and the word of the image at which its 64-bit value begins."""

    timeline: Timeline
    word: int


@dataclass(frozen=True)
class Segment:
    """Packets that run together once all of `waits` hold. ranges: (first word, words), each of
    whole packets. signals: the timeline values that they raise."""

    ranges: tuple[tuple[int, int], ...]
    waits: tuple[Point, ...]
    signals: tuple[Point, ...]


class Commands(CommandBuffer):
    """An image. segments: its parts, in order; kernels: names of the kernels that it launches."""

    segments: tuple[Segment, ...] = ()


@dataclass
class _Open:
    """A segment under construction; it has blocks in place of words."""

    starts: list[int]
    waits: list[tuple[Timeline, int]]
    signals: list[tuple[Timeline, int]]


class Encoder:
    """Encodes images for one chip. own: the driver's kernels for copy and fill, by name
    (qcom.kernels)."""

    def __init__(self, facts: ChipFacts, tables: Tables) -> None:
        self.facts = facts
        self.tables = tables
        self.own: dict[str, Kernel] = {}

    def encode(self, commands: Sequence[Command]) -> Commands:
        """Encode commands as an image; pure."""
        return _Image(self).encode(commands)


class _Image:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tables = encoder.tables
        self.stream = Stream(encoder.tables)
        self.segments: list[_Open] = []
        self.kernels: list[str] = []
        self._fence: int | None = None
        self._newer = encoder.tables.number >= 7

    def encode(self, commands: Sequence[Command]) -> Commands:
        for command in commands:
            self._add(command)
        end = len(self.stream)
        words, relocations, starts = self.stream.finish()
        encoded = Commands(words, end, relocations)
        bounds = [segment.starts[0] for segment in self.segments[1:]] + [end]
        encoded.segments = tuple(
            Segment(
                _ranges(segment.starts, bound),
                tuple(Point(timeline, starts[block]) for timeline, block in segment.waits),
                tuple(Point(timeline, starts[block]) for timeline, block in segment.signals),
            )
            for segment, bound in zip(self.segments, bounds, strict=True)
        )
        encoded.kernels = tuple(dict.fromkeys(self.kernels))
        encoded.aligned = tuple(self.stream.aligned)
        return encoded

    def _add(self, command: Command) -> None:
        if isinstance(command, Wait):
            self._wait(command)
            return
        if not self.segments:
            self.segments.append(_Open([], [], []))
        segment = self.segments[-1]
        if not segment.starts:
            segment.starts.append(len(self.stream))
            self._begin()
        elif len(self.stream) - segment.starts[-1] > LONGEST_IB // 2:
            segment.starts.append(len(self.stream))
        if isinstance(command, Launch):
            self.kernels.append(command.kernel.name)
            encode_launch(self.stream, command)
        elif isinstance(command, Copy):
            self._copy(command)
        elif isinstance(command, Fill):
            self._fill(command)
        elif isinstance(command, Signal):
            self._signal(command)
        elif isinstance(command, Timestamp):
            self._timestamp(command)
        elif isinstance(command, Barrier):
            self._clean()
            self._invalidate()

    def _value(self, symbol: Symbol) -> int:
        """Add a block of data that contains a value; return the block."""
        return self.stream.data([0, 0], [(0, symbol)])

    def _wait(self, command: Wait) -> None:
        if self.segments and self.segments[-1].starts:
            self._clean()  # the next segment may be another submission, much later
            self.segments.append(_Open([], [], []))
        elif not self.segments:
            self.segments.append(_Open([], [], []))
        self.segments[-1].waits.append((command.timeline, self._value(command.value)))

    # ---- state and caches ------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a segment: invalidate caches, set the chip's registers."""
        stream, codes = self.stream, self.tables.codes
        if self._newer:
            thread = self.tables.packet_word(
                "CP_THREAD_CONTROL_0", THREAD=codes.CP_SET_THREAD_BR, CONCURRENT_BIN_DISABLE=1
            )
            stream.packet("CP_THREAD_CONTROL", thread)
        self._invalidate()
        bindless = 0xFF if self._newer else 0x1F
        stream.write(
            "HLSQ_INVALIDATE_CMD", VS_STATE=1, HS_STATE=1, DS_STATE=1, GS_STATE=1, FS_STATE=1,
            CS_STATE=1, CS_IBO=1, GFX_IBO=1, CS_BINDLESS=bindless, GFX_BINDLESS=bindless,
        )  # fmt: skip
        stream.packet("CP_WAIT_FOR_IDLE")
        for name, value in self.encoder.facts.settings:
            stream.write(name, value)
        stream.write("SP_FLOAT_CNTL", 0)
        stream.write("SP_PERFCTR_ENABLE", CS=1)
        stream.write("SP_MODE_CONTROL", CONSTANT_DEMOTION_ENABLE=1, ISAMMODE=codes.ISAMMODE_GL)
        if not self._newer:
            stream.write("HLSQ_SHARED_CONSTS", 0)

    def _event(self, name: str, *words: int) -> None:
        codes, event = self.tables.codes, self.tables.codes[name]
        packet = "CP_EVENT_WRITE7" if self._newer else "CP_EVENT_WRITE"
        del codes
        self.stream.packet(packet, self.tables.packet_word(f"{packet}_0", EVENT=event), *words)

    def _invalidate(self) -> None:
        """Invalidate caches, so that later reads of shaders come from memory."""
        self._event("CACHE_INVALIDATE7" if self._newer else "CACHE_INVALIDATE")
        self.stream.packet("CP_WAIT_FOR_IDLE")

    def _clean(self) -> None:
        """Wait for all earlier work and write its results back to memory."""
        stream, codes = self.stream, self.tables.codes
        stream.packet("CP_WAIT_FOR_IDLE")
        if self._newer:
            self._event("CACHE_CLEAN")
            stream.packet("CP_WAIT_FOR_IDLE")
            return
        # The event takes an address and writes there when the cache has been cleaned.
        if self._fence is None:
            self._fence = stream.data([0])
        fence = halves(stream.place(self._fence))
        head = self.tables.packet_word("CP_EVENT_WRITE_0", EVENT=codes.CACHE_FLUSH_TS)
        stream.packet("CP_EVENT_WRITE", head, *fence, 1)
        poll = self.tables.packet_word(
            "CP_WAIT_REG_MEM_0", FUNCTION=codes.WRITE_EQ, POLL=codes.POLL_MEMORY
        )
        stream.packet("CP_WAIT_REG_MEM", poll, *fence, 1, _ALL, _POLL_CYCLES)
        stream.packet("CP_MEM_WRITE", *fence, 0)  # restore the value, for the next time
        stream.packet("CP_WAIT_MEM_WRITES")

    # ---- commands --------------------------------------------------------------------------------

    def _signal(self, command: Signal) -> None:
        self._clean()
        value = command.value
        self.stream.packet(
            "CP_MEM_WRITE", *halves(Symbol.of(command.timeline.memory)), *halves(value)
        )
        self.stream.packet("CP_WAIT_MEM_WRITES")
        self.segments[-1].signals.append((command.timeline, self._value(value)))

    def _timestamp(self, command: Timestamp) -> None:
        self.stream.packet("CP_WAIT_FOR_IDLE")
        counter = self.tables.registers.CP_ALWAYS_ON_COUNTER_LO.offset
        head = self.tables.packets.CP_REG_TO_MEM_0.insert(0, {"REG": counter, "CNT": 2, "64B": 1})
        self.stream.packet("CP_REG_TO_MEM", head, *halves(command.destination))

    def _copy(self, command: Copy) -> None:
        self._run("copy", command.destination, command.source, command.size)

    def _fill(self, command: Fill) -> None:
        self._run("fill", command.destination, command.value & _ALL, command.size)

    def _run(self, name: str, to: Symbol, operand: Symbol | int, size: int) -> None:
        """Launch one of the driver's kernels over `size` bytes, in parts of at most a grid."""
        most = MOST_GROUPS * SPAN
        for start in range(0, size, most):
            part = min(most, size - start)
            references = [Reference(0, 8, to.plus(start))]
            block = bytes(8)
            if isinstance(operand, Symbol):
                references.append(Reference(8, 8, operand.plus(start)))
                block += bytes(8)
            else:
                block += operand.to_bytes(4, "little")
            launch = Launch(
                self.encoder.own[name], (-(-part // SPAN), 1, 1), (THREADS, 1, 1),
                block + part.to_bytes(4, "little"), tuple(references),
            )  # fmt: skip
            encode_launch(self.stream, launch)


def _ranges(starts: Sequence[int], end: int) -> tuple[tuple[int, int], ...]:
    if not starts:
        return ()
    bounds = [*starts[1:], end]
    return tuple((start, bound - start) for start, bound in zip(starts, bounds, strict=True))
