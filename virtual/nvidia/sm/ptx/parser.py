"""Parse PTX text.

Unknown instructions are accepted: the translator decides what an instruction means. Every error
names its line.

Source: PTX ISA 8.x, chapters "Syntax", "State Spaces, Types, and Variables" and "Directives".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.cursor import Cursor, count_of
from ugpu.virtual.nvidia.sm.ptx.lexer import bad, tokens_of
from ugpu.virtual.nvidia.sm.ptx.module import Function, Module, Variable
from ugpu.virtual.nvidia.sm.ptx.statements import Body
from ugpu.virtual.nvidia.sm.ptx.variables import variables

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_SPACES = (".global", ".const", ".shared")
_LIMITS = (
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn",
    ".reqnctapercluster", ".explicitcluster", ".maxclusterrank", ".abi_preserve",
    ".abi_preserve_control", ".blocksareclusters",
)  # fmt: skip


def parse(text: str) -> Module:
    """Parse a module. Raises BadCodeObject, which names the line."""
    cursor = Cursor(tokens_of(text))
    module = Module()
    while not cursor.at_end():
        _directive(cursor, module)
    if not module.target:
        raise bad(1, "expected a .target directive, found none")
    return module


def _directive(cursor: Cursor, module: Module) -> None:
    token = cursor.peek
    if cursor.take(";"):
        return
    linkage = {cursor.next().text for _ in iter(lambda: cursor.peek.text in _LINKAGE, False)}
    word = cursor.peek.text
    if word == ".version":
        cursor.next()
        major, _, minor = cursor.next().text.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise bad(token.line, ".version requires a number such as 8.0")
        module.version = count_of(major, token.line), count_of(minor, token.line)
    elif word == ".target":
        cursor.next()
        module.target = cursor.name()
        while cursor.take(","):
            cursor.name()
    elif word == ".address_size":
        cursor.next()
        if cursor.integer() != 64:
            raise bad(token.line, ".address_size must be 64")
    elif word in (".entry", ".func"):
        _function(cursor, module)
    elif word in _SPACES:
        for variable in variables(cursor, ".extern" in linkage):
            module.variables[variable.name] = variable
    elif word == ".file":
        _skip_line(cursor)
    elif word == ".section":
        _skip_section(cursor)
    elif word in (".pragma", ".alias"):
        cursor.skip_past(";")
    else:
        raise bad(token.line, f"unexpected {word!r}")


def _skip_line(cursor: Cursor) -> None:
    line = cursor.peek.line
    while cursor.peek.line == line and not cursor.at_end():
        cursor.next()


def _skip_section(cursor: Cursor) -> None:
    cursor.skip_past("{")
    depth = 1
    while depth:
        text = cursor.next().text
        depth += {"{": 1, "}": -1}.get(text, 0)


def _parameters(cursor: Cursor) -> list[Variable]:
    found: list[Variable] = []
    if not cursor.take("("):
        return found
    while not cursor.take(")"):
        if cursor.peek.text not in (".param", ".reg"):
            raise bad(cursor.peek.line, f"expected a parameter, got {cursor.peek.text!r}")
        found += variables(cursor, False, one=True)
        if not cursor.take(",") and cursor.peek.text != ")":
            raise bad(cursor.peek.line, "expected ',' or ')' in the parameters")
    return found


def _function(cursor: Cursor, module: Module) -> None:
    line = cursor.peek.line
    entry = cursor.next().text == ".entry"
    results = _parameters(cursor)
    function = Function(cursor.name(), entry, line, results=results)
    function.parameters = _parameters(cursor)
    while cursor.peek.text in _LIMITS:
        name = cursor.next().text[1:]
        values = []
        while cursor.peek.kind == "number":
            values.append(cursor.integer())
            cursor.take(",")
        function.limits[name] = tuple(values)
    if cursor.take(";"):
        module.functions.setdefault(function.name, function)
        return
    cursor.expect("{")
    function.defined = True
    known = module.functions.get(function.name)
    if known is not None and known.defined:
        raise bad(line, f"{function.name} is defined twice")
    for parameter in (*function.results, *function.parameters):
        if parameter.space == "reg":
            raise bad(line, "parameters in registers (PTX before 2.0) are not supported")
    Body(cursor, function, module.variables).parse()
    module.functions[function.name] = function
