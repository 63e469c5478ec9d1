"""Runs of the pytest plugin on devices of the host with planted troubles, which stand for cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.tools.ci import health, pool
from ugpu.tools.ci.testing import runs

OPTIONS = ["-p", "ugpu.tools.ci.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider"]

CONFTEST = """
from ugpu import hcq
from ugpu.hcq.errors import DeviceLost
from ugpu.tools.ci import pool as pools
from ugpu.tools.ci.health import Health

OPENED = []

def opener(name):
    if name == "cpu:dead":
        raise DeviceLost("cpu:dead does not answer")
    device = hcq.open("cpu", threads=1)
    device.driver.core.name = name
    OPENED.append(name)
    return device

def check(device):
    sick = {"cpu:rots": len(OPENED) > 1, "cpu:sick": True}
    return Health("memory: 3 of 4 words differ" if sick.get(device.name) else "")

OPTIONS = {"opener": opener, "check": check}
real = pools.Pool.__dict__.get("real", pools.Pool.__init__)
pools.Pool.real = real
pools.Pool.__init__ = lambda self, *words: real(self, *words, **OPTIONS)
"""

LOADED = (health, runs)  # here: NumPy cannot be loaded again in one process


def run(
    pytester: pytest.Pytester, code: str, *words: str, subprocess: bool = False
) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest\nfrom ugpu.hcq.errors import DeviceLost\n" + code)
    if subprocess:
        return pytester.runpytest_subprocess(*OPTIONS, *words)
    return pytester.runpytest(*OPTIONS, *words)


@pytest.fixture(autouse=True)
def own_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # installed, it loads by itself
    monkeypatch.setattr(pool.Pool, "__init__", pool.Pool.__init__)  # the conftest replaces it
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("UGPU_TEST_DEVICES", raising=False)


def verdicts(result: pytest.RunResult) -> list[str]:
    lines = result.outlines
    start = next((n for n, line in enumerate(lines) if "verdicts of tests on GPUs" in line), None)
    if start is None:
        return []
    words = ("flaky ", "test ", "device ", "passed ")
    return [line for line in lines[start + 1 :] if line.startswith(words)]
