"""Native functions as built-in functions of Python: called in a tenth of the time of ctypes.

They follow CPython's stable interface ("C API Stability", docs.python.org/3/c-api/stable.html):
METH_FASTCALL functions, whose arguments are an array of objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

from ugpu.hcq.errors import HostError
from ugpu.hcq.objects import jit

METH_FASTCALL = 0x0080  # Include/methodobject.h
USED = (
    "PyLong_AsUnsignedLongLong", "PyLong_FromUnsignedLongLong", "PyErr_Occurred",
    "PyErr_BadArgument", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def publish_interface() -> None:
    """Let native code refer to the functions of Python that it uses. HostError if this interpreter
    does not have them."""
    for name in USED:
        try:
            address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        except AttributeError:
            raise HostError(f"this Python has no {name}") from None
        assert address is not None
        jit.publish(name, address)


class Builtin:
    """A native METH_FASTCALL function. It must be kept as long as functions made from it."""

    def __init__(self, name: str, address: int) -> None:
        self._definition = _Definition(name.encode(), address, METH_FASTCALL, None)
        new = ctypes.pythonapi.PyCFunction_NewEx
        prototype = ctypes.PYFUNCTYPE(
            ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        )
        self._new = prototype(ctypes.cast(new, ctypes.c_void_p).value or 0)

    def of(self, record: int) -> Callable[..., int]:
        """Return the function for the record at an address, its `self`."""
        function: Any = self._new(ctypes.addressof(self._definition), record, None)
        return cast(Callable[..., int], function)
