"""Relocations against a word-by-word model; arguments packed as C would lay them out."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command_buffer import CommandBuffer, Reference, Relocation, Symbol
from ugpu.hcq.work.program import Kernel, Parameter, Program, pack_arguments

WORDS = 12
MASK_64 = (1 << 64) - 1
symbols = st.one_of(
    st.builds(Symbol, st.just("signal"), st.integers(0, 5), st.integers(0, 3)),
    st.builds(Symbol, st.just("parameter"), st.integers(-8, 8), st.integers(0, 3)),
    st.builds(Symbol, st.just("image"), st.integers(0, 1 << 20)),
)


@st.composite
def relocations(draw: st.DrawFn) -> Relocation:
    lsb = draw(st.integers(0, 31))
    return Relocation(
        draw(st.integers(0, WORDS - 1)),
        draw(symbols),
        shift=draw(st.integers(0, 63)),
        lsb=lsb,
        width=draw(st.integers(1, 32 - lsb)),
    )


def disjoint(taken: list[Relocation]) -> bool:
    seen: dict[int, int] = {}
    for one in taken:
        mask = ((1 << one.width) - 1) << one.lsb
        if seen.get(one.word, 0) & mask:
            return False
        seen[one.word] = seen.get(one.word, 0) | mask
    return True


def model(words: list[int], taken: list[Relocation], value_of: dict[tuple, int]) -> list[int]:
    out = list(words)
    for one in taken:
        base = value_of[one.symbol.kind, one.symbol.slot]
        value = (base + one.symbol.addend & MASK_64) >> one.shift
        mask = (1 << one.width) - 1
        out[one.word] = out[one.word] & ~(mask << one.lsb) | (value & mask) << one.lsb
    return out


words = st.lists(st.integers(0, 2**32 - 1), min_size=WORDS, max_size=WORDS)


@given(words, st.lists(relocations(), max_size=10).filter(disjoint), st.data())
def test_patching_agrees_with_the_model(
    image: list[int], taken: list[Relocation], data: st.DataObject
) -> None:
    encoded = CommandBuffer(np.array(image, np.uint32), 4, taken)
    first = data.draw(st.lists(st.integers(0, MASK_64), min_size=len(encoded.symbols),
                               max_size=len(encoded.symbols)))  # fmt: skip
    out = np.zeros(WORDS, np.uint32)
    encoded.patch(out, np.array(first, np.uint64))
    named = {(s.kind, s.slot): v for s, v in zip(encoded.symbols, first, strict=True)}
    assert out.tolist() == model(image, taken, named)
    # Changing some symbols writes only their words, and ends where patching afresh would.
    count = len(first)
    chosen = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    offsets = [data.draw(st.integers(0, 1 << 40)) for _ in chosen]
    given = [data.draw(st.integers(0, MASK_64)) for _ in range(3)]
    sources = [data.draw(st.integers(0, 2)) for _ in chosen]
    second = list(first)
    for position, source, offset in zip(chosen, sources, offsets, strict=True):
        second[position] = given[source] + offset & MASK_64
    values = np.array(second, np.uint64)
    encoded.part(chosen, sources, offsets).insert(out, np.array(given, np.uint64))
    afresh = np.zeros(WORDS, np.uint32)
    encoded.patch(afresh, values)
    assert (out == afresh).all()
    encoded.repatch(out, np.array(first, np.uint64))
    assert out.tolist() == model(image, taken, named)


@pytest.mark.parametrize(("offset", "width"), [(0, 1), (3, 1), (6, 2), (4, 4), (8, 8), (15, 1)])
def test_references_put_their_bytes_where_they_belong(offset: int, width: int) -> None:
    """Into an argument block that begins at word 2; all other bytes stay."""
    reference = Reference(offset, width, Symbol("parameter", 3).plus(4))
    encoded = CommandBuffer(np.full(6, 0x5555_5555, np.uint32), 6, reference.relocations(2))
    out = np.zeros(6, np.uint32)
    encoded.patch(out, np.array([0x1122_3344_5566_7788], np.uint64))
    value = (0x1122_3344_5566_7788 + 7).to_bytes(8, "little")[:width]
    expected = bytearray(b"\x55" * 24)
    expected[8 + offset : 8 + offset + width] = value
    assert out.tobytes() == bytes(expected)


def test_a_relocation_outside_the_image_is_refused() -> None:
    with pytest.raises(BadArgument):
        CommandBuffer(np.zeros(4, np.uint32), 4, [Relocation(4, Symbol("signal"))])


SCALARS = {
    "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16,
    "uint32": ctypes.c_uint32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
    "float64": ctypes.c_double, "pointer": ctypes.c_uint64, "bool": ctypes.c_bool,
}  # fmt: skip


class NoDevice:
    """Kernels and buffers need one to belong to; packing asks it nothing."""


def kernel(size: int, arguments: tuple[Argument, ...] | None = None) -> Kernel:
    return Kernel("k", Program(NoDevice(), None), 0, size, arguments)


def buffer(address: int) -> Buffer:
    return Buffer(NoDevice(), VirtAddr(address), 64, Placement.DEVICE)


@given(st.lists(st.sampled_from(sorted(SCALARS)), max_size=8), st.booleans())
def test_arguments_lie_where_c_puts_them(kinds: list[str], declared: bool) -> None:
    layout = type("Layout", (ctypes.Structure,), {
        "_fields_": [(f"f{i}", SCALARS[kind]) for i, kind in enumerate(kinds)]})  # fmt: skip
    fields = [getattr(layout, f"f{i}") for i in range(len(kinds))]
    values, expected = [], layout()
    for number, kind in enumerate(kinds):
        if kind == "pointer":
            values.append(buffer(0x1000 * number))
            setattr(expected, f"f{number}", 0x1000 * number)
            continue
        values.append(np.dtype(kind).type(number % 2 if kind == "bool" else number))
        setattr(expected, f"f{number}", number % 2 if kind == "bool" else number)
    arguments = tuple(
        Argument(field.offset, field.size, f"f{number}", kinds[number] == "pointer")
        for number, field in enumerate(fields)
    )
    end = max((field.offset + field.size for field in fields), default=0)
    block, references = pack_arguments(kernel(end, arguments if declared else None), values)
    assert block == bytes(expected)[:end]
    assert [(r.offset, r.width) for r in references] == [
        (field.offset, 8) for field, kind in zip(fields, kinds, strict=True) if kind == "pointer"
    ]


@pytest.mark.parametrize("kind", ["", "integer", "float"])
def test_integers_are_no_floats_where_the_code_object_tells(kind: str) -> None:
    takes = kernel(4, (Argument(0, 4, "x", False, kind),))
    pack_arguments(takes, (Parameter(0, 4),))
    for value, own in (
        (np.uint32(1), "integer"), (np.int32(-1), "integer"), (np.float32(1), "float"),
    ):  # fmt: skip
        if kind in ("", own):
            assert pack_arguments(takes, (value,))[0] == value.tobytes()
        else:
            with pytest.raises(BadArgument, match=f"'x' of k is an? {kind} of 4 bytes"):
                pack_arguments(takes, (value,))


def test_declared_arguments_are_checked_one_by_one() -> None:
    takes = kernel(16, (Argument(0, 8, "out", True), Argument(8, 4, "count"), Argument(12, 4, "x")))
    pack_arguments(takes, (buffer(0), np.uint32(1), Parameter(0, 4)))
    for wrong, reason in (
        ((np.uint64(5), np.uint32(1), np.uint32(1)), "'out'"),  # 0 is a null pointer
        ((buffer(0), np.uint64(1), np.uint32(1)), "'count'"),
        ((buffer(0), buffer(0), np.uint32(1)), "'count'"),
        ((buffer(0), np.uint32(1), Parameter(0, 8)), "'x'"),
        ((buffer(0), np.uint32(1)), "3 arguments, got 2"),
    ):
        with pytest.raises(BadArgument, match=reason):
            pack_arguments(takes, wrong)


def test_a_structure_lies_where_it_is_declared() -> None:
    """By value as bytes or a NumPy record; where nothing is declared its alignment is unknown."""
    record = np.array((1, 2), np.dtype([("a", "<u4"), ("b", "<u8")], align=True))[()]
    declared = (Argument(0, 4, "n"), Argument(8, 16, "s"), Argument(24, 3, "t"))
    values = (np.uint32(7), record, b"xyz")
    block, references = pack_arguments(kernel(32, declared), values)
    assert block == b"\7\0\0\0" + bytes(4) + record.tobytes() + b"xyz" + bytes(5)
    assert references == ()
    with pytest.raises(BadArgument, match=r"argument 1 of .* is a structure: its code object must"):
        pack_arguments(kernel(32, None), values)
    with pytest.raises(BadArgument, match="must be a float of 16 bytes, got a structure of 16"):
        pack_arguments(kernel(16, (Argument(0, 16, "s", kind="float"),)), (record,))


_declared = st.builds(
    Argument,
    st.integers(0, 24), st.sampled_from((1, 2, 3, 4, 8, 16)), st.just("x"),
    st.sampled_from((None, False, True)), st.sampled_from(("", "integer", "float")),
)  # fmt: skip
_value = st.one_of(
    st.sampled_from((np.uint8, np.int16, np.uint32, np.float32, np.float64, np.int64, np.bool_))
    .flatmap(lambda kind: st.integers(0, 1).map(kind)),
    st.builds(buffer, st.just(0x1000)), st.none(), st.just(7), st.just(b"abcd"),
    st.builds(Parameter, st.integers(0, 2), st.sampled_from((4, 8))),
)  # fmt: skip


@given(st.lists(_declared, max_size=3), st.lists(_value, max_size=3), st.integers(0, 40))
def test_the_quick_way_packs_as_the_thorough_one(
    declared: list[Argument], values: list[object], size: int
) -> None:
    def packed(quick: bool) -> object:
        takes = kernel(size, tuple(declared))
        if not quick:
            takes.__dict__["places"] = None
        try:
            block, references = pack_arguments(takes, values)
            return block, tuple(references)
        except BadArgument as error:
            return str(error)

    assert packed(True) == packed(False)
