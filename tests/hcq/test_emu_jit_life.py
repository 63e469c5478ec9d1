"""Native code can be dropped: each execution engine frees what it owns, and nothing twice."""

from __future__ import annotations

import ctypes
import gc

from hcq.emu import jit


def test_several_loaded_objects_are_freed() -> None:
    loaded = [
        jit.Loaded(
            jit.compile_object(f"define i32 @f{n}() {{ ret i32 {n} }}", jit.LIMITED, optimise=0)
        )
        for n in range(3)
    ]
    results = [ctypes.CFUNCTYPE(ctypes.c_int)(o.address(f"f{n}"))() for n, o in enumerate(loaded)]
    assert results == [0, 1, 2]
    del loaded
    gc.collect()
