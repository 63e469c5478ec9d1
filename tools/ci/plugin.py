"""The pytest plugin: `@pytest.mark.gpu(...)`, the fixture `gpu`, and verdicts.

A test that fails on a borrowed device is run once more, on another device if one fits. It gets a
verdict: test, device or flaky (tools.ci.verdict). With a verdict "device" or "flaky" whose second
run ran the same assertions and passed (tools.ci.testing.reached), the test passes. The verdict is
in the JUnit report (property `gpu_verdict`), at the end of the output, in the HTML page and in the
history.
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ugpu.tools.ci.testing.limits import pytest_timeout_set_timer, suspended

__all__ = ["pytest_timeout_set_timer"]  # a hook of this plugin

ENTRY = "UGPU_CI_RUN"  # the run's id, for the processes of pytest-xdist
_FAULT_HELP = (
    "fault of a virtual device while a test has it, such as virtual:<chip>?mec_crashed; a pattern "
    "of test names may follow; may be repeated"
)
_HELP = "device that tests may borrow (name as for ugpu.open); may be repeated"


_RUNS = pytest.StashKey[Any]()  # Runs: imported only by tests that borrow
_POOL = pytest.StashKey[Any]()  # Pool
_ABOUT = pytest.StashKey[Any]()  # About


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
    group.addoption(
        "--gpu-fault", action="append", default=[], metavar="DEVICE?FAULT", help=_FAULT_HELP
    )
    parser.addini("gpu_devices", _HELP, type="args", default=[])
    parser.addini("gpu_faults", _FAULT_HELP, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; start a run."""
    config.addinivalue_line(
        "markers",
        "gpu(arch='*', bus='*', count=1, memory=0, reset=False): devices that the fixture `gpu` "
        "borrows, e.g. gpu(arch='gfx11*', memory='8G')",
    )
    if not hasattr(config, "workerinput"):
        os.environ[ENTRY] = uuid.uuid4().hex[:12]
    if config.getoption("--gpu-html"):
        from ugpu.hcq.errors import BadArgument
        from ugpu.tools.ci.report.about import About
        from ugpu.tools.ci.report.page import check

        try:
            check(Path(config.getoption("--gpu-html")))
        except BadArgument as error:
            raise pytest.UsageError(f"--gpu-html: {error}") from None
        config.stash[_ABOUT] = About(config.rootpath)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import before the first test what tests that borrow need: it takes seconds on a busy host,
    which must not count as the test's."""
    if any(_borrows(item) for item in session.items):
        importlib.import_module("ugpu.tools.ci.testing.runs")
        from ugpu.hcq.errors import BadArgument

        try:
            _faults(session.config, pool_of(session.config))
        except BadArgument as error:
            raise pytest.UsageError(error.message) from None


def pool_of(config: pytest.Config) -> Any:
    """Return the devices of this process."""
    if _POOL not in config.stash:
        from ugpu.tools.ci.pool import Pool, lock_folder

        names = config.getoption("--gpu-device") or config.getini("gpu_devices")
        if not names:
            names = os.environ.get("UGPU_TEST_DEVICES", "").split()
        config.stash[_POOL] = Pool(names, lock_folder(os.environ), os.environ.get(ENTRY, "none"))
    return config.stash[_POOL]


