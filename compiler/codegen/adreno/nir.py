"""NIR in its serialised form, written byte by byte.

Mesa's `nir_deserialize` reads this form (Mesa 25.2, src/compiler/nir/nir_serialize.c), so that only
one struct layout in memory matters, that of `shader_info`. Objects (the function, blocks,
definitions) are numbered in the order in which they are written.

Numbers of operations and intrinsics differ between versions of Mesa: they are looked up by name in
the library's own tables (`Tables`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ugpu.hcq.errors import NotSupported

# enum nir_instr_type, nir_cf_node_type, nir_jump_type (nir.h)
_ALU, _TEX, _INTRINSIC, _LOAD_CONST, _JUMP, _UNDEF = 0, 3, 4, 5, 6, 7
_BLOCK, _IF, _LOOP = 0, 1, 2
_MINUS_ONE = {16: 0xBC00, 32: 0xBF800000}  # bits of -1.0
BREAK, CONTINUE = 2, 3
_COMPUTE = 5  # MESA_SHADER_COMPUTE
# enum nir_texop, nir_tex_src_type, glsl_sampler_dim, nir_alu_type
TEX_SAMPLE, TEX_FETCH = 2, 4  # txl, txf
_COORDINATES, _LEVEL = 0, 5
_DIM_2D, _DIM_BUFFER = 1, 5
_UINT, _FLOAT = 4, 128
# struct shader_info: its size, and the offsets of stage, shared_size and workgroup_size.
INFO_SIZE, _STAGE, _SHARED_SIZE, _WORKGROUP_SIZE = 368, 49, 268, 280
_ENTRY = 0x9  # of a function: is_entrypoint, has an implementation
_MOST_OBJECTS = 1 << 16  # sources of ALU instructions are 16 bits wide in the form written here
_EXACT = 1 << 4
# Signed zeros, infinities and NaN of 16, 32 and 64 bits: nir_alu_instr.fp_fast_math has the bits of
# enum float_controls that must be preserved (src/compiler/nir/nir.h, src/compiler/shader_enums.h).
# Without them x * 0 becomes 0, whatever x is, although the instruction is exact.
_PRESERVED = 0x1FF
# ALU instructions by number of sources, others by number of words; all end at whole words.
_SOURCES = [struct.Struct(f"<II{count}H{count % 2 * 2}x") for count in range(17)]
_WORDS = [struct.Struct(f"<{count}I") for count in range(33)]
_DONT_UNROLL = 2  # enum nir_loop_control
# Definitions in a loop that Mesa may unroll: its passes take seconds for thousands of instructions.
_MOST_UNROLLED = 128


@dataclass(frozen=True)
class Intrinsic:
    """An intrinsic: its number, the names of its constant indices in order, whether it defines a
    value."""

    number: int
    indices: tuple[str, ...]
    defines: bool


@dataclass(frozen=True)
class Tables:
    """The library's numbers. operations: number and count of sources, by name."""

    operations: Mapping[str, tuple[int, int]]
    intrinsics: Mapping[str, Intrinsic]


@dataclass
class _Block:
    data: bytearray = field(default_factory=bytearray)
    count: int = 0


@dataclass
class _If:
    condition: int
    then: list[_Node] = field(default_factory=list)
    otherwise: list[_Node] = field(default_factory=list)


@dataclass
class _Loop:
    begins: int
    body: list[_Node] = field(default_factory=list)
    control: int = 0


_Node = _Block | _If | _Loop


