"""The pytest plugin: `@pytest.mark.gpu(...)`, the fixture `gpu`, and verdicts.

A test that fails on a borrowed device is run once more, on another device if one fits. It gets a
verdict: test, device or flaky (tools.ci.verdict). With a verdict "device" or "flaky" whose second
run passed, the test passes. The verdict is in the JUnit report (property `gpu_verdict`), at the end
of the output, in the HTML page and in the history.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ENTRY = "UGPU_CI_RUN"  # the run's id, for the processes of pytest-xdist
_HELP = "device that tests may borrow (name as for ugpu.open); may be repeated"


@dataclass
class Borrowed:
    """State of one run of one test: its loan, the devices to avoid, and the error it met."""

    avoid: tuple[str, ...] = ()
    loan: Any = None  # Loan: imported only by tests that borrow
    error: BaseException | None = None


_BORROWED = pytest.StashKey[Borrowed]()
_POOL = pytest.StashKey[Any]()  # Pool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin."""
    group = parser.getgroup("gpu", "GPUs lent to tests (ugpu)")
    group.addoption("--gpu-device", action="append", default=[], metavar="NAME", help=_HELP)
    group.addoption("--gpu-history", metavar="FILE", help="SQLite file that keeps all verdicts")
    group.addoption("--gpu-html", metavar="FILE", help="page with the verdicts of this run")
    group.addoption(
        "--gpu-wait", type=float, default=600.0, metavar="SECONDS",
        help="how long a test waits for a device that others have; default: %(default)s",
    )  # fmt: skip
    parser.addini("gpu_devices", _HELP, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; start a run."""
    config.addinivalue_line(
        "markers",
        "gpu(arch='*', bus='*', count=1, memory=0, reset=False): devices that the fixture `gpu` "
        "borrows, e.g. gpu(arch='gfx11*', memory='8G')",
    )
    if not hasattr(config, "workerinput"):
        os.environ[ENTRY] = uuid.uuid4().hex[:12]


def pool_of(config: pytest.Config) -> Any:
    """Return the devices of this process."""
    if _POOL not in config.stash:
        from .pool import Pool, lock_folder

        names = config.getoption("--gpu-device") or config.getini("gpu_devices")
        if not names:
            names = os.environ.get("UGPU_TEST_DEVICES", "").split()
        config.stash[_POOL] = Pool(names, lock_folder(os.environ), os.environ.get(ENTRY, "none"))
    return config.stash[_POOL]


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An open, healthy device that no other test has; a list of them for count > 1. Asked for by
    the marker `gpu`. Work that is still in flight at the test's end belongs to the test."""
    from hcq.errors import BadArgument, UgpuError

    from .demand import Demand

    marker = request.node.get_closest_marker("gpu")
    borrowed = request.node.stash.setdefault(_BORROWED, Borrowed())
    pool = pool_of(request.config)
    refusal = ""
    try:
        if marker is not None and marker.args:
            raise BadArgument(f"gpu() accepts only keywords, got {marker.args[0]!r}")
        demand = Demand.from_words(**(marker.kwargs if marker is not None else {}))
        limit_s = request.config.getoption("--gpu-wait")
        borrowed.loan = pool.take(demand, avoid=borrowed.avoid, limit_s=limit_s)
    except UgpuError as error:
        hint = "" if pool.names else "; name devices: --gpu-device, gpu_devices, UGPU_TEST_DEVICES"
        refusal = f"{error}{hint}"
    if refusal:
        pytest.fail(refusal, pytrace=False)
    devices = borrowed.loan.devices
    yield devices[0] if demand.count == 1 else list(devices)
    for device in devices:
        device.synchronize()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    yield
    borrowed = item.stash.get(_BORROWED, None)
    info = call.excinfo
    if borrowed is None or info is None or borrowed.error is not None:
        return
    if not info.errisinstance(pytest.skip.Exception):
        borrowed.error = info.value


def _borrows(item: pytest.Item) -> bool:
    """Return whether a test uses this module's fixture, and not another of the same name."""
    info = getattr(item, "_fixtureinfo", None)
    found = info.name2fixturedefs.get("gpu") if info is not None else None
    return found is not None and found[-1].func.__module__ == __name__


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _borrows(item):
        return None
    from _pytest.runner import runtestprotocol

    from .evidence import attempt, of_error
    from .verdict import is_over

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    attempts: list[Any] = []
    reports: list[pytest.TestReport] = []
    while True:
        avoid = tuple(name for one in attempts for name in one.devices)
        borrowed = item.stash[_BORROWED] = Borrowed(avoid)
        try:
            made = runtestprotocol(item, log=False, nextitem=nextitem)
            if borrowed.loan is not None:
                found = of_error(borrowed.error)
                attempts.append(attempt(borrowed.loan, found, pool_of(item.config)))
        finally:
            if borrowed.loan is not None:
                borrowed.loan.release()
        # Without a loan the test was skipped, or no device was available. In the second run, the
        # first run's reports say more.
        reports = made if borrowed.loan is not None or not attempts else reports
        if borrowed.loan is None or is_over(attempts):
            break
        item._initrequest()  # type: ignore[attr-defined]
    if attempts:
        _judge(item, attempts, reports)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _judge(item: pytest.Item, attempts: list[Any], reports: list[pytest.TestReport]) -> None:
    from .history import History
    from .verdict import Verdict, judge

    found = judge(attempts)
    words = [("gpu_devices", " ".join(attempts[-1].devices))]
    if found.verdict is not Verdict.PASSED:
        words += [("gpu_verdict", found.verdict.value), ("gpu_reason", found.reason)]
        words += [("gpu_bundle", one.bundle) for one in attempts if one.bundle]
    for report in reports:
        report.user_properties.extend(words)
    path = item.config.getoption("--gpu-history")
    if path:
        run = os.environ.get(ENTRY, "")
        History(Path(path)).add(run, item.nodeid, attempts, found, time.time())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdicts, and write the page."""
    verdicts = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            words = dict(getattr(report, "user_properties", ()))
            if "gpu_verdict" in words and getattr(report, "when", "") == "call":
                verdicts.append((report.nodeid, words["gpu_verdict"], words["gpu_reason"]))
    if verdicts:
        terminalreporter.section("verdicts of tests on GPUs")
        for test, verdict, reason in sorted(verdicts):
            terminalreporter.write_line(f"{verdict:<7} {test}: {reason}")
    page = config.getoption("--gpu-html")
    if page:
        from .page import write

        write(Path(page), _rows(terminalreporter.stats))


def _rows(stats: Mapping[str, Iterable[Any]]) -> list[Any]:
    """Return the page's rows (tools.ci.page.Row) from pytest's reports."""
    from .page import Row

    rows = []
    for reports in stats.values():
        for report in reports:
            words = dict(getattr(report, "user_properties", ()))
            if "gpu_devices" in words and getattr(report, "when", "") == "call":
                verdict = words.get("gpu_verdict", "passed")
                reason, bundle = words.get("gpu_reason", ""), words.get("gpu_bundle", "")
                devices, seconds = words["gpu_devices"], report.duration
                rows.append(Row(report.nodeid, devices, seconds, verdict, reason, bundle))
    return rows


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run's quarantine."""
    pool = config.stash.get(_POOL, None)
    if pool is not None and not hasattr(config, "workerinput"):
        pool.end()
