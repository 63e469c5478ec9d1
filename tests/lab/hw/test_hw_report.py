"""The hardware suite itself: reports, budgets, sections, on devices every machine has."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.hw import __main__ as suite
from lab.hw import process
from lab.hw.budget import Budget, median_s
from lab.hw.report import OUTCOMES, Report, Result, slug
from lab.hw.sections import (
    candidates,
    contract,
    corpus,
    faults,
    life,
    rates,
    rows,
)
from ugpu import hcq
from ugpu.hcq.errors import DeviceHang, OutOfMemory, UgpuError
from ugpu.hcq.find.listing import DeviceEntry

LINE = Result("Rates", "copy", "measured", 50.0, "GB/s", "256 MB", ">= 0.95", 52.0)
JUNIT = """<testsuites><testsuite>
<testcase name="good"/><testcase name="bad"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase name="late"><skipped message="no"/></testcase><testcase name="fine"/>
</testsuite></testsuites>"""


def _report(*results: Result, device: str = "nvrm:0", **facts: object) -> Report:
    return Report(device, {"gpu": "NVIDIA H200", "driver": "580.142", **facts}, results, 12.3)


def test_a_report_is_named_after_gpu_and_driver(tmp_path: Path) -> None:
    report = _report(LINE)
    data, page = report.write(tmp_path / "hardware")
    assert data.name == "nvrm-h200-580.142.json"
    assert page.name == "nvrm-h200-580.142.md"
    told = json.loads(data.read_text())
    assert told["results"][0]["ratio"] == pytest.approx(50 / 52)
    assert told["results"][0]["met"] is True
    assert (told["virtual"], told["failed"]) == (False, 0)


def test_a_report_of_a_model_says_so() -> None:
    report = Report("virtual:gh100", {}, [LINE], 1.0)
    assert report.virtual
    assert report.stem == "virtual-gh100"
    assert "nothing here was measured on a GPU" in report.markdown()
    assert "nothing here was measured" not in _report(LINE).markdown()


def test_the_page_shows_every_result() -> None:
    bad = Result("Faults", "bad | pointer", "failed", remark="nothing was reported")
    text = _report(LINE, bad).markdown()
    assert "| copy | 50 GB/s | 52 GB/s | 0.96 | >= 0.95 met | 256 MB |" in text
    assert "| bad \\| pointer | FAILED |" in text
    assert "**1 failed, 1 measured**" in text


@pytest.mark.parametrize(
    ("goal", "value", "peer", "met"),
    [
        ("<= 1.0", 9.0, 10.0, True),
        ("<= 1.0", 11.0, 10.0, False),
        (">= 0.5", 4.0, 10.0, False),
        (">= 0.5", 5.0, 10.0, True),
        (">= 0.5", 5.0, None, None),
        ("", 5.0, 10.0, None),
    ],
)
def test_goals_are_judged(goal: str, value: float, peer: float | None, met: bool | None) -> None:
    assert Result("a", "b", "measured", value, "us", "", goal, peer).met is met


@given(st.text(max_size=40))
def test_any_name_becomes_a_part_of_a_file_name(text: str) -> None:
    assert set(slug(text)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_a_budget_ends_and_counts_at_least_once() -> None:
    ticks = count()
    budget = Budget(3.0, clock=lambda: float(next(ticks)))
    assert list(budget.rounds(100)) == [0, 1, 2]
    assert list(budget.rounds(100)) == [0]
    assert budget.left < 0
    assert budget.part(0.5).seconds == 0


def test_the_median_is_that_of_the_rounds() -> None:
    times = iter([0.0, 0.0, 5.0, 0.0, 10.0, 11.0, 0.0, 20.0, 27.0, 0.0])
    budget = Budget(1e9, clock=lambda: next(times))
    assert median_s(lambda: None, budget, most=3) == (5.0, 3)


def test_results_of_pytest_are_read() -> None:
    whole, bad = contract.read(JUNIT)
    assert (whole.outcome, whole.value) == ("failed", 2.0)
    assert whole.remark == "2 passed, 1 failed, 1 skipped"
    assert (bad.name, bad.outcome, bad.remark) == ("bad", "failed", "assert 1 == 2")
    (none,) = contract.read("<testsuites/>")
    assert none.outcome == "failed"


def test_a_corpus_that_had_no_time_is_not_passed() -> None:
    ticks = count()
    budget = Budget(3.0, clock=lambda: float(next(ticks)))
    *_, whole = corpus.run("cpu", budget)
    assert whole.outcome == "skipped"
    assert whole.value == 2
    assert " 0 not run" not in whole.remark


def test_fewer_cycles_than_a_thousand_are_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "CYCLES", 5)
    found = {each.name: each for each in life.run("cpu", Budget(60, small=True))}
    assert found["descriptors after the cycles"].outcome == "passed"
    ticks = count()
    budget = Budget(20.0, small=True, clock=lambda: float(next(ticks)))
    monkeypatch.setattr(life, "CYCLES", 1000)
    cut = {each.name: each for each in life.run("cpu", budget)}
    assert cut["descriptors after the cycles"].outcome == "skipped"
    assert "of 1000 cycles" in cut["descriptors after the cycles"].remark


def test_cycles_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "CYCLES", 5)
    monkeypatch.setattr(life, "PROCESSES", 2)
    found = {each.name: each for each in life.run("cpu", Budget(60))}
    assert found["descriptors after the cycles"].outcome == "passed"
    assert "6 cycles" in found["open, use and close"].remark
    assert "by 2 processes" in found["open, use and close"].remark


def test_the_graph_is_right_at_its_first_replay() -> None:
    """On a model whose launches run newest first where nothing orders them."""
    with hcq.open("virtual:gh100") as device:
        found = {each.name: each for each in rates.launches(device, Budget(0, small=True))}
    assert found["the graph computed right"].outcome == "passed"
    assert "median of 1" in found["replay of 100 kernels and wait"].remark


def test_a_leak_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = []
    monkeypatch.setattr(life, "CYCLES", 5)
    monkeypatch.setattr(life, "_cycle", lambda _: kept.append((tmp_path / "a").open("w")))
    found = {each.name: each for each in life.run("cpu", Budget(60, small=True))}
    for file in kept:
        file.close()
    assert found["descriptors after the cycles"].outcome == "failed"
    assert found["descriptors after the cycles"].value == 5


def test_faults_of_a_model_are_named_and_survived() -> None:
    found = list(faults.run("virtual:navi31", Budget(60, small=True)))
    assert [each.name for each in found] == [
        "bad pointer, read",
        "bad pointer, write",
        "bad pointer, copied from",
        "illegal instruction",
        "endless kernel, with a limit",
        "out of memory",
    ]
    assert {each.outcome for each in found} == {"passed"}, found


@pytest.mark.parametrize(
    ("error", "survives", "words"),
    [
        (None, True, "nothing was reported"),
        (OutOfMemory("no"), True, "OutOfMemory, not DeviceHang"),
        (DeviceHang("hung"), False, "not survived"),
    ],
)
def test_a_fault_without_its_name_or_its_survival_fails(
    error: UgpuError | None, survives: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise AssertionError("it computes wrongly")

    def provoke() -> None:
        if error is not None:
            raise error

    with hcq.open("cpu") as device:
        provoker = faults.Provoker(device)
        if not survives:
            monkeypatch.setattr(provoker, "works", wrong)
        result = faults._provoked(provoker, "toy", provoke, DeviceHang)
    assert result.outcome == "failed"
    assert words in result.remark


def _toy(name: str, device: str, budget: Budget) -> Iterator[Result]:
    yield Result("Toy", "one", "passed")
    if name == "dies":
        sys.exit(9)
    if name == "raises":
        raise OutOfMemory("all of it")
    if name == "lingers":  # told everything, then does not end
        threading.Thread(target=threading.Event().wait).start()


TOY = """
from tests.lab.hw.test_hw_report import _toy
TITLE = "Toy"
def run(device, budget):
    yield from _toy({name!r}, device, budget)
