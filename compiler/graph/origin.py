"""Where a tensor was built: the caller's line outside this package, for errors and reports.

Recording an origin costs a few hundred nanoseconds: it keeps the code object and the offset in it,
and only `text` looks up the line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

Origin = tuple[CodeType, int]  # code object; offset of the running instruction in it, in bytes

_OURS = str(Path(__file__).parents[1]) + "/"  # the package compiler
_last: CodeType | None = None  # the last caller; usually also the next one


def here(above: int = 1) -> Origin | None:
    """Return the nearest caller outside the compiler. above: the minimum number of calls up."""
    global _last
    try:
        frame = sys._getframe(above)
    except ValueError:  # a thread was started with a method of the compiler
        return None
    code = frame.f_code
    while code is not _last:
        if not code.co_filename.startswith(_OURS):
            _last = code
            break
        if frame.f_back is None:
            return None
        frame = frame.f_back
        code = frame.f_code
    return code, frame.f_lasti


def text(origin: Origin | None) -> str:
    """Return "file:line", or "" without an origin."""
    if origin is None:
        return ""
    code, offset = origin
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= offset < stop and number is not None:
            line = number
    return f"{code.co_filename}:{line}"
