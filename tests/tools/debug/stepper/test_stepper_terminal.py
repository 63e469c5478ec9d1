"""The console of `ugpu debug`, typed into on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.nvidia.sm.sm_run import HEAD, body
from tests.support.service.terminal import Terminal
from tests.tools.debug.stepper.test_stepper import EXCHANGING, exchange, expected

PROMPT = "(ugpu) "
ENDLESS = """
import sys
from pathlib import Path
import ugpu

with ugpu.open() as gpu:
    program = gpu.load(Path(sys.argv[1]).read_bytes())
    out = gpu.alloc(4096)
    with gpu.queue() as queue:
        queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
    print("it runs")
    gpu.synchronize()
    print("the kernel ended")
"""
PTX = HEAD.format(target="sm_86") + body(1, """
AGAIN: add.u32 %r1, %r1, 1; bra AGAIN;
""").replace(".entry k(", ".entry forever(")  # fmt: skip


def debug(folder: Path, script: str, image: bytes, *options: str) -> Terminal:
    (folder / "job.py").write_text(script)
    (folder / "image").write_bytes(image)
    return Terminal(
        "ugpu.tools.cli", "debug", *options, str(folder / "job.py"), str(folder / "image")
    )


def test_a_session(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with debug(tmp_path, EXCHANGING, exchange()) as terminal:
        terminal.until(PROMPT)
        terminal.send("break k\n")
        assert "breakpoint 1: k\n" in terminal.until(PROMPT)
        terminal.send("jump 3\n")  # told, and the session goes on
        assert "expected one of break, " in terminal.until(PROMPT)
        terminal.send("run\n")
        assert "k+0x0 group (0, 0, 0) wave 0 exec 0xffffffff" in terminal.until(PROMPT)
        terminal.send("info wa\t\n")  # the rest of the word by completion
        shown = terminal.until(PROMPT)
        assert "info waves" in shown and re.search(r"\* +0 +halted", shown)
        terminal.send("print v0[5]\n")
        assert "v0[5] = 0x5\n" in terminal.until(PROMPT)
        terminal.send("\x10\n")  # ^P: the last line again
        assert "v0[5] = 0x5\n" in terminal.until(PROMPT)
        terminal.send("\n")  # an empty line repeats nothing
        assert terminal.until(PROMPT).strip() == PROMPT.strip()
        terminal.send("detach\n")
        assert terminal.end() == 0
        assert f"result {expected()}" in terminal.shown


@pytest.mark.parametrize("device", ["virtual:navi31", "virtual:ga102"])
def test_an_endless_kernel_is_halted_by_the_keyboard(device: str, tmp_path: Path) -> None:
    image = faulty_object() if "navi" in device else PTX.encode()
    with debug(tmp_path, ENDLESS, image, "--device", device) as terminal:
        terminal.until(PROMPT)
        terminal.send("run\n")
        terminal.until("it runs\n")
        terminal.send("\x03")
        assert "interrupted\n" in terminal.until(PROMPT)
        terminal.send("stepi 9\n")
        assert re.search(r"step\nforever\+0x", terminal.until(PROMPT))
        terminal.send("\x04")  # the end of input quits
        assert terminal.end() == 0
        assert "the kernel ended" not in terminal.shown


def test_the_end_of_input_ends_the_session_before_the_program_starts(tmp_path: Path) -> None:
    with debug(tmp_path, "print('started')", b"") as terminal:
        terminal.until(PROMPT)
        terminal.send("\x04")
        assert terminal.end() == 0
        assert "started" not in terminal.shown
