"""The tests that failed, once more: `python -m tools.house.again` after a run that has ended.

A host that is busy with others may lose a test its time; a failure of time counts when it comes
twice. That is for a few tests of a run that is whole: nothing is repeated, and the failure stands,
where more failed or where the run broke off. tests/conftest.py leaves the note on how it ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MOST = 3  # more of them are no bad luck
CACHE = Path(".pytest_cache/v")
NOTE = "ugpu/ended"  # exit status of the last run, null while it runs


def failed(cache: Path) -> list[str]:
    """Return the tests that failed in the last run, none where they are not to be repeated."""
    try:
        ended = json.loads((cache / NOTE).read_text(encoding="utf-8"))
        names = list(json.loads((cache / "cache" / "lastfailed").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return []
    whole = ended == pytest.ExitCode.TESTS_FAILED
    return names if whole and len(names) <= MOST and all("::" in name for name in names) else []


def main(
    cache: Path = CACHE, run: Callable[[list[str]], int | pytest.ExitCode] = pytest.main
) -> int:
    names = failed(cache)
    if not names:
        print(f"nothing to repeat: the run broke off, or more than {MOST} tests failed")
        return 1
    print(f"{len(names)} failed; once more, one after the other:", *names, sep="\n    ", flush=True)
    return int(run(["-q", *names]))


if __name__ == "__main__":
    sys.exit(main())
