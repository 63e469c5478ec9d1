"""`ugpu debug`: commands from files, on the virtual Navi31."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.kernels import compile_ir
from tests.support.service.debugged import Debug
from tests.virtual.amd.isa.test_stepped_core import EXCHANGE
from ugpu.hcq.errors import UsageError
from ugpu.tools.debug.stepper.places import Known, Row, breakpoint_at

EXCHANGING = """
import sys
from pathlib import Path
import numpy as np
import ugpu

with ugpu.open() as gpu:
    program = gpu.load(Path(sys.argv[1]).read_bytes())
    out = gpu.alloc(256)
    out.fill(0)
    with gpu.queue() as queue:
        queue.launch(program["k"], grid=(1,), block=(64,), args=(out, out, out, np.uint32(0)))
    gpu.synchronize()
    print("result", out.numpy(np.uint32).tolist())
"""
ENDLESS = """
import signal
import sys
from pathlib import Path
import ugpu

with ugpu.open() as gpu:
    program = gpu.load(Path(sys.argv[1]).read_bytes())
    out = gpu.alloc(4096)
    out.fill(0)
    gpu.synchronize()
    with gpu.queue() as queue:
        queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
    signal.raise_signal(signal.SIGINT)
    gpu.synchronize(limit_s=0.02)
    print("the kernel ended")
"""
TENSORS = """
import numpy as np
from ugpu.compiler import Tensor

