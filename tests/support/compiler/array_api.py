"""array-api-tests, the test suite of the array API standard, on ugpu.xp.

The suite is a repository, not a package: https://github.com/data-apis/array-api-tests, release
2026.02.26 with its submodule; it needs ndindex and pytest-json-report. ARRAY_API_TESTS names its
folder:

    export ARRAY_API_TESTS=.../array-api-tests
    python -m tests.support.compiler.array_api [EXAMPLES [SELECTION ...]]

EXAMPLES: of each property, by default 10. SELECTION: tests of the suite, or options of pytest.
`DIFFERENT` has the tests that fail, each with its reason. Prints the share that passes, and what is
not as listed there; then the exit status is 1.
"""

from __future__ import annotations

import os
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ugpu.compiler import array_api
from ugpu.compiler.codegen.process.behind import behind

FOLDER = os.environ.get("ARRAY_API_TESTS", "")
MODULE = "tests.support.compiler.array_api"
SETTINGS = {
    "ARRAY_API_TESTS_MODULE": f"exec('from {MODULE} import namespace as xp')",
    "ARRAY_API_TESTS_VERSION": "2024.12",
}

# Tests that fail, and why.
_QUOTIENT = "quotients of infinity are NaN, and 1 // -inf is -1, as in Python, NumPy and PyTorch"
_REMAINDER = "a remainder of zero has the sign of x1, as in PyTorch; that of xp.remainder is x2's"
_QUOTIENTS = (
    "x1_i is +infinity and isfinite(x2_i) and x2_i > 0) -> +infinity",
    "x1_i is +infinity and isfinite(x2_i) and x2_i < 0) -> -infinity",
    "x1_i is -infinity and isfinite(x2_i) and x2_i > 0) -> -infinity",
    "x1_i is -infinity and isfinite(x2_i) and x2_i < 0) -> +infinity",
    "isfinite(x1_i) and x1_i > 0 and x2_i is -infinity) -> -0",
    "isfinite(x1_i) and x1_i < 0 and x2_i is +infinity) -> -0",
)
# Complex numbers with infinite parts or NaN: functions are composed of those of the parts, so that
# infinity times zero is NaN where C gives one of the two.
COMPLEX = (
    "acos",
    "acosh",
    "asinh",
    "atanh",
    "cosh",
    "exp",
    "expm1",
    "sign",
    "sinh",
    "sqrt",
    "tanh",
)
DIFFERENT: dict[str, str] = {
    f"array_api_tests/test_special_cases.py::{test}({case}]": _QUOTIENT
    for test in (
        "test_binary[floor_divide", "test_binary[__floordiv__", "test_iop[__ifloordiv__",
    )
    for case in _QUOTIENTS
} | {
    f"array_api_tests/test_special_cases.py::{test}({case}]": _REMAINDER
    for test in ("test_binary[__mod__", "test_iop[__imod__")
    for case in ("x1_i is -0 and x2_i > 0) -> +0", "x1_i is +0 and x2_i < 0) -> -0")
}  # fmt: skip


def _namespace() -> types.ModuleType:
    """Return ugpu.xp as a module of its own name."""
    module = types.ModuleType("ugpu.xp")
    given = {name: each for name, each in vars(array_api).items() if name != "__getattr__"}
    vars(module).update(given, __name__="ugpu.xp")
    return module


namespace = _namespace()


class Outcomes:
    """A plugin of pytest that notes the outcome of each test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note an outcome: of the call, or a skip before it."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


def run(examples: int, selection: list[str]) -> dict[str, str]:
    """Run tests of the suite; return the outcome of each: "passed", "failed" or "skipped"."""
    os.environ.update(SETTINGS)
    behind().close()  # the faster second versions of kernels: each kernel runs a few times
    outcomes = Outcomes()
    os.chdir(FOLDER)
    sys.path.insert(0, FOLDER)
    options = ["-q", "-p", "no:cacheprovider", "--disable-warnings", "--tb=short"]
    options += ["--disable-deadline", "--derandomize", f"--max-examples={examples}"]
    chosen = any(Path(each.partition("::")[0]).exists() for each in selection)
    pytest.main([*options, *selection, *([] if chosen else ["array_api_tests"])], [outcomes])
    return outcomes.outcomes


def report(outcomes: dict[str, str]) -> int:
    """Print the share that passes and what differs from `DIFFERENT`; return how many do."""
    count = Counter(outcomes.values())
    judged = count["passed"] + count["failed"]
    print(f"{count['passed']} of {judged} pass ({count['passed'] / max(1, judged):.1%}); "
          f"{count['skipped']} skipped")  # fmt: skip
    new = [name for name, each in outcomes.items() if each == "failed" and not _is_listed(name)]
    mended = [name for name in DIFFERENT if outcomes.get(name) == "passed"]
    for name in new:
        print(f"fails, and is not listed: {name}")
    for name in mended:
        print(f"passes, and is listed: {name}")
    return len(new) + len(mended)


def _is_listed(name: str) -> bool:
    case = name.removeprefix("array_api_tests/test_special_cases.py::test_unary[")
    return name in DIFFERENT or ("imag(x_i)" in case and case.partition("(")[0] in COMPLEX)


if __name__ == "__main__":
    if not Path(FOLDER, "array_api_tests").is_dir():
        sys.exit(f"ARRAY_API_TESTS must name the folder of the suite, see {__file__}")
    listed = sys.argv[1:]
    sys.exit(report(run(int(listed[0]) if listed else 10, listed[1:])) > 0)
