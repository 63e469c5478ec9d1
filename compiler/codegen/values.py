"""LLVM IR text of values and indices.

Floats of 16 and 8 bits exist only between a load and a cast, or a cast and a store; bfloat16 is an
i16 there and float8 an i8, converted by integer operations, since not every back end has the types.
"""

from __future__ import annotations

import struct

import numpy as np

from ugpu.compiler.codegen.instructions.exchange import Word, exchange
from ugpu.compiler.codegen.instructions.float8 import from_float8, to_float8
from ugpu.compiler.codegen.instructions.matrix import matrix_product, shared_matrices
from ugpu.compiler.codegen.lines import SUFFIX, Lines, alignment, element_type, stored_type
from ugpu.compiler.dtype import DType, bfloat16, bool_, float16, float32, float64
from ugpu.compiler.expression.algebra import Index, Opaque, Range
from ugpu.compiler.expression.lookup import Lookup, atoms, looked_up_in
from ugpu.compiler.expression.table import Table
from ugpu.compiler.expression.value import Load, Memory, Value
from ugpu.compiler.float8 import encode

# of an operation's arg; LLVM makes an fma of a product and a sum that both have "contract"
_FLAGS = {"reassoc": " reassoc contract", "contract": " contract"}
_COMPARE = {
    "f": {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"},
    "i": {"lt": "slt", "le": "sle", "eq": "eq", "ne": "ne"},
    "u": {"lt": "ult", "le": "ule", "eq": "eq", "ne": "ne"},
    "b": {"lt": "ult", "le": "ule", "eq": "eq", "ne": "ne"},
}
# memory that a value reads: constant; local; registers, or memory that the kernel writes
PURE, SHARED, PRIVATE = 0, 1, 2
_REAL = ("half", "float", "double")
_SPACES = {"global": PURE, "by_value": PURE, "local": SHARED, "register": PRIVATE}


class Values(Lines):
    """Values, loads and stores."""

    def other_lane(self, mask: int) -> Word:
        """Return a word of another lane; only a GPU has such lanes."""
        raise NotImplementedError

    def marks(self, access: Load) -> str:
        """Return the metadata of a load from memory that the kernel does not write."""
        return ", !invariant.load !0"

    def load(self, access: Load, lanes: int) -> str:
        memory = access.memory
        if memory.space == "by_value":
            return self.number(memory)
        stored = stored_type(memory.dtype, lanes)
        position: Index | str = access.index
        allowed = ""
        if access.conditions:
            allowed = self.conditions(access.conditions)
            inside = self.index(access.index)
            kind = self.index_type
            position = self.new(f"select i1 {allowed}, {kind} {inside}, {kind} 0")
        pointer = self.address(memory, position, access.index)
        space = self.spaces[memory.space]
        fixed = memory.space == "global" and memory.name not in self.written
        marks = self.marks(access) if fixed else ""
        align = alignment(memory, access.index, lanes)
        result = self.new(f"load {stored}, {space} {pointer}, align {align}{marks}")
        if allowed:
            zero = "zeroinitializer" if lanes > 1 else ("0.0" if stored in _REAL else "0")
            result = self.new(f"select i1 {allowed}, {stored} {result}, {stored} {zero}")
        if memory.dtype is bool_:
            zero = "zeroinitializer" if lanes > 1 else "0"
            result = self.new(f"icmp ne {stored} {result}, {zero}")
        return result

    def store(self, memory: Memory, index: Index, value: Value) -> None:
        text = self.value(value)
        stored = stored_type(memory.dtype, value.lanes)
        if memory.dtype is bool_:
            text = self.new(f"zext {element_type(bool_, value.lanes)} {text} to {stored}")
        pointer = self.address(memory, index, index)
        space = self.spaces[memory.space]
        align = alignment(memory, index, value.lanes)
        self.put(f"store {stored} {text}, {space} {pointer}, align {align}")
        self.private.clear()
        if memory.space == "local":
            self.shared.clear()

    def opaque(self, atom: Opaque) -> str:
        """Return a table's entry, or a lookup: clamped, then resized to the width of indices."""
        if isinstance(atom, Table):
            entries = [str(number) for number in atom.entries]
            return self.chosen(entries, atom.starts, self.index(atom.number), self.index_type)
        assert isinstance(atom, Lookup), atom
        dtype = atom.source.dtype
        text, kind = self.value(atom.source), element_type(dtype)
        if dtype.kind == "i":
            text = self.intrinsic("smax", kind, [text, "0"])
        if atom.high < (1 << dtype.bits) - 1:
            text = self.intrinsic("umin", kind, [text, str(atom.high)])
        narrow = dtype.bits < int(self.index_type[1:])
        if narrow:
            return self.new(f"zext {kind} {text} to {self.index_type}")
        return self._resize(text, kind, self.index_type)

    def holder(self, *indices: Index) -> dict[object, str]:
        """Return the results that are valid as long as what the indices look up."""
        if all(isinstance(atom, Range) for index in indices for atom, _ in index.terms):
            return self.scopes[-1]
        looked_up = [atom.source for index in indices for atom in atoms(index)
                     if isinstance(atom, Lookup)]  # fmt: skip
        return self._kept(max(map(self._class, looked_up), default=PURE))

    # ---- values --------------------------------------------------------------------------------

    def value(self, root: Value) -> str:
        """Return the SSA value, or literal, of `root`; known values are not visited again."""
        known = self._known(root)
        stack = [] if known is not None else [root]
        while stack:
            node = stack[-1]
            missing = [source for source in node.sources if self._known(source) is None]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            known = self._known(node)  # a shared source is on the stack more than once
            if known is None:
                known = self._holder(node)[id(node)] = self._operation(node)
        assert known is not None
        return known

    def _holder(self, node: Value) -> dict[object, str]:
        return self._kept(self._class(node))

    def _kept(self, kind: int) -> dict[object, str]:
        """Return the results of a class."""
        if kind == PURE:
            return self.scopes[-1]
        return self.shared if kind == SHARED else self.private

    def _class(self, node: Value) -> int:
        kind = self.classes.get(id(node))
        if kind is None:
            kind = PURE
            for source in node.sources:
                kind = max(kind, self._class(source))
            if node.op == "matrices":
                kind = SHARED
            elif node.op == "load":
                kind = _SPACES[node.arg.memory.space]
                if node.arg.memory.name in self.written and kind == PURE:
                    kind = PRIVATE
            elif node.op == "const" and node.lanes == 1:
                self.scopes[0][id(node)] = literal(node.arg, node.dtype)
            for source in looked_up_in(node):
                kind = max(kind, self._class(source))
            self.classes[id(node)] = kind
            self.kept.append(node)
        return kind

    def _known(self, node: Value) -> str | None:
        which = id(node)
        kind = self.classes.get(which)
        if kind is None:
            kind = self._class(node)
        if kind != PURE:
            return (self.shared if kind == SHARED else self.private).get(which)
        for scope in self.scopes:
            if which in scope:
                return scope[which]
        return None

    def _operation(self, node: Value) -> str:
        op, dtype = node.op, node.dtype
        kind = element_type(dtype, node.lanes)
        if op == "load":
            return self.load(node.arg, node.lanes)
        if op == "matrices":
            access, turned = node.arg
            pointer = self.address(access.memory, access.index, access.index)
            return shared_matrices(self, pointer, turned, kind)
        if op == "index":
            return self._resize(self.index(node.arg), self.index_type, kind)
        if op == "const":  # a vector of equal constants
            return f"splat ({element_type(dtype)} {literal(node.arg, dtype)})"
        given = [self._known(source) for source in node.sources]
        sources = [text for text in given if text is not None]
        assert len(sources) == len(given)
        if op == "gate":
            allowed = self.conditions(node.arg)
            return self.new(f"select i1 {allowed}, {kind} {sources[0]}, {kind} {sources[1]}")
        if op == "dot2":
            return self._dot2(sources, kind)
        if op == "dot4":
            return self._dot4(sources, kind)
        if op == "narrow":
            return self._narrow(sources[0])
        if op == "matrix":
            return matrix_product(self, node.arg, *sources)
        if op == "exchange":
            bits = 1 if dtype is bool_ else dtype.bits
            return exchange(self, self.other_lane(node.arg), sources[0], kind, bits)
        if op == "where":
            test = element_type(bool_, node.lanes)
            return self.new(f"select {test} {sources[0]}, {kind} {sources[1]}, {kind} {sources[2]}")
        if op == "extract":
            vector = element_type(dtype, node.sources[0].lanes)
            return self.new(f"extractelement {vector} {sources[0]}, i32 {node.arg}")
        if op in ("pack", "broadcast"):
            return self._vector(node, sources if op == "pack" else sources * node.lanes, kind)
        if op == "shuffle":
            mask = ", ".join(f"i32 {lane}" for lane in node.arg)
            given_kind = element_type(dtype, node.sources[0].lanes)
            pair = f"{given_kind} {sources[0]}, {given_kind} {sources[1]}"
            return self.new(f"shufflevector {pair}, <{node.lanes} x i32> <{mask}>")
        if op == "compress":
            return self._compressed(node, sources, kind)
        if op == "count":
            given_kind, bits = element_type(bool_, node.sources[0].lanes), node.sources[0].lanes
            text = self.new(f"bitcast {given_kind} {sources[0]} to i{bits}")
            wide = text if kind == f"i{bits}" else self.new(f"zext i{bits} {text} to {kind}")
            return self.intrinsic("ctpop", kind, [wide])
        if op == "cast":
            (given_node,) = node.sources
            return self._cast(sources[0], given_node.dtype, dtype, node.lanes, given_node)
        if op == "bitcast":
            source = element_type(node.sources[0].dtype, node.lanes)
            return (
                sources[0]
                if source == kind
                else self.new(f"bitcast {source} {sources[0]} to {kind}")
            )
        operand = node.sources[0].dtype
        if operand.is_float:
            return self._float(node, sources, element_type(operand, node.lanes))
        return self._integer(node, sources, element_type(operand, node.lanes))

    def _dot2(self, sources: list[str], kind: str) -> str:
        """VDPBF16PS (LLVM IntrinsicsX86.td, int_x86_avx512bf16_dpbf16ps_512)."""
        wide = "<32 x bfloat>"
        pairs = [self.new(f"bitcast <32 x i16> {text} to {wide}") for text in sources[:2]]
        arguments = [(kind, sources[2]), (wide, pairs[0]), (wide, pairs[1])]
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", kind, arguments)

    def _dot4(self, sources: list[str], kind: str) -> str:
        """VPDPBUSD (LLVM IntrinsicsX86.td, int_x86_avx512_vpdpbusd_512)."""
        wide = "<64 x i8>"
        arguments = [(kind, sources[2]), (wide, sources[0]), (wide, sources[1])]
        return self.call("llvm.x86.avx512.vpdpbusd.512", kind, arguments)

    def _narrow(self, text: str) -> str:
        """VCVTNEPS2BF16 (LLVM IntrinsicsX86.td, int_x86_avx512bf16_cvtneps2bf16_512)."""
        name, wide = "llvm.x86.avx512bf16.cvtneps2bf16.512", "<16 x bfloat>"
        result = self.call(name, wide, [("<16 x float>", text)])
        return self.new(f"bitcast {wide} {result} to <16 x i16>")

    def _compressed(self, node: Value, sources: list[str], kind: str) -> str:
        """LLVM Language Reference, "llvm.experimental.vector.compress": one instruction with
        AVX-512 (of 16 bits and less with VBMI2), elsewhere a store for each lane. Of integers:
        LLVM 22 ends the process for floats without that instruction."""
        lanes, bits = node.lanes, 8 * node.dtype.itemsize
        wide, test = f"<{lanes} x i{bits}>", element_type(bool_, lanes)
        text = sources[0] if kind == wide else self.new(f"bitcast {kind} {sources[0]} to {wide}")
        name = f"llvm.experimental.vector.compress.v{lanes}i{bits}"
        arguments = [(wide, text), (test, sources[1]), (wide, "zeroinitializer")]
        result = self.call(name, wide, arguments)
        return result if kind == wide else self.new(f"bitcast {wide} {result} to {kind}")

    def _vector(self, node: Value, sources: list[str], kind: str) -> str:
        scalar = element_type(node.dtype)
        if node.op == "broadcast":
            first = self.new(f"insertelement {kind} poison, {scalar} {sources[0]}, i32 0")
            mask = f"<{node.lanes} x i32> zeroinitializer"
            return self.new(f"shufflevector {kind} {first}, {kind} poison, {mask}")
        result = "poison"
        for lane, text in enumerate(sources):
            result = self.new(f"insertelement {kind} {result}, {scalar} {text}, i32 {lane}")
        return result

    def extreme(self, node: Value, sources: list[str], kind: str) -> str:
        """Return the lesser or the greater of two floats, NaN if one of them is; -0 is below 0."""
        return self.intrinsic({"min": "minimum", "max": "maximum"}[node.op], kind, sources)

    def _float(self, node: Value, sources: list[str], kind: str) -> str:
        op = node.op
        if op in ("lt", "le", "eq", "ne"):
            return self.new(f"fcmp {_COMPARE['f'][op]} {kind} {sources[0]}, {sources[1]}")
        if op in ("add", "sub", "mul", "div"):
            flags = _FLAGS.get(node.arg, "")
            return self.new(f"f{op}{flags} {kind} {sources[0]}, {sources[1]}")
        if op in ("min", "max"):
            return self.extreme(node, sources, kind)
        if op == "neg":
            return self.new(f"fneg {kind} {sources[0]}")
        if op == "fma" and not self.has_fma:
            product = self.new(f"fmul {kind} {sources[0]}, {sources[1]}")
            return self.new(f"fadd {kind} {product}, {sources[2]}")
        stem = {"round": "rint"}.get(op, op)
        return self.intrinsic(stem, kind, sources)

    def _integer(self, node: Value, sources: list[str], kind: str) -> str:
        op = node.op
        group = node.sources[0].dtype.kind
        signed = group == "i"
        if op in ("lt", "le", "eq", "ne"):
            return self.new(f"icmp {_COMPARE[group][op]} {kind} {sources[0]}, {sources[1]}")
        if group == "b":  # NumPy's bool: + is or, * is and
            op = {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(op, op)
        if op in ("add", "sub", "mul", "and", "or", "xor"):
            return self.new(f"{op} {kind} {sources[0]}, {sources[1]}")
        if op in ("min", "max"):
            return self.intrinsic(f"{'s' if signed else 'u'}{op}", kind, sources)
        if op == "neg":
            return self.new(f"sub {kind} 0, {sources[0]}")
        if op in ("shl", "shr"):
            return self._shift(node, sources, kind, signed)
        if op == "mulhi":
            wide = [self.new(f"zext {kind} {text} to i64") for text in sources]
            product = self.new(f"mul i64 {wide[0]}, {wide[1]}")
            upper = self.new(f"lshr i64 {product}, 32")
            return self.new(f"trunc i64 {upper} to {kind}")
        assert op in ("floordiv", "mod"), op
        return self._divide(node, sources, kind, signed)

    def _shift(self, node: Value, sources: list[str], kind: str, signed: bool) -> str:
        name = "shl" if node.op == "shl" else "ashr" if signed else "lshr"
        bits = node.dtype.bits
        amount = node.sources[1]
        if amount.op == "const" and 0 <= amount.arg < bits:
            return self.new(f"{name} {kind} {sources[0]}, {sources[1]}")
        small = self.new(f"icmp ult {kind} {sources[1]}, {bits}")
        safe = self.new(f"select i1 {small}, {kind} {sources[1]}, {kind} {bits - 1}")
        moved = self.new(f"{name} {kind} {sources[0]}, {safe}")
        if name == "ashr":
            return moved  # shifted by bits - 1, every bit is the sign
        return self.new(f"select i1 {small}, {kind} {moved}, {kind} 0")

    def _divide(self, node: Value, sources: list[str], kind: str, signed: bool) -> str:
        """Emit division that never traps: by zero gives zero; the lowest number by -1 wraps."""
        left, right = sources
        zero = self.new(f"icmp eq {kind} {right}, 0")
        if not signed:
            safe = self.new(f"select i1 {zero}, {kind} 1, {kind} {right}")
            name = "udiv" if node.op == "floordiv" else "urem"
            result = self.new(f"{name} {kind} {left}, {safe}")
            return self.new(f"select i1 {zero}, {kind} 0, {kind} {result}")
        minus = self.new(f"icmp eq {kind} {right}, -1")
        special = self.new(f"or i1 {zero}, {minus}")
        safe = self.new(f"select i1 {special}, {kind} 1, {kind} {right}")
        rest = self.new(f"srem {kind} {left}, {safe}")
        mixed = self.new(f"xor {kind} {rest}, {safe}")
        opposite = self.new(f"icmp slt {kind} {mixed}, 0")
        uneven = self.new(f"icmp ne {kind} {rest}, 0")
        adjust = self.new(f"and i1 {opposite}, {uneven}")
        if node.op == "mod":
            moved = self.new(f"add {kind} {rest}, {safe}")
            return self.new(f"select i1 {adjust}, {kind} {moved}, {kind} {rest}")
        quotient = self.new(f"sdiv {kind} {left}, {safe}")
        down = self.new(f"sub {kind} {quotient}, 1")
        result = self.new(f"select i1 {adjust}, {kind} {down}, {kind} {quotient}")
        negated = self.new(f"sub {kind} 0, {left}")
        result = self.new(f"select i1 {minus}, {kind} {negated}, {kind} {result}")
        return self.new(f"select i1 {zero}, {kind} 0, {kind} {result}")

    # ---- conversions ---------------------------------------------------------------------------

    def _resize(self, text: str, source: str, target: str) -> str:
        """Return an index as an integer of another width."""
        if source == target:
            return text
        if not text.startswith("%"):
            return str(_wrap(int(text), int(target[1:])))
        wider = int(target[1:]) > int(source[1:])
        return self.new(f"{'sext' if wider else 'trunc'} {source} {text} to {target}")

    def _cast(
        self, text: str, source: DType, target: DType, lanes: int, node: Value | None = None
    ) -> str:
        old, new = element_type(source, lanes), element_type(target, lanes)
        single = element_type(float32, lanes)
        if source is target:
            return text
        if source.is_float8:
            return self._cast(from_float8(self, text, source, lanes), float32, target, lanes)
        if target.is_float8:
            text = self._cast(text, source, float32, lanes)
            return to_float8(self, text, target, lanes)
        if source is bfloat16:
            wide = element_type(float32, lanes).replace("float", "i32")
            bits = self.new(f"zext {old} {text} to {wide}")
            moved = self.new(f"shl {wide} {bits}, {_splat(16, lanes)}")
            return self._cast(
                self.new(f"bitcast {wide} {moved} to {single}"), float32, target, lanes
            )
        if target is bfloat16:
            text = self._cast(text, source, float32, lanes)
            return self._to_bfloat16(text, lanes)
        through = (source is float16 and target is not float32) or {source, target} == {
            float16, float64
        }  # fmt: skip
        if through:  # a conversion between float16 and float64 is a call of a library on a host
            return self._cast(self._cast(text, source, float32, lanes), float32, target, lanes)
        if target is bool_:
            if source.is_float:
                return self.new(f"fcmp une {old} {text}, zeroinitializer" if lanes > 1
                                else f"fcmp une {old} {text}, 0.0")  # fmt: skip
            return self.new(f"icmp ne {old} {text}, {_splat(0, lanes)}")
        if source.is_float and target.is_float:
            name = "fpext" if target.itemsize > source.itemsize else "fptrunc"
            return self.new(f"{name} {old} {text} to {new}")
        if source.is_float:
            assert lanes == 1, "integer conversions are scalar"
            return self.to_integer(text, old, node, target)
        if target is float16:
            return self._cast(self._cast(text, source, float32, lanes), float32, float16, lanes)
        if target.is_float:
            return self.new(f"{'si' if source.kind == 'i' else 'ui'}tofp {old} {text} to {new}")
        if source.bits == target.bits and source is not bool_:
            return text
        if source is bool_ or target.bits > source.bits:
            name = "sext" if source.kind == "i" else "zext"
        else:
            name = "trunc"
        return self.new(f"{name} {old} {text} to {new}")

    def to_integer(self, text: str, kind: str, node: Value | None, target: DType) -> str:
        """Convert a float (`node`, if it is known) of an LLVM type towards zero; a number out of
        range becomes the nearest end of the range, NaN zero."""
        stem, new = "fptosi" if target.kind == "i" else "fptoui", element_type(target)
        return self.call(f"llvm.{stem}.sat.{new}.{SUFFIX[kind]}", new, [(kind, text)])

    def _to_bfloat16(self, text: str, lanes: int) -> str:
        single = element_type(float32, lanes)
        wide, narrow = single.replace("float", "i32"), element_type(bfloat16, lanes)
        test = element_type(bool_, lanes)
        bits = self.new(f"bitcast {single} {text} to {wide}")
        upper = self.new(f"lshr {wide} {bits}, {_splat(16, lanes)}")
        lowest = self.new(f"and {wide} {upper}, {_splat(1, lanes)}")
        bias = self.new(f"add {wide} {lowest}, {_splat(0x7FFF, lanes)}")
        rounded = self.new(f"add {wide} {bits}, {bias}")
        result = self.new(f"lshr {wide} {rounded}, {_splat(16, lanes)}")
        quiet = self.new(f"or {wide} {upper}, {_splat(0x40, lanes)}")
        nan = self.new(f"fcmp uno {single} {text}, {text}")
        chosen = self.new(f"select {test} {nan}, {wide} {quiet}, {wide} {result}")
        return self.new(f"trunc {wide} {chosen} to {narrow}")


def _splat(number: int, lanes: int) -> str:
    return str(number) if lanes == 1 else f"splat (i32 {number})"


def _wrap(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number


def literal(number: bool | int | float, dtype: DType) -> str:
    """Return an LLVM constant."""
    if dtype is bool_:
        return "true" if number else "false"
    if not dtype.is_float:
        return str(number)
    if dtype is bfloat16:
        bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
        if number != number:
            return str(0x7FC0)
        return str((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    if dtype.is_float8:
        with np.errstate(over="ignore"):
            return str(encode(np.array([number], np.float32), dtype.name)[0])
    if dtype is float16:
        try:
            short: int = struct.unpack("<H", struct.pack("<e", number))[0]
        except OverflowError:  # rounds to infinity
            short = 0x7C00 if number > 0 else 0xFC00
        return f"0xH{short:04X}"
    # LLVM writes a float as the double that equals it
    try:
        single = number if dtype is float64 else struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        single = float("inf") if number > 0 else float("-inf")
    whole: int = struct.unpack("<Q", struct.pack("<d", single))[0]
    return f"0x{whole:016X}"
