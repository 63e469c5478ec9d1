"""`ugpu debug SCRIPT`: run a script in this process with its kernels under the step debugger."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ugpu.am import chips
from ugpu.hcq.device import debugging
from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.base.scripts import as_program, default_device, execute, say_ignored
from ugpu.tools.debug.stepper.commands import Commands

DEFAULT = f"virtual:{chips.DEFAULT}"


def run(
    script: str, arguments: Sequence[str], device: str | None, commands: Path | None, out: Output
) -> int:
    """Run the script as __main__ and return its exit code. commands: a file of debugger commands
    that replaces the terminal. UsageError for missing files and for invalid commands."""
    if not os.path.isfile(script):
        raise UsageError(f"file {script} does not exist")
    lines = None
    if commands is not None:
        lines = commands.read_text().splitlines()
    prompt = Commands(out, lines)
    session = prompt.session
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    code = 0
    try:
        if prompt.before():
            with (
                debugging.attach(session), default_device(device or DEFAULT) as ignored,
                session.interrupts(), as_program(script, arguments), spoken,
            ):  # fmt: skip
                code = execute(script)
            if device:  # the default's own choice needs no word
                say_ignored(ignored, out)
        if session.error is not None:
            raise session.error
        for text in session.missed():
            out.say(text)
    finally:
        session.close()
    out.result({"exit": code, "halts": prompt.halts})
    return code
