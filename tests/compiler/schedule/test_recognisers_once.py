"""What a kernel is, is recognised once: the passes after the schedule share the answer."""

import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import GFX1100, HOST
from ugpu.compiler import Tensor
from ugpu.compiler.expression.value import interning
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.plan.attention import share_out
from ugpu.compiler.plan.packing import computation_of, packed
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, ptx_target

TARGETS = HOST, GFX1100, ptx_target("sm_90a", compute_units=132)
# functions that recognise, by module, with the name of what they are given
RECOGNISERS = {
    ("pattern/online.py", "find_online"): "computation",
    ("pattern/chain.py", "find_chain"): "computation",
    ("pattern/contraction.py", "find_contraction"): "computation",
    ("host/windows.py", "find_window"): "computation",
    ("host/turned.py", "find_turned"): "computation",
    ("products/dots.py", "find_dots"): "computation",
    ("schedule/express.py", "express"): "group",
}


def works(device: Device) -> list[Tensor]:
    """An attention of few rows, a row chain, products, a convolution, a transposed sum."""

    def numbers(*shape: int, dtype: str = "float32") -> Tensor:
        return Tensor(np.zeros(shape, np.float32), device=device).cast(dtype).realize()

    query, key = numbers(2, 1, 64), numbers(2, 1024, 64)
    left, right = numbers(256, 512, dtype="bfloat16"), numbers(512, 384, dtype="bfloat16")
    return [
        (query @ key.transpose(1, 2)).softmax(-1) @ key,
        numbers(300, 500).softmax(1),
        (left @ right).relu(),
        numbers(1, 8, 40, 40).conv2d(numbers(8, 1, 3, 3), groups=8),
        numbers(300, 400).T + numbers(400, 300),
    ]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_each_computation_is_recognised_once(cpu: Device, target: TargetSpec) -> None:
    runs: Counter[tuple[str, object]] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        for (module, name), given in RECOGNISERS.items() if event == "call" else ():
            if frame.f_code.co_name == name and frame.f_code.co_filename.endswith(module):
                values = frame.f_locals
                runs[name, (values[given], values.get("joint"), values.get("target"))] += 1

    for work in works(cpu):
        with interning:
            groups = schedule([work.node])
        sys.setprofile(see)
        try:
            for group in packed(share_out(groups, target), target):
                with interning:
                    for space in spaces(computation_of(group), target):
                        lower(computation_of(group), target, space.start)
                    lower(computation_of(group), target)
        finally:
            sys.setprofile(None)
    assert {name for name, _ in runs} >= {"express", "find_online", "find_chain"}
    assert [key for key, count in runs.items() if count > 1] == []
