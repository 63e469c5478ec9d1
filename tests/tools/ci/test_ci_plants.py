"""Faults that strike while a test or a case has a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.ci.planted import copies
from tests.tools.ci.plugged import own_locks, run
from tests.tools.ci.test_ci_bench import made
from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.tools.ci import health, suite
from ugpu.tools.ci.demand import Demand
from ugpu.tools.ci.plants import Plant, prepare, read, strike
from ugpu.tools.ci.pool import Pool
from ugpu.tools.ci.verdict import Verdict

pytest_plugins = ["pytester"]
__all__ = ["own_locks"]

CARD = "virtual:navi31"


def test_what_a_line_says() -> None:
    assert read("virtual:a630?hang") == Plant("virtual:a630", "hang")
    assert read("virtual:a630?hang=2&opcode *copy*") == Plant(
        "virtual:a630", "hang=2&opcode", "*copy*"
    )
    for text in ("", "virtual:a630", "cpu?hang", "virtual:a630?hang a b"):
        with pytest.raises(BadArgument, match="expected 'virtual:CHIP"):
            read(text)
    for plant, words in (
        (Plant("virtual:a630", "hagn"), "did you mean hang"),
        (Plant("virtual:a640", "hang"), "no device 'virtual:a640'; did you mean virtual:a630"),
    ):
        with pytest.raises(BadArgument, match=words):
            plant.check(["virtual:a630"])


def test_a_fault_strikes_after_the_self_test_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the test has closed the device: it is opened with its fault."""
    monkeypatch.setattr(health, "LIMIT_S", 0.5)
    pool = Pool([CARD], tmp_path, "r")
    loan = pool.take(Demand())
    prepare(loan, [Plant(CARD, "sdma_crashed"), Plant(CARD, "smu_busy=1", "other")], "test")
    assert loan.opened_as(CARD) == f"{CARD}?sdma_crashed"
    copies(loan.devices[0])
    strike(loan)
    loan.devices[0].close()
    assert pool.examine(loan).startswith(f"{CARD}: ")
    loan.release()


def test_the_commands_of_matching_cases_get_the_fault(tmp_path: Path) -> None:
    bench, case = made(tmp_path, "echo $UGPU_DEVICE $UGPU_CI_DEVICES; exit 1", names=[CARD])
    for pattern, expected in (("c*", f"{CARD}?hang"), ("x*", CARD)):
        bench.suite = suite.Suite((case,), folder=tmp_path, faults=(Plant(CARD, "hang", pattern),))
        result = bench.run(case)
        assert result.output.split()[-2:] == [expected, expected]
        assert result.row.devices == CARD
        assert result.judgement is not None and result.judgement.verdict is Verdict.TEST


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fault = 3", "must be a list of tables"),
        ("fault = [{device='a'}]", "needs device and fault"),
        ("fault = [{device='a', fault=3}]", "needs device and fault"),
        ("fault = [{device='a', fault='b', test='c'}]", "no key 'test'; it takes device"),
    ],
)
def test_what_a_suite_cannot_plant(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text + "\ncase = [{name='a', command=['x']}]")
    with pytest.raises(UsageError, match=words):
        suite.read(path)
    path.write_text("[[case]]\nname='a'\ncommand=['x']\n[[fault]]\ndevice='d'\nfault='f'\n")
    assert suite.read(path).faults == (Plant("d", "f"),)


def test_the_plugin_plants_faults_by_option_and_ini(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_faults =\n    virtual:navi31?hagn *test_one\n")
    code = "def test_one(gpu): pass\ndef test_two(gpu): pass\n"
    result = run(pytester, code, f"--gpu-device={CARD}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown fault 'hagn'*known: *"])
    pytester.makeini("[pytest]")
    result = run(pytester, code, f"--gpu-device={CARD}", f"--gpu-fault={CARD}?smu_silent *test_one")
    result.assert_outcomes(errors=1, passed=1)  # a device of the host stands for the card
    result.stdout.fnmatch_lines(["*no model in this process*"])
