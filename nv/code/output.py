"""Output of printf and assert in kernels, through a buffer that routines in the program write.

The buffer is read when work has ended; text goes to `Device.on_print`. The routines and the
buffer's layout: nv.code.output_routines.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.nv.code.image import Image
from ugpu.nv.code.output_routines import ASSERT, ASSERT_SIZE, HEAD_SIZE, PRINTF_SIZE, STATE
from ugpu.nv.rm.memory import Memory, allocate_reachable

if TYPE_CHECKING:
    from ugpu.nv.rm.holder import Holder

SIZE = 1 << 20
_LONGEST_TEXT = 4096
_HEAD = struct.Struct("<QQQQ")  # taken, capacity, dropped, zero
_RECORD, _PRINTF, _ASSERT = struct.Struct("<II"), struct.Struct("<QQ"), struct.Struct("<QQQ8I")
_FIELD = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|z|j|t|q|L)?(?P<kind>[diouxXceEfFgGaAspn%])"
)
_WIDE = ("l", "ll", "z", "j", "t", "q", "L")


@dataclass(frozen=True)
class Assertion:
    """A failed assert, with the texts of the kernel's source."""

    condition: str
    file: str
    function: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


class Output:
    """The buffer of one device, created for the first program that prints; see the module."""

    def __init__(self, driver: Holder) -> None:
        self._driver = driver
        self._memory: Memory | None = None
        self._at = 0  # records before it have been passed on
        self._texts: dict[Memory, tuple[int, bytes]] = {}  # programs that print: base and content

    def connect(self, image: Image, memory: Memory, data: bytes) -> bytes:
        """Return the bytes of a program to load at `memory`, with the buffer's address inserted."""
        place = next((v for v in image.variables() if v.name == STATE), None)
        if place is None:
            return data
        assert place.section is not None
        if self._memory is None:
            self._memory = allocate_reachable(self._driver.gpu, SIZE)
            self.clear()
        linked = bytearray(data)
        at = image.offsets[place.section] + place.value
        struct.pack_into("<Q", linked, at, self._memory.address)
        self._texts[memory] = memory.address, bytes(linked)
        return bytes(linked)

    def forget(self, memory: Memory) -> None:
        """Forget a program that was closed."""
        self._texts.pop(memory, None)

    def clear(self) -> None:
        """Discard all records. Only while no kernel runs."""
        if self._memory is not None:
            self._memory.view[HEAD_SIZE:SIZE] = bytes(SIZE - HEAD_SIZE)
            _HEAD.pack_into(self._memory.view, 0, 0, SIZE - HEAD_SIZE, 0, 0)
        self._at = 0

    # ---- reading -----------------------------------------------------------------------------

    def _records(self, start: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the complete records from `start` on: end, kind and content of each."""
        if self._memory is None:
            return
        view = self._memory.view
        taken, capacity, _, _ = _HEAD.unpack_from(view)
        if capacity != SIZE - HEAD_SIZE:
            return  # a lost GPU reads as all ones; a kernel may have overwritten it
        while start < min(taken, capacity):
            size, kind = _RECORD.unpack_from(view, HEAD_SIZE + start)
            if size < PRINTF_SIZE or start + size > capacity:
                return  # not written yet
            yield start + size, kind, bytes(view[HEAD_SIZE + start : HEAD_SIZE + start + size])
            start += size

    @property
    def used(self) -> bool:
        """Return whether a program that prints was loaded."""
        return self._memory is not None

    def drain(self) -> None:
        """Pass the text printed since the last call to the device's `on_print`."""
        if self._memory is None:
            return
        lines = []
        for end, kind, record in self._records(self._at):
            self._at = end
            if kind != ASSERT:
                lines.append(self._printed(record))
        dropped = _HEAD.unpack_from(self._memory.view)[2]
        if dropped and self._memory.view[:8] != b"\xff" * 8:
            lines.append(f"[{dropped} lines more did not fit the buffer]\n")
        if self._at or dropped:
            with self._driver.core.lock:
                if self._driver.core.idle and self._driver.core.failure is None:
                    self.clear()
        for line in lines:
            self._driver.on_print(line)

    def assertion(self) -> Assertion | None:
        """The first failed assert, if any."""
        for _, kind, record in self._records(0):
            if kind == ASSERT and len(record) == ASSERT_SIZE:
                message, file, function, line, *place, _ = _ASSERT.unpack_from(record, 8)
                block, thread = (place[0], place[1], place[2]), (place[3], place[4], place[5])
                return Assertion(
                    self._text(message), self._text(file), self._text(function), line, block, thread
                )
        return None

    def _text(self, address: int) -> str:
        """A string in the device's memory, as far as it can be read."""
        for base, content in self._texts.values():
            if base <= address < base + len(content):
                raw = content[address - base : address - base + _LONGEST_TEXT]
                return raw.split(b"\0")[0].decode("utf-8", "replace")
        for memory in self._driver.gpu.memories:
            if memory.address <= address < memory.address + memory.size:
                size = min(_LONGEST_TEXT, memory.address + memory.size - address)
                if memory.mapping is not None:
                    raw = bytes(memory.view[address - memory.address :][:size])
                    return raw.split(b"\0")[0].decode("utf-8", "replace")
                with contextlib.suppress(UgpuError):
                    found = np.zeros(size, np.uint8)
                    core, start = self._driver.core, VirtAddr(address)
                    Buffer(core, start, size, Placement.DEVICE).copy_to(found)
                    return found.tobytes().split(b"\0")[0].decode("utf-8", "replace")
        return f"<{address:#x}>"

    def _printed(self, record: bytes) -> str:
        address, size = _PRINTF.unpack_from(record, _RECORD.size)
        arguments = _Arguments(record[PRINTF_SIZE : PRINTF_SIZE + size])
        text = self._text(address)
        try:
            return _FIELD.sub(lambda field: self._field(field, arguments), text)
        except (struct.error, ValueError, OverflowError):
            return text  # a format that does not match its arguments is shown unchanged

    def _field(self, field: re.Match[str], arguments: _Arguments) -> str:
        kind, flags = field["kind"], field["flags"]
        if kind == "%":
            return "%"
        width, precision = field["width"], field["precision"]
        if width == "*":
            width = str(arguments.integer("<i"))
        if precision == "*":
            precision = str(arguments.integer("<i"))
        form = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
        wide = (field["length"] or "") in _WIDE
        if kind in "di":
            return (form + "d") % arguments.integer("<q" if wide else "<i")
        if kind in "ouxX":
            return (form + kind) % arguments.integer("<Q" if wide else "<I")
        if kind == "c":
            return (form + "c") % chr(arguments.integer("<I") & 0xFF)
        if kind in "eEfFgG":
            return (form + kind) % arguments.real()
        if kind in "aA":
            return arguments.real().hex()
        pointer = arguments.integer("<Q")
        if kind == "s":
            return (form + "s") % self._text(pointer)
        return (form + "s") % hex(pointer) if kind == "p" else ""


class _Arguments:
    """Promoted arguments, each at its natural alignment."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def integer(self, form: str) -> int:
        """The next argument, as struct format `form`; struct.error if there is none."""
        return int(struct.unpack_from(form, self._raw, self._place(struct.calcsize(form)))[0])

    def real(self) -> float:
        """The next argument, a double."""
        return float(struct.unpack_from("<d", self._raw, self._place(8))[0])

    def _place(self, size: int) -> int:
        at = -(-self._at // size) * size
        self._at = at + size
        return at
