"""Tensor's methods come from groups that stand side by side, and name themselves as Tensor's."""

from __future__ import annotations

from types import FunctionType

import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.gradients.differentiable import Differentiable
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.methods.groups import Groups
from ugpu.compiler.methods.operations import Operations

GROUPS = Groups.__bases__
METHODS = [n for n in dir(Tensor) if not n.startswith("_") and n not in TensorCore.__slots__]
PARTS = [each for each in Tensor.__mro__[1:] if issubclass(each, TensorCore)]


def test_no_group_is_another() -> None:
    assert len(GROUPS) >= 8
    for group in GROUPS:
        assert [each for each in group.__mro__[1:] if each in GROUPS] == []
        assert issubclass(group, Operations)


def test_no_method_hides_another() -> None:
    # Tensor fills in what its groups declare; Differentiable extends what is not public.
    hooks = {name for name, each in vars(Tensor).items() if isinstance(each, FunctionType)}
    hooks |= {name for name in vars(Differentiable) if name.startswith("_")}
    seen: dict[str, str] = {}
    for part in PARTS:
        for name, each in vars(part).items():
            if isinstance(each, FunctionType | property | staticmethod) and name not in hooks:
                assert seen.setdefault(name, part.__name__) == part.__name__, name


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_called_tensors(name: str) -> None:
    found = getattr(Tensor, name)
    found = found.fget if isinstance(found, property) else found
    assert found.__qualname__ in (f"Tensor.{name}", f"Tensor.{found.__name__}")


def test_an_unknown_keyword_names_the_method_as_users_know_it() -> None:
    with pytest.raises(TypeError, match=r"^Tensor\.sum\(\) got an unexpected keyword"):
        Tensor([1.0]).sum(reduction="mean")
    with pytest.raises(TypeError, match=r"^Tensor\.conv2d\(\) "):
        Tensor([1.0]).conv2d(window=3)
