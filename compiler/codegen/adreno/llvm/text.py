"""LLVM IR text, as LLVM prints it, read into instructions.

It covers the part of LLVM's language that kernels use: functions, scalars and short vectors,
pointers to global memory (address space 1), local memory (3) and variables (5). Anything else is a
CompileError that shows the line.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Set
from dataclasses import dataclass, field

from ugpu.compiler.codegen.adreno.llvm.lines import Lines
from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand, Type
from ugpu.hcq.errors import CompileError

_TOKEN = re.compile(
    r'"[^"]*"|%(?:"[^"]*"|[\w.$-]+)|@(?:"[^"]*"|[\w.$-]+)|[-+]?\d+\.\d*(?:[eE][-+]?\d+)?|[-+]?[\w.]+|\S'
)
_SYMBOL = re.compile(r'@(?:"[^"]*"|[\w.$-]+)')
_LABEL = re.compile(r'^("[^"]*"|[\w.$-]+):')
_GLOBAL = re.compile(
    r"^(@\S+) = .*?addrspace\(3\) (?:global|constant) (.*?)(?:,? align (\d+))?(?:, .*)?$"
)
_FLOATS = {"half": 16, "float": 32}
# Instructions with the same operand syntax.
_FORMS = {
    **dict.fromkeys(("add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl"), "binary"),
    **dict.fromkeys(("lshr", "ashr", "and", "or", "xor"), "binary"),
    **dict.fromkeys(("fadd", "fsub", "fmul", "fdiv"), "binary"),
    **dict.fromkeys(("trunc", "zext", "sext", "fptrunc", "fpext", "fptoui", "fptosi"), "convert"),
    **dict.fromkeys(("uitofp", "sitofp", "bitcast", "ptrtoint", "inttoptr"), "convert"),
    **dict.fromkeys(("icmp", "fcmp"), "compare"),
    **dict.fromkeys(("freeze", "fneg"), "unary"),
}
# Words between an operation and its operands that have no effect here.
_FLAGS = frozenset((
    "nuw", "nsw", "exact", "disjoint", "nneg", "inbounds", "nusw", "samesign", "volatile", "fast",
    "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc", "noundef", "nofpclass", "signext",
    "zeroext", "range", "convergent", "weak",
))  # fmt: skip
_SCALARS = {name: Type("f", bits) for name, bits in _FLOATS.items()}
_SCALARS |= {f"i{bits}": Type("i", bits) for bits in (1, 8, 16, 32, 64)}
# By address space.
_POINTERS = {1: Type("p", 64), 3: Type("p", 32), 5: Type("v", 32)}


@dataclass
class Function:
    """A kernel. blocks: in order, the first is the entry. local: offset of each local memory that
    the kernel uses. attributes: the number of its group of attributes. sizes: bytes known to be
    at the target of a parameter. images, samplers: contents of the parameters' attributes
    "adreno-image" and "adreno-sampler"."""

    name: str
    parameters: list[tuple[str, Type]] = field(default_factory=list)
    blocks: dict[str, list[Instruction]] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    local_size: int = 0
    attributes: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    samplers: dict[str, str] = field(default_factory=dict)


def read_module(text: str) -> list[Function]:
    """Return the functions that a module defines, at least one."""
    lines = text.splitlines()
    sizes: dict[str, tuple[int, int]] = {}  # bytes and alignment of each local memory
    for line in lines:
        found = _GLOBAL.match(line)
        if found is not None:
            sizes[found[1]] = _size(found[2], line), int(found[3] or 64)
    functions = []
    starts = [number for number, line in enumerate(lines) if line.startswith("define")]
    for start in starts:
        end = lines.index("}", start)
        functions.append(_function(lines[start], lines[start + 1 : end], sizes))
    if not functions:
        raise CompileError("expected a kernel in a module for Adreno, got none")
    return functions


def _function(first: str, lines: list[str], sizes: dict[str, tuple[int, int]]) -> Function:
    function = _header(first)
    used = set(_SYMBOL.findall("\n".join(lines))) if sizes else set()
    for name, (size, align) in sizes.items():
        if name in used:
            function.local_size += -function.local_size % align
            function.local[name] = function.local_size
            function.local_size += size
    common = Lines(lambda text: _Reader(text, function.local).typed())
    block: list[Instruction] | None = None
    for line in lines:
        code = line.split(";", 1)[0].rstrip() if ";" in line and '"' not in line else line.rstrip()
        if not code:
            continue
        label = None if code[0] == " " else _LABEL.match(code)
        if label is not None:
            block = function.blocks["%" + label[1]] = []
            continue
        if block is None:
            block = function.blocks["%0"] = []
        block.append(common.read(code) or _Reader(code, function.local).instruction())
    return function


def _header(line: str) -> Function:
    found = re.search(r"@([\w.$-]+)\((.*)\)(?: local_unnamed_addr)?(?: #(\d+))?[^()]*\{$", line)
    if found is None:
        raise CompileError("cannot read a function's header", code=line)
    function = Function(found[1], attributes=found[3] or "")
    reader = _Reader(found[2], {})
    while reader.peek():
        kind = reader.type()
        size, noted = 0, {}
        while not reader.peek().startswith("%"):
            word = reader.take()
            if word == "dereferenceable":
                reader.expect("(")
                size = int(reader.peek())
            elif word in ('"adreno-image"', '"adreno-sampler"'):
                reader.expect("=")
                noted[word] = reader.take().strip('"')
            elif word == "(":
                reader.until(")")
        function.sizes[reader.peek()] = size
        for word, text in noted.items():
            held = function.images if word == '"adreno-image"' else function.samplers
            held[reader.peek()] = text
        function.parameters.append((reader.take(), kind))
        if reader.peek() == ",":
            reader.take()
    return function


def _size(text: str, line: str) -> int:
    """Return the bytes of a local memory: those of its type, which precedes its contents."""
    found = re.match(r"\[(\d+) x (half|float|i\d+)\]|(half|float|i\d+)", text)
    if found is None:
        raise CompileError("expected an array of scalars in local memory", code=line)
    name = found[2] or found[3]
    bits = _FLOATS.get(name) or int(name[1:])
    return int(found[1] or 1) * (bits // 8)


class _Reader:
    """Reads the tokens of one line."""

    def __init__(self, line: str, local: dict[str, int]) -> None:
        self.line = line
        self.local = local
        self.tokens: list[str] = _TOKEN.findall(line)
        self.tokens.append("")  # the end marker, never consumed
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        token = self.tokens[self.at]
        if token:
            self.at += 1
        return token

    def expect(self, token: str) -> None:
        found = self.take()
        if found != token:
            raise self.fault(f"expected {token!r}, got {found!r}")

    def until(self, token: str) -> None:
        while self.take() not in (token, ""):
            pass

    def fault(self, message: str) -> CompileError:
        return CompileError(f"LLVM IR for Adreno: {message}", code=self.line.strip())

    def flags(self) -> Set[str]:
        if self.tokens[self.at] not in _FLAGS:
            return frozenset()
        found = set()
        while self.peek() in _FLAGS:
            found.add(self.take())
            if self.peek() == "(":
                self.until(")")
        return found

    # ---- types and operands --------------------------------------------------------------------

    def type(self) -> Type:
        token = self.take()
        known = _SCALARS.get(token)
        if known is not None:
            return known
        if token == "<":
            lanes = int(self.take())
            self.expect("x")
            element = self.type()
            self.expect(">")
            return Type(element.kind, element.bits, lanes)
        if token in _FLOATS:
            return Type("f", _FLOATS[token])
        if token == "ptr":
            space = 0
            if self.peek() == "addrspace":
                self.take()
                self.expect("(")
                space = int(self.take())
                self.expect(")")
            found = _POINTERS.get(space)
            if found is None:
                raise self.fault(f"pointers to address space {space} are not supported")
            return found
        raise self.fault(f"type {token!r} is not supported")

    def operand(self, kind: Type) -> Operand:
        token = self.peek()
        if token.startswith("%"):
            return Operand(kind, self.take())
        if token.startswith("@"):
            name = self.take()
            if name not in self.local:
                raise self.fault(f"{name} must be in local memory")
            return Operand(kind, "", (self.local[name],))
        return Operand(kind, "", self._lanes(kind))

    def _lanes(self, kind: Type) -> tuple[int | None, ...]:
        token = self.take()
        if token in ("poison", "undef"):
            return (None,) * kind.lanes
        if token in ("zeroinitializer", "null"):
            return (0,) * kind.lanes
        if token == "splat":
            self.expect("(")
            value = self._lanes(self.type())
            self.expect(")")
            return value * kind.lanes
        if token == "<":
            lanes: list[int | None] = []
            for lane in range(kind.lanes):
                if lane:
                    self.expect(",")
                lanes += self._lanes(self.type())
            self.expect(">")
            return tuple(lanes)
        return (self._bits(token, kind),)

    def _bits(self, token: str, kind: Type) -> int:
        if token in ("true", "false"):
            return int(token == "true")
        try:
            if kind.kind != "f":
                return int(token) & ((1 << kind.bits) - 1)
            if token.startswith("0xH"):
                return int(token[3:], 16)
            if token.startswith("0x"):  # the double that equals it
                number: float = struct.unpack("<d", struct.pack("<Q", int(token, 16)))[0]
            else:
                number = float(token)
            form = "<f" if kind.bits == 32 else "<e"
            return int.from_bytes(struct.pack(form, number), "little")
        except (ValueError, OverflowError, struct.error):
            raise self.fault(f"cannot read the constant {token!r}") from None

    def typed(self) -> Operand:
        kind = self.type()
        self.flags()
        return self.operand(kind)

    # ---- instructions --------------------------------------------------------------------------

    def instruction(self) -> Instruction:
        result = ""
        if len(self.tokens) > 1 and self.tokens[1] == "=":
            result = self.take()
            self.take()
        name = self.take()
        while name in ("tail", "notail", "musttail"):
            name = self.take()
        flags = self.flags()
        read = getattr(self, f"_{_FORMS.get(name, name)}", None)
        if read is None or name in _FORMS.values():
            raise self.fault(f"instruction {name!r} is not supported")
        found: Instruction = read()
        found.operation, found.result, found.line = name, result, self.line
        found.loose = not flags.isdisjoint(("reassoc", "contract", "fast"))
        found.invariant = "!invariant.load" in self.line
        found.texel = "!adreno.texel" in self.line
        return found

    def _binary(self) -> Instruction:
        first = self.typed()
        self.expect(",")
        return Instruction("", "", first.type, (first, self.operand(first.type)))

    def _unary(self) -> Instruction:
        first = self.typed()
        return Instruction("", "", first.type, (first,))

    def _convert(self) -> Instruction:
        first = self.typed()
        self.expect("to")
        return Instruction("", "", self.type(), (first,))

    def _compare(self) -> Instruction:
        self.flags()
        kind = self.take()
        found = self._binary()
        found.kind = kind
        assert found.type is not None
        found.type = Type("i", 1, found.type.lanes)
        return found

    def _many(self) -> tuple[Operand, ...]:
        found = [self.typed()]
        while self.peek() == ",":
            self.take()
            if self.peek() in ("align", "!"):
                break
            found.append(self.typed())
        return tuple(found)

    def _select(self) -> Instruction:
        given = self._many()
        return Instruction("", "", given[1].type, given)

    def _alignment(self) -> int:
        found = re.search(r"\balign (\d+)", self.line)
        return int(found[1]) if found else 0

    def _load(self) -> Instruction:
        atomic = self.peek() == "atomic"
        if atomic:
            self.take()
            self.flags()
        kind = self.type()
        self.expect(",")
        found = Instruction("", "", kind, (self.typed(),), align=self._alignment())
        if atomic:
            if self.peek() == "syncscope":
                self.until(")")
            found.ordering = self.take()
        return found

    def _store(self) -> Instruction:
        value = self.typed()
        self.expect(",")
        return Instruction("", "", None, (value, self.typed()), align=self._alignment())

    def _getelementptr(self) -> Instruction:
        while self.peek() in _FLAGS:
            self.take()
        if self.peek() == "[":
            raise self.fault("getelementptr of an array type is not supported")
        element = self.type()
        self.expect(",")
        base = self.typed()
        self.expect(",")
        given = (base, self.typed())
        return Instruction("", "", base.type, given, kind=str(element.bytes))

    def _br(self) -> Instruction:
        if self.peek() == "label":
            self.take()
            return Instruction("", targets=(self.take(),))
        test = self.typed()
        labels = []
        for _ in range(2):
            self.expect(",")
            self.expect("label")
            labels.append(self.take())
        return Instruction("", "", None, (test,), targets=tuple(labels))

    def _alloca(self) -> Instruction:
        kind = self.type()
        self.expect(",")
        if self.peek() not in ("align", "addrspace") or "addrspace(5)" not in self.line:
            raise self.fault("expected one variable in address space 5")
        return Instruction("", "", kind)

    def _ret(self) -> Instruction:
        return Instruction("")

    def _phi(self) -> Instruction:
        kind = self.type()
        given, labels = [], []
        while True:
            self.expect("[")
            given.append(self.operand(kind))
            self.expect(",")
            labels.append(self.take())
            self.expect("]")
            if self.peek() != ",":
                break
            self.take()
            if self.peek() != "[":
                break
        return Instruction("", "", kind, tuple(given), targets=tuple(labels))

    def _call(self) -> Instruction:
        self.flags()
        kind = None
        if self.peek() == "void":
            self.take()
        else:
            kind = self.type()
        callee = self.take()
        self.expect("(")
        given: tuple[Operand, ...] = ()
        if self.peek() != ")":
            given = self._many()
        return Instruction("", "", kind, given, kind=callee.removeprefix("@"))

    def _extractelement(self) -> Instruction:
        given = self._many()
        kind = given[0].type
        return Instruction("", "", Type(kind.kind, kind.bits), given)

    def _insertelement(self) -> Instruction:
        given = self._many()
        return Instruction("", "", given[0].type, given)

    def _shufflevector(self) -> Instruction:
        given = self._many()
        kind = given[0].type
        return Instruction("", "", Type(kind.kind, kind.bits, given[2].type.lanes), given)

    def _atomicrmw(self) -> Instruction:
        operation = self.take()
        given = self._many()
        return Instruction("", "", given[1].type, given, kind=operation)

    def _cmpxchg(self) -> Instruction:
        self.flags()  # weak, volatile
        given = self._many()
        return Instruction("", "", given[1].type, given)

    def _extractvalue(self) -> Instruction:
        """Extract from a cmpxchg's result: the old value or whether it was exchanged."""
        self.expect("{")
        kind = self.type()
        self.expect(",")
        self.expect("i1")
        self.expect("}")
        pair = self.operand(kind)
        self.expect(",")
        place = self.take()
        return Instruction("", "", kind if place == "0" else Type("i", 1), (pair,), kind=place)

    def _fence(self) -> Instruction:
        return Instruction("")

    def _unreachable(self) -> Instruction:
        return Instruction("")
