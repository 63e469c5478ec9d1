"""Memory that faults once it is freed: a native thread that still uses it ends the process.

Freed memory is usually handed out again, so that a use after free passes unnoticed. With `install`,
what the `cpu` device and the virtual NVIDIA driver free loses all access instead, and its addresses
are not used again. For short-lived child processes: nothing is given back to the system.

The pages are protected by native code when the owner's memory is deallocated, and only then: a
finalizer in Python would run too early for objects that the cycle collector finds and that another
finalizer keeps, and not at all late in the interpreter's teardown.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

_IR = """
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare i32 @mprotect(ptr, i64, i32)
define void @dead(ptr %capsule) {
  %record = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr null)
  %address = load ptr, ptr %record
  %size.at = getelementptr i64, ptr %record, i64 1
  %size = load i64, ptr %size.at
  %freed.at = getelementptr i64, ptr %record, i64 2
  store i64 1, ptr %freed.at
  %r = call i32 @mprotect(ptr %address, i64 %size, i32 0)
  ret void
}
"""
_Record = ctypes.c_uint64 * 3  # address, size, whether it has been freed
_records: list[ctypes.Array[ctypes.c_uint64]] = []
_immortal: list[object] = [_records]


def freed() -> int:
    """How many guarded allocations have been freed."""
    return sum(int(record[2]) for record in _records)


def _destructor() -> int:
    """The address of `dead`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_IR), machine)
    engine.finalize_object()
    _immortal.append(engine)
    return int(engine.get_function_address("dead"))


def _close(block: Any) -> None:
    block.closed = True
    block.capsule = None


def _block(size: int) -> Any:  # a ctypes array; as much of mmap.mmap as ugpu.hcq.cpu.memory needs
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole)
    _immortal.append(memory)
    kind = type("_Block", (ctypes.c_char * whole,), {"closed": False, "close": _close})
    block = kind.from_buffer(memory)
    record = _Record(ctypes.addressof(block), whole, 0)
    _records.append(record)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    block.capsule = make(ctypes.addressof(record), None, _dead)
    return block


class _Maps:
    """Stands for the module `mmap` where memory is to be guarded."""

    def __getattr__(self, name: str) -> Any:  # whatever else the module has
        return getattr(mmap, name)

    def mmap(self, _descriptor: int, size: int, **_options: int) -> Any:
        return _block(size)


class _GuardedMap(mmap.mmap):
    """For the model of NVIDIA's driver, which alone refers to its pages."""

    def __del__(self) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        record = _Record(address, len(self), 1)
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(self)), 0)
        _records.append(record)
        _immortal.append(self)


class _MapsOfModel(_Maps):
    mmap = _GuardedMap


def _obtain(size: int) -> NDArray[np.uint8]:
    """As ugpu.hcq.cpu.memory.obtain."""
    return np.frombuffer(_block(size), np.uint8)[:size]


def install() -> None:
    """Guard what is allocated from now on."""
    global _dead
    import ugpu.hcq.cpu.memory
    import ugpu.virtual.nvidia.memory.physical

    _dead = _destructor()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))
    vars(ugpu.hcq.cpu.memory).update(obtain=_obtain, mmap=_Maps())
    vars(ugpu.virtual.nvidia.memory.physical).update(mmap=_MapsOfModel())


_dead = 0
