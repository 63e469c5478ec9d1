"""Which tests reach which lines: a plugin for pytest, and what it has written.

    python -m pytest -p lab.mutants.reach ...

The environment names the file to write and the source files to watch. Lines in fixtures shared
by tests are counted for the test that needs them first, lines of modules that are imported for the
tests for none.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage

OUTPUT, FILES = "UGPU_REACH_OUTPUT", "UGPU_REACH_FILES"


@dataclass(frozen=True)
class Reach:
    """lines: file -> line -> the tests that reach it. seconds: how long each test took."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, path: Path) -> Reach:
        """What a run under the plugin has written."""
        found = json.loads(path.read_text("utf-8"))
        lines = {
            file: {int(line): tests for line, tests in reached.items()}
            for file, reached in found["lines"].items()
        }
        return cls(lines, found["seconds"])

    def tests(self, file: str, lines: Collection[int]) -> list[str]:
        """The tests that reach one of a file's lines, the quickest first."""
        reached = self.lines.get(file, {})
        found = {test for line in lines for test in reached.get(line, ())}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))


class Watch:
    """The plugin. Paths are relative to the folder pytest runs in."""

    def __init__(self, files: list[str], output: Path) -> None:
        self.files = files
        self.output = output
        self.seconds: dict[str, float] = defaultdict(float)
        self.coverage = Coverage(data_file=None, include=files, config_file=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {}
        for file in self.files:
            reached = data.contexts_by_lineno(os.path.abspath(file))
            lines[file] = {line: sorted(filter(None, tests)) for line, tests in reached.items()}
        found = {"lines": lines, "seconds": self.seconds}
        self.output.write_text(json.dumps(found), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    watch = Watch(os.environ[FILES].split(os.pathsep), Path(os.environ[OUTPUT]))
    config.pluginmanager.register(watch)
    watch.coverage.start()
