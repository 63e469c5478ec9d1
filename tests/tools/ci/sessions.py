"""Cases of the verdict campaign that run in the pytest plugin and in `ugpu ci run` themselves.

Each is a test module, or a command, for a session of its own on virtual devices. Most are tests
with bugs, written so that a careless second run would hide them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from ugpu.tools.ci.bench import Bench
from ugpu.tools.ci.demand import Demand
from ugpu.tools.ci.plants import Plant
from ugpu.tools.ci.pool import Pool
from ugpu.tools.ci.suite import Case, Suite
from ugpu.tools.ci.verdict import Verdict

CARD, OTHER = "virtual:navi31", "virtual:gh100"
_PLUGINS = ("ugpu.tools.ci.plugin", "pytest_timeout", "no:cacheprovider", "no:terminal")

_HEAD = """
import threading
import numpy as np
import pytest
import ugpu
from tests.tools.ci import planted

RUNS = []

def use(gpu):
    gpu.limit_s = 0.5
    planted.copies_of_any(gpu)

def first(gpu):
    RUNS.append(gpu.name)
    return len(RUNS) == 1

def wait(seconds):
    threading.Event().wait(seconds)
"""


@dataclass(frozen=True)
class Outcome:
    """verdict: PASSED also for a test that is skipped or fails as expected. green: whether the
    session ends without a failure. excluded: whether a device was excluded before its test."""

    verdict: Verdict
    green: bool
    excluded: bool = False


@dataclass(frozen=True)
class Session:
    """A test module with devices and faults, and what is right for it. command: run it by `ugpu ci
    run` instead."""

    code: str
    right: Outcome
    devices: tuple[str, ...] = (CARD, OTHER)
    faults: tuple[str, ...] = ()
    command: bool = False


@dataclass
class _Watch:
    """A plugin of pytest that keeps what a session reports of its one test."""

    words: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.words.update({name: str(value) for name, value in report.user_properties})
        self.failed = self.failed or report.failed


def run(session: Session, folder: Path) -> Outcome:
    """Run a session in this process; folder: an empty one."""
    folder.mkdir(parents=True)
    with mock.patch.dict(
        os.environ, XDG_RUNTIME_DIR=str(folder), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    ):
        return _command(session, folder) if session.command else _pytest(session, folder)


def _pytest(session: Session, folder: Path) -> Outcome:
    path = folder / f"test_case_{abs(hash(folder))}.py"
    path.write_text(_HEAD + session.code, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts =\n", encoding="utf-8")
    words = [str(path), f"--rootdir={folder}", f"--confcutdir={folder}", "-c",
             str(folder / "pytest.ini"), "--import-mode=importlib"]  # fmt: skip
    words += [word for name in _PLUGINS for word in ("-p", name)]
    words += [f"--gpu-device={name}" for name in session.devices]
    words += [f"--gpu-fault={fault}" for fault in session.faults]
    watch = _Watch()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main(words, plugins=[watch])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"pytest ended by {code!r}"
    verdict = Verdict(watch.words.get("gpu_verdict", "passed"))
    green = code is pytest.ExitCode.OK
    assert green is not watch.failed
    return Outcome(verdict, green, "gpu_excluded" in watch.words)


def _command(session: Session, folder: Path) -> Outcome:
    case = Case("case", ("sh", "-c", session.code), Demand(), 30.0)
    faults = [Plant(*fault.split("?")) for fault in session.faults]
    suite = Suite((case,), folder=folder, faults=tuple(faults))
    pool = Pool(session.devices, folder / "locks", "r")
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(folder)}
    result = Bench(pool, suite, folder / "out", environment).run(case)
    assert result.judgement is not None
    return Outcome(result.judgement.verdict, result.passed, bool(result.excluded))


# ---- kinds -----------------------------------------------------------------------------------

_BUG, _DEVICE = Outcome(Verdict.TEST, green=False), Outcome(Verdict.DEVICE, green=True)
_FALSE = ("assert gpu.name == 'another'", "raise ValueError('wrong')", "pytest.fail('wrong')",
          "np.testing.assert_equal(1, 2)", "gpu.alloc(-1)")  # fmt: skip
_BREAKS = ("mec_crashed", "sdma_crashed", "doorbells_lost", "dma_refused", "lost_at_access=3")
# Copy engines that stand still are a hang that new queues cure: without a second run that counts,
# nothing tells it from a test's.
_PROVEN = tuple(name for name in _BREAKS if name != "sdma_crashed")
_DEAD = ("virtual:navi32?smu_silent", "virtual:navi32?lost_at_access=400",
         "virtual:navi33?autoload_never", "virtual:gh100?fell_off", "virtual:gh100?no_channels",
         "virtual:a630?vanished")  # fmt: skip


def _hidden(draw: Random, escape: str) -> Session:
    """A test that fails on the first device; the second run gets away by `escape`."""
    code = f"def test(gpu):\n    if not first(gpu):\n        {escape}\n    {draw.choice(_FALSE)}\n"
    return Session(code, _BUG)


def _marked(mark: str, body: str, right: Outcome) -> Session:
    return Session(f"@pytest.mark.xfail({mark})\ndef test(gpu):\n    {body}\n", right)


def _fails(draw: Random, before: str) -> Session:
    return Session(f"def test(gpu):\n    {before}\n    {draw.choice(_FALSE)}\n", _BUG)


def _flaky(draw: Random) -> Session:
    rate = draw.uniform(0.3, 0.7)
    seed = next(s for s in range(999) if Random(s).random() < rate <= _second(s))
    code = (
        f"import random\nDRAW = random.Random({seed})\ndef test(gpu):\n    use(gpu)\n"
        f"    assert DRAW.random() >= {rate}\n"
    )
    return Session(code, Outcome(Verdict.FLAKY, green=True))


def _second(seed: int) -> float:
    draw = Random(seed)
    draw.random()
    return draw.random()


_CLOSES = "def test(gpu):\n    with gpu:\n        use(gpu)\n"
_USES = "def test(gpu):\n    use(gpu)\n"
_IN_FLIGHT = (
    "def test(gpu):\n    if first(gpu):\n"
    "        planted.run(gpu, 'write_at', np.uint64(0x123456789000), wait=False)\n"
)
_HELPER = (
    "def check(gpu, good):\n    if good:\n        return\n    assert good\n"
    "def test(gpu):\n    check(gpu, not first(gpu))\n"
)
_FIXTURE = (
    "@pytest.fixture\ndef data(gpu):\n    if not first(gpu):\n        pytest.skip('no')\n"
    "    assert gpu.name == 'another'\n    return gpu\ndef test(data):\n    pass\n"
)
_STUCK = (
    "@pytest.mark.timeout(2)\ndef test(gpu):\n    if not first(gpu):\n        wait(60)\n"
    "        return\n    assert gpu.name == 'another'\n"
)
_OPENS = (
    'PYTHONPATH=${PYTHONPATH:-.} "$PYTHON" -c \'import os, hcq\n'
    'hcq.open(os.environ["UGPU_DEVICE"]).close()\''
)

KINDS: Mapping[str, Callable[[Random], Session]] = {
    "hidden: the second run skips": lambda draw: _hidden(draw, "pytest.skip('no')"),
    "hidden: the second run fails as expected": lambda draw: _hidden(draw, "pytest.xfail('no')"),
    "hidden: the second run returns early": lambda draw: _hidden(draw, "return"),
    "hidden: the second run returns in a helper": lambda draw: Session(_HELPER, _BUG),
    "hidden: the second run works and returns": lambda draw: _hidden(draw, "use(gpu); return"),
    "hidden: the second run skips in a fixture": lambda draw: Session(_FIXTURE, _BUG),
    "hidden: the second run gives no work": lambda draw: Session(_IN_FLIGHT, _BUG),
    "hidden: the second run never ends": lambda draw: Session(_STUCK, _BUG),
    "hidden: a command skips the second time": lambda draw: Session(
        f"test -e $OUT/1 && exit 77; touch $OUT/1; exit {draw.randrange(1, 77)}", _BUG,
        command=True,
    ),
    "xfail: fails as expected": lambda draw: _marked(
        "strict=True, reason='known'", draw.choice(_FALSE), Outcome(Verdict.PASSED, green=True)
    ),
    "xfail: passes unexpectedly": lambda draw: _marked("strict=True", "use(gpu)", _BUG),
    "xfail: another error": lambda draw: _marked("raises=KeyError", draw.choice(_FALSE), _BUG),
    "test: closes its device": lambda draw: Session(_CLOSES, _BUG),
    "test: closes its device and fails": lambda draw: _fails(draw, "gpu.close()"),
    "test: idle, then it fails": lambda draw: _fails(
        draw, f"use(gpu); wait({draw.uniform(5, 7):.1f})"
    ),
    "test: fails on a card at rest": lambda draw: _fails(draw, "use(gpu); gpu.rest()"),
    "flaky: by seed": _flaky,
    "flaky: a command": lambda draw: Session(
        "test -e $OUT/1 || { touch $OUT/1; exit 1; }", Outcome(Verdict.FLAKY, green=True),
        command=True,
    ),
    "named: a fault while the test has the card": lambda draw: Session(
        _USES, _DEVICE, faults=(f"{CARD}?{draw.choice(_BREAKS)}",)
    ),
    "named: a fault of an NVIDIA GPU": lambda draw: Session(
        _USES, _DEVICE, devices=(OTHER, CARD), faults=(f"{OTHER}?fell_off",)
    ),
    "named: a fault, and the second run skips": lambda draw: Session(
        "def test(gpu):\n    if not first(gpu):\n        pytest.skip('no')\n    use(gpu)\n",
        Outcome(Verdict.DEVICE, green=False), faults=(f"{CARD}?{draw.choice(_PROVEN)}",),
    ),
    "named: a fault while a command has the card": lambda draw: Session(
        _OPENS, _DEVICE, faults=(f"{CARD}?lost_at_access={draw.randrange(1, 500)}",), command=True
    ),
    "before: another device runs the test": lambda draw: Session(
        _USES, Outcome(Verdict.PASSED, green=True, excluded=True),
        devices=(draw.choice(_DEAD), CARD),
    ),
    "before: there is no other device": lambda draw: Session(
        _USES, Outcome(Verdict.DEVICE, green=False, excluded=True), devices=(draw.choice(_DEAD),)
    ),
    "before: a bug on another device": lambda draw: Session(
        f"def test(gpu):\n    {draw.choice(_FALSE)}\n",
        Outcome(Verdict.TEST, green=False, excluded=True), devices=(draw.choice(_DEAD), CARD),
    ),
}  # fmt: skip


def session_of(kind: str, draw: Random) -> Session:
    """Return a session of a kind."""
    return KINDS[kind](draw)
