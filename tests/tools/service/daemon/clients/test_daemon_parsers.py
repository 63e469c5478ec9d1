"""Every parser of clients' bytes takes time in proportion to its input, whatever the input.

Each case makes an input of a given size that some way of reading takes quadratic time for. Four
times the input must take less than nine times the processor time (linear: 4; quadratic: 16).
"""

from __future__ import annotations

import contextlib
import gc
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest

from tests.support.service.daemon import DaemonProcess, scaled
from ugpu import hcq
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects.code_object import parse_amdhsa
from ugpu.hcq.objects.elf import read_object
from ugpu.hcq.objects.ir3_object import parse_ir3
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.remote.request import LeaseRequest
from ugpu.hcq.remote.wire import Message
from ugpu.hcq.remote.words import PLACE
from ugpu.hcq.work.object_kind import described
from ugpu.nv.code import ptx_lines as ptxlines
from ugpu.nv.code import source
from ugpu.nv.code.bulk_copies import to_own_memory
from ugpu.nv.code.cubin import parse_cubin
from ugpu.nv.code.heap import with_heap
from ugpu.nv.code.output_routines import with_routines
from ugpu.tools.service.daemon.clients.commands import Decoder, table_of
from ugpu.tools.service.daemon.clients.leases import Card
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.ptx.source import instruction_in

GROWTH, MOST_RATIO = 4, 9.0
ENOUGH_S = 0.03  # processor time from which a ratio means something
LARGEST = 1 << 20  # bytes: an input of this size that takes less is fast enough
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
Case = tuple[Callable[[Any], object], Callable[[int], Any]]


def _ptx(data: bytes) -> None:
    """What a driver does with PTX before the assembler gets it."""
    source._check_text(data, (9, 0))
    to_own_memory(with_heap(with_routines(data)), "sm_120a")
    source._parameters(data)