x = Tensor(np.arange(64, dtype=np.float32))
print("result", (x * 2 + 1).numpy().tolist())
"""


@pytest.fixture
def debug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Debug:
    return Debug(tmp_path, capsys)


def exchange() -> bytes:
    ir = 'target triple = "amdgcn-amd-amdhsa"\n' + EXCHANGE
    return compile_ir(ir, "amdgcn-amd-amdhsa", "gfx1100")


def expected() -> list[int]:
    return [3 * (63 - n) for n in range(64)]


def test_a_wave_is_followed_across_a_barrier(debug: Debug) -> None:
    code, shown = debug(
        EXCHANGING,
        "break k\nrun\nprint v0[5]\nprint $exec\nfinish\ninfo waves\nprint v0[5]\nwave 0\n"
        "print v0[5]\nx shared\ndelete 1\ncontinue\n",
        exchange(),
    )
    assert code == 0 and f"result {expected()}" in shown
    assert "breakpoint 1: k\nk+0x0 group (0, 0, 0) wave 0 exec 0xffffffff" in shown
    assert "v0[5] = 0x5\n" in shown and "$exec = 0xffffffff" in shown
    # `finish` reaches the barrier; wave 1 begins, whose lane 5 is thread 37, and halts there too.
    assert re.search(r"step\nk\+0x0 group \(0, 0, 0\) wave 1", shown)
    assert re.search(r"0 +waits at a barrier +k\+0x", shown)
    assert re.search(r"\* +1 +halted", shown)
    assert "v0[5] = 0x25\n" in shown and "v0[5] = 0xf\n" in shown  # what wave 0 stored
    assert "0x0  00000000 00000003 00000006 00000009" in shown  # of wave 0; wave 1 has not stored
    assert "0x80  00000000" in shown


def test_a_breakpoint_without_a_place_is_told_at_the_end(debug: Debug) -> None:
    code, shown = debug(EXCHANGING, "break ghost\nbreak k\nrun\ndelete 2\ncontinue\n", exchange())
    assert code == 0 and "breakpoint 1 (ghost) had no place in the kernels that ran: k" in shown
    assert "breakpoint 2 (k)" not in shown
    code, shown = debug(EXCHANGING, "break ghost\nrun\n", exchange())
    assert code == 0 and f"result {expected()}" in shown
    assert "breakpoint 1 (ghost) had no place in the kernels that ran: k" in shown


def test_a_register_that_is_set_changes_the_result(debug: Debug) -> None:
    code, shown = debug(EXCHANGING, "break k\nrun\nset v0[1] = 0\ndetach\n", exchange())
    wanted = expected()
    wanted[1] = 0  # thread 1 does what thread 0 does; what thread 62 reads is not stored
    result = json.loads(shown.partition("result ")[2].partition("\n")[0])
    assert code == 0 and result[:62] == wanted[:62]


def test_a_watch_names_the_instruction_that_stored(debug: Debug) -> None:
    script = EXCHANGING.replace("    with gpu.queue", "    print('at', hex(out.address))\n"
                            "    with gpu.queue")  # fmt: skip
    _, shown = debug(script, "detach\n", exchange())
    address = int(shown.partition("at ")[2].split()[0], 16)  # the same in each run
    code, shown = debug(
        script, f"break k\nrun\ndelete 1\nwatch {address + 12:#x}\ncontinue\ncontinue\n", exchange()
    )
    assert code == 0 and f"result {expected()}" in shown
    found = re.search(r"watch 2: (0x[0-9a-f]+) (0x[0-9a-f]+) -> 0x000000b4 by (k\+0x[0-9a-f]+)",
                      shown)  # fmt: skip
    assert found is not None and int(found[1], 16) == address + 12
    assert shown.count("-> 0x000000b4") == 1


def test_lines_of_kernel_ir(debug: Debug) -> None:
    pytest.importorskip("elftools")
    code, shown = debug(
        TENSORS, "break mul_add_*\nrun\nlist\nbreak 6\ncontinue\nprint /f v1\nstep\n"
    )
    assert code == 0 and f"result {[float(2 * n + 1) for n in range(64)]}" in shown
    assert re.search(r"kernel-ir:\d+  out\[thread\*2\] = ", shown)
    assert re.search(r"\nkernel-ir:\d+  out", shown.partition("breakpoint 2: 6\n")[2])


def test_ctrl_c_halts_an_endless_kernel(debug: Debug) -> None:
    code, shown = debug(
        ENDLESS, "run\ninfo waves\nstepi 40\nwhere\nprint s0\nquit\n", faulty_object()
    )
    assert code == 0 and "the kernel ended" not in shown
    assert "interrupted\nforever+0x0 group (0, 0, 0) wave 0" in shown
    assert re.search(r"step\nforever\+0x", shown)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jump 3", "expected one of break, "),
        ("stepi", "no wave is halted"),
        ("break 7", "expected KERNEL:LINE while no kernel runs, got '7'"),
        ("break 0xzz", "expected an address such as"),
        ("break a b", "expected KERNEL, KERNEL+OFFSET"),
        ("delete 9", "expected the number of a breakpoint or watch, got 9"),
        ("info", "expected info registers"),
        ("watch here", "expected a number, got 'here'"),
        ("watch 0x10 0", "expected 1 to 4096 bytes, got 0"),
    ],
)
def test_a_wrong_command_ends_the_session(debug: Debug, command: str, said: str) -> None:
    code, shown = debug("raise SystemExit(7)", f"# a comment\n\n{command}\nrun\n")
    assert code == 2 and said in shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("print v900", "expected a register such as s0 or v0[3], got 'v900'"),
        ("print s0[1]", "expected a register"),
        ("set v0[40] = 1", "expected REGISTER = NUMBER"),
        ("x 0x10", "0x10 is not mapped for reading"),
        ("wave 5", "expected a wave of the group"),
        ("list", "expected line tables, k has none"),
        ("stepi 0", "expected a number of steps"),
    ],
)
def test_a_wrong_command_at_a_halt_ends_the_program(debug: Debug, command: str, said: str) -> None:
    code, shown = debug(EXCHANGING, f"break k\nrun\n{command}\n", exchange())
    assert code == 2 and said in shown and "result" not in shown


@pytest.mark.parametrize("device", ["cpu", "pci:0000:03:00.0", "nvrm:0", "kgsl:0"])
def test_other_devices_are_refused(debug: Debug, device: str) -> None:
    code, shown = debug("import ugpu\nugpu.open()\n", "run\n", b"", "--device", device)
    assert code == 1
    assert f"NotSupported: {device} does not support breakpoints" in shown


def test_json(debug: Debug) -> None:
    code, shown = debug(EXCHANGING, "tbreak k+0x0\nrun\n", exchange(), "--json")
    assert code == 0
    found = json.loads(shown[shown.index("{") : shown.rindex("}") + 1])
    (halt,) = found["halts"]
    assert (found["exit"], halt["kernel"], halt["offset"], halt["group"]) == (0, "k", 0, [0, 0, 0])
    assert halt["reasons"] == ["breakpoint 1: k+0x0"]


def test_breakpoints_by_line_mean_the_first_instruction_of_each_run() -> None:
    rows = [Row(0, 8, "a/job.hip", 3), Row(8, 12, "a/job.hip", 3), Row(12, 16, "a/job.hip", 4),
            Row(16, 20, "a/job.hip", 3)]  # fmt: skip
    known = Known("k", 0, dict.fromkeys(range(0, 20, 4), ""), rows)
    assert breakpoint_at(1, "3", "k").addresses(known) == {0, 16}
    assert breakpoint_at(1, "job.hip:4", "").addresses(known) == {12}
    assert breakpoint_at(1, "k:3", "other").addresses(known) == {0, 16}
    assert breakpoint_at(1, "other:3", "k").addresses(known) == set()
    assert breakpoint_at(1, "k+0x4", "").addresses(known) == {4}
    assert breakpoint_at(1, "0x8", "").addresses(known) == {8}
    assert breakpoint_at(1, "k+0x5", "").addresses(known) == set()
    with pytest.raises(UsageError, match="expected KERNEL"):
        breakpoint_at(1, "+3", "")
