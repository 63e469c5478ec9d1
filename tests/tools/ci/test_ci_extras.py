"""A laboratory's module without its extra names the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = (
    ("ray_agent", "ray"), ("ray_fleet", "ray"), ("labgrid_exporter", "labgrid"),
    ("labgrid_device", "labgrid"), ("jumpstarter_device", "jumpstarter"),
)  # fmt: skip


@pytest.mark.parametrize(("module", "extra"), MODULES)
def test_an_import_names_the_extra(module: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{extra!r}] = None\n"
        "from ugpu.hcq.errors import MissingDependency\n"
        f"try: import ugpu.tools.ci.fleet.{module}\n"
        "except MissingDependency as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"pip install 'ugpu[{extra}]'" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("module", "extra"), [each for each in MODULES if each[0] in ("ray_agent", "labgrid_exporter")]
)
def test_a_program_ends_with_one_line(module: str, extra: str) -> None:
    program = (
        f"import runpy, sys; sys.modules[{extra!r}] = None\n"
        f"runpy.run_module('ugpu.tools.ci.fleet.{module}', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1 and f"pip install 'ugpu[{extra}]'" in ended.stderr
