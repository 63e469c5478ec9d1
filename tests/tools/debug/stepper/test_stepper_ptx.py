"""`ugpu debug` on a virtual NVIDIA GPU: PTX, and kernels of our compiler."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.nvidia.sm.sm_run import HEAD, body
from tests.support.service.debugged import Debug

DEVICE = ("--device", "virtual:ga102")
PTX = HEAD.format(target="sm_86") + body(1, """
mul.wide.u32 %at, %t, 4;
add.u64 %at, %at, %rd0;
mul.lo.u32 %r1, %t, 3;
cvt.rn.f32.u32 %f1, %r1;
setp.gt.u32 %p1, %t, 70;
bar.sync 0;
st.global.b32 [%at], %r1;
""")  # fmt: skip
LAUNCH = """
import sys
from pathlib import Path
import numpy as np
import ugpu

with ugpu.open() as gpu:
    program = gpu.load(Path(sys.argv[1]).read_bytes())
    out = gpu.alloc(256)
    out.fill(0)
    gpu.synchronize()
    print("at", hex(out.address))
    with gpu.queue() as queue:
        queue.launch(program["k"], grid=(1,), block=(64,), args=(out,))
    gpu.synchronize()
    print("result", out.numpy(np.uint32).tolist())
"""
TENSORS = """
import numpy as np
from ugpu.compiler import Tensor

x = Tensor(np.arange(64, dtype=np.float32))
print("result", (x * 2 + 1).numpy().tolist())
"""
BARRIER = 1 + next(n for n, line in enumerate(PTX.splitlines()) if "bar.sync" in line)
TRIPLES = [3 * n for n in range(64)]


@pytest.fixture
def debug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Debug:
    return Debug(tmp_path, capsys)


def result_of(shown: str) -> list[float]:
    found: list[float] = json.loads(shown.partition("result ")[2].partition("\n")[0])
    return found


def test_lines_registers_and_warps_of_ptx(debug: Debug) -> None:
    code, shown = debug(
        LAUNCH,
        f"break k.ptx:{BARRIER}\nrun\nprint %r1[5]\nprint /f %f1[5]\nprint %rd0\nstepi\n"
        "info waves\nwave 0\nprint %r1[5]\nset %r1[6] = 0x77\ndelete 1\ndisassemble\nlist\n"
        "continue\n",
        PTX.encode(), *DEVICE,
    )  # fmt: skip
    assert code == 0
    assert "group (0, 0, 0) wave 0 exec 0xffffffff" in shown
    assert f"k.ptx:{BARRIER}" in shown and "bar.sync 0;" in shown
    assert "%r1[5] = 0xf\n" in shown and "%f1[5] = 15\n" in shown and "%rd0 = 0x" in shown
    # The next instruction is another warp's, which has come up to the breakpoint in one step.
    assert re.search(r"step\nk\+0x0 group \(0, 0, 0\) wave 1", shown)
    assert re.search(r"0 +waits at a barrier +k\+0x", shown)
    expected = list(TRIPLES)
    expected[6] = 0x77
    assert result_of(shown) == expected


def test_a_watch_names_the_instruction_that_stored(debug: Debug) -> None:
    _, shown = debug(LAUNCH, "detach\n", PTX.encode(), *DEVICE)
    address = int(shown.partition("at ")[2].split()[0], 16)  # the same in each run
    code, shown = debug(
        LAUNCH, f"break k\nrun\ndelete 1\nwatch {address + 12:#x}\ncontinue\ncontinue\n",
        PTX.encode(), *DEVICE,
    )  # fmt: skip
    assert code == 0 and result_of(shown) == TRIPLES
    found = re.findall(r"watch 2: (0x[0-9a-f]+) 0x00000000 -> 0x00000009 by k\+0x", shown)
    assert [int(one, 16) for one in found] == [address + 12]


def test_lines_of_kernel_ir(debug: Debug) -> None:
    code, shown = debug(
        TENSORS, "break mul_add_*\nrun\nlist\nbreak 6\ncontinue\nstep\ncontinue\n", b"", *DEVICE
    )
    assert code == 0 and result_of(shown) == [float(2 * n + 1) for n in range(64)]
    assert re.search(r"kernel-ir:\d+  out\[", shown)
    assert re.search(r"\nkernel-ir:6  ", shown.partition("breakpoint 2: 6\n")[2])


def test_quitting_ends_the_program(debug: Debug) -> None:
    code, shown = debug(LAUNCH, "break k\nrun\nquit\n", PTX.encode(), *DEVICE)
    assert code == 0 and "result" not in shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("print v0", "expected a register such as %"),
        ("print %rd0[1]", "expected a register"),
        ("print /f %p1", "expected a register of 16, 32 or 64 bits, %p1 has 1"),
        ("wave 1\nprint %t", "expected a warp that has begun, got 1"),
        ("x 0x10", "0x10 is not mapped for reading"),
    ],
)
def test_a_wrong_command_at_a_halt_ends_the_program(debug: Debug, command: str, said: str) -> None:
    code, shown = debug(LAUNCH, f"break k\nrun\n{command}\n", PTX.encode(), *DEVICE)
    assert code == 2 and said in shown and "result" not in shown
