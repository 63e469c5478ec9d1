"""One list of instructions out of a kernel and the device functions it calls.

Every call is replaced by the body of the function: registers, labels and variables of each copy get
names of their own. Parameters of calls become registers, since both sides access them at constant
offsets. Recursion and calls through pointers cannot be flattened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hcq.errors import NotSupported
from nv.virtual.sm.ptx.lexer import bad
from nv.virtual.sm.ptx.module import (
    SIZES,
    Address,
    Arguments,
    Function,
    Instruction,
    Inverted,
    Module,
    Name,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Variable,
    Vector,
)

_MOST_INSTRUCTIONS = 200_000


@dataclass
class Flat:
    """A kernel without calls. labels: name -> index. tables: of brx.idx."""

    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


@dataclass
class _Frame:
    """One copy of a function. names: variables and parameters -> their names here."""

    function: Function
    prefix: str
    names: dict[str, str]
    depth: tuple[str, ...]


def flatten(module: Module, entry: Function) -> Flat:
    """Inline all calls. Raises NotSupported and BadCodeObject."""
    flat = Flat()
    _inline(module, _Frame(entry, "", {}, (entry.name,)), flat)
    return flat


def _inline(module: Module, frame: _Frame, flat: Flat) -> None:
    function, prefix = frame.function, frame.prefix
    by_index: dict[int, list[str]] = {}
    for label, index in function.labels.items():
        by_index.setdefault(index, []).append(prefix + label)
    for label, targets in function.tables.items():
        flat.tables[prefix + label] = tuple(prefix + target for target in targets)
    for variable in function.variables:
        name = prefix + variable.name
        frame.names[variable.name] = name
        flat.variables.append(replace(variable, name=name))
    for instruction in function.body:
        for label in by_index.pop(instruction.index, ()):
            flat.labels[label] = len(flat.code)
        _one(module, frame, flat, instruction)
        if len(flat.code) > _MOST_INSTRUCTIONS:
            raise NotSupported(f"{function.name}: more than {_MOST_INSTRUCTIONS} instructions")
    for labels in by_index.values():
        for label in labels:
            flat.labels[label] = len(flat.code)
    if not prefix and (not flat.code or not _ends(flat.code[-1]) or by_index):
        flat.code.append(Instruction(len(flat.code), function.line, None, False, "ret", (), ()))


def _ends(instruction: Instruction) -> bool:
    return instruction.guard is None and instruction.name in ("ret", "exit", "bra", "trap")


def _one(module: Module, frame: _Frame, flat: Flat, instruction: Instruction) -> None:
    if instruction.name == "call":
        _call(module, frame, flat, instruction)
        return
    renamed = _renamed(frame, instruction)
    if instruction.name == "ret" and frame.prefix:
        target = Name(frame.prefix + "return")
        renamed = replace(renamed, name="bra", modifiers=("uni",), operands=(target,))
    elif instruction.name in ("ld", "st") and "param" in instruction.modifiers:
        renamed = _parameter(frame, renamed)
    elif instruction.name in ("bar", "barrier") and "red" in instruction.modifiers:
        # Its result is read behind the barrier, by an instruction of our own.
        flat.code.append(replace(renamed, index=len(flat.code), operands=renamed.operands[1:]))
        renamed = replace(renamed, name="bar_result", operands=renamed.operands[:1])
    flat.code.append(replace(renamed, index=len(flat.code)))


def _parameter(frame: _Frame, instruction: Instruction) -> Instruction:
    """Turn an access to a call's parameter into a move between registers."""
    if len(instruction.operands) != 2:
        raise bad(instruction.line, f"{instruction.opcode}: two operands are wanted")
    at = instruction.operands[0 if instruction.name == "st" else 1]
    if not isinstance(at, Address) or not isinstance(at.base, Name):
        return instruction
    known = at.base.name
    if not frame.prefix and known in {p.name for p in frame.function.parameters}:
        return instruction
    kind = instruction.modifiers[-1]
    data = instruction.operands[1 if instruction.name == "st" else 0]
    items = data.items if isinstance(data, Vector) else (data,)
    size = SIZES.get(kind)
    if size is None:
        raise bad(instruction.line, f"{instruction.opcode}: unknown type")
    cells = tuple(
        Register(f"{known}+{at.offset + k * size}:{size}", f"b{8 * max(size, 2)}")
        for k in range(len(items))
    )
    places = (Vector(cells), Vector(items))
    operands = places if instruction.name == "st" else (places[1], places[0])
    return replace(instruction, name="move", modifiers=(kind,), operands=operands)


