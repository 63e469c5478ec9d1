"""Damaged and malicious ONNX models end in one clear error, when they are loaded or run."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.compiler import onnx_cases
from ugpu.compiler.onnx import load
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError

onnx = pytest.importorskip("onnx")

NUMBERS = (0, -1, 1, 2, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
OPERATORS = ("Add", "MatMul", "Conv", "Reshape", "Gather", "If", "Loop", "Cast", "Concat", "Slice",
             "Pad", "TopK", "LSTM", "MaxPool", "Split", "Tile", "Resize", "OneHot")  # fmt: skip
SMALL = 3000  # bytes of a model
CASES = 60


def damaged(random: Random, model: Any) -> bytes:
    """Return a model with bytes, or parts of its graph, replaced, added or left out."""
    if random.random() < 0.25:
        data = bytearray(model.SerializeToString())
        place = random.randrange(len(data))
        data[place : place + random.randrange(4)] = random.randbytes(random.randrange(4))
        return bytes(data)
    for _ in range(random.randint(1, 3)):
        graph = model.graph
        node = random.choice(graph.node)
        way = random.randrange(6)
        if way == 0:
            node.op_type = random.choice(OPERATORS)
        elif way == 1:
            random.choice(graph.output).name = random.choice(("", "nothing", node.output[0]))
        elif way == 2:
            model.opset_import[0].version = random.choice((0, 1, 7, 9, 13, 18, 1 << 40))
        elif way == 3:
            _reconnect(random, node)
        elif node.attribute:
            _change(random, node, random.choice(node.attribute))
    return bytes(model.SerializeToString())


def _reconnect(random: Random, node: Any) -> None:
    if random.random() < 0.5 and node.input:
        node.input.pop()
    else:
        node.input.append(random.choice(("", "nothing", node.output[0], *node.input)))


def _change(random: Random, node: Any, attribute: Any) -> None:
    kind = onnx.AttributeProto
    if attribute.type == kind.INT:
        attribute.i = random.choice(NUMBERS)
    elif attribute.type == kind.INTS:
        attribute.ints.append(random.choice(NUMBERS))
    elif attribute.type == kind.FLOAT:
        attribute.f = random.choice((0.0, -1.0, float("nan"), float("inf")))
    elif attribute.type == kind.STRING:
        attribute.s = random.choice((b"", b"\xff", attribute.s[:-1], b"nothing"))
    elif attribute.type == kind.TENSOR:
        attribute.t.dims.append(random.choice(NUMBERS))
    else:
        node.attribute.remove(attribute)


def _run(path: Path, case: Any, cpu: Device) -> None:
    names = [each.name for each in case.model.graph.input]
    given = dict(zip(names, case.data_sets[0][0], strict=False))
    for found in load(path, device=cpu)(given).values():
        if hasattr(found, "numpy"):
            found.numpy()


def test_a_damaged_model_runs_or_is_refused(cpu: Device, tmp_path: Path) -> None:
    cases = onnx_cases.cases()
    names = [name for name in onnx_cases.expected() if cases[name].model.ByteSize() < SMALL]
    refused = 0
    for seed in range(CASES):
        random = Random(seed)
        case = cases[random.choice(names)]
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        path = tmp_path / "model.onnx"
        path.write_bytes(damaged(random, model))
        try:
            _run(path, case, cpu)
        except UgpuError as error:
            assert str(error)
            refused += 1
    assert refused > CASES // 4


@pytest.mark.parametrize("operator", ["Conv", "ReduceSum", "Split", "GRU", "Cast"])
def test_inputs_and_attributes_that_do_not_fit(operator: str, cpu: Device, tmp_path: Path) -> None:
    """The error names the node, or that a model of an old opset cannot be converted."""
    helper, proto = onnx.helper, onnx.TensorProto
    attributes: dict[str, Any] = {"Conv": {"strides": [1]}, "Split": {"axis": 9}}.get(operator, {})
    node = helper.make_node(operator, ["x", "x", "x"], ["y"], "this one", **attributes)
    ends = [helper.make_tensor_value_info(name, proto.FLOAT, None) for name in ("x", "y")]
    for version, expected in ((18, "this one"), (9, "cannot be converted|this one")):
        opset = [helper.make_opsetid("", version)]
        model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]),
                                  opset_imports=opset)  # fmt: skip
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(UgpuError, match=expected):
            load(path, device=cpu)(np.zeros((1, 1, 4, 4), np.float32))["y"].numpy()
