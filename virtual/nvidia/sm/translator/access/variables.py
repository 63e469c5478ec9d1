"""Layout of a kernel's variables: shared and local memory, and the module's own window.

Shared variables that the kernel uses start at 0 of the group's shared memory, those with the
largest alignment first, so that there are no gaps. Arrays without a size follow. Variables of
`.global` and `.const` are where the loader has placed them; the launch states the addresses. Those
that it does not mention are in an address window that is outside of all page tables.
Source: PTX ISA 8.x, "State Spaces".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import Function, Module, Variable
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator import operands
from ugpu.virtual.nvidia.sm.translator.control.flatten import Flat
from ugpu.virtual.nvidia.sm.translator.control.procedures import taken

PAGE = 4096
_FUNCTIONS = 1 << 40  # function addresses, unless a launch states others; not mapped to memory


@dataclass
class Places:
    """Addresses of variables, in their own spaces.

    shared_size: static bytes. local_size: of a thread. image: the module window's content.
    parameter_offsets: of the entry. numbers: indices of the variables of `.global` and `.const`,
    and of functions whose address is taken, in each launch's list of addresses. stack: whether
    threads use the local memory behind their variables.
    """

    addresses: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)
    parameter_offsets: dict[str, int] = field(default_factory=dict)
    parameter_size: int = 0
    shared_size: int = 0
    local_size: int = 0
    image: bytes = b""
    numbers: dict[str, int] = field(default_factory=dict)
    stack: bool = False

    def address_of(self, name: str) -> int | None:
        """Return the address of a variable in its space, unless a launch states another."""
        return self.addresses.get(name)

    def listed(self, known: tuple[tuple[str, int], ...]) -> list[int]:
        """Return the addresses of the numbered variables for a launch that states some of them."""
        found = dict(known)
        return [found.get(name, self.addresses[name]) for name in self.numbers]


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


def place(module: Module, entry: Function, flat: Flat) -> Places:
    """Lay out all variables."""
    places = Places()
    at = 0
    for parameter in entry.parameters:
        if parameter.size is None:
            raise bad(parameter.line, f"{parameter.name} has no size")
        at = _up(at, parameter.align)
        places.parameter_offsets[parameter.name] = at
        at += parameter.size
    places.parameter_size = at
    known = [*module.variables.values(), *flat.variables]
    for name, offset in places.parameter_offsets.items():
        # A parameter's address is in the module window, whose first page contains the parameters.
        places.addresses[name] = layout.MODULE_WINDOW + offset
        places.spaces[name] = "param"
    used = {name for instruction in flat.code for name in operands.variables(instruction)}
    shared = [v for v in known if v.space == "shared" and v.name in used]
    _shared(places, sorted(shared, key=lambda variable: -variable.align))
    for variable in (v for v in known if v.space == "local"):
        places.local_size = _up(places.local_size, variable.align)
        _set(places, variable, places.local_size)
        places.local_size += variable.size or 0
    places.local_size = _up(places.local_size, 16)
    places.stack = flat.stack
    for number, name in enumerate(taken(module), 1):
        places.addresses[name] = _FUNCTIONS + 8 * number
        places.spaces[name] = "func"
        places.numbers[name] = len(places.numbers)
    _window(places, [v for v in known if v.space in ("global", "const")])
    return places


def _set(places: Places, variable: Variable, address: int) -> None:
    places.addresses[variable.name] = address
    places.spaces[variable.name] = variable.space


def _shared(places: Places, variables: list[Variable]) -> None:
    at = 0
    for variable in (v for v in variables if v.size is not None and not v.external):
        at = _up(at, variable.align)
        _set(places, variable, at)
        at += variable.size or 0
    places.shared_size = at
    for variable in (v for v in variables if v.size is None or v.external):
        _set(places, variable, _up(at, max(variable.align, 16)))


def _window(places: Places, variables: list[Variable]) -> None:
    image = bytearray(_up(max(places.parameter_size, 1), PAGE))
    for variable in variables:
        if variable.external:
            raise NotSupported(
                f"PTX line {variable.line}: {variable.name} is defined in another module"
            )
        start = _up(len(image), max(variable.align, 1))
        image.extend(bytes(start - len(image)))
        _set(places, variable, layout.MODULE_WINDOW + start)
        places.numbers[variable.name] = len(places.numbers)
        image += variable.initial or bytes(variable.size or 0)
        if variable.size is not None and len(variable.initial) < variable.size:
            image.extend(bytes(start + variable.size - len(image)))
    for variable in variables:
        base = places.addresses[variable.name] - layout.MODULE_WINDOW
        for reference in variable.references:
            target = places.addresses.get(reference.name)
            if target is None:
                raise NotSupported(
                    f"PTX line {variable.line}: the address of {reference.name} as initial value"
                )
            value = (target + reference.addend) & ((1 << 64) - 1)
            image[base + reference.at : base + reference.at + 8] = value.to_bytes(8, "little")
    image.extend(bytes(_up(len(image), PAGE) + PAGE - len(image)))
    places.image = bytes(image)
