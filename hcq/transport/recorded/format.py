"""Recordings of a driver's accesses to a device, as text: one entry a line, in order.

    identity 1002:744c 0xc8 1002:0e3b 0x30000
    interrupts 1
    window 5 0x100000
    allocate 0 8192 0x10000200000+0x2000
    read bar5 0x5a464 4 0x80000000
    write bar0 0x1000 16 data 7f454c46...
    write bar0 0x2000 65536 sha256 9f86d081...
    answer 0 0x40 data 02000000
    memory 0 0x10 data 01000000
    wait
    free 0
    reset bus
    present no
    stage PSP ring
    at 0.001250
    look begins
    read bar5 0x3780 4 0x2
    look ends
    failed FirmwareRejected PSP refuses SOS (image=SOS, status=0xf)

`memory`: new content of allocation number 0 from that offset on, written by the device or the
driver between the previous entry and the next one. `answer`: the same, but the content was there
when the previous entry ended, so the device wrote it. `wait`: the driver waited; the changes above
were there when it polled, those below came later. `present`: from here on the device does not
respond, or responds again. `stage`: a step of bring-up begins; `failed`: its error; `at`: time of
the following entries, in seconds after the recording began; all three are for people. `look`: the
accesses in it are an observer's, not the driver's; a replay leaves them out. Two kinds of line may
come before all entries: `command` (JSON), the program that was recorded, and `firmware NAME`, an
image that the driver read, with its bytes. Long data is packed (zlib, base64). Of a long write only
the digest is kept, which is enough to check a driver, unless the data packs well, as page tables
do. Every line ends with a newline: a last line without one is incomplete.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.outfile import Kind
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment, PciIdentity, ResetKind
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access

LONG = 256  # bytes from which data is packed, and a write is kept as its digest
KEPT = 1 << 14  # bytes of a write up to which its data is kept if it packs well
RECORDING = Kind("a recording of a device", rb"identity [0-9a-f]{4}:")
_SHOWN = 80  # characters of a line in an error
_WELL = 4  # times smaller than its data
LARGEST = 1 << 30  # bytes of one entry; a recording that unpacks to more is rejected


@dataclass(frozen=True)
class LongWrite:
    """A block written to a window.

    Attributes:
        window: BAR index.
        offset: in bytes.
        width: in bytes.
        digest: SHA-256 of the block in hexadecimal.
        data: None if only the digest is kept.
    """

    window: int
    offset: int
    width: int
    digest: str
    data: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Allocation:
    """Memory was shared with the device.

    Attributes:
        number: of the memory.
        size: in bytes.
        segments: on the bus.
    """

    number: int
    size: int
    segments: tuple[DmaSegment, ...]


@dataclass(frozen=True)
class Content:
    """Content of shared memory when the next entry begins.

    Attributes:
        number: of the memory.
        offset: in bytes.
        data: the content.
        at_once: already when the previous entry ended, so that the driver did not write it.
    """

    number: int
    offset: int
    data: bytes
    at_once: bool = False


@dataclass(frozen=True)
class Free:
    """Memory was freed.

    Attributes:
        number: of the memory.
    """

    number: int


@dataclass(frozen=True)
class Reset:
    """A reset.

    Attributes:
        kind: of the transport's resets.
        refusal: the class and text of the error, if it was refused.
    """

    kind: ResetKind
    refusal: str = ""


@dataclass(frozen=True)
class Wait:
    """The driver waited, and memory had changed when it polled."""


@dataclass(frozen=True)
class Presence:
    """The device responds from this entry on, or stops responding.

    Attributes:
        present: whether it responds.
    """

    present: bool


BOOTED = "booted"  # the stage that begins when the boot has ended: work, and the close


@dataclass(frozen=True)
class Stage:
    """A boot stage begins, or the time after the boot (BOOTED); not an access to the device.

    Attributes:
        name: of the stage.
    """

    name: str


@dataclass(frozen=True)
class Failure:
    """The boot failed.

    Attributes:
        kind: the error's class.
        message: the error's text.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Moment:
    """Time of the following entries.

    Attributes:
        seconds: after the recording began.
    """

    seconds: float


@dataclass(frozen=True)
class Look:
    """Begin or end of an observer's accesses; see `driven`.

    Attributes:
        begins: otherwise the end.
    """

    begins: bool


Mark = Stage | Failure | Moment  # for people, and not repeated
Entry = Access | LongWrite | Allocation | Content | Free | Reset | Wait | Presence | Look | Mark


