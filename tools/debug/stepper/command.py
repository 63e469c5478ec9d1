"""`ugpu debug SCRIPT`: run a script in this process with its kernels under the step debugger."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu.compiler.runtime.runtime import set_default_device
from ugpu.hcq.device import debugging
from ugpu.hcq.errors import UsageError
from ugpu.hcq.state.config import setting
from ugpu.tools.base.console import Output
from ugpu.tools.base.scripts import as_program, execute
from ugpu.tools.debug.stepper.commands import Commands


@contextlib.contextmanager
def _default_device(name: str) -> Iterator[None]:
    """Make a device the default of `ugpu.open()` and of tensors."""
    with setting("UGPU_DEVICE", name):
        set_default_device(name)
        try:
            yield
        finally:
            set_default_device("")


def run(
    script: str, arguments: Sequence[str], device: str, commands: Path | None, out: Output
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
                debugging.attach(session), _default_device(device), session.interrupts(),
                as_program(script, arguments), spoken,
            ):  # fmt: skip
                code = execute(script)
        if session.error is not None:
            raise session.error
        for text in session.missed():
            out.say(text)
    finally:
        session.close()
    out.result({"exit": code, "halts": prompt.halts})
    return code
