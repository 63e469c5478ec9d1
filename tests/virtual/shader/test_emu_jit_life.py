"""Native code can be dropped: each execution engine frees what it owns, and nothing twice."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path

from ugpu.hcq.objects import jit
from ugpu.hcq.state.config import setting
from ugpu.virtual.shader.library import Library


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


def test_code_that_others_call_stays(tmp_path: Path) -> None:
    """Two threads may each make the first device: each has a library, and one is dropped while its
    functions are in use."""
    part = (lambda: ("define i32 @ugpu_stays() {\n ret i32 7\n}", set()), ["ugpu_stays"])
    library = Library((Path(__file__).parent,), tmp_path, "stays", [part])
    address, alive = library.address("ugpu_stays"), weakref.ref(library._code["ugpu_stays"])
    del library
    gc.collect()
    assert alive() is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 7


def test_options_of_quick_code_end_with_it() -> None:
    """Code that is to run fast is the same before and after code that is to compile fast."""
    ir = """define i32 @f(i32 %x) {
    %a = add i32 %x, 5
    %b = sub i32 %a, 5
    %c = mul i32 %b, 8
    ret i32 %c
    }"""
    with setting("UGPU_OBJECTS", ""):
        levels = (1, 0, 1, 0)
        code = [jit.compile_object(ir, jit.LIMITED, level) for level in levels]
    assert code[0] == code[2] != code[1] == code[3]
    for image in code:
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        assert function(jit.Loaded(image).address("f"))(7) == 56
