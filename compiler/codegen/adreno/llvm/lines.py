"""The most common lines of LLVM IR, each read by one pattern.

`Lines.read` returns the same instruction as the token reader of compiler.codegen.adreno.llvm.text
does for a line, or None: the token reader accepts more, and reports errors in a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand, Type
from ugpu.hcq.errors import CompileError

_NAME = r"%[\w.$-]++"
_VALUE = r"[%@]?[-+\w.$]++"
_TYPE = r"ptr addrspace\(\d\)|<\d+ x \w+>|\w++"
_FLAGS = r"((?:[a-z]+ )*?)"
_TYPED = rf"({_TYPE}) ({_VALUE})"
_META = r"(?:, ![\w.]+ !\d+)*"
_LOOSE = frozenset(("reassoc", "contract", "fast"))
_KNOWN = frozenset((
    "nuw", "nsw", "exact", "disjoint", "nneg", "inbounds", "nusw", "samesign", "nnan", "ninf",
    "nsz", "arcp", "afn", *_LOOSE,
))  # fmt: skip
_TWO = re.compile(rf"{_FLAGS}{_TYPED}, ({_VALUE})")
_TO = re.compile(rf"{_FLAGS}{_TYPED} to ({_TYPE})")
_TEST = re.compile(rf"{_FLAGS}([a-z]+) {_TYPED}, ({_VALUE})")
_PHI = re.compile(rf"{_FLAGS}({_TYPE}) ((?:(?:, )?\[ {_VALUE}, {_NAME} \])+)")
_PAIR = re.compile(rf"\[ ({_VALUE}), ({_NAME}) \]")
_THREE = rf"{_TYPED}(?:, {_TYPED})?(?:, {_TYPED})?"
_LIST = re.compile(_FLAGS + _THREE)
_CALL = re.compile(rf"{_FLAGS}({_TYPE}) @([\w.$-]+)\((?:{_THREE})?\)(?: #\d+)?{_META}")
_MOVE = re.compile(rf"{_FLAGS}({_TYPE}), {_TYPED}, {_TYPED}")
_ALLOCA = re.compile(rf"()({_TYPE}), (?:align \d+, )?addrspace\(5\)")
_LOAD = re.compile(rf"()({_TYPE}), {_TYPED}, align (\d+){_META}")
_STORE = re.compile(rf"(){_TYPED}, {_TYPED}, align (\d+){_META}")
# The part after an operation: flags, then the input of the method.
_FORMS = {
    **dict.fromkeys(("add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl"), (_TWO, "binary")),
    **dict.fromkeys(("lshr", "ashr", "and", "or", "xor"), (_TWO, "binary")),
    **dict.fromkeys(("fadd", "fsub", "fmul", "fdiv"), (_TWO, "binary")),
    **dict.fromkeys(("trunc", "zext", "sext", "fptrunc", "fpext", "fptoui"), (_TO, "convert")),
    **dict.fromkeys(("fptosi", "uitofp", "sitofp", "bitcast"), (_TO, "convert")),
    **dict.fromkeys(("icmp", "fcmp"), (_TEST, "compare")),
    "phi": (_PHI, "phi"),
    "call": (_CALL, "call"),
    "select": (_LIST, "select"),
    "extractelement": (_LIST, "extract"),
    "insertelement": (_LIST, "insert"),
    "getelementptr": (_MOVE, "move"),
    "alloca": (_ALLOCA, "alloca"),
    "load": (_LOAD, "load"),
    "store": (_STORE, "store"),
}
_Groups = list[str]


class Lines:
    """Reads the lines of one function. typed: reads a type and a value that is not a name with the
    token reader; the result is cached."""

    def __init__(self, typed: Callable[[str], Operand]) -> None:
        self._typed = typed
        self._types: dict[str, Type] = {}
        self._operands: dict[tuple[str, str], Operand] = {}
        self._flags: dict[str, bool] = {"": False}  # whether flags make an operation loose
        self._forms = {
            name: (form.fullmatch, getattr(self, f"_{method}"))
            for name, (form, method) in _FORMS.items()
        }

    def read(self, line: str) -> Instruction | None:
        """Return the instruction of a line without comment, or None for one of another form."""
        result, start = "", 2
        if line[:3] == "  %":
            end = line.find(" = ", 3)
            result, start = line[2:end], end + 3
        if line[start : start + 5] == "tail ":
            start += 5
        end = line.find(" ", start)
        name = line[start:end]
        form = self._forms.get(name)
        if form is None:
            return None
        found = form[0](line, end + 1)
        if found is None:
            return None
        flags, *words = found.groups()
        loose = self._flags.get(flags)
        if loose is None:
            given = flags.split()
            if not _KNOWN.issuperset(given):
                return None
            loose = self._flags[flags] = not _LOOSE.isdisjoint(given)
        try:
            made: Instruction = form[1](words)
        except CompileError:
            return None
        made.operation, made.result, made.line, made.loose = name, result, line, loose
        if "!" in line:
            made.invariant = "!invariant.load" in line
            made.texel = "!adreno.texel" in line
        return made

    def _type(self, text: str) -> Type:
        known = self._types.get(text)
        if known is None:
            known = self._types[text] = self._typed(f"{text} %x").type
        return known

    def _operand(self, kind: str, value: str) -> Operand:
        known = self._operands.get((kind, value))
        if known is None:
            if value[0] == "%":
                known = Operand(self._type(kind), value)
            else:
                known = self._typed(f"{kind} {value}")
            self._operands[kind, value] = known
        return known

    def _list(self, words: _Groups) -> tuple[Operand, ...]:
        """Return operands of types and values one after another, as many as there are."""
        operand = self._operand
        return tuple(
            operand(words[at], words[at + 1]) for at in range(0, len(words), 2) if words[at]
        )

    # ---- forms ---------------------------------------------------------------------------------

    def _binary(self, words: _Groups) -> Instruction:
        kind, left, right = words
        pair = self._operand(kind, left), self._operand(kind, right)
        return Instruction("", "", pair[0].type, pair)

    def _convert(self, words: _Groups) -> Instruction:
        kind, value, new = words
        return Instruction("", "", self._type(new), (self._operand(kind, value),))

    def _compare(self, words: _Groups) -> Instruction:
        found = self._binary(words[1:])
        assert found.type is not None
        found.kind, found.type = words[0], Type("i", 1, found.type.lanes)
        return found

    def _phi(self, words: _Groups) -> Instruction:
        kind, pairs = words
        given = _PAIR.findall(pairs)
        values = tuple(self._operand(kind, value) for value, _ in given)
        labels = tuple(label for _, label in given)
        return Instruction("", "", self._type(kind), values, targets=labels)

    def _call(self, words: _Groups) -> Instruction:
        kind = None if words[0] == "void" else self._type(words[0])
        return Instruction("", "", kind, self._list(words[2:]), kind=words[1])

    def _select(self, words: _Groups) -> Instruction:
        given = self._list(words)
        return Instruction("", "", given[1].type, given)

    def _extract(self, words: _Groups) -> Instruction:
        given = self._list(words)
        kind = given[0].type
        return Instruction("", "", Type(kind.kind, kind.bits), given)

    def _insert(self, words: _Groups) -> Instruction:
        given = self._list(words)
        return Instruction("", "", given[0].type, given)

    def _move(self, words: _Groups) -> Instruction:
        element = self._type(words[0])
        given = self._list(words[1:])
        return Instruction("", "", given[0].type, given, kind=str(element.bytes))

    def _alloca(self, words: _Groups) -> Instruction:
        return Instruction("", "", self._type(words[0]))

    def _load(self, words: _Groups) -> Instruction:
        kind, pointer, value, align = words
        given = (self._operand(pointer, value),)
        return Instruction("", "", self._type(kind), given, align=int(align))

    def _store(self, words: _Groups) -> Instruction:
        return Instruction("", "", None, self._list(words[:4]), align=int(words[4]))