@dataclass
class Recording:
    """Entries in order, with what is needed to replace the device.

    Attributes:
        identity: of the function.
        windows: size in bytes by BAR index.
        entries: in order.
        interrupts: number of its vectors; 0 if the driver must poll.
        firmware: images that the driver read, by name.
        command: the program that was recorded, if it was one.
        cut: the number of the incomplete last line of a truncated file; 0 if complete.
    """

    identity: PciIdentity
    windows: dict[int, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    interrupts: int = 0
    firmware: dict[str, bytes] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cut: int = 0

    def save(self) -> str:
        """Return it as text, see the module's docstring."""
        identity = self.identity
        lines = [
            f"identity {identity.vendor:04x}:{identity.device:04x} {identity.revision:#x} "
            f"{identity.subsystem_vendor:04x}:{identity.subsystem_device:04x} "
            f"{identity.class_code:#x}"
        ]
        if self.command:
            lines.append(f"command {json.dumps(self.command)}")
        lines += [f"firmware {name} {_packed(self.firmware[name])}" for name in self.firmware]
        if self.interrupts:
            lines.append(f"interrupts {self.interrupts}")
        lines += [f"window {index} {size:#x}" for index, size in sorted(self.windows.items())]
        lines += map(_line, self.entries)
        return "\n".join(lines) + "\n"

    @staticmethod
    def load(text: str, *, partial: bool = False) -> Recording:
        """Read the output of `save`; BadArgument names the faulty line. partial: leave out the last
        line of a truncated file, and set `cut`; otherwise such a file is rejected."""
        recording: Recording | None = None
        lines, cut = text.splitlines(), 0
        if lines and not text.endswith("\n"):
            cut = len(lines)
            last = lines.pop()
            if not partial:
                raise BadArgument(
                    f"line {cut} of the recording is incomplete: the file was cut off",
                    line=_short(last),
                )
        for number, line in enumerate(lines, 1):
            words = line.split()
            try:
                if not words:
                    continue
                if words[0] == "identity":
                    recording = Recording(_identity(words))
                elif recording is None:
                    raise ValueError("expected the identity before other entries")
                elif words[0] == "window":
                    recording.windows[int(words[1])] = int(words[2], 16)
                elif words[0] == "interrupts":
                    recording.interrupts = int(words[1])
                elif words[0] == "firmware":
                    recording.firmware[words[1]] = _unpacked(words[2:])
                elif words[0] == "command":
                    recording.command = _command(line)
                else:
                    recording.entries.append(_entry(words))
            except (ValueError, LookupError, RecursionError) as error:
                raise BadArgument(
                    f"line {number} of the recording: {error}", line=_short(line)
                ) from None
        if recording is None:
            raise BadArgument("expected an identity at the start of the recording")
        recording.cut = cut
        return recording


def driven(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without an observer's accesses: the driver's accesses, and what it saw.
    Memory that changed during the observer's accesses is recorded as if the driver sees it
    later."""
    kept: list[Entry] = []
    looking = False
    for entry in entries:
        if isinstance(entry, Look):
            looking = entry.begins
        elif looking and isinstance(entry, Content):
            kept.append(replace(entry, at_once=False))
        elif not (looking and isinstance(entry, Access | LongWrite | Moment)):
            kept.append(entry)
    return kept


def long_write(access: Access) -> Access | LongWrite:
    """Return a completed access in the form that is kept."""
    if not access.is_write or access.data is None or access.width < LONG:
        return access
    kept = access.data if access.width <= KEPT else None
    return _long_write(access.window, access.offset, access.width, access.data, kept)


def _long_write(window: int, offset: int, width: int, data: bytes, kept: bytes | None) -> LongWrite:
    return LongWrite(window, offset, width, hashlib.sha256(data).hexdigest(), kept)


# ---- lines -------------------------------------------------------------------------------------


def _short(line: str) -> str:
    """Return a line for an error, shortened: packed data may be long."""
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _line(entry: Entry) -> str:
    if isinstance(entry, Access):
        if entry.data is None:
            return str(entry)
        return f"{str(entry).rsplit(' ', 2)[0]} {_packed(entry.data)}"
    if isinstance(entry, LongWrite):
        at = Access(entry.window, entry.offset, entry.width, True, None)
        kept = _packed(entry.data) if entry.data is not None else ""
        if not kept or len(kept) * _WELL > entry.width:
            kept = f"sha256 {entry.digest}"
        return f"{str(at).rsplit(' ', 2)[0]} {kept}"
    if isinstance(entry, Allocation):
        runs = " ".join(f"{run.address:#x}+{run.size:#x}" for run in entry.segments)
        return f"allocate {entry.number} {entry.size} {runs}"
    if isinstance(entry, Content):
        verb = "answer" if entry.at_once else "memory"
        return f"{verb} {entry.number} {entry.offset:#x} {_packed(entry.data)}"
    if isinstance(entry, Free):
        return f"free {entry.number}"
    if isinstance(entry, Wait):
        return "wait"
    if isinstance(entry, Stage):
        return f"stage {_ascii(entry.name)}"
    if isinstance(entry, Look):
        return f"look {'begins' if entry.begins else 'ends'}"
    if isinstance(entry, Moment):
        return f"at {entry.seconds:.6f}"
    if isinstance(entry, Failure):
        return f"failed {entry.kind} {_ascii(entry.message)}".rstrip()
    if isinstance(entry, Presence):
        return f"present {'yes' if entry.present else 'no'}"
    return f"reset {entry.kind.value} {entry.refusal}".rstrip()


def _entry(words: list[str]) -> Entry:
    if words[0] == "allocate":
        runs = [run.partition("+") for run in words[3:]]
        segments = tuple(DmaSegment(BusAddr(int(a, 16)), int(size, 16)) for a, _, size in runs)
        size = int(words[2])
        if not 0 < size <= LARGEST or sum(segment.size for segment in segments) != size:
            raise ValueError("an allocation and its runs have different sizes")
        return Allocation(int(words[1]), size, segments)
    if words[0] in ("memory", "answer"):
        data = _unpacked(words[3:])
        return Content(int(words[1]), int(words[2], 16), data, words[0] == "answer")
    if words[0] == "free":
        return Free(int(words[1]))
    if words[0] == "reset":
        return Reset(ResetKind(words[1]), " ".join(words[2:]))
    if words[0] == "wait":
        return Wait()
    if words[0] == "stage":
        return Stage(" ".join(words[1:]))
    if words[0] == "look":
        return Look({"begins": True, "ends": False}[words[1]])
    if words[0] == "at":
        seconds = float(words[1])
        if not 0 <= seconds < 1e9:
            raise ValueError("a time must be 0 to 1e9 seconds")
        return Moment(seconds)
    if words[0] == "failed":
        return Failure(words[1], " ".join(words[2:]))
    if words[0] == "present":
        return Presence({"yes": True, "no": False}[words[1]])
    return _access(words)


def _command(line: str) -> tuple[str, ...]:
    words = json.loads(line.partition(" ")[2])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("command must be a list of strings")
    return tuple(words)


def _identity(words: list[str]) -> PciIdentity:
    vendor, device = (int(part, 16) for part in words[1].split(":"))
    subsystem = [int(part, 16) for part in words[3].split(":")]
    return PciIdentity(
        vendor, device, int(words[2], 16), subsystem[0], subsystem[1], int(words[4], 16)
    )


def _access(words: list[str]) -> Access | LongWrite:
    verb, place, offset, width = words[0], words[1], int(words[2], 16), int(words[3])
    if verb not in ("read", "write") or not (place == "config" or place.startswith("bar")):
        raise ValueError(f"unknown access: {verb} {place}")
    window = CONFIG if place == "config" else int(place[3:])
    is_write = verb == "write"
    if offset < 0 or width < 0:
        raise ValueError("an access must have an offset and a width of at least 0")
    if words[4] == "sha256" and is_write:
        if len(words[5]) != 64:
            raise ValueError("a digest must have 64 digits")
        return LongWrite(window, offset, width, words[5])
    if words[4] in ("data", "packed"):
        data = _unpacked(words[4:])
        if len(data) != width:
            raise ValueError(f"expected {width} bytes of data, got {len(data)}")
        if is_write and width >= LONG:
            return _long_write(window, offset, width, data, data)
        return Access(window, offset, width, is_write, None, data)
    if not 1 <= width <= 8:
        raise ValueError(f"a value must have 1 to 8 bytes, got {width}")
    value = int(words[4], 16)
    if not 0 <= value < 1 << 8 * width:
        raise ValueError(f"the value {value:#x} does not fit {width} bytes")
    return Access(window, offset, width, is_write, value)


def _ascii(text: str) -> str:
    return " ".join(text.encode("ascii", "backslashreplace").decode().split())


def _packed(data: bytes) -> str:
    if len(data) < LONG:
        return f"data {data.hex()}"
    return f"packed {base64.b64encode(zlib.compress(data, 1)).decode()}"


def _unpacked(words: list[str]) -> bytes:
    kind, text = words[0], words[1] if len(words) > 1 else ""
    if kind == "data":
        return bytes.fromhex(text)
    if kind != "packed":
        raise ValueError(f"the form of data must be 'data' or 'packed', got {kind}")
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text, validate=True), LARGEST)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"packed data: {error}") from None
    if not unpacking.eof:
        raise ValueError("packed data is truncated or too large")
    return data
