"""`import ugpu` offers what users need, and loads it on first use."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest

import ugpu
import ugpu.ir
from ugpu import compiler, hcq


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


def test_objects_show_what_they_are() -> None:
    out, x = (ugpu.ir.Memory(name, ugpu.dtypes.float32, 16) for name in ("out", "x"))
    at = ugpu.ir.group_range(0, 16).index()
    body = (ugpu.ir.Store(out, at, ugpu.ir.load(x, at)),)
    source = ugpu.ir.Kernel("copy_16", (out, x), (), grid=(16, 1, 1), block=1, body=body)
    assert repr(source) == "<Kernel copy_16(out, x), grid (16, 1, 1), block 1>"

    @ugpu.jit
    def step(x: ugpu.Tensor) -> ugpu.Tensor:
        return x * 2

    with ugpu.open("cpu", threads=1) as device:
        assert repr(device) == "<Device cpu cpu open>"
        assert repr(device.alloc(64)[:32]).endswith("device>") and "32 bytes" in repr(
            device.alloc(32)
        )
        program, queue, graph = device.compile(source), device.queue(), device.capture()
        assert repr(program) == "<Program on cpu: copy_16>"
        assert repr(program["copy_16"]).startswith("<Kernel copy_16 at 0x")
        assert repr(queue) == "<Queue cpu compute of cpu: 0 recorded>"
        assert repr(graph) == "<Graph on cpu: 0 queues, 0 words, empty>"
        graph.close()
        tensor = ugpu.Tensor([1.0, 2.0], device=device)
        assert repr(tensor) == "<Tensor float32[2] on cpu: [1., 2.]>"
        assert repr(tensor + 1) == "<Tensor float32[2] on cpu, pending: float32[2] + 1.0>"
        assert repr(step).endswith("step: not recorded>")
        for _ in range(4):
            step(tensor)
        assert repr(step).endswith("step: recorded, 1 kernels>")
        program.close()
        assert repr(program) == "<Program on cpu: copy_16, closed>"
    assert repr(device) == "<Device cpu cpu closed>"
