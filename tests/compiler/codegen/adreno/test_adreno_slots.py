"""Mesa's validators of ir3 run for the tests, not for programs unless NIR_DEBUG is set.

Whether a function of the library is still called is found by redirecting its calls to a counter.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
import sys

import pytest

from tests.support.adreno.mesa import needs_mesa
from ugpu.compiler.codegen.adreno.slots import redirect

# Prints for each validator whether the library's slot still leads to it, how often it then was
# called, and the code of a small kernel.
_COUNTED = """
import ctypes
import ctypes.util
from ugpu.compiler.codegen.adreno.mesa import _VALIDATORS, _canary, compiler_for
from ugpu.compiler.codegen.adreno.slots import redirect
from ugpu.qcom import chips
compiler = compiler_for(chips.facts("a740").chip_ids[0])
counts = dict.fromkeys(_VALIDATORS, 0)
kept = []
for name in _VALIDATORS:
    def counted(shader, name=name):
        counts[name] += 1
    kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(counted))
    address = ctypes.cast(kept[-1], ctypes.c_void_p).value
    print(redirect(compiler.mesa._library, name, address))
code = compiler.compile(_canary(compiler.mesa.tables), 1).code
print(*(count > 0 for count in counts.values()), code.hex())
"""


def counted(validates: bool) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NIR_DEBUG"}
    if validates:
        environment["NIR_DEBUG"] = ""
    command = [sys.executable, "-c", _COUNTED]
    return subprocess.check_output(command, env=environment, text=True).split()


@needs_mesa
def test_programs_call_no_validator() -> None:
    validated, plain = counted(True), counted(False)
    assert validated[:4] == ["True"] * 4
    assert plain[:4] == ["False"] * 4
    assert plain[4] == validated[4]  # the same code either way


@pytest.mark.skipif(sys.platform != "linux", reason="ELF libraries of Linux")
def test_a_function_that_a_library_does_not_call_by_a_slot() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    assert not redirect(library, "labs", 0)