"""


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("dies", "ended with 9"),
        ("raises", "OutOfMemory: all of it"),
        pytest.param("lingers", "", marks=pytest.mark.slow),
    ],
)
def test_what_a_section_found_survives_its_end(
    name: str, remark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "toys"
    package.mkdir()
    (package / f"section_toy_{name}.py").write_text(TOY.format(name=name), encoding="ascii")
    runner = tmp_path / "toys" / "run.py"
    runner.write_text(
        "import sys, importlib\n"
        f"sys.path.insert(0, {str(package)!r})\n"
        "import lab.hw.sections.run_section as r\n"
        f"sys.modules['lab.hw.sections.toy_{name}'] = importlib.import_module("
        f"'section_toy_{name}')\n"
        "sys.exit(r.main(sys.argv[1:]))\n",
        encoding="ascii",
    )
    real = suite._run

    def run(command: list[str], limit_s: float) -> process.Ended:
        return real([command[0], str(runner), *command[3:]], limit_s)

    monkeypatch.setattr(suite, "_run", run)
    monkeypatch.setenv("PYTHONPATH", str(suite.ROOT))
    monkeypatch.setattr(suite, "GRACE_S", 1)
    limit = 20.0 if name == "lingers" else 60.0
    found = suite.Runner("cpu", 1e12, now=lambda: 0.0).section(f"toy_{name}", limit)
    assert (found[0].section, found[0].name, found[0].outcome) == ("Toy", "one", "passed")
    if not remark:
        assert len(found) == 1
        return
    assert (found[-1].section, found[-1].outcome) == ("Toy", "failed")
    assert remark in found[-1].remark


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    monkeypatch.setattr(process, "ASKED_S", 0.2)
    for program in ("while True: pass", endless):
        done = suite._run([sys.executable, "-c", f"print('so far', flush=True)\n{program}"], 1.0)
        assert "ended by force" in done.trouble
        assert done.output == "so far\n"


def test_a_section_without_time_is_skipped() -> None:
    (found,) = suite.Runner("cpu", 0.0, now=lambda: 10.0).section("life", 60)
    assert found.outcome == "skipped"


def test_peers_stand_beside_their_figures() -> None:
    results = suite.beside([LINE, Result("Rates", "other", "measured", 1.0)], {"copy": 100.0})
    assert [each.peer for each in results] == [100.0, None]


def test_without_a_gpu_it_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "listed", list)
    assert suite.main([]) == suite.NO_GPU
    assert "ugpu doctor" in capsys.readouterr().out


def test_only_gpus_that_may_be_opened_are_taken() -> None:
    entries = [
        DeviceEntry("nvrm:0", "", {"usable": True, "driver": "nvidia 580.142"}),
        DeviceEntry("nvrm:1", "", {"usable": False}),
        DeviceEntry("pci:0000:03:00.0", "", {"driver": "vfio-pci"}),
        DeviceEntry("pci:0000:04:00.0", "", {"driver": "amdgpu"}),
        DeviceEntry("cpu", ""),
        DeviceEntry("virtual:gh100", ""),
    ]
    assert suite.usable(entries) == ["nvrm:0", "pci:0000:03:00.0"]


def test_a_device_that_does_not_open_is_a_failed_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suite.main(["--device", "virtual:none", "--output", str(tmp_path)]) == 1
    assert "DeviceNotFound" in capsys.readouterr().out
    (data,) = tmp_path.glob("*.json")
    assert json.loads(data.read_text())["failed"] == 1


def test_every_section_can_be_run_and_every_outcome_is_known() -> None:
    for name in suite.SECTIONS:
        module = importlib.import_module(f"lab.hw.sections.{name}")
        assert module.TITLE and callable(module.run)
    usual = sum(suite.SECTIONS[name] + suite.GRACE_S for name in suite.USUAL)
    assert usual < 5 * 60 + 60 and usual + suite.SECTIONS["candidates"] < 10 * 60
    assert LINE.outcome in OUTCOMES


def test_the_whole_suite_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = suite.main(
        [
            "--device",
            "cpu",
            "--minutes",
            "1",
            "--output",
            str(tmp_path),
            "--only",
            "faults",
            "rates",
        ]
    )
    assert code == 0, capsys.readouterr().out
    told = json.loads((tmp_path / "cpu-device.json").read_text())
    names = {each["name"] for each in told["results"] if each["outcome"] == "measured"}
    assert {"launch and wait", "copy to the device", "elementwise float32"} <= names
    assert {"copy within the device", "copy within the device, by a kernel"} <= names


def test_the_peer_says_when_there_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['torch'] = None\n"
         "from lab.hw.peer_torch import main; sys.exit(main())"],
        capture_output=True, text=True, check=False, cwd=suite.ROOT,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr


def test_the_checker_of_order_sees_a_missing_barrier() -> None:
    """The model runs the newest launch first where nothing orders them."""
    with (
        hcq.open("virtual:gh100") as device,
        device.load(candidates.TURNED.format(cpu=device.target.cpu).encode()) as program,
    ):
        budget = Budget(0, small=True)
        for ordered in (True, False):
            wrong, replays = candidates.ordering(
                device, program["turned"], 1024, 8, budget, ordered
            )
            assert (wrong == 0) is ordered and replays == 1


def test_each_descriptor_is_tried_and_checked() -> None:
    with hcq.open("virtual:gh100") as device:
        for name, fields in candidates.DESCRIPTORS.items():
            found = candidates.described(device, name, fields, Budget(0, small=True))
            assert found.outcome == "measured", found
        unknown = candidates.described(device, "x", {"NO_SUCH": 1}, Budget(0, small=True))
        assert (unknown.outcome, unknown.remark) == ("skipped", "this descriptor lacks NO_SUCH")


def test_candidates_of_launches_copies_and_products() -> None:
    with hcq.open("virtual:gh100") as device:
        budget = Budget(0, small=True)
        found = [
            candidates.recorded_launch(device, budget),
            candidates.copied(device, "copy within the device: it", "uint64", budget),
            *candidates.products(device, "bfloat16", budget),
        ]
    assert [each.outcome for each in found[:2]] == ["measured", "measured"]
    assert all(each.outcome in ("measured", "skipped") for each in found[2:])
    beside = suite.beside(found, {"launch and wait": 2.0, "copy within the device": 3.0})
    assert [each.peer for each in beside[:2]] == [2.0, 3.0]


def test_rows_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each.outcome == "measured" for each in rows.run("cpu", Budget(0, small=True)))
    wrong = rows.Row("softmax", lambda x: x.softmax(0), rows.WORKS[0].numpy)
    monkeypatch.setattr(rows, "WORKS", (wrong,))
    *_, last = rows.run("cpu", Budget(0, small=True))
    assert last.outcome == "failed"
