"""Native functions as built-in functions of Python, called in a tenth of the time of ctypes, and
where CPython keeps what they read.

They use functions of CPython's stable interface ("C API Stability",
docs.python.org/3/c-api/stable.html) and a few that every version exports; METH_FASTCALL functions
get their arguments as an array of objects. Where an object keeps a slot is measured on an object of
its class (`slot_offsets`), so that no version's structures are assumed.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any, cast

from ugpu.hcq.errors import HostError
from ugpu.hcq.objects import jit

METH_FASTCALL, METH_KEYWORDS = 0x0080, 0x0002  # Include/methodobject.h
WORD = 8  # bytes of a pointer
TRIED = (3, 13)  # the last version that native code has run on that looks into objects


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def publish_interface(names: Sequence[str]) -> None:
    """Let native code refer to functions of Python. HostError if this interpreter does not have
    them."""
    for name in names:
        try:
            address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        except AttributeError:
            raise HostError(f"this Python has no {name}") from None
        assert address is not None
        jit.publish(name, address)


class Builtin:
    """A native METH_FASTCALL function. It must be kept as long as functions made from it."""

    def __init__(self, name: str, address: int, flags: int = METH_FASTCALL) -> None:
        self._definition = _Definition(name.encode(), address, flags, None)
        new = ctypes.pythonapi.PyCFunction_NewEx
        prototype = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )
        self._new = prototype(ctypes.cast(new, ctypes.c_void_p).value or 0)

    def of(self, record: int) -> Callable[..., Any]:
        """Return the function for the record at an address, its `self`."""
        function: Any = self._new(ctypes.addressof(self._definition), record, None)
        return cast(Callable[..., Any], function)

    def method(self, kind: type) -> Any:
        """Return the function as a method of a class, for its dictionary."""
        new = ctypes.pythonapi.PyDescr_NewMethod
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
        describe = prototype(ctypes.cast(new, ctypes.c_void_p).value or 0)
        return describe(kind, ctypes.addressof(self._definition))


def slot_offsets(kind: type, *names: str) -> list[int] | None:
    """Return where objects of a class, and of its subclasses, keep slots, in bytes from the
    object's address; each is a pointer to an object, null while the slot is not set. None if this
    interpreter keeps them in another way, runs threads without a lock, or is newer than TRIED, or
    if the first words of an object are not its references (the lower 32 bits) and its type."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] > TRIED:
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    if sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != WORD:
        return None
    instance: object = object.__new__(kind)
    size = kind.__basicsize__ // WORD
    words = (ctypes.c_uint64 * size).from_address(id(instance))
    if words[1] != id(kind) or words[0] & 0xFFFF_FFFF != sys.getrefcount(instance) - 1:
        return None
    offsets = []
    for name in names:
        mark = object()
        before = list(words)
        setattr(instance, name, mark)
        places = [place for place in range(size) if words[place] != before[place]]
        if len(places) != 1 or before[places[0]] or words[places[0]] != id(mark):
            return None
        offsets.append(WORD * places[0])
    return offsets
