"""Pickled objects of PyTorch checkpoints, read without executing anything.

A machine of its own interprets the opcodes that a checkpoint needs. It calls nothing: classes and
functions are names, and those of a fixed list stand for plain values. Every other name is
refused. Source: Python's pickletools; pytorch/pytorch, torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, NoReturn, cast

from ugpu.hcq.errors import BadFile

OPERATIONS = 8_000_000  # opcodes of one pickle
STRING = 1 << 20  # bytes
LINE = 4096  # bytes

Refuse = Callable[[str], NoReturn]


@dataclass(frozen=True)
class Name:
    """A class or function that a pickle refers to."""

    text: str


@dataclass(frozen=True)
class Storage:
    """The elements that tensors are views of. kind: `torch.FloatStorage` and so on."""

    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class View:
    """A tensor: elements of a storage. dtype: of an untyped storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | None = None


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    (
        "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
        "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
        "SHORT_BINBYTES",
    )
)  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_IGNORED = frozenset(("PROTO", "FRAME"))


class _Limited(io.RawIOBase):
    """A stream that refuses long reads, for pickletools."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= STRING:
            raise ValueError(f"expected at most {STRING} bytes of text, got {size}")
        return self._stream.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._stream.readline(LINE)


def unpickle(stream: BinaryIO, refuse: Refuse) -> Any:  # the pickled object
    """Return the object of the pickle at the stream's position, with a View for each tensor;
    the stream then stands behind it."""
    machine, limited = _Machine(refuse), _Limited(stream)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], limited))):
            if count >= OPERATIONS:
                refuse(f"expected at most {OPERATIONS} pickle opcodes")
            machine.step(opcode.name, argument)
    except BadFile:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        refuse(f"invalid pickle: {error}")
    return machine.result


class _Machine:
    """The stack and memo of an unpickler."""

    def __init__(self, refuse: Refuse) -> None:
        self.refuse = refuse
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        stack = self.stack
        if name in _IGNORED:
            return
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "STOP":
            self.result = stack.pop()
        else:
            step = getattr(self, f"_{name.lower()}", None)
            if step is None:
                self.refuse(f"pickle opcode {name} is not allowed in a checkpoint")
            step(argument)

    def _since_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise ValueError("no mark on the stack")

    def _mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _tuple1(self, _: Any) -> None:
        self.stack[-1:] = [tuple(self.stack[-1:])]

    def _tuple2(self, _: Any) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def _tuple3(self, _: Any) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        self._top(list).append(item)

    def _appends(self, _: Any) -> None:
        items = self._since_mark()
        self._top(list).extend(items)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top(dict)[key] = value

    def _setitems(self, _: Any) -> None:
        items = self._since_mark()
        self._top(dict).update(zip(items[::2], items[1::2], strict=True))

    def _top(self, kind: type[Any]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"expected a {kind.__name__}, got {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _global(self, argument: str) -> None:
        self.stack.append(Name(argument.replace(" ", ".", 1)))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Name(f"{module}.{name}"))

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], dict) or not isinstance(state, dict | tuple):
            raise ValueError("only attributes of an OrderedDict may be set")

    def _binpersid(self, _: Any) -> None:
        given = self.stack.pop()
        match given:
            case ("storage", Name(text=kind), str(key), str(), int(count), *_) if count >= 0:
                self.stack.append(Storage(kind, key, count))
            case _:
                raise ValueError(f"unknown persistent id {given!r:.80}")

    def _newobj(self, _: Any) -> None:
        kind = self.stack[-2]
        self._refuse_name(kind.text if isinstance(kind, Name) else repr(kind)[:80])

    def _refuse_name(self, name: str) -> NoReturn:
        self.refuse(
            f"the checkpoint needs {name}, which is not allowed; save a state_dict of tensors "
            "instead"
        )

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("only named functions may be called")
        call = _CALLS.get(function.text)
        if call is None:
            self._refuse_name(function.text)
        self.stack.append(call(*arguments))


def _view(
    storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: str | None = None
) -> View:
    fields = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or not all(type(n) is int and n >= 0 for n in fields):
        raise ValueError("a tensor needs a storage, an offset, sizes and strides")
    if len(shape) != len(strides):
        raise ValueError(f"a tensor of {len(shape)} sizes has {len(strides)} strides")
    return View(storage, offset, tuple(shape), tuple(strides), dtype)


def _view_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> View:
    if not isinstance(dtype, Name):
        raise ValueError(f"a tensor's type must be a name, got {dtype!r:.80}")
    return _view(storage, offset, shape, strides, dtype=dtype.text)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    return dict(pairs)


_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor": _view,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_tensor_v3": _view_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.Size": lambda sizes=(): tuple(sizes),
    "torch.device": lambda *words: ":".join(map(str, words)),
    "__builtin__.set": lambda items=(): list(items),
    "builtins.set": lambda items=(): list(items),
}
