"""The package onnx's node tests of types that ugpu has, run on the host: a few always, all in
shards of the slow tier."""

from __future__ import annotations

import pytest

from tests.support.compiler import onnx_cases
from ugpu.hcq.device.device import Device

pytest.importorskip("onnx", reason="the extra onnx is not installed")
SHARDS = 24
# Cases that are not expected to pass, and why.
UNSUPPORTED = {
    **dict.fromkeys(
        ("test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple",
         "test_momentum", "test_momentum_multiple", "test_nesterov_momentum"),
        "training operators of a preview domain; see ugpu.optim",
    ),
    **dict.fromkeys(
        ("test_ai_onnx_ml_tree_ensemble_set_membership",
         "test_ai_onnx_ml_tree_ensemble_single_tree"),
        "decision trees",
    ),
    **dict.fromkeys(
        ("test_training_dropout", "test_training_dropout_default",
         "test_training_dropout_default_mask", "test_training_dropout_mask",
         "test_bernoulli_seed", "test_bernoulli_seed_expanded"),
        "a node's own seed: the expected values are of NumPy's generator",
    ),
    "test_roialign_mode_max": "regions by maximum",
    "test_scan_sum": "Scan of opset 8 works on batches",
}  # fmt: skip
PREFIXES = {
    "test_image_decoder": "pictures are decoded before a model runs",
    "test_basic_deform_conv": "deformable convolution",
    "test_deform_conv": "deformable convolution",
}
# One case of each family, for the quick tier.
QUICK = (
    "test_add_bcast", "test_cast_FLOAT_to_FLOAT16", "test_cast_FLOAT_to_FLOAT8E4M3FN",
    "test_conv_with_strides_padding",
    "test_gather_elements_negative_indices", "test_if", "test_layer_normalization_2d_axis1",
    "test_loop11", "test_maxpool_2d_ceil", "test_nonzero_example", "test_quantizelinear_axis",
    "test_reduce_mean_keepdims_random", "test_reshape_zero_dim", "test_scan9_sum",
    "test_scatternd_add", "test_slice_neg_steps", "test_top_k_smallest",
)  # fmt: skip


def reason(name: str) -> str:
    """Return why a case is not expected to pass, "" if it is."""
    prefixed = (why for start, why in PREFIXES.items() if name.startswith(start))
    return UNSUPPORTED.get(name) or next(prefixed, "")


@pytest.mark.parametrize("name", QUICK)
def test_operators(name: str, cpu: Device) -> None:
    case = onnx_cases.cases().get(name)
    if case is None:
        pytest.skip("this version of onnx has no such case")
    assert onnx_cases.differences(case, cpu) == ""


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_node_tests(shard: int, cpu: Device) -> None:
    names = [name for name in sorted(onnx_cases.cases()) if not reason(name)][shard::SHARDS]
    problems = {}
    for name in names:
        try:
            problem = onnx_cases.differences(onnx_cases.cases()[name], cpu)
        except Exception as error:  # each case is reported
            problem = f"{type(error).__name__}: {error}"
        if problem:
            problems[name] = problem
    assert not problems