def _faults(config: pytest.Config, pool: Any) -> list[Any]:
    """Return the faults to plant (tools.ci.plants.Plant)."""
    from ugpu.tools.ci import plants

    texts = [*config.getoption("--gpu-fault"), *config.getini("gpu_faults")]
    planted = [plants.read(text) for text in texts]
    for plant in planted:
        plant.check(pool.names)
    return planted


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An open, healthy device that no other test has; a list of them for count > 1. Asked for by
    the marker `gpu`. Work that is still in flight at the test's end belongs to the test, and the
    fixture closes the device."""
    from ugpu.hcq.errors import BadArgument, UgpuError
    from ugpu.tools.ci import plants
    from ugpu.tools.ci.demand import Demand

    marker = request.node.get_closest_marker("gpu")
    run = request.node.stash[_RUNS].current
    pool = pool_of(request.config)
    refusal = ""
    try:
        faults = _faults(request.config, pool)
        if marker is not None and marker.args:
            raise BadArgument(f"gpu() accepts only keywords, got {marker.args[0]!r}")
        demand = Demand.from_words(**(marker.kwargs if marker is not None else {}))
        limit_s = request.config.getoption("--gpu-wait")
        with suspended(request.node):
            run.lend(pool.take(demand, avoid=run.avoid, limit_s=limit_s))
        plants.prepare(run.loan, faults, request.node.nodeid)
        plants.strike(run.loan)
    except UgpuError as error:
        hint = "" if pool.names else "; name devices: --gpu-device, gpu_devices, UGPU_TEST_DEVICES"
        refusal, run.sick = f"{error}{hint}", getattr(error, "sick", ())
    if refusal:
        pytest.fail(refusal, pytrace=False)
    devices = run.loan.devices
    yield devices[0] if demand.count == 1 else list(devices)
    run.finish()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    runs = item.stash.get(_RUNS, None)
    if runs is not None:
        runs.current.settle()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    runs = item.stash.get(_RUNS, None)
    if runs is not None and report.failed and call.excinfo is not None:
        runs.current.errors[call.when] = call.excinfo.value
    return report


def _borrows(item: pytest.Item) -> bool:
    """Return whether a test uses this module's fixture, and not another of the same name."""
    info = getattr(item, "_fixtureinfo", None)
    fixtures = info.name2fixturedefs.get("gpu") if info is not None else None
    return fixtures is not None and fixtures[-1].func.__module__ == __name__


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that borrows, twice if it fails. The second run is a protocol of its own inside
    the first one's, so that what other plugins do around a test, such as limiting its time, is done
    around each run."""
    if not _borrows(item):
        return None
    if (inside := item.stash.get(_RUNS, None)) is not None:
        inside.make(nextitem)
        return True
    from ugpu.tools.ci.testing.runs import Runs

    runs = item.stash[_RUNS] = Runs(item, pool_of(item.config))
    try:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runs.make(nextitem)
        if runs.again():
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        _judge(item, runs)
        for report in runs.counted().reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    finally:
        del item.stash[_RUNS]
    return True


def _judge(item: pytest.Item, runs: Any) -> None:
    from ugpu.tools.ci.report.history import History
    from ugpu.tools.ci.verdict import Verdict

    judgement, attempts = runs.judgement(), runs.attempts
    if judgement is None:
        return
    loan = runs.counted().loan
    words = [("gpu_devices", " ".join(loan.names if loan is not None else ()))]
    words += [
        ("gpu_excluded", f"{tried.devices[0]}: {tried.error}") for tried in attempts if tried.before
    ]
    if judgement.verdict is not Verdict.PASSED:
        words += [("gpu_verdict", judgement.verdict.value), ("gpu_reason", judgement.reason)]
        words += [("gpu_bundle", tried.bundle) for tried in attempts if tried.bundle]
    for report in runs.counted().reports:
        report.user_properties.extend(words)
    path = item.config.getoption("--gpu-history")
    if path:
        run = os.environ.get(ENTRY, "")
        History(Path(path)).add(run, item.nodeid, attempts, judgement, time.time())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdicts, and write the page."""
    from ugpu.tools.ci.testing import summary

    excluded = summary.excluded(terminalreporter.stats)
    if excluded:
        terminalreporter.section("GPUs excluded from the run")
        for line in excluded:
            terminalreporter.write_line(line)
    verdicts = summary.verdicts(terminalreporter.stats)
    if verdicts:
        terminalreporter.section("verdicts of tests on GPUs")
        for test, verdict, reason in verdicts:
            terminalreporter.write_line(f"{verdict:<7} {test}: {reason}")
    page = config.getoption("--gpu-html")
    if page:
        from ugpu.tools.ci.report.page import write

        rows = summary.rows(terminalreporter.stats)
        write(Path(page), rows, config.stash.get(_ABOUT, None), excluded)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run's quarantine."""
    pool = config.stash.get(_POOL, None)
    if pool is not None and not hasattr(config, "workerinput"):
        pool.end()
