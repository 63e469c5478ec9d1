"""`ugpu explain`: a golden of what is shown, times, exit codes, and scripts that fail."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Golden
from tests.support.clocks import Quickening
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.front.explain import watch
from ugpu.compiler.runtime import runtime
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.runtime.watch import measure
from ugpu.tools import cli

SCRIPT = """
import sys
import numpy as np
from ugpu.compiler import Tensor

x = Tensor(np.ones((3, 4), np.float32))
print("sum", (x.softmax() * 2).sum().item(), sys.argv[1:])
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("UGPU_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return str(path)


def test_text(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--show", "graph,schedule,kernels,code", script, "one"]) == 0
    shown = capsys.readouterr().out
    assert "sum 6.0 ['one']" in shown
    assert "# job.py:7" in shown and "run 0 on cpu: 2 kernels" in shown
    assert "reduce" in shown and "define void @" in shown
    assert re.search(r": \d+ us\n|: \d+\.\d\d ms\n", shown)


def test_a_screen_first(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "measure", partial(measure, clock=Quickening()))
    assert cli.main(["explain", script]) == 0
    shown = capsys.readouterr().out.splitlines()
    head = next(place for place, line in enumerate(shown) if line.startswith("1 run on cpu: 2 "))
    assert "2 kernels, 2 launches" in shown[head]
    assert shown[head + 1].split()[:5] == ["share", "time", "launches", "GB/s", "GFLOP/s"]
    shares = [int(line.partition("%")[0]) for line in shown[head + 2 : head + 4]]
    assert 99 <= sum(shares) <= 101 and shares == sorted(shares, reverse=True)
    assert "first launches took" in "\n".join(shown) and len(shown) < 24
    assert "global float32" not in "\n".join(shown)
    assert cli.main(["explain", "--ir", script]) == 0
    assert "global float32" in capsys.readouterr().out


def test_of_many_kernels_the_longest_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "many.py"
    script.write_text(
        "from ugpu.compiler import Tensor\n"
        "for n in range(2, 20):\n    (Tensor([1.0] * n) * 2).realize()\n"
    )
    assert cli.main(["explain", str(script)]) == 0
    shown = capsys.readouterr().out
    assert "18 runs on cpu: 18 kernels" in shown and "and 6 kernels more: " in shown
    assert len(shown.splitlines()) < 24


def test_json_and_exit_codes(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--json", script, "fail"]) == 3
    result = json.loads(capsys.readouterr().out)
    (run,) = result["runs"]
    assert result["exit"] == 3 and len(run["kernels"]) == 2
    assert all(kernel["seconds"] > 0 for kernel in run["kernels"])
    assert sum(line["share"] for line in result["summary"]) == pytest.approx(1)
    assert cli.main(["explain", "/nowhere/x.py"]) == 2
    assert cli.main(["explain", "--show", "poetry", script]) == 2


@pytest.mark.golden
def test_golden(golden: Golden) -> None:
    with hcq.open("virtual:navi31") as device, watch() as runs:
        use_cache(device, None)
        x = Tensor(np.ones((64, 96), np.float32), device=device)
        rows = Tensor(np.arange(8), device=device)
        (x[rows] @ x.T).softmax().realize()
        x[1:, ::2] = 3
        x.realize()
    text = "\n".join(run.graph + "\n" + run.schedule for run in runs)
    golden.check("compiler/explain.txt", re.sub(r"(# \S+):\d+", r"\1:LINE", text))


@pytest.mark.golden
def test_golden_of_what_is_fused(golden: Golden) -> None:
    """Attention and layer norm one kernel each, mean and variance one with two results."""
    with hcq.open("virtual:navi31") as device, watch() as runs:
        use_cache(device, None)
        x = Tensor(np.ones((2, 32, 16), np.float32), device=device)
        scores = (x @ x.transpose(-1, -2)) * 0.25
        mixed = scores.softmax() @ x
        apart = mixed - mixed.mean(-1, keepdims=True)
        (apart / ((apart * apart).mean(-1, keepdims=True) + 1e-5).sqrt()).realize()
        x.mean(-1).realize(x.var(-1))
    text = "\n".join(run.graph + "\n" + run.schedule for run in runs)
    golden.check("compiler/explain_fused.txt", re.sub(r"(# \S+):\d+", r"\1:LINE", text))