def text(part: str, head: str = HEAD, end: str = "") -> Callable[[int], bytes]:
    """`part` again and again."""
    return lambda size: (head + part * (size // len(part)) + end).encode()


def long(form: str, letter: str) -> Callable[[int], bytes]:
    """One run of a letter, at @ in `form`."""
    return lambda size: (HEAD + form.replace("@", letter * size)).encode()


PTX: dict[str, Callable[[int], bytes]] = {
    "comment": long(".visible .entry k(.param .u64 out /* @ ! */)\n{\n ret;\n}\n", "a"),
    "blanks": long(".visible .entry k(.param .u64 out@!)\n{\n ret;\n}\n", " "),
    "digits": long(".visible .entry k(.param .b8 out[@])\n{\n ret;\n}\n", "1"),
    "long name": long(".visible .entry @\n{\n ret;\n}\n", "a"),
    "lines": text("\n", head=""),
    "blank lines": text(" \t\n", head=""),
    "targets": text(".target ", head=""),
    "entries": text(".entry a("),
    "entries and blanks": text(".entry            "),
    "entries in parentheses": text(".entry a(.param .u64 b) ("),
    "parameters": text(".param .u64 a, ", HEAD + ".visible .entry k(", ".param .u64 z) { ret; }"),
    "open comments": text("/* ", HEAD),
    "open comments in a list": text("/* ", HEAD + ".entry k("),
    "stars": text("/****", HEAD),
    "declarations": text(".extern .func malloc("),
    "declarations of nothing": text(".extern .func ( "),
    "declarations and blanks": text(".extern .func          "),
    "prints": text(".extern .func (.param .b32 r) vprintf("),
    "copies": text("cp.async.bulk.shared::cluster"),
    "braces": text("{", HEAD + ".visible .entry k()\n"),
    "brackets": text("["),
    "instructions": text(
        "add.u32 %r0, %r0, 1;\n", HEAD + ".entry k()\n{\n.reg .b32 %r<9>;\n", "ret;}"
    ),
    "labels": text("L: ", HEAD + ".entry k()\n{\n", "ret;}"),
    "registers": text(".reg .b32 %a, %b;\n", HEAD + ".entry k()\n{\n", "ret;}"),
    "guards": text("@", HEAD + ".entry k()\n{\n"),
    "numbers": long(".global .u32 a = @;", "9"),
    "fractions": long(".global .u32 a = @.", "9"),
    "initial values": text("1, ", HEAD + ".global .u32 a[] = {", "1};"),
    "nested values": text("{", HEAD + ".global .u32 a[] = "),
    "minus": long(".global .u32 a = @1;", "-"),
    "strings": text('"', HEAD),
    "sections": text(".section .a { ", HEAD),
    "dots": long(".@", "a::"),
    "files": text('.file 1 "a"\n', HEAD),
    "functions": text(".func f();\n", HEAD),
    "pragmas": text('.pragma "a" ', HEAD),
    "globals": text(".global .u32 g;\n", HEAD),
}  # fmt: skip


# ---- ELF -----------------------------------------------------------------------------------------


Kind = tuple[int, int, int, int]  # e_machine, the bytes for the system's ABI, e_flags
AMD, CUBIN, IR3 = (224, 64, 4, 0x41), (190, 0, 0, 90), (0xADE0, 0, 0, 0)


def elf(
    kind: Kind, sections: list[tuple[int, int, bytes, int, int]],
    shared: Sequence[tuple[int, int, int]] = (),
) -> bytes:  # fmt: skip
    """A relocatable object. sections: name's offset, kind, content, link, info; the first is the
    table of names. shared: further sections: kind, and an offset and size in the file."""
    machine, osabi, abi_version, flags = kind
    body, rows = bytearray(64), [bytes(64)]
    for name, type_, content, link, info in sections:
        rows.append(struct.pack("<IIQQQQIIQQ", name, type_, 2, 0, len(body), len(content), link,
                                info, 1, 0))  # fmt: skip
        body += content + bytes(-len(content) % 8)
    for type_, offset, size in shared:
        rows.append(struct.pack("<IIQQQQIIQQ", 0, type_, 2, 0, offset, size, 0, 0, 1, 0))
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes([osabi, abi_version]) + bytes(7),
        1, machine, 1, 0, 0, len(body), flags, 64, 0, 0, 64, len(rows), 1,
    )  # fmt: skip
    body[:64] = header
    return bytes(body) + b"".join(rows)


def one_name(kind: Kind) -> Callable[[int], bytes]:
    """Symbols that all have the same name, which is long."""

    def make(size: int) -> bytes:
        names = b"\0" + b"a" * (size // 2) + b"\0"
        symbols = b"".join(struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0) for _ in range(size // 48))
        return elf(kind, [(0, 3, names, 0, 0), (0, 2, symbols, 1, 0)])

    return make


def suffixes(kind: Kind) -> Callable[[int], bytes]:
    """Symbols whose names are the ends of one long name."""

    def make(size: int) -> bytes:
        names = b"\0" + b"a" * (size // 2) + b"\0"
        symbols = b"".join(
            struct.pack("<IBBHQQ", 1 + number, 0, 0, 0, 0, 0) for number in range(size // 48)
        )
        return elf(kind, [(0, 3, names, 0, 0), (0, 2, symbols, 1, 0)])

    return make


def overlapping(kind: Kind) -> Callable[[int], bytes]:
    """Sections that all have the same bytes, many."""

    def make(size: int) -> bytes:
        count = min(size // 128, 60_000)
        filler = bytes(size // 2)
        shared = [(1, 64, size // 2)] * count
        return elf(kind, [(0, 3, b"\0" + filler, 0, 0)], shared)

    return make


def amd_kernels(size: int) -> bytes:
    """Metadata of many kernels, each of which the symbol table has last."""
    count = size // 256
    names = b"\0" + b"".join(b"k%07d\0k%07d.kd\0" % (n, n) for n in range(count))
    symbols = bytearray(24)
    for number in range(count):
        at = 1 + number * 21
        symbols += struct.pack("<IBBHQQ", at, 2, 0, 3, 0, 0)
        symbols += struct.pack("<IBBHQQ", at + 9, 1, 0, 4, 0, 64)
    kernels = [
        {".name": f"k{n:07d}", ".symbol": f"k{n:07d}.kd", ".kernarg_segment_size": 0,
         ".group_segment_fixed_size": 0, ".private_segment_fixed_size": 0,
         ".max_flat_workgroup_size": 64}
        for n in reversed(range(count))
    ]  # fmt: skip
    note = msgpack.packb({"amdhsa.target": "amdgcn-amd-amdhsa--gfx1100", "amdhsa.kernels": kernels})
    described = struct.pack("<III", 7, len(note), 32) + b"AMDGPU\0\0" + note
    sections = [
        (0, 3, names, 0, 0), (0, 2, bytes(symbols), 1, 0), (0, 1, bytes(256), 0, 0),
        (0, 1, bytes(64), 0, 0), (0, 7, described, 0, 0),
    ]  # fmt: skip
    return elf(AMD, sections)


def amd_metadata(unit: bytes) -> Callable[[int], bytes]:
    """A note of many small things, in one list."""

    def make(size: int) -> bytes:
        count = size // len(unit)
        note = b"\xdd" + struct.pack(">I", count) + unit * count
        content = struct.pack("<III", 7, len(note), 32) + b"AMDGPU\0\0" + note
        sections = [
            (0, 3, b"\0", 0, 0), (0, 2, bytes(24), 1, 0),
            (0, 7, content + bytes(-len(content) % 4), 0, 0),
        ]  # fmt: skip
        return elf(AMD, sections)

    return make


def cubin_kernels(size: int) -> bytes:
    """Many kernels, each with sections of its own."""
    count = min(size // 400, 20_000)
    names, offsets = bytearray(b"\0"), []
    for number in range(count):
        for form in (".text.k%06d", ".nv.info.k%06d"):
            offsets.append(len(names))
            names += form.encode() % number + b"\0"
        offsets.append(len(names))
        names += b"k%06d\0" % number
    symbols = bytearray(24)
    for number in range(count):
        symbols += struct.pack("<IBBHQQ", offsets[3 * number + 2], 2, 0x10, 3 + 2 * number, 0, 16)
    sections: list[tuple[int, int, bytes, int, int]] = [
        (0, 3, bytes(names), 0, 0), (0, 2, bytes(symbols), 1, 0)
    ]  # fmt: skip
    for number in range(count):
        sections.append((offsets[3 * number], 1, bytes(16), 0, 32 << 24))
        sections.append((offsets[3 * number + 1], 1, b"", 0, 0))
    return elf(CUBIN, sections)


def ir3_object(size: int) -> bytes:
    """Sections with the same code and facts, many."""
    image = bytearray(overlapping(IR3)(size))
    image[48:52] = struct.pack("<I", zlib.crc32(bytes(image[:48]) + bytes(4) + bytes(image[52:])))
    return bytes(image)


# ---- the wire ------------------------------------------------------------------------------------


class _Scope:
    """All addresses are memory of the lease."""

    def check(self, address: int, size: int) -> None:
        return

    def timeline(self, address: int) -> object:
        return self

    def kernel(self, handle: int) -> object:
        raise UgpuError("no kernels")


def decoded(words: bytes) -> None:
    scope: Any = _Scope()
    Decoder(np.frombuffer(words, "<u4"), scope).decode()


def placed(data: bytes) -> None:
    count = len(data) // PLACE.itemsize
    table_of(data[: count * PLACE.itemsize], 4 * count)


def fills(size: int) -> bytes:
    from ugpu.hcq.remote import words as wire

    one = np.array([wire.FILL, 0, 0, 64, 0, 7], "<u4").tobytes()
    return one * (size // len(one))


def places(size: int) -> bytes:
    rows = np.zeros(size // PLACE.itemsize, PLACE)
    rows["width"] = 32
    return rows.tobytes()


def leased(pattern: str) -> None:
    request = LeaseRequest(device=pattern)
    Card("a" * 64, ("b" * 64,) * 4).matches(request.device)


def packed(unit: bytes) -> Callable[[int], bytes]:
    return lambda size: b"\xdd" + struct.pack(">I", size // len(unit)) + unit * (size // len(unit))


def unpacked(data: bytes) -> None:
    """As the wire does: at most a megabyte."""
    try:
        msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise UgpuError(str(error)) from None
    Message("reply", [])


CASES: dict[str, Case] = {
    **{f"PTX before the assembler: {name}": (_ptx, make) for name, make in PTX.items()},
    **{
        f"PTX of the model: {name}": (lambda data: parse(data.decode()), make)
        for name, make in PTX.items()
    },
    **{
        f"line of PTX: {name}": (
            lambda data: instruction_in(data.decode(), data.count(b"\n")), PTX[name]
        )
        for name in ("lines", "blank lines", "files", "instructions", "functions")
    },
    "lines of a cubin": (lambda data: ptxlines.line_of(data, "k", 0), cubin_kernels),
    "kind of an image": (lambda data: described(data, "ptx"), text("\n", head="")),
    **{
        f"{name}: {case}": (read, make)
        for name, read, kind in (
            ("ELF", read_object, (224, 0, 0, 0)),
            ("AMD", parse_amdhsa, AMD),
            ("host", load_object, (62, 0, 0, 0)),
            ("cubin", parse_cubin, CUBIN),
        )
        for case, make in (
            ("one long name", one_name(kind)),
            ("ends of a long name", suffixes(kind)),
            ("overlapping sections", overlapping(kind)),
        )
    },
    "AMD: kernels": (parse_amdhsa, amd_kernels),
    "AMD: lists": (parse_amdhsa, amd_metadata(b"\x90")),
    "AMD: nested lists": (parse_amdhsa, amd_metadata(b"\x91")),
    "cubin: kernels": (parse_cubin, cubin_kernels),
    "ir3: overlapping sections": (parse_ir3, ir3_object),
    "submission: fills": (decoded, fills),
    "submission: nothing": (decoded, bytes),
    "places": (placed, places),
    "pattern: stars": (leased, lambda size: "*a" * (size // 2)),
    "pattern: sets": (leased, lambda size: "[" * size),
    "message: lists": (unpacked, packed(b"\x90")),
    "message: nested lists": (unpacked, packed(b"\x91")),
    "message: maps": (unpacked, packed(b"\x81\x01\x01")),
}  # fmt: skip


def seconds(read: Callable[[Any], object], data: Any) -> float:
    """Processor time of this thread, the least of three, without Python's collector: whether one of
    its full passes falls into a call is chance, and takes ten times as long as reading lists."""
    found: list[float] = []
    gc.disable()
    try:
        while len(found) < 3 and (not found or found[-1] <= 2.0):
            start = time.thread_time()
            with contextlib.suppress(UgpuError):
                read(data)
            found.append(time.thread_time() - start)
    finally:
        gc.enable()
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_time_grows_with_the_input_alone(name: str) -> None:
    read, make = CASES[name]
    size = 1 << 10
    while (passed := seconds(read, make(size))) < ENOUGH_S and size < LARGEST:
        size *= 2
    if passed < ENOUGH_S:
        return  # a megabyte takes next to nothing
    larger = seconds(read, make(GROWTH * size))
    assert larger < MOST_RATIO * passed, (
        f"{size} bytes: {passed:.3f} s, 4 times as many: {larger:.3f} s"
    )


@pytest.mark.slow
def test_ptx_with_a_long_comment_does_not_stop_ugpud() -> None:
    """The attack: it took days, with the interpreter's lock held. All answers come in time."""
    text = PTX["comment"](LARGEST)
    with (
        DaemonProcess(["virtual:gh100", "cpu"]) as daemon,
        hcq.lease("virtual:gh100", daemon=daemon.socket) as gpu,
    ):
        number = gpu.driver.connection.begin("load", data=text)
        with Connection(Address(daemon.socket)) as other:
            assert len(other.call("devices").arguments[0]) == 2
        with contextlib.suppress(UgpuError):
            gpu.driver.connection.finish(number)
        assert scaled(gpu)
