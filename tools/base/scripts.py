"""Run a user's script inside a ugpu program."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ugpu.compiler.runtime.runtime import set_default_device
from ugpu.hcq.errors import UgpuError, UsageError
from ugpu.hcq.state import trace
from ugpu.hcq.state.config import setting
from ugpu.tools.base.console import Output


@contextlib.contextmanager
def as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set sys.argv and sys.path as for a separate program."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


@contextlib.contextmanager
def default_device(name: str | None) -> Iterator[Callable[[], str]]:
    """Make a device, if one is given, the default of tensors and of `ugpu.open()`. Yields a
    function that returns, after the script, what to say if the script did not use that device but
    opened others; "" otherwise."""
    opened: list[str] = []

    def on_event(event: trace.Event) -> None:
        if event.name == "open":
            opened.append(str(event.arguments["device"]))

    def ignored() -> str:
        if not name or name == "auto" or not opened or name in opened:
            return ""
        others = ", ".join(dict.fromkeys(opened))
        return f"--device {name} had no effect: the script opens {others} itself"

    if not name:
        yield ignored
        return
    set_default_device(name)
    try:
        with setting("UGPU_DEVICE", name), trace.subscribe(on_event):
            yield ignored
    finally:
        set_default_device(None)


def say_ignored(ignored: Callable[[], str], out: Output) -> None:
    """Print what `default_device` reports, if anything."""
    text = ignored()
    if text:
        out.say(text, "yellow")


def execute(script: str) -> int:
    """Run a file as __main__; return its exit code. An exception is shown as Python shows it, from
    the script's own lines on, and the exit code is 1. ugpu's errors are passed to the caller.
    UsageError for a file that is not a Python program."""
    try:
        text = Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {script}: {error.strerror}") from None
    try:
        compile(text, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(f"{script} is not a Python program: {error}") from None
    except ValueError as error:  # null bytes
        raise UsageError(f"{script} is not a Python program: {error}") from None
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except UgpuError:
        raise
    except Exception as error:  # any exception: it is a user's script
        if not (isinstance(error, BrokenPipeError) and _reader_left()):
            traceback.print_exception(_from(error, script))
        return 1
    return 0


def _reader_left() -> bool:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def _from(error: Exception, script: str) -> Exception:
    """Return the error without the frames of ugpu that led to the script."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != script:
        place = place.tb_next
    return error.with_traceback(place or error.__traceback__)
