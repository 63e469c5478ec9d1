"""The package onnx's node tests of types that ugpu has, run on the host: a few always, all in
shards of the slow tier."""

from __future__ import annotations

import pytest

from tests.support.compiler import onnx_cases
from ugpu.hcq.device.device import Device

pytest.importorskip("onnx", reason="the extra onnx is not installed")
SHARDS = 24
# One case of each family, for the quick tier.
QUICK = (
    "test_add_bcast", "test_cast_FLOAT_to_FLOAT16", "test_cast_FLOAT_to_FLOAT8E4M3FN",
    "test_conv_with_strides_padding",
    "test_gather_elements_negative_indices", "test_if", "test_layer_normalization_2d_axis1",
    "test_loop11", "test_maxpool_2d_ceil", "test_nonzero_example", "test_quantizelinear_axis",
    "test_reduce_mean_keepdims_random", "test_reshape_zero_dim", "test_scan9_sum",
    "test_scatternd_add", "test_slice_neg_steps", "test_top_k_smallest",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_operators(name: str, cpu: Device) -> None:
    case = onnx_cases.cases().get(name)
    if case is None:
        pytest.skip("this version of onnx has no such case")
    assert onnx_cases.differences(case, cpu) == ""


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_node_tests(shard: int, cpu: Device) -> None:
    names = onnx_cases.expected()[shard::SHARDS]
    assert onnx_cases.problems(names, cpu) == {}
