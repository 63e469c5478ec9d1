"""Flatten a kernel and the device functions it calls into one list of instructions.

Every call is replaced by the body of the function. The registers, labels and variables of each copy
get unique names. Parameters of calls become registers, because both sides access them at constant
offsets. A call through a pointer becomes a branch to one of its possible targets. Functions that
call themselves are `procedures`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import (
    SIZES,
    Address,
    Arguments,
    Function,
    Instruction,
    Integer,
    Inverted,
    Module,
    Name,
    Operand,
    Pair,
    Register,
    Selected,
    Variable,
    Vector,
)
from ugpu.virtual.nvidia.sm.translator.control.procedures import (
    STACK,
    Procedure,
    candidates,
    cell,
    cells,
    expand,
    move,
    recursive,
    split_call,
)

_MOST_INSTRUCTIONS = 200_000
_DEEPEST = 100  # calls inside each other
_STACKS = frozenset(("alloca", "stacksave", "stackrestore"))


@dataclass
class Flat:
    """A kernel without calls. labels: name -> index. tables: of brx.idx. recursive: functions that
    become procedures. stack: whether threads use stack memory. copies: of functions."""

    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    recursive: set[str] = field(default_factory=set)
    procedures: dict[str, Procedure] = field(default_factory=dict)
    stack: bool = False
    copies: int = 0


@dataclass
class _Frame:
    """One copy of a function. names: variables and parameters -> their names here. depth: calls
    around it. procedure: the procedure that it is part of."""

    function: Function
    prefix: str
    names: dict[str, str]
    depth: int = 0
    procedure: str = ""


def flatten(module: Module, entry: Function) -> Flat:
    """Inline all calls. Raises NotSupported and BadCodeObject."""
    flat = Flat(recursive=recursive(module))
    flat.stack = any(i.name in _STACKS for f in module.functions.values() for i in f.body)
    _inline(module, _Frame(entry, "", {}), flat)
    while any(not procedure.written for procedure in flat.procedures.values()):
        for procedure in [p for p in flat.procedures.values() if not p.written]:
            _procedure(module, procedure, flat)
    for procedure in flat.procedures.values():
        flat.tables[procedure.prefix + "sites"] = tuple(procedure.sites)
    if flat.stack or flat.procedures:
        flat.stack = True
        flat.code, flat.labels = expand(flat.code, flat.labels, flat.procedures)
    return flat


def _procedure(module: Module, procedure: Procedure, flat: Flat) -> None:
    """Emit a recursive function once. Its end branches to where its callers continue."""
    procedure.written = True
    function, prefix = procedure.function, procedure.prefix
    if any(variable.space == "local" and variable.size for variable in function.variables):
        raise NotSupported(
            f"PTX line {function.line}: recursion through {function.name}, which has variables in"
            " local memory"
        )
    names = {v.name: prefix + v.name for v in (*function.parameters, *function.results)}
    flat.labels[prefix + "start"] = len(flat.code)
    frame = _Frame(function, prefix, names, procedure=function.name)
    _inline(module, frame, flat)
    flat.labels[prefix + "return"] = len(flat.code)
    _give_back(frame, flat)
    _add(flat, function.line, "brx", ("idx",), procedure.back, Name(prefix + "sites"))


def _add(
    flat: Flat, line: int, name: str, modifiers: tuple[str, ...], *given: Operand
) -> None:  # fmt: skip
    flat.code.append(Instruction(len(flat.code), line, None, False, name, modifiers, given))


def _saves(frame: _Frame) -> Register | None:
    """Return the register that holds the end of the stack at a function's start, if the function
    allocates stack memory."""
    if frame.prefix and any(i.name in _STACKS for i in frame.function.body):
        return Register(frame.prefix + "%stack.before", "b32")
    return None


def _give_back(frame: _Frame, flat: Flat) -> None:
    before = _saves(frame)
    if before is not None:
        _add(flat, frame.function.line, "mov", ("b32",), STACK, before)


def _inline(module: Module, frame: _Frame, flat: Flat) -> None:
    function, prefix = frame.function, frame.prefix
    flat.copies += 1
    by_index: dict[int, list[str]] = {}
    for label, index in function.labels.items():
        by_index.setdefault(index, []).append(prefix + label)
    for label, targets in function.tables.items():
        flat.tables[prefix + label] = tuple(prefix + target for target in targets)
    for variable in function.variables:
        name = prefix + variable.name
        frame.names[variable.name] = name
        flat.variables.append(replace(variable, name=name))
    before = _saves(frame)
    if before is not None:
        _add(flat, function.line, "mov", ("b32",), before, STACK)
    for instruction in function.body:
        for label in by_index.pop(instruction.index, ()):
            flat.labels[label] = len(flat.code)
        _one(module, frame, flat, instruction)
        if len(flat.code) + flat.copies > _MOST_INSTRUCTIONS:  # a function may be empty
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
    if instruction.name in _STACKS:
        renamed = _stack(renamed)
    if instruction.name == "ret" and frame.prefix:
        target = Name(frame.prefix + "return")
        renamed = replace(renamed, name="bra", modifiers=("uni",), operands=(target,))
    elif instruction.name in ("ld", "st") and "param" in instruction.modifiers:
        renamed = _parameter(frame, renamed)
    elif instruction.name in ("bar", "barrier") and "red" in instruction.modifiers:
        # The result is read after the barrier, by an internal instruction.
        flat.code.append(replace(renamed, index=len(flat.code), operands=renamed.operands[1:]))
        renamed = replace(renamed, name="bar.result", operands=renamed.operands[:1])
    moved = renamed.index != len(flat.code)
    flat.code.append(replace(renamed, index=len(flat.code)) if moved else renamed)


def _parameter(frame: _Frame, instruction: Instruction) -> Instruction:
    """Rewrite an access to a call's parameter as a move between registers."""
    if len(instruction.operands) != 2:
        raise bad(instruction.line, f"{instruction.opcode}: expected two operands")
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
    parts = tuple(cell(known, at.offset + k * size, size) for k in range(len(items)))
    places = (Vector(parts), Vector(items))
    operands = places if instruction.name == "st" else (places[1], places[0])
    return replace(instruction, name="parameter.move", modifiers=(kind,), operands=operands)


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