def _renamed(frame: _Frame, instruction: Instruction) -> Instruction:
    if not frame.prefix:
        return instruction
    guard = instruction.guard
    return replace(
        instruction,
        guard=None if guard is None else Register(frame.prefix + guard.name, guard.type),
        operands=tuple(_operand(frame, operand) for operand in instruction.operands),
    )


def _operand(frame: _Frame, operand: Operand) -> Operand:
    if isinstance(operand, Register):
        return Register(frame.prefix + operand.name, operand.type)
    if isinstance(operand, Name):
        if operand.name in frame.names:
            return Name(frame.names[operand.name])
        own = frame.function.labels.keys() | frame.function.tables.keys()
        return Name(frame.prefix + operand.name) if operand.name in own else operand
    if isinstance(operand, Address):
        base = _operand(frame, operand.base)
        assert isinstance(base, Register | Name) or base is operand.base
        return Address(base, operand.offset)  # type of base is kept by renaming
    if isinstance(operand, Vector):
        return Vector(tuple(_operand(frame, item) for item in operand.items))
    if isinstance(operand, Arguments):
        return Arguments(tuple(_operand(frame, item) for item in operand.items))
    if isinstance(operand, Pair):
        return Pair(_operand(frame, operand.first), _operand(frame, operand.second))
    if isinstance(operand, Inverted):
        return Inverted(Register(frame.prefix + operand.register.name, operand.register.type))
    if isinstance(operand, Selected):
        register = Register(frame.prefix + operand.register.name, operand.register.type)
        return replace(operand, register=register)
    return operand


def _call(module: Module, frame: _Frame, flat: Flat, instruction: Instruction) -> None:
    line = instruction.line
    results: tuple[Operand, ...] = ()
    operands = list(instruction.operands)
    first = operands[0] if operands else None
    if isinstance(first, Arguments):
        results = first.items
        del operands[0]
    target = operands.pop(0) if operands else Sink()
    given: tuple[Operand, ...] = ()
    second = operands[0] if operands else None
    if isinstance(second, Arguments):
        given = second.items
    if not isinstance(target, Name):
        raise NotSupported(f"PTX line {line}: {instruction.opcode} through a pointer")
    callee = module.functions.get(target.name)
    if callee is None or not callee.defined:
        raise NotSupported(f"PTX line {line}: call of {target.name}, which this module lacks")
    if callee.name in frame.depth:
        raise NotSupported(f"PTX line {line}: recursion through {callee.name}")
    if len(results) != len(callee.results) or len(given) != len(callee.parameters):
        raise bad(line, f"the call of {callee.name} has the wrong number of parameters")
    prefix = f"{frame.prefix}{callee.name}.{len(flat.code)}."
    names: dict[str, str] = {}
    pairs = [*zip(callee.results, results, strict=True),
             *zip(callee.parameters, given, strict=True)]  # fmt: skip
    for formal, actual in pairs:
        if not isinstance(actual, Name):
            raise NotSupported(f"PTX line {line}: a register as parameter of a call")
        names[formal.name] = frame.names.get(actual.name, actual.name)
    guard = instruction.guard
    if guard is not None:
        skip = Instruction(
            len(flat.code), line, Register(frame.prefix + guard.name, guard.type),
            not instruction.negated, "bra", (), (Name(prefix + "return"),),
        )  # fmt: skip
        flat.code.append(skip)
    _inline(module, _Frame(callee, prefix, names, (*frame.depth, callee.name)), flat)
    flat.labels[prefix + "return"] = len(flat.code)
