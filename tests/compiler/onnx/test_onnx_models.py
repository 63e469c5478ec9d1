"""ONNX models as a whole: inputs, control flow, functions, jit, and files that are no models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit
from ugpu.compiler.onnx import Model, load
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
device = device_fixture("cpu", "virtual:navi31", poison=False)
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
helper = onnx.helper


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any],
    opset: int = 17, functions: list[Any] | None = None, extra: list[Any] | None = None,
) -> Any:  # fmt: skip
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(extra or [])]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(kind, inputs, outputs, **attributes)


def network() -> Any:
    """x [batch, 3] -> y [batch, 2], with the shape computed by the graph."""
    random = np.random.default_rng(1)
    return model(
        [
            node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]),
            node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Concat", ["n", "two"], ["t"], axis=0), node("Reshape", ["r", "t"], ["y"]),
        ],
        {"x": (FLOAT, ["batch", 3])}, {"y": (FLOAT, None)},
        {"w": random.standard_normal((3, 2)).astype(np.float32), "zero": np.array([0]),
         "two": np.array([2])},
    )  # fmt: skip


def test_a_model_takes_inputs_by_place_and_name(device: Device, tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    own = load(tmp_path / "m.onnx", device=device)
    assert (own.inputs, own.outputs) == (["x"], ["y"])
    assert own.input_types == {"x": ("float32", ["batch", 3])}
    x = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    w = onnx.numpy_helper.to_array(network().graph.initializer[0])
    for result in (own(x), own(x=x), own({"x": Tensor(x, device=device)})):
        assert np.allclose(result["y"].numpy(), np.maximum(x @ w, 0), atol=1e-5)
    with pytest.raises(BadArgument, match="did you mean x"):
        own(xx=x)
    with pytest.raises(BadArgument, match=r"missing: \['x'\]"):
        own()


def test_a_model_is_recorded_by_jit(device: Device) -> None:
    own = Model(network(), device)
    w = onnx.numpy_helper.to_array(network().graph.initializer[0])
    step = jit(lambda x: own(x)["y"])
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
        found = step(Tensor(x, device=device)).numpy()
        assert np.allclose(found, np.maximum(x @ w, 0), atol=1e-5)


def test_control_flow_sees_the_names_around_it(device: Device) -> None:
    body = helper.make_graph(
        [node("Add", ["sum", "step"], ["next"]), node("Identity", ["next"], ["row"]),
         node("Less", ["next", "limit"], ["again"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []),
         helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
         helper.make_tensor_value_info("sum", FLOAT, [])],
        [helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, []),
         helper.make_tensor_value_info("next", FLOAT, []),
         helper.make_tensor_value_info("row", FLOAT, [])],
    )  # fmt: skip
    looped = model(
        [node("Loop", ["", "", "start"], ["last", "rows"], body=body)],
        {"start": (FLOAT, []), "step": (FLOAT, []), "limit": (FLOAT, [])},
        {"last": (FLOAT, []), "rows": (FLOAT, [None])}, {},
    )  # fmt: skip
    result = Model(looped, device)(start=np.float32(0), step=np.float32(1), limit=np.float32(3))
    assert result["last"].item() == 3
    assert result["rows"].tolist() == [1, 2, 3]


def test_functions_of_the_model(device: Device) -> None:
    scaled = helper.make_function(
        "own", "Scaled", ["x"], ["y"],
        [node("Constant", [], ["c"], value_float=2.0), node("Mul", ["x", "c"], ["y"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    proto = model(
        [node("Scaled", ["x"], ["y"], domain="own")], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, {},
        functions=[scaled], extra=[helper.make_opsetid("own", 1)],
    )  # fmt: skip
    assert Model(proto, device)(np.ones(2, np.float32))["y"].tolist() == [2, 2]


def test_all_missing_operators_are_named_before_anything_runs(device: Device) -> None:
    proto = model(
        [node("DeformConv", ["x", "x", "x"], ["a"]), node("Wonder", ["a"], ["y"], domain="odd")],
        {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}, {}, extra=[helper.make_opsetid("odd", 1)],
    )  # fmt: skip
    with pytest.raises(NotSupported, match=r"not supported: DeformConv, odd\.Wonder"):
        Model(proto, device)


def test_old_models_are_converted(device: Device) -> None:
    proto = model(
        [node("Squeeze", ["x"], ["y"], axes=[0])], {"x": (FLOAT, [1, 2])}, {"y": (FLOAT, [2])}, {},
        opset=11,
    )  # fmt: skip
    own = Model(proto, device)
    assert own.opset == 17
    assert own(np.ones((1, 2), np.float32))["y"].tolist() == [1, 1]


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x07" + b"\xff" * 40, bytes(99)])
def test_files_that_are_no_models(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(BadFile):
        ugpu.onnx.load(tmp_path / "m.onnx")


def test_a_graph_that_uses_what_nothing_computes(device: Device) -> None:
    proto = model([node("Relu", ["z"], ["y"])], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}, {})
    with pytest.raises(BadFile, match="'z', which no node computes"):
        Model(proto, device)(np.ones(1, np.float32))


def test_an_error_names_its_node(device: Device) -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"], name="sum")], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])},
        {"w": np.ones(3, np.float32)},
    )  # fmt: skip
    with pytest.raises(BadArgument, match=r"operator=Add") as caught:
        Model(proto, device)(np.ones(2, np.float32))
    assert caught.value.facts["node"] == "sum"