def _stack(i: Instruction) -> Instruction:
    """Rewrite an instruction that allocates or frees stack memory to operate on the stack's end."""
    kind = i.modifiers[-1] if i.modifiers else ""
    needed = 2 if i.name == "alloca" else 1
    if kind not in ("u32", "u64", "b32", "b64", "s32", "s64") or len(i.operands) < needed:
        raise bad(i.line, f"{i.opcode}: expected a type and operands")
    narrow = kind[1:] == "32"
    if i.name == "alloca":
        align = i.operands[2] if len(i.operands) == 3 else Integer(8)
        if not isinstance(align, Integer):
            raise bad(i.line, f"{i.opcode}: the alignment must be a constant")
        results = Vector((i.operands[0], STACK))
        return replace(i, name="stack.take", modifiers=(kind,),
                       operands=(results, i.operands[1], align, STACK))  # fmt: skip
    both = (i.operands[0], STACK) if i.name == "stacksave" else (STACK, i.operands[0])
    if narrow:
        return replace(i, name="mov", modifiers=("b32",), operands=both)
    kinds = ("u64", "u32") if i.name == "stacksave" else ("u32", "u64")
    return replace(i, name="cvt", modifiers=kinds, operands=both)


def _call(module: Module, frame: _Frame, flat: Flat, instruction: Instruction) -> None:
    line = instruction.line
    results, target, given = split_call(instruction)
    number = len(flat.code)
    done = f"{frame.prefix}call.{number}.done"
    guard = instruction.guard
    if guard is not None:
        flat.code.append(Instruction(
            number, line, Register(frame.prefix + guard.name, guard.type),
            not instruction.negated, "bra", (), (Name(done),),
        ))  # fmt: skip
    if isinstance(target, Name):
        _enter(module, frame, flat, line, target.name, results, given)
    elif isinstance(target, Register):
        functions = candidates(module, frame.function, instruction)
        which = Register(f"{frame.prefix}%call.{number}", "b32")
        pointer = Register(frame.prefix + target.name, target.type)
        listed = Arguments(tuple(Name(name) for name in functions))
        _add(flat, line, "call.target", ("u64",), which, pointer, listed)
        labels = tuple(f"{frame.prefix}call.{number}.{n}" for n in range(len(functions)))
        flat.tables[f"{frame.prefix}call.{number}.all"] = labels
        if functions:
            table = Name(f"{frame.prefix}call.{number}.all")
            _add(flat, line, "brx", ("idx",), which, table)
        else:
            _add(flat, line, "trap", ())
        for label, name in zip(labels, functions, strict=True):
            flat.labels[label] = len(flat.code)
            _enter(module, frame, flat, line, name, results, given)
            _add(flat, line, "bra", ("uni",), Name(done))
    else:
        raise bad(line, "the target of a call must be a function or a register")
    flat.labels[done] = len(flat.code)


