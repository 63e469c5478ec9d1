"""The history of benchmarks, and what is read from it: lab.bench.history."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.bench import __main__ as bench
from lab.bench import history
from lab.bench.history import BenchRun, Figure, comparison, machine_kind

INFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14

processor\t: 1
model name\t: another
"""


def run(*figures: tuple[str, float, str]) -> BenchRun:
    return BenchRun("2026-01-01T00:00:00+00:00", "abc+", 0.5, [Figure(*one) for one in figures])


def test_a_kind_of_machine_has_a_name_that_is_a_file_name() -> None:
    assert machine_kind(INFO, 2) == "AMD-EPYC-9R14-25-17-x2"
    assert machine_kind("", 64).endswith("-x64")


def test_runs_are_added_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "kind.jsonl"
    assert history.runs(path) == []
    first, second = run(("import", 12.5, "ms")), run(("import", 13.0, "ms"), ("copy", 3.0, "GB/s"))
    history.append(first, path)
    history.append(second, path)
    with path.open("a") as file:
        file.write('{"time": "cut o')
    assert history.runs(path) == [first, second]


def test_what_is_worse_than_the_spread_of_earlier_runs_is_shown() -> None:
    earlier = [
        run(("steady", 100 + n, "ms"), ("noisy", 100 + 40 * n, "us"), ("rate", 50 + n, "GB/s"))
        for n in range(5)
    ]  # medians 102, 180, 52; median distances 1, 40, 1
    last = run(("steady", 110, "ms"), ("noisy", 290, "us"), ("rate", 45, "GB/s"), ("new", 1, "s"))
    lines, worse = comparison([*earlier, last])
    assert worse
    place = lines.index("worse:")
    assert [line.split()[0] for line in lines[place + 1 : -1]] == ["rate", "steady"]
    assert "+8% worse than 102 +- 1 (5 runs)" in lines[place + 2]
    assert lines[-1] == "1 as before, 1 with fewer than 3 earlier runs"


@pytest.mark.parametrize(
    ("figure", "title"),
    [
        (("a", 108.0, "ms"), "worse:"),
        (("a", 92.0, "ms"), "better:"),
        (("a", 92.0, "MB/s"), "worse:"),
        (("a", 108.0, "MB/s"), "better:"),
        (("a", 104.0, "ms"), None),
        (("a", 105.0, "ms"), None),
    ],
)
def test_rates_are_better_where_they_are_higher(
    figure: tuple[str, float, str], title: str | None
) -> None:
    earlier = [run(("a", 100.0, figure[2]))] * 3
    lines, worse = comparison([*earlier, run(figure)])
    assert [line for line in lines if line in ("worse:", "better:")] == ([title] if title else [])
    assert worse is (title == "worse:")


def test_figures_of_another_unit_or_too_few_runs_say_nothing() -> None:
    lines, worse = comparison([run(("a", 1.0, "s"))] * 3 + [run(("a", 900.0, "ms"))])
    assert not worse and lines[-1].startswith("0 as before, 1 with fewer")
    lines, worse = comparison([run(("a", 1.0, "s"))] * 2 + [run(("a", 9.0, "s"))])
    assert not worse and lines[-1].startswith("0 as before, 1 with fewer")
    assert comparison([])[1] is False


def test_a_count_that_was_always_zero_may_become_worse() -> None:
    lines, worse = comparison(
        [run(("refused", 0.0, "calls"))] * 3 + [run(("refused", 2.0, "calls"))]
    )
    assert worse and "+inf% worse than 0 +- 0" in lines[2]


def test_a_run_is_added_without_what_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kind.jsonl"
    results: list[dict[str, object]] = [
        {"name": "import", "value": 12.5, "unit": "ms"},
        {"name": "torch", "skipped": "not installed"},
    ]
    monkeypatch.setattr(history, "history_file", lambda: path)
    monkeypatch.setattr(bench, "run", lambda subject: results)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "start"])
    assert bench.main() == 0
    assert [list(one.figures) for one in history.runs(path)] == [[Figure("import", 12.5, "ms")]]
    monkeypatch.setattr(sys, "argv", ["bench", "compare"])
    assert bench.main() == 0
    assert "0 as before, 1 with fewer than 3 earlier runs" in capsys.readouterr().out


def test_a_subject_that_fails_stops_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kind.jsonl"

    def measured(subject: str) -> list[dict[str, object]]:
        if subject == "boot":
            raise subprocess.CalledProcessError(7, ["python"])
        if subject == "hcq":
            raise subprocess.TimeoutExpired(["python"], 900)
        return [{"name": "import", "value": 12.5, "unit": "ms"}]

    monkeypatch.setattr(history, "history_file", lambda: path)
    monkeypatch.setattr(bench, "run", measured)
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "boot", "hcq", "start"])
    assert bench.main() == 1
    assert [list(one.figures) for one in history.runs(path)] == [[Figure("import", 12.5, "ms")]]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["boot failed: exit status 7", "hcq failed: more than 900 s"]


def _imports(path: Path) -> Iterator[ast.ImportFrom]:
    """The imports of a module, and of programs that it has as text."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Constant) and "import " in str(node.value):
            try:
                program = ast.parse(str(node.value))
            except (SyntaxError, ValueError):
                continue
            yield from (one for one in ast.walk(program) if isinstance(one, ast.ImportFrom))


@cache
def _names(module: str) -> frozenset[str]:
    """What `from module import` finds: modules in its folder, and all names that its text uses."""
    found: set[str] = set()
    spec = find_spec(module)
    assert spec is not None, f"expected a module named {module}, found none"
    for folder in spec.submodule_search_locations or ():
        found |= {one.stem for one in Path(folder).iterdir()}
    if spec.origin is not None:
        found |= set(re.findall(r"[A-Za-z_]\w*", Path(spec.origin).read_text("utf-8")))
    return frozenset(found)


@pytest.mark.parametrize(
    "path", sorted(Path(bench.__file__).parent.glob("*/*.py")), ids=lambda path: path.stem
)
def test_what_a_benchmark_and_its_programs_import_exists(path: Path) -> None:
    for found in _imports(path):
        module = str(found.module)
        if module.split(".")[0] in ("ugpu", "tests", "lab"):
            assert {alias.name for alias in found.names} <= _names(module), ast.unparse(found)
