"""Whether a second run executed the statements at which the first one failed."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from ugpu.tools.ci.testing.reached import Reached, checks_of, traced

_numbers = itertools.count()


def module_of(folder: Path, code: str) -> ModuleType:
    path = folder / f"checked{next(_numbers)}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reached(folder: Path, code: str) -> bool:
    """Fail with `bad`, run again without: whether the second run passed the same checks."""
    module = module_of(folder, code)
    with pytest.raises(BaseException) as caught:  # whatever the code raises
        module.test(bad=True)
    watch = Reached(checks_of(caught.value, Path(str(module.__file__))))
    before = sys.gettrace()
    with watch:
        module.test(bad=False)
    assert sys.gettrace() is before
    return not watch.missing


SAME = {
    "an assertion": "def test(bad):\n    assert not bad\n",
    "of two lines": "def test(bad):\n    assert (1 == 1 and\n        not bad)\n",
    "in a branch": "def test(bad):\n    if True:\n        assert not bad\n",
    "in a loop": "def test(bad):\n    for n in range(3):\n        assert not (bad and n == 2)\n",
    "a comprehension": "def test(bad):\n    assert all(not bad for _ in range(3))\n",
    "a helper": "def check(x):\n    assert not x\ndef test(bad):\n    check(bad)\n",
    "raised": "def test(bad):\n    if bad:\n        raise ValueError('x')\n",
    "raised by elif": "def test(bad):\n    if 0: pass\n    elif bad:\n        raise KeyError\n",
    "raised by a helper": (
        "def fail():\n    raise ValueError('x')\ndef test(bad):\n    if bad:\n        fail()\n"
    ),
    "pytest.fail": "import pytest\ndef test(bad):\n    if bad: pytest.fail('x')\n",
    "an error below": "def test(bad):\n    int('x' if bad else '3')\n",
    "pytest.raises": (
        "import pytest\ndef test(bad):\n    with pytest.raises(ValueError):\n"
        "        int('3' if bad else 'x')\n"
    ),
    "NumPy's": (
        "import numpy as np\ndef test(bad):\n"
        "    np.testing.assert_equal(np.arange(2), [0, 1 + bad])\n"
    ),
    "raised again": (
        "def test(bad):\n    try:\n        int('x' if bad else '3')\n"
        "    except ValueError as error:\n        raise AssertionError('no') from error\n"
    ),
    "matched": "def test(bad):\n    match bad:\n        case True:\n            raise KeyError\n",
    "a thread's": (
        "import threading\nfound = []\ndef work(bad):\n    try:\n        assert not bad\n"
        "    except AssertionError as error:\n        found.append(error)\n"
        "def test(bad):\n    found.clear()\n    t = threading.Thread(target=work, args=(bad,))\n"
        "    t.start()\n    t.join()\n    for error in found:\n        raise error\n"
    ),
}  # fmt: skip

ANOTHER = {
    "returns early": "def test(bad):\n    if not bad: return\n    assert 0 == 1\n",
    "returns before raising": (
        "def test(bad):\n    if not bad: return\n    if 1:\n        raise ValueError('x')\n"
    ),
    "in one line": "def test(bad):\n    if bad: assert not bad\n",
    "the other branch": "def test(bad):\n    if bad:\n        assert not bad\n    else: pass\n",
    "no iteration": "def test(bad):\n    for _ in range(3 * bad):\n        assert not bad\n",
    "a helper that returns": (
        "def check(x):\n    if not x: return\n    assert not x\ndef test(bad):\n    check(bad)\n"
    ),
    "a helper elsewhere": (
        "def check(x):\n    assert not x\ndef test(bad):\n    check(0)\n    if bad: check(bad)\n"
    ),
    "always raises": "def test(bad):\n    if not bad: return\n    raise ValueError('x')\n",
    "a conditional error": "def test(bad):\n    if bad:\n        int('x')\n",
    "suppressed": (
        "import contextlib\ndef test(bad):\n    with contextlib.suppress(KeyError):\n"
        "        if not bad: raise KeyError\n        assert not bad\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_run_that_passes_the_same_checks_counts(name: str, tmp_path: Path) -> None:
    assert reached(tmp_path, SAME[name])


@pytest.mark.parametrize("name", ANOTHER)
def test_a_run_that_does_not_reach_them_does_not(name: str, tmp_path: Path) -> None:
    assert not reached(tmp_path, ANOTHER[name])


def test_an_assertion_of_another_module_counts_too(tmp_path: Path) -> None:
    helper = module_of(
        tmp_path, "def check(bad, really):\n    if really:\n        assert not bad\n"
    )
    module = module_of(tmp_path, "def test(bad, really):\n    check(bad, really)\n")
    module.check = helper.check  # type: ignore[attr-defined]
    with pytest.raises(AssertionError) as caught:
        module.test(True, True)
    checks = checks_of(caught.value, Path(str(module.__file__)))
    for really in (False, True):
        with Reached(checks) as watch:
            module.test(False, really)
        assert (not watch.missing) is really


def test_an_error_outside_of_the_test_has_no_checks(tmp_path: Path) -> None:
    try:
        int("x")
    except ValueError as error:
        assert checks_of(error, tmp_path / "other.py") == []
    with Reached([]) as watch:
        assert threading.gettrace() is None
    assert watch.missing == []


def test_a_debugger_is_noticed() -> None:
    before = sys.gettrace()
    try:
        sys.settrace(lambda frame, event, argument: None)
        assert traced()
    finally:
        sys.settrace(before)