def _enter(
    module: Module, frame: _Frame, flat: Flat, line: int, name: str, results: tuple[str, ...],
    given: tuple[str, ...],
) -> None:  # fmt: skip
    """Inline a function at a call, or branch to its only copy."""
    callee = module.functions.get(name)
    if callee is None or not callee.defined:
        raise NotSupported(f"PTX line {line}: call of {name}, which is not defined in this module")
    if len(results) != len(callee.results) or len(given) != len(callee.parameters):
        raise bad(line, f"the call of {callee.name} has the wrong number of parameters")
    taking = [(formal, frame.names.get(actual, actual))
              for formal, actual in zip(callee.parameters, given, strict=True)]  # fmt: skip
    giving = [(formal, frame.names.get(actual, actual))
              for formal, actual in zip(callee.results, results, strict=True)]  # fmt: skip
    if name in flat.recursive:
        _enter_procedure(frame, flat, line, callee, taking, giving)
        return
    prefix = f"{frame.prefix}{callee.name}.{len(flat.code)}."
    names = {formal.name: actual for formal, actual in (*giving, *taking)}
    if frame.depth == _DEEPEST:
        raise NotSupported(f"PTX line {line}: more than {_DEEPEST} calls inside each other")
    inner = _Frame(callee, prefix, names, frame.depth + 1, frame.procedure)
    _inline(module, inner, flat)
    flat.labels[prefix + "return"] = len(flat.code)
    _give_back(inner, flat)


def _enter_procedure(
    frame: _Frame, flat: Flat, line: int, callee: Function, taking: list[tuple[Variable, str]],
    giving: list[tuple[Variable, str]],
) -> None:  # fmt: skip
    procedure = flat.procedures.setdefault(callee.name, Procedure(callee))
    prefix, site = procedure.prefix, len(procedure.sites)
    label = f"{prefix}site.{site}"
    procedure.sites.append(label)
    moves = [(cell(prefix + formal.name, *part), cell(actual, *part))
             for formal, actual in taking for part in cells(callee, formal)]  # fmt: skip
    if frame.procedure:
        # Arguments may be registers of the same procedure, which a callee would overwrite.
        pushed = Integer(len(flat.code))
        _add(flat, line, "stack.push", (), Name(frame.procedure), pushed)
    flat.code += [move(line, to, source) for to, source in moves]
    _add(flat, line, "mov", ("b32",), procedure.back, Integer(site))
    _add(flat, line, "bra", ("uni",), Name(prefix + "start"))
    flat.labels[label] = len(flat.code)
    answers = [(cell(actual, *part), cell(prefix + formal.name, *part))
               for formal, actual in giving for part in cells(callee, formal)]  # fmt: skip
    if frame.procedure:
        kept = [Register(f"%stack.result.{n}", to.type) for n, (to, _) in enumerate(answers)]
        pairs = zip(kept, answers, strict=True)
        flat.code += [move(line, held, source) for held, (_, source) in pairs]
        _add(flat, line, "stack.pop", (), Name(frame.procedure), pushed)
        pairs = zip(kept, answers, strict=True)
        flat.code += [move(line, to, held) for held, (to, _) in pairs]
    else:
        flat.code += [move(line, to, source) for to, source in answers]
