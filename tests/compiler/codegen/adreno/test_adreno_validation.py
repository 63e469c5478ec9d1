"""Mesa validates the NIR of the tests, not that of programs, unless NIR_DEBUG is set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.adreno.mesa import needs_mesa

# Opens the compiler, prints NIR's flags, compiles a small kernel, and one with an `iadd` of 32 bits
# that adds a number of 64.
_OPENED = """
import sys
from ugpu.compiler.codegen.adreno.mesa import _canary, compiler_for
from ugpu.compiler.codegen.adreno.nir import Builder
from ugpu.qcom import chips
compiler = compiler_for(chips.facts("a740").chip_ids[0])
print(compiler.mesa.debug_flags().value)
print(compiler.compile(_canary(compiler.mesa.tables), 1).code.hex(), flush=True)
if sys.argv[1:]:
    build = Builder(compiler.mesa.tables)
    zero, wide = build.constant(32, 0), build.constant(64, 1)
    number = build.alu("iadd", 32, zero, wide)
    build.intrinsic("store_shared", [number, zero], write_mask=1, align_mul=4)
    compiler.compile(build.serialise(64, 4), 1)
"""


def opened(setting: str | None, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NIR_DEBUG"}
    if setting is not None:
        environment["NIR_DEBUG"] = setting
    command = [sys.executable, "-c", _OPENED, *more]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_tests_validate() -> None:
    assert "NIR_DEBUG" in os.environ


@needs_mesa
def test_the_flag_is_the_one_that_mesa_reads_from_its_environment() -> None:
    ours, theirs = opened(None), opened("novalidate")
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout and ours.stdout.split()[0] != "0"


@needs_mesa
@pytest.mark.parametrize("setting", ["", "clone"])
def test_an_environment_that_sets_flags_keeps_them(setting: str) -> None:
    plain, found = opened(None), opened(setting)
    assert plain.stdout.split()[1] == found.stdout.split()[1]  # the same code either way
    assert not int(found.stdout.split()[0]) & int(plain.stdout.split()[0])


@needs_mesa
def test_wrong_nir_ends_a_process_that_validates() -> None:
    found = opened("", "wrong")
    assert found.returncode < 0 and "NIR validation failed" in found.stderr
