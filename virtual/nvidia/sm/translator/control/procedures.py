"""Functions that call themselves, directly or through others, as one copy with a stack.

Functions that `flatten` cannot inline at each call are emitted once. A call pushes the registers of
the copy that contains it, stores where to continue, and branches to the callee's start. The
callee's end branches to one of the stored places. Registers of a kernel, and of functions inlined
in it, are not pushed, because procedures do not write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.module import (
    SIZES,
    Address,
    Arguments,
    Function,
    Instruction,
    Integer,
    Module,
    Name,
    Operand,
    Register,
    Variable,
    Vector,
)
from ugpu.virtual.nvidia.sm.translator import operands

STACK = Register("%stack", "b32")  # the end of a thread's stack in local memory
_PLACE = Register("%stack.place", "b32")
_FLAG = Register("%stack.flag", "b32")
_ALIGN = 16


@dataclass
class Procedure:
    """One copy of a function. sites: labels where its callers continue."""

    function: Function
    sites: list[str] = field(default_factory=list)
    written: bool = False

    @property
    def prefix(self) -> str:
        """Return the prefix of the procedure's registers and labels."""
        return f"{self.function.name}.procedure."

    @property
    def back(self) -> Register:
        """The register that selects the site at which to continue."""
        return Register(self.prefix + "%back", "b32")


def taken(module: Module) -> list[str]:
    """Return the functions whose address a program takes, in the order of the text."""
    named = {
        name
        for function in module.functions.values()
        for i in function.body
        if i.name != "call"
        for name in operands.variables(i)
    }
    named |= {r.name for variable in module.variables.values() for r in variable.references}
    return [f.name for f in module.functions.values() if f.name in named and not f.entry]


def split_call(i: Instruction) -> tuple[tuple[str, ...], object, tuple[str, ...]]:
    """Return the results, the target and the parameters of a call; names of variables.

    Raises NotSupported for registers as parameters.
    """
    rest = list(i.operands)
    found: list[tuple[str, ...]] = []
    target: object = None
    if rest and isinstance(rest[0], Arguments):
        found.append(_names(i, rest.pop(0)))
    else:
        found.append(())
    if rest:
        target = rest.pop(0)
    found.append(_names(i, rest[0]) if rest and isinstance(rest[0], Arguments) else ())
    return found[0], target, found[1]


def _names(i: Instruction, listed: object) -> tuple[str, ...]:
    assert isinstance(listed, Arguments)
    if not all(isinstance(item, Name) for item in listed.items):
        raise NotSupported(f"PTX line {i.line}: a register as parameter of a call")
    return tuple(item.name for item in listed.items if isinstance(item, Name))


def candidates(module: Module, caller: Function, i: Instruction) -> list[str]:
    """Return the functions that a call may reach: one, or all whose parameters match the call."""
    results, target, given = split_call(i)
    if isinstance(target, Name):
        return [target.name]
    sizes = {v.name: v.size for v in (*caller.variables, *caller.parameters, *caller.results)}

    def fits(formal: list[Variable], actual: tuple[str, ...]) -> bool:
        return len(formal) == len(actual) and all(
            sizes.get(name) in (None, variable.size)
            for variable, name in zip(formal, actual, strict=True)
        )

    functions = (module.functions[name] for name in taken(module))
    return [f.name for f in functions
            if f.defined and fits(f.results, results) and fits(f.parameters, given)]  # fmt: skip


def recursive(module: Module) -> set[str]:
    """Return the functions that may call themselves, directly or through others."""
    calls = {
        f.name: {
            name for i in f.body if i.name == "call" for name in candidates(module, f, i)
        }
        for f in module.functions.values()
    }  # fmt: skip
    found = set()
    for name in calls:
        seen: set[str] = set()
        todo = [*calls[name]]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += calls.get(at, ())
        if name in seen:
            found.add(name)
    return found


def cells(function: Function, formal: Variable) -> list[tuple[int, int]]:
    """Return offset and size of each part of a parameter or result that a function accesses."""
    found = set()
    for i in function.body:
        if i.name not in ("ld", "st") or "param" not in i.modifiers or len(i.operands) != 2:
            continue
        at = i.operands[0 if i.name == "st" else 1]
        data = i.operands[1 if i.name == "st" else 0]
        if isinstance(at, Address) and isinstance(at.base, Name) and at.base.name == formal.name:
            size = SIZES.get(i.modifiers[-1], 4)
            count = len(data.items) if isinstance(data, Vector) else 1
            found |= {(at.offset + n * size, size) for n in range(count)}
    return sorted(found)


