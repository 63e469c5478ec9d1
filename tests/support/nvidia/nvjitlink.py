"""PTX to cubin by the nvidia-nvjitlink wheel, for tests: does what we emit assemble?"""

from __future__ import annotations

import ctypes
import functools
from importlib.util import find_spec
from pathlib import Path

from ugpu.hcq.disk.objects import kept
from ugpu.nv.code.assemble import find_assembler

INPUT_PTX = 2  # nvJitLink.h, nvJitLinkInputType


class DoesNotAssemble(AssertionError):
    """The assembler refused; the text is its log."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where the wheel is not installed."""
    found = find_spec("nvidia")
    for folder in () if found is None else found.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*/lib/libnvJitLink.so.*")):
            return ctypes.CDLL(str(path))
    return None


def _call(name: str, *args: object) -> int:
    """Call version 13.0 of a function's interface (symbols are versioned in nvJitLink.h)."""
    found = library()
    assert found is not None
    return int(getattr(found, f"__{name}_13_0")(*args))


def assemble(ptx: bytes, cpu: str) -> bytes:
    """The cubin of a PTX text for "sm_90" or the like; DoesNotAssemble with the log."""
    version = find_assembler().name
    return kept(functools.partial(_assemble, ptx, cpu), Path(__file__), version, cpu, ptx)


def _assemble(ptx: bytes, cpu: str) -> bytes:
    options = (ctypes.c_char_p * 1)(f"-arch={cpu}".encode())
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    status = _call("nvJitLinkCreate", ctypes.byref(handle), 1, options)
    if status:
        raise DoesNotAssemble(f"nvJitLinkCreate for {cpu}: status {status}")
    try:
        status = _call("nvJitLinkAddData", handle, INPUT_PTX, ptx, len(ptx), b"kernel")
        status = status or _call("nvJitLinkComplete", handle)
        if status:
            _call("nvJitLinkGetErrorLogSize", handle, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            _call("nvJitLinkGetErrorLog", handle, log)
            raise DoesNotAssemble(f"status {status}: {log.value.decode()}\n{ptx.decode()}")
        assert not _call("nvJitLinkGetLinkedCubinSize", handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        assert not _call("nvJitLinkGetLinkedCubin", handle, cubin)
        return cubin.raw
    finally:
        _call("nvJitLinkDestroy", ctypes.byref(handle))
