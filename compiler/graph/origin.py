"""Where a tensor was built: the caller's line outside this package, for errors and reports.

Taking it costs a few hundred nanoseconds: the code object and the place in it are kept, and only
`text` looks up the line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

Origin = tuple[CodeType, int]  # and the offset of the running instruction in it, in bytes

_OURS = str(Path(__file__).parents[1]) + "/"  # the package compiler
_last: CodeType | None = None  # the last caller: most often the next one too


def here(above: int = 1) -> Origin | None:
    """The nearest caller that is not part of the compiler. above: how many calls up it is at
    least."""
    global _last
    try:
        frame = sys._getframe(above)
    except ValueError:  # our own method that a thread was started with
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
    """ "file:line", or "" for what has no origin."""
    if origin is None:
        return ""
    code, offset = origin
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= offset < stop and number is not None:
            line = number
    return f"{code.co_filename}:{line}"