def cell(name: str, offset: int, size: int) -> Register:
    """Return the register that represents a part of a call's parameter."""
    return Register(f"{name}+{offset}:{size}", f"b{8 * max(size, 2)}")


def move(line: int, to: Register, source: Register) -> Instruction:
    """Return an instruction that copies one register to another of its type."""
    both = Vector((to,)), Vector((source,))
    return Instruction(0, line, None, False, "parameter.move", (to.type,), both)


def expand(
    code: list[Instruction], labels: dict[str, int], procedures: dict[str, Procedure]
) -> tuple[list[Instruction], dict[str, int]]:
    """Expand pushes and pops, and begin with an empty stack. Labels are adjusted."""
    parts = {name: _Part(code, labels, procedure) for name, procedure in procedures.items()}
    out = [Instruction(0, code[0].line, None, False, "stack.begin", (), (STACK,))]
    moved: list[int] = []
    for i in code:
        moved.append(len(out))
        if i.name in ("stack.push", "stack.pop"):
            name, at = i.operands
            assert isinstance(name, Name) and isinstance(at, Integer)
            saved = parts[name.name].saved(at.value)
            out += (_push if i.name == "stack.push" else _pop)(i.line, saved)
        else:
            out.append(i)
    moved.append(len(out))
    out = [replace(i, index=n) for n, i in enumerate(out)]
    return out, {label: moved[index] for label, index in labels.items()}


class _Part:
    """The code of a procedure. Determines which of its registers a call must save."""

    def __init__(
        self, code: list[Instruction], labels: dict[str, int], procedure: Procedure
    ) -> None:
        self._prefix = procedure.prefix
        start, end = (labels[procedure.prefix + at] for at in ("start", "return"))
        self._reads: dict[str, tuple[int, Register]] = {}  # the last read of each register
        self._writes: dict[str, int] = {}  # the first write
        inside = range(start, min(end + 2, len(code)))
        for n, i in enumerate(code):
            for register in operands.written(i):  # callers write the parameters
                at = n if n in inside else -1
                self._writes[register.name] = min(at, self._writes.get(register.name, at))
        for n in inside:
            for register in operands.read(code[n]):
                self._reads[register.name] = n, register
        self._loops = any(
            i.name in ("bra", "brx") and self._leads_back(labels, i, start + n)
            for n, i in enumerate(code[start:end])
        )

    def _leads_back(self, labels: dict[str, int], i: Instruction, at: int) -> bool:
        starts = self._prefix + "start"
        return i.name == "brx" or any(
            name != starts and name.startswith(self._prefix) and labels.get(name, at + 1) <= at
            for name in operands.variables(i)
        )

    def saved(self, at: int) -> list[Register]:
        """Return the registers that may be read after a call and were written before it."""
        found = [
            register
            for name, (last, register) in self._reads.items()
            if name.startswith(self._prefix)
            and (self._loops or (last > at and self._writes.get(name, at) <= at))
        ]
        return sorted(found, key=lambda register: (-_bytes(register), register.name))


def _bytes(register: Register) -> int:
    return 4 if register.type == "pred" else SIZES[register.type]


def _frame(registers: list[Register]) -> int:
    return -(-sum(map(_bytes, registers)) // _ALIGN) * _ALIGN


def _push(line: int, registers: list[Register]) -> list[Instruction]:
    size = Integer(_frame(registers))
    results = Vector((_PLACE, STACK))
    out = [_one(line, "stack.take", ("u32",), results, size, Integer(_ALIGN), STACK)]
    at = 0
    for register in registers:
        source = register
        if register.type == "pred":
            out.append(_one(line, "selp", ("b32",), _FLAG, Integer(1), Integer(0), register))
            source = _FLAG
        place = Address(_PLACE, at)
        out.append(_one(line, "st", ("local", f"b{8 * _bytes(register)}"), place, source))
        at += _bytes(register)
    return out


def _pop(line: int, registers: list[Register]) -> list[Instruction]:
    out = [_one(line, "sub", ("u32",), STACK, STACK, Integer(_frame(registers)))]
    at = 0
    for register in registers:
        target = _FLAG if register.type == "pred" else register
        place = Address(STACK, at)
        out.append(_one(line, "ld", ("local", f"b{8 * _bytes(register)}"), target, place))
        if register.type == "pred":
            out.append(_one(line, "setp", ("ne", "u32"), register, _FLAG, Integer(0)))
        at += _bytes(register)
    return out


def _one(line: int, name: str, modifiers: tuple[str, ...], *given: Operand) -> Instruction:
    return Instruction(0, line, None, False, name, modifiers, given)
