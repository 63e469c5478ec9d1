"""The native functions of a library that Python calls, in two versions: see `Entry`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ugpu.virtual.shader.library import Library

OFTEN = 200  # calls after which the second version is worth compiling
_KIND = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


class Entry:
    """A function that runs the groups of a launch, by name; compiled at its first call. Its first
    version compiles in an eighth of the time. Several threads may call it."""

    def __init__(self, functions: Library, name: str) -> None:
        self._functions = functions
        self._name = name
        self._calls = 0
        self._native: Callable[[int, int], int] | None = None

    def __call__(self, context: int, kernel: int) -> int:
        """Run a kernel; both are addresses. Return what the function returns."""
        native = self._native
        if native is None or self._functions.improved(self._name):
            address = self._functions.address(self._name, quick=native is None)
            native = self._native = _KIND(address)
        self._calls += 1
        if self._calls == OFTEN:
            self._functions.improve([self._name])
        return native(context, kernel)
