"""Running a person's script inside one of our programs."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


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
    """Run a file as __main__; its exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0
