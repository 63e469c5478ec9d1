"""Every public name of torch.Tensor and numpy.ndarray is one of Tensor's, or its absence says what
to write instead. The lists are those of the installed packages."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.methods.derived.instead import INSTEAD, PLAIN


@pytest.mark.parametrize(("module", "kind"), [("torch", "Tensor"), ("numpy", "ndarray")])
def test_every_name_exists_or_says_what_to_write(module: str, kind: str) -> None:
    theirs = getattr(pytest.importorskip(module, reason=f"{module} is not installed"), kind)
    x = Tensor(np.ones((2, 2), np.float32))
    silent = []
    for name in dir(theirs):
        if name.startswith("_") or hasattr(Tensor, name):
            continue
        with pytest.raises(AttributeError) as raised:
            getattr(x, name)
        if not str(raised.value).startswith(f"Tensor has no {name!r}: "):
            silent.append(name)
    assert not silent


def test_texts_name_what_exists() -> None:
    assert not [name for name in INSTEAD if hasattr(Tensor, name)]
    linalg = importlib.import_module("ugpu.compiler.numeric.linalg")
    for name, text in INSTEAD.items():
        if text.startswith("write ugpu.linalg."):
            function = text.removeprefix("write ugpu.linalg.").split("(")[0].format(name=name)
            assert hasattr(linalg, function), name
    assert all(hasattr(Tensor, plain) for plain in PLAIN.values())


@pytest.mark.parametrize(("name", "text"), [
    ("add_", r"x = x\.add\(\.\.\.\)"), ("fill_", r"x\[\.\.\.\] = value"),
    ("digamma_", r"scipy\.special\.digamma"), ("svd", r"ugpu\.linalg\.svd"),
    ("values", "indices=True"), ("unsafe_chunk", r"x\.chunk"),
])  # fmt: skip
def test_texts(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(Tensor([1.0]), name)


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: x.sum(out=x), r"'out'.*write out\[\.\.\.\] = x\.sum\("),
    (lambda x: x.sum(initial=1.0), r"x\.sum\(\) \+ initial"),
    (lambda x: x.std(dtype="float16"), r"x\.cast\(dtype\)\.std\("),
    (lambda x: x.reshape(4, order="F"), r"x\.T\.reshape\("),
    (lambda x: x.transpose(1, 0, 2), r"fewer arguments.*x\.permute\(axes\)"),
    (lambda x: x.repeat(2, axis=0), r"x\.repeat_interleave\("),
    (lambda x: x.new_ones(2, device="cpu"), r"x\.new_ones\(\.\.\.\)\.to\(device\)"),
    (lambda x: x.relu(1), r"write x\.relu\(\)"),
    (lambda x: x.softmax(0, nothing=1), r"'nothing': write x\.softmax\(axis"),
])  # fmt: skip
def test_arguments_of_the_peers_say_what_to_write(call: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call(Tensor(np.ones((2, 2), np.float32)))


@pytest.mark.parametrize("call", [
    lambda x: x.copy(order="C"), lambda x: x.sum(out=None), lambda x: x.sum(where=True),
    lambda x: x.astype(np.float32, copy=False), lambda x: x.argsort(kind="stable"),
    lambda x: x.flatten(order="K"), lambda x: x.max(out=None), lambda x: x.diagonal(),
    lambda x: x.diagonal(axis1=1, axis2=0), lambda x: x[0].trace(offset=1),
    lambda x: x.view(np.int32), lambda x: divmod(x, 3)[1], lambda x: divmod(7, x)[0],
    lambda x: np.asarray([2 in x, 9 in x]),
])  # fmt: skip
def test_calls_of_numpy_are_accepted(call: Any) -> None:
    array = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)
    if "argsort" in call.__code__.co_names:
        array = array[0, 0]
    assert np.array_equal(np.asarray(call(Tensor(array))), call(array))


def test_an_unknown_name_is_an_ordinary_error() -> None:
    for name in ("nothing", "nothing_", "_nothing", "__array_interface__"):
        with pytest.raises(AttributeError, match=f"'Tensor' object has no attribute '{name}'$"):
            getattr(Tensor([1.0]), name)


def test_size_is_a_number_and_a_method() -> None:
    x = Tensor(np.ones((2, 3), np.float32))
    assert x.size == 6 and x.size() == (2, 3) and x.size(-1) == x.size(dim=1) == 3
    assert (x * x.size).numpy().tolist() == [[6.0] * 3] * 2
