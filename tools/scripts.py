"""Running a person's script inside one of our programs."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from hcq.errors import UgpuError, UsageError


@contextlib.contextmanager
def as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """sys.argv and sys.path as a program of its own would see them."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def execute(script: str) -> int:
    """Run a file as __main__; its exit code. What it raises is shown as Python shows it, from its
    own lines on, and is exit code 1; ugpu's errors are passed to the caller. UsageError for a file
    that is not a program."""
    try:
        text = Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {script}: {error.strerror}") from None
    try:
        compile(text, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(f"{script} is not a Python program: {error}") from None
    except ValueError as error:  # bytes of zero
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
    except Exception as error:  # any: it is a person's script
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
    """The error without the frames of ugpu that led to the script."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != script:
        place = place.tb_next
    return error.with_traceback(place or error.__traceback__)
