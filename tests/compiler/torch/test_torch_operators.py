"""PyTorch's operators: how many of its core ones are in the table, and its own samples of them."""

from __future__ import annotations

from typing import Any

import pytest

from ugpu.hcq.device.device import Device

torch: Any = pytest.importorskip("torch", reason="the package torch is not installed")
SHARDS = 16
# Core operators that are not in the table, and why.
LEFT_OUT = {
    "aten._embedding_bag.default": "sums of rows by offsets",
    "aten._fft_c2r.default": "complex numbers",
    "aten._fft_r2c.default": "complex numbers",
    "aten._native_batch_norm_legit.default": "changes its arguments; graphs have another",
    "aten.resize_.default": "changes storage",
    "aten.sym_is_contiguous.default": "layout in memory",
    "aten.sym_storage_offset.default": "layout in memory",
    "aten.sym_stride.int": "layout in memory",
}  # fmt: skip
# Samples that differ for a reason.
EXPECTED: dict[str, str] = {}


def core_operators() -> list[Any]:
    """Return the operators that PyTorch marks as core."""
    names = {each.name.partition("::")[2] for each in torch._C._jit_get_all_schemas()
             if each.name.startswith("aten::")}  # fmt: skip
    found = []
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            if torch.Tag.core in operator.tags:
                found.append(operator)
    return found


def test_core_operators_are_in_the_table() -> None:
    from ugpu.compiler.torch.graph import FAMILIES
    from ugpu.compiler.torch.operators.registry import find

    assert FAMILIES  # they fill the table
    core = core_operators()
    missing = {str(each) for each in core if find(each) is None}
    assert missing <= set(LEFT_OUT)
    assert len(core) > 150


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_samples_of_pytorch(shard: int, cpu: Device) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's samples need it")
    from tests.support.compiler import torch_samples

    counts, problems = torch_samples.summary(torch_samples.operations()[shard::SHARDS], cpu)
    unexpected = [each for each in problems if each.partition(":")[0] not in EXPECTED]
    assert not unexpected, counts
    assert counts["ok"] > counts["missing"] / 2
