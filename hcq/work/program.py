"""Programs and kernels loaded on a device, and how kernel arguments are packed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ugpu.hcq.errors import BadArgument, NoKernel, NotSupported
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.text import table
from ugpu.hcq.work.buffer import Buffer, MemoryState
from ugpu.hcq.work.command_buffer import BufferReferences, CommandBuffer, Reference, Symbol

if TYPE_CHECKING:
    from ugpu.hcq.work.state import OpenDevice


_SIZES = (1, 2, 4, 8)
_ADDRESS = struct.Struct("<Q").pack_into


@dataclass(frozen=True)
class Parameter:
    """A scalar argument whose value is given at each replay of a captured graph.

    Attributes:
        slot: position among the graph's parameters.
        width: 4 or 8 bytes.
    """

    slot: int
    width: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """An entry point of a loaded program; valid until the program is closed.

    Attributes:
        name: as in the code object.
        program: owns the code.
        address: of the code, or of its descriptor, on the device.
        kernarg_size: bytes of the argument block.
        arguments: None if the code object does not declare them (then only the total size is
            checked).
        local_size: bytes of static local memory per group.
        private_size: bytes of scratch per thread.
        details: what the driver that loaded it needs to launch it.
        templates: encoded launches by shape, see hcq.work.prepared.
    """

    name: str
    program: Program
    address: int
    kernarg_size: int
    arguments: tuple[Argument, ...] | None
    local_size: int = 0
    private_size: int = 0
    details: Any = None
    templates: dict[Any, CommandBuffer] = field(
        default_factory=dict, repr=False
    )  # hcq.work.prepared

    @cached_property
    def places(self) -> list[tuple[int, int, bool, str]] | None:
        """Return for each argument its offset, its size, whether it may be an address, and the
        kinds of NumPy scalars that it accepts. None if the arguments are not declared, or do not
        follow each other at their natural alignment."""
        if self.arguments is None:
            return None
        found, end = [], 0
        for each in self.arguments:
            if each.size not in _SIZES or each.offset % each.size or each.offset < end:
                return None
            kinds = {"integer": "biu", "float": "f", "": "biuf"}.get(each.kind, "")
            is_address = each.size == 8 and each.is_address in (None, True)
            found.append((each.offset, each.size, is_address, "" if each.is_address else kinds))
            end = each.offset + each.size
        return found if end <= self.kernarg_size else None

    def __repr__(self) -> str:
        return f"<Kernel {self.name} at {self.address:#x}, {self.kernarg_size} bytes of arguments>"

    def _repr_html_(self) -> str:
        arguments = "not declared" if self.arguments is None else len(self.arguments)
        return table(f"Kernel {self.name}", {
            "address": f"{self.address:#x}", "arguments": arguments,
            "bytes of arguments": self.kernarg_size, "local memory": self.local_size,
        })  # fmt: skip


@dataclass(frozen=True)
class Work:
    """The least work of a kernel's launch, as a compiler knows it.

    Attributes:
        moved: bytes of the arrays that it reads and writes, each once.
        flops: floating-point operations.
    """

    moved: int
    flops: int


class Program(Mapping[str, Kernel]):
    """A code object loaded on a device: kernels by name. Owns its memory; a context manager.

    Attributes:
        source: returns the text that it was compiled from (kernel IR, LLVM IR, PTX), as evidence of
            a failure; None if unknown.
        work: of its kernels by name, for devices that count it (Driver.counts_work).
        bounded: whether its kernels end, whatever they are given, as those of a compiler do.
    """

    source: Callable[[], str] | None = None
    work: Mapping[str, Work] = MappingProxyType({})
    bounded = False

    def __init__(self, core: MemoryState, memory: Buffer | None) -> None:
        self.core = core
        self.memory = memory
        self.kernels: dict[str, Kernel] = {}
        self.closed = False

    @property
    def device(self) -> OpenDevice:
        """The device that owns the code."""
        return self.core.device

    def __getitem__(self, name: str) -> Kernel:
        try:
            return self.kernels[name]
        except (KeyError, TypeError):
            have = ", ".join(sorted(self.kernels)) or "none"
            raise NoKernel(f"no kernel {name!r} in this program; it has: {have}") from None

    def __iter__(self) -> Any:  # Iterator[str]; Mapping's own signature
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __repr__(self) -> str:
        names = list(self.kernels)
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        kernels = ", ".join(names[:4]) + more or "no kernels"
        return f"<Program on {self.device.name}: {kernels}{', closed' if self.closed else ''}>"

    def replace(self, image: bytes) -> None:
        """Have the kernels run other code from now on: an image with the same kernels and
        arguments, which computes the same. Also where they are recorded or being launched.
        NotSupported by most devices; BadCodeObject; Closed. After an error nothing has changed."""
        raise NotSupported(f"{self.device.name} cannot replace the code of loaded kernels")

    def close(self) -> None:
        """Free the code; idempotent. Kernels must not be running and cannot be launched
        afterwards."""
        self.closed = True
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _described(argument: Argument) -> str:
    kind = {"integer": "an integer", "float": "a float"}.get(argument.kind, "a scalar")
    return f"{'an address' if argument.is_address else kind} of {argument.size} bytes"


def _is_null(kernel: Kernel, position: int, value: object) -> bool:
    """Return whether `value` is a null pointer: None anywhere, 0 where an address is declared."""
    if value is None:
        return True
    declared = kernel.arguments[position] if kernel.arguments is not None else None
    if declared is None or not declared.is_address or isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | np.integer) and value == 0


def _structure(kernel: Kernel, position: int, value: bytes | bytearray | np.void) -> bytes:
    """Return a structure's bytes; BadArgument unless the kernel declares a structure of this size
    there."""
    data = value.tobytes() if isinstance(value, np.void) else bytes(value)
    declared = kernel.arguments[position] if kernel.arguments is not None else None
    if declared is None:
        raise BadArgument(
            f"argument {position} of {kernel.name} is a structure: its code object must declare "
            "arguments, since their alignment is not known otherwise"
        )
    if declared.kind or declared.is_address:
        raise BadArgument(
            f"argument {position} {declared.name!r} of {kernel.name} must be "
            f"{_described(declared)}, got a structure of {len(data)} bytes"
        )
    return data


def _pack_plain(kernel: Kernel, args: Sequence[object]) -> tuple[bytes, Sequence[Reference]] | None:
    """Pack buffers and NumPy scalars that match their declarations, which is the usual case; return
    None for everything else, valid or not."""
    places = kernel.places
    if places is None or len(args) != len(places):
        return None
    block = bytearray(kernel.kernarg_size)
    buffers = []
    for value, (offset, size, address, kinds) in zip(args, places, strict=True):
        if isinstance(value, Buffer):
            if not address:
                return None
            buffers.append((offset, value))
            _ADDRESS(block, offset, value.address)
        elif isinstance(value, np.generic):
            dtype = value.dtype
            if dtype.kind not in kinds or dtype.itemsize != size:
                return None
            block[offset : offset + size] = value.tobytes()
        else:
            return None
    return bytes(block), BufferReferences(buffers)


def pack_arguments(kernel: Kernel, args: Sequence[object]) -> tuple[bytes, Sequence[Reference]]:
    """Lay `args` out at natural alignment and check them against the kernel's declarations.

    A Buffer (or slice of one) becomes its address, with a reference; a NumPy scalar becomes its
    bytes; a Parameter becomes a gap that a graph's replay fills. None is a null pointer, and so is
    0 where an address is declared. A structure by value is given as bytes or as a NumPy structured
    scalar (np.void), if the code object declares the argument. Other int, float and bool values are
    rejected, because their width is unknown. If the code object distinguishes integers from floats,
    the scalars must match; their signedness is not checked.
    """
    packed = _pack_plain(kernel, args)
    if packed is not None:
        return packed
    block = bytearray()
    references: list[Reference] = []
    if kernel.arguments is not None and len(args) != len(kernel.arguments):
        raise BadArgument(f"{kernel.name} takes {len(kernel.arguments)} arguments, got {len(args)}")
    for position, value in enumerate(args):
        null = not isinstance(value, Buffer) and _is_null(kernel, position, value)
        is_structure = False
        if null:
            size, data = 8, bytes(8)
        elif isinstance(value, Buffer):
            size, data = 8, int(value.address).to_bytes(8, "little")
        elif isinstance(value, Parameter):
            size, data = value.width, bytes(value.width)
        elif isinstance(value, np.generic) and value.dtype.kind in "biuf":
            data = value.tobytes()
            size = len(data)
        elif isinstance(value, (bytes, bytearray, np.void)):
            is_structure, data = True, _structure(kernel, position, value)
            size = len(data)
        else:
            raise BadArgument(
                f"argument {position} of {kernel.name} is a {type(value).__name__}; pass a Buffer "
                "or a NumPy scalar such as np.uint32(7), whose width is known; a structure by "
                "value as bytes or np.void"
            )
        if not is_structure:  # structures lie where they are declared
            block += bytes(-len(block) % size)
        if kernel.arguments is not None:
            declared = kernel.arguments[position]
            expected = declared.is_address in (None, null or isinstance(value, Buffer))
            if not null and isinstance(value, np.generic) and declared.kind:
                expected &= declared.kind == ("float" if value.dtype.kind == "f" else "integer")
            if declared.size != size or not expected:
                raise BadArgument(
                    f"argument {position} {declared.name!r} of {kernel.name} is "
                    f"{_described(declared)}; a {type(value).__name__} of {size} bytes was given"
                )
            block += bytes(max(0, declared.offset - len(block)))
        if isinstance(value, Buffer):
            references.append(Reference(len(block), 8, Symbol.of(value)))
        elif isinstance(value, Parameter):
            references.append(Reference(len(block), size, Symbol("parameter", slot=value.slot)))
        block += data
    if len(block) > kernel.kernarg_size or (
        kernel.arguments is None and len(block) + 7 < kernel.kernarg_size
    ):
        raise BadArgument(
            f"{kernel.name} takes {kernel.kernarg_size} bytes of arguments, got {len(block)}"
        )
    block += bytes(kernel.kernarg_size - len(block))
    return bytes(block), tuple(references)
