"""`import ugpu` offers what users need, and loads it on first use."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest

import compiler
import hcq
import ugpu


def test_every_name_is_the_one_of_its_home() -> None:
    homes = (hcq, compiler)
    for name in ugpu.__all__:
        assert any(getattr(ugpu, name) is getattr(home, name, None) for home in homes), name


@pytest.mark.parametrize("module", [ugpu, compiler, hcq])
def test_names_are_listed_for_completion(module: object) -> None:
    assert set(getattr(module, "__all__", ())) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        operator.attrgetter("absent")(module)


def test_the_import_loads_nothing_heavy() -> None:
    text = "import sys, ugpu; print([m for m in ('numpy', 'llvmlite', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_tensor_by_the_front_door() -> None:
    with ugpu.open("cpu", threads=1) as device:
        x = ugpu.Tensor([1.0, 2.0, 3.0], device=device)
        assert (x * x).sum().numpy() == 14
