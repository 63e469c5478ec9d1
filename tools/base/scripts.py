"""Run a user's script inside a ugpu program."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu.hcq.errors import UgpuError, UsageError


@contextlib.contextmanager
def as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set sys.argv and sys.path as for a separate program."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


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