class Builder:
    """A compute shader under construction. Definitions are identified by their numbers."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._next = 1  # 0 is the function
        self._body: list[_Node] = []
        self._open: list[list[_Node]] = [self._body]
        self._ifs: list[_If] = []
        self._loops: list[_Loop] = []
        self._constants: dict[tuple[int, int], int] = {}
        self._headers: dict[tuple[str, int, int, int, bool], tuple[int, Callable[..., bytes]]] = {}
        self._intrinsics: dict[tuple[object, ...], tuple[int, tuple[int, ...], bool]] = {}
        self._begin()

    def _number(self) -> int:
        number = self._next
        if number >= _MOST_OBJECTS:
            raise NotSupported("kernel of more than 65,535 values for Adreno")
        self._next += 1
        return number

    def _begin(self) -> None:
        """Begin a block; each block makes its own constants."""
        self._block = _Block()
        self._open[-1].append(self._block)
        self._constants.clear()
        self._number()

    def _put(self, data: bytes) -> None:
        block = self._block
        block.data += data
        block.count += 1

    # ---- instructions --------------------------------------------------------------------------

    def constant(self, bits: int, value: int) -> int:
        """Return a scalar constant of 1, 8, 16, 32 or 64 bits."""
        value &= (1 << bits) - 1
        known = self._constants.get((bits, value))
        if known is not None:
            return known
        header = _LOAD_CONST | bits.bit_length() << 8
        if bits <= 16:  # packing 2: the value is in the header
            self._put(struct.pack("<I", header | 2 << 11 | value << 13))
        else:
            self._put(struct.pack("<II" if bits == 32 else "<IQ", header, value))
        number = self._constants[bits, value] = self._number()
        return number

    def undefined(self, bits: int) -> int:
        self._put(struct.pack("<I", _UNDEF | bits.bit_length() << 8))
        return self._number()

    def select(self, bits: int, test: int, yes: int, no: int) -> int:
        """Emit a choice by a bool. Mesa 25.2 makes bcsel(a, -1.0, -0.0) the negative of b2f(a), and
        takes 0.0, and integers of these bits, for the -0.0: such choices are sums of floats."""
        one = self._constants.get((bits, _MINUS_ONE.get(bits, -1)))
        zero = self._constants.get((bits, 0))
        if one is None or zero is None or {yes, no} != {one, zero}:
            return self.alu("bcsel", bits, test, yes, no)
        number = self.alu(f"b2f{bits}", bits, test)
        if yes == one:
            return self.alu("fadd", bits, self.alu("fneg", bits, number), zero)
        return self.alu("fadd", bits, number, one)

    def alu(
        self,
        name: str,
        bits: int,
        *sources: int,
        lanes: int = 1,
        channel: int = 0,
        exact: bool = True,
    ) -> int:
        """Emit an operation. channel: the component used of the first source. exact: no
        optimisation may change the result; none may change a zero's sign, infinity or NaN."""
        key = name, bits, lanes, channel, exact
        known = self._headers.get(key)
        if known is None:
            number, count = self.tables.operations[name]
            header = _ALU | channel << 7 | number << 11 | 1 << 21 | _defined(lanes, bits) << 24
            known = self._headers[key] = header | _EXACT * exact, _SOURCES[count].pack
        block = self._block
        block.data += known[1](known[0], _PRESERVED, *sources)
        block.count += 1
        number = self._next
        if number >= _MOST_OBJECTS:
            return self._number()  # which reports the error
        self._next = number + 1
        return number

    def channels(self, vector: int, lanes: int, bits: int) -> tuple[int, ...]:
        """Return the components of a definition that has `lanes` of them."""
        if lanes == 1:
            return (vector,)
        return tuple(self.alu("mov", bits, vector, channel=lane) for lane in range(lanes))

    def intrinsic(
        self,
        name: str,
        sources: Sequence[int] = (),
        lanes: int = 1,
        bits: int = 32,
        **indices: int,
    ) -> int:
        """Emit an intrinsic; indices not given are 0. Return the definition, or 0 if there is
        none."""
        key = name, lanes, bits, *indices.items()
        known = self._intrinsics.get(key)
        if known is None:
            known = self._intrinsics[key] = self._intrinsic(name, lanes, bits, indices)
        header, values, defines = known
        words = [header, *[source << 2 for source in sources], *values]
        self._put(_WORDS[len(words)].pack(*words))
        return self._number() if defines else 0

    def _intrinsic(
        self, name: str, lanes: int, bits: int, indices: dict[str, int]
    ) -> tuple[int, tuple[int, ...], bool]:
        """Return an intrinsic's header, its indices, and whether it defines a value."""
        known = self.tables.intrinsics[name]
        assert indices.keys() <= set(known.indices), (name, indices)
        values = tuple(indices.get(index, 0) for index in known.indices)
        header = _INTRINSIC | known.number << 4
        if values:
            header |= 3 << 14  # 32 bits each
        if known.defines:
            header |= _defined(lanes, bits) << 24
        return header, values, known.defines

    def texture(
        self, operation: int, texture: int, at: int, lanes: int, bits: int, sampler: int = 0
    ) -> int:
        """Return four components of a texture's texel. TEX_FETCH: texel number `at` of a buffer, or
        that at two coordinates, as unsigned integers; TEX_SAMPLE: floats at two coordinates. lanes:
        number of coordinates in `at`."""
        sources = [(_COORDINATES, at)]
        if lanes > 1:
            sources.append((_LEVEL, self.constant(32, 0)))
        header = _TEX | len(sources) << 4 | operation << 8 | _defined(4, bits) << 24
        dimension = _DIM_2D if lanes > 1 else _DIM_BUFFER
        result = bits | (_FLOAT if operation == TEX_SAMPLE else _UINT)
        words = [header, texture, sampler, 0, dimension | result << 4 | lanes << 12]
        words += [source << 2 | kind << 22 for kind, source in sources]
        self._put(_WORDS[len(words)].pack(*words))
        return self._number()

    # ---- control flow --------------------------------------------------------------------------

    def begin_if(self, condition: int) -> None:
        node = _If(condition)
        self._open[-1].append(node)
        self._ifs.append(node)
        self._open.append(node.then)
        self._begin()

    def begin_else(self) -> None:
        self._open[-1] = self._ifs[-1].otherwise
        self._begin()

    def end_if(self) -> None:
        self._ifs.pop()
        self._open.pop()
        self._begin()

    def begin_loop(self) -> None:
        node = _Loop(self._next)
        self._open[-1].append(node)
        self._loops.append(node)
        self._open.append(node.body)
        self._begin()

    def end_loop(self) -> None:
        """End the innermost loop; Mesa unrolls only small ones."""
        node = self._loops.pop()
        if self._next - node.begins > _MOST_UNROLLED:
            node.control = _DONT_UNROLL
        self._open.pop()
        self._begin()

    def jump(self, kind: int) -> None:
        """Emit BREAK or CONTINUE, the last instruction of its block."""
        self._put(struct.pack("<I", _JUMP | kind << 4))

    # ---- the whole -----------------------------------------------------------------------------

    def serialise(self, threads: int, local_memory: int, wave: int = 0) -> bytes:
        """Return the shader, with groups of `threads` along x and `local_memory` bytes. wave: the
        threads that a wave must have, 0 for any number."""
        info = bytearray(INFO_SIZE)
        info[_STAGE : _STAGE + 3] = (_COMPUTE, 0xFF, 0xFF)  # no stage before or after it
        struct.pack_into("<I", info, _SHARED_SIZE, local_memory)
        struct.pack_into("<3HB", info, _WORKGROUP_SIZE, threads, 1, 1, wave)  # ... subgroup_size
        out = bytearray(struct.pack("<II", self._next, 0) + info)
        # no variables; inputs, uniforms, outputs, scratch; one function without a name:
        # attributes, subroutine index and types, parameters; structured, without preamble and
        # local variables
        out += struct.pack("<6I", 0, 0, 0, 0, 0, 1)
        out += struct.pack("<5I", _ENTRY, 0, 0, 0, 0)
        out += struct.pack("<BBxxI", 1, 0, 0)
        _nodes(out, self._body)
        _word(out, 0)  # constant data
        _word(out, 0)  # transform feedback
        return bytes(out)


def _defined(lanes: int, bits: int) -> int:
    """Return a definition's byte: components and bits, both encoded in three bits."""
    return lanes << 2 | bits.bit_length() << 5


def _word(out: bytearray, value: int) -> None:
    out += bytes(-len(out) % 4) + struct.pack("<I", value)


def _nodes(out: bytearray, nodes: list[_Node]) -> None:
    _word(out, len(nodes))
    for node in nodes:
        if isinstance(node, _Block):
            _word(out, _BLOCK)
            _word(out, node.count)
            out += node.data
        elif isinstance(node, _If):
            _word(out, _IF)
            _word(out, node.condition << 2)
            out.append(0)  # no hint
            _nodes(out, node.then)
            _nodes(out, node.otherwise)
        else:
            _word(out, _LOOP)
            out += bytes((node.control, 0, 0, 0))  # not divergent; no continue construct
            _nodes(out, node.body)
