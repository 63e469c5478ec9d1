"""`ugpu debug` on a virtual Adreno: kernels of our compiler, by instruction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.adreno.mesa import needs_mesa
from tests.support.service.debugged import Debug

pytestmark = needs_mesa
RESULTS = [float(2 * n + 1) for n in range(64)]
SCRIPT = """
import numpy as np
import ugpu

with ugpu.open() as gpu:
    x = ugpu.Tensor(np.arange(64, dtype=np.float32), device=gpu)
    print("result", (x * 2 + 1).numpy().tolist())
"""


@pytest.fixture
def debug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Debug:
    return Debug(tmp_path, capsys)


def result_of(shown: str) -> list[float]:
    found: list[float] = json.loads(shown.partition("result ")[2].partition("\n")[0])
    return found


@pytest.mark.parametrize("device", ["virtual:a630", "virtual:a740+msm"])
def test_a_kernel_is_followed_by_instruction(debug: Debug, device: str) -> None:
    code, shown = debug(
        SCRIPT,
        "break mul_add_*\nrun\nprint r0.x\nprint c0.x\nprint p0.x\nstepi 3\nwhere\ninfo waves\n"
        "disassemble\ninfo registers\ndelete 1\ncontinue\n",
        b"", "--device", device,
    )  # fmt: skip
    assert code == 0 and result_of(shown) == RESULTS, shown
    assert re.search(r"breakpoint 1: mul_add_\*\nmul_add_\w+\+0x0 group \(0, 0, 0\) wave 0", shown)
    assert "r0.x =\n  [ 0]" in shown and "c0.x = 0x" in shown and "p0.x = 0x" in shown
    assert re.search(r"step\nmul_add_\w+\+0x[0-9a-f]+ group", shown)
    assert re.search(r"\* +0 +halted", shown) and "stg.a.u32 g[" in shown


def test_a_register_that_is_set_changes_the_result(debug: Debug) -> None:
    _, shown = debug(SCRIPT, "break mul_add_*\nrun\nstepi 6\ndisassemble\ndetach\n", b"",
                     "--device", "virtual:a630")  # fmt: skip
    stores = [line for line in shown.splitlines() if "stg." in line]
    offset = re.search(r"\+(0x[0-9a-f]+)", stores[0])
    stored = re.search(r"stg\.\S+ \S+ (r\d+\.[xyzw])", stores[0])
    assert offset is not None and stored is not None, stores
    code, shown = debug(
        SCRIPT, f"break mul_add_*+{offset[1]}\nrun\nset {stored[1]}[2] = 0x40000000\ndetach\n",
        b"", "--device", "virtual:a630",
    )  # fmt: skip
    found = result_of(shown)
    assert code == 0 and found.count(2.0) == 1
    assert [a for a, b in zip(found, RESULTS, strict=True) if a != b] == [2.0]


def test_quitting_ends_the_program(debug: Debug) -> None:
    code, shown = debug(SCRIPT, "break mul_add_*\nrun\nquit\n", b"", "--device", "virtual:a630")
    assert code == 0 and "result" not in shown
