"""The campaigns of random programs, in a short form; they see, reduce and print a planted fault."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest

from lab.programs import complexes, recorded, tensors, torched
from lab.programs.__main__ import run
from lab.programs.judge import Array, Unjudged, promote
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.methods.shape.movement import Movement
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", poison=False)
TENSORS, RECORDED, COMPLEX = 25, 20, 15


@pytest.mark.slow
def test_programs_of_tensors(device: Device) -> None:
    said: list[str] = []
    assert run("tensors", device, 0, TENSORS, said.append) == 0, "\n".join(said)


@pytest.mark.slow
def test_recorded_programs(device: Device) -> None:
    said: list[str] = []
    assert run("recorded", device, 0, RECORDED, said.append) == 0, "\n".join(said)


@pytest.mark.slow
def test_programs_of_complex_tensors(device: Device) -> None:
    said: list[str] = []
    assert run("complex", device, 0, COMPLEX, said.append) == 0, "\n".join(said)


def test_an_assignment_that_changes_another_tensor_is_seen(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: z + 1 has z's own imaginary part. It is reduced to runnable code."""
    lines = ("v0 = xp.exp(z0)", "v1 = z0 + 0.5", "v1[0] = 0.5", "v3 = xp.sum(v1, axis=0)")
    failing = complexes.Program("complex64", (("z0", (4,)), ("x1", (4,))), 7, lines)
    assert complexes.difference(failing, device) is None

    def sharing(cls: Any, real: Any, imag: Any) -> Any:
        made = object.__new__(cls)
        made.real, made.imag = real, imag
        return made

    monkeypatch.setattr(ComplexTensor, "of", classmethod(sharing))
    fault = complexes.difference(failing, device)
    assert fault is not None and fault.startswith("plain, z0: 1 of 4 elements; at [0]: ")
    least = complexes.reduced(failing, device)
    assert least.lines == ("v1 = z0 + 0.5", "v1[0] = 0.5") and least.shapes == (("z0", (4,)),)
    monkeypatch.undo()
    env: dict[str, Any] = {}
    exec(least.text("cpu"), env)
    assert np.array_equal(env["z0"].numpy(), least.arrays()["z0"])


def test_programs_are_what_they_are_called() -> None:
    """They have many statements, and write in place; a seed always gives the same."""
    drawn = [tensors.program(seed) for seed in range(4)]
    assert drawn == [tensors.program(seed) for seed in range(4)]
    assert sum(len(each.lines) >= 5 for each in drawn) >= 3
    text = "\n".join(line for each in drawn for line in each.lines)
    assert "] = " in text or ".assign(" in text


def test_a_fault_is_reduced_to_runnable_code(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: flip along an axis does nothing."""
    monkeypatch.setattr(Movement, "flip", lambda self, *_: self._new(self.node))
    inputs = (tensors.Input("v0", "np.arange(6, dtype=np.int32).reshape(2, 3)", "int32"),
              tensors.Input("v1", "np.ones((2, 3), np.float32)", "float32"))  # fmt: skip
    lines = ("v2 = v1 * 2.0", "v3 = v0 + 1", "v4 = v3.flip(1)", "v5 = v4 + v2", "v6 = v0 * v0")
    failing = tensors.Program(inputs, lines)
    fault = tensors.difference(failing, device)
    assert fault is not None and fault.startswith("v5: ")
    least = tensors.reduced(failing, device)
    assert least.inputs == inputs[:1] and least.lines == ("v3 = v0 + 1", "v4 = v3.flip(1)")
    monkeypatch.undo()
    assert tensors.difference(failing, device) is None
    env: dict[str, Any] = {}
    exec(least.text("cpu"), env)
    assert env["v4"].tolist() == [[3, 2, 1], [6, 5, 4]]


@pytest.mark.skipif(not torched.INSTALLED, reason="PyTorch, the second judge, is not installed")
def test_pytorch_judges_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug of the compiler and of the first judge: neither flips. And the rules where
    PyTorch does otherwise."""
    lines = ("v2 = v0.flip(1) + v1", "v3 = v0[1, ::-1]", "v4 = v0.reshape(6) // v1.reshape(6)",
             "v5 = v1[::-1, 2:0:-1]", "v6 = v1.sum()", "v7 = v0[[0, 1], 2]")  # fmt: skip
    shaped = "np.arange(6, dtype=np.{}).reshape(2, 3)"
    inputs = (tensors.Input("v0", shaped.format("int8"), "int8"),
              tensors.Input("v1", shaped.format("uint16"), "uint16"))  # fmt: skip
    tried = tensors.Program(inputs, lines)
    assert tensors.difference(tried, device) is None and tensors.share(tried) == (8, 8)
    monkeypatch.setattr(Movement, "flip", lambda self, *_: self._new(self.node))
    monkeypatch.setattr(Array, "flip", lambda self, *_: self)
    fault = tensors.difference(tried, device)
    assert fault is not None and fault.startswith("v2: PyTorch: ")
    refused = tensors.Program(inputs, ("v2 = -(v0 > 0)", "v3 = v2.sum()", "v0[...] = -(v0 > 0)"))
    assert set(refused.by_torch()) == {"v1"}


def test_a_lost_assignment_is_seen(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a decorator that runs the function with copies."""
    tried = recorded.Program(
        ('c0 = Tensor(np.zeros(2, np.float32), dtype="float32")',
         'w = Tensor(np.ones(2, np.float32), dtype="float32")',
         'b = Tensor(np.ones(2, np.float32), dtype="float32")'),
        ('Tensor(np.ones(2, np.float32), dtype="float32")',) * 3,
        ("v0 = w * 2.0", "w.assign(w + x)", "c0[1:] = x[1:]"), ("v0", "x"), ((), (), ()),
    )  # fmt: skip
    assert recorded.difference(tried, device) is None

    def losing(step: Any) -> Any:
        return lambda x, p: step(x, {"w": p["w"] + 0, "b": [p["b"][0] + 0]})

    monkeypatch.setitem(recorded.WAYS, "@jit", losing)
    fault = recorded.difference(tried, device)
    assert fault is not None and fault.startswith("@jit, ")
    least = recorded.reduced(tried, device)
    assert least.body == ("w.assign(w + x)",) and len(least.feeds) == 1
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(least.text("cpu"), {})
    assert "w [2.0, 2.0]" in shown.getvalue()


def test_the_judge_knows_what_is_exact() -> None:
    halves = Array(np.array([0.5, 1.5, -2.0]), "float32")
    assert (halves * 3.0).sum(0).error == 0 and halves.cast("float16").error == 0
    third = halves / 3.0
    assert 0 < third.error < 1e-6 and (third + halves).error > third.error
    assert third.differs((halves.data / 3).astype(np.float32)) is None
    assert third.differs((halves.data / 3 + 1e-4).astype(np.float32)) is not None
    assert halves.differs(np.array([0.5, 1.5, -2.0])) is not None  # float64
    with pytest.raises(Unjudged):
        third.argmax(0)
    for kind in (
        "int16",
        "float32",
    ):  # a running total of a tensor without axes has none, as in PyTorch
        lone = Array(np.array(3, np.float64 if kind == "float32" else kind), kind)
        assert lone.cumsum(0).shape == lone.sum(0).shape == Tensor(3, dtype=kind).cumsum(0).shape
    for one, two in (("int8", "uint8"), ("float16", "bfloat16"), ("uint64", "int8")):
        found = Tensor.ones(1, dtype=one) + Tensor.ones(1, dtype=two)
        assert found.dtype.name == promote(one, two) == promote(two, one)
