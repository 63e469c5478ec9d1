"""What calls do in a forked child."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

LIMIT_S = 120  # TIMEOUT: of a child, whose calls block on nothing; ends it where one does


def in_child(uses: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Fork; what each use does in the child: the class of its error, or `accepted`."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(LIMIT_S)
        found = {}
        for name, use in uses.items():
            try:
                use()
                found[name] = "accepted"
            except BaseException as error:
                found[name] = type(error).__name__
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    result: dict[str, str] = json.loads(text)
    return result
