"""The last calls to a kernel driver, kept while a section runs, and told when it fails.

Calls are recorded as `ugpu sniff device` does. A section that has to be ended by force tells its
calls, and where its threads stand, when it gets SIGTERM. Also a plugin of pytest:
`-p lab.hw.calls --hw-calls FILE`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import pytest

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find import registry
from ugpu.hcq.transport.node import Node, NodeAttachment
from ugpu.nv import abi
from ugpu.tools.debug.sniff import recording
from ugpu.tools.debug.sniff.command import version_in
from ugpu.tools.debug.sniff.decode import Decoded, Decoder, lines
from ugpu.tools.debug.sniff.flags import Flags
from ugpu.tools.debug.sniff.node import RecordingNode
from ugpu.tools.debug.sniff.rules import Rules

MOST = 400
#: calls told of a section that failed: those that went wrong, and the last ones
TOLD_WRONG, TOLD_LAST, MOST_LINES = 12, 3, 150
#: whose interface is assumed where no file tells the version, as in some sandboxes
DEFAULT_DRIVER = "580.142"


class LastCalls:
    """The newest lines of a recording; what RecordingNode takes for a file."""

    def __init__(self, most: int = MOST) -> None:
        self.driver = DEFAULT_DRIVER
        self.kept: deque[str] = deque(maxlen=most)

    def write(self, text: str) -> int:
        self.kept.append(text)
        return len(text)

    def save(self, path: Path) -> None:
        """Write them as a recording."""
        head = recording.header(self.driver, "node", "/dev/nvidia", ["last calls"])
        path.write_text(head + "".join(tuple(self.kept)), encoding="utf-8")


def driver_of(node: Node) -> str:
    """The version of the driver behind a node, or the default."""
    with contextlib.suppress(OSError):
        return version_in(node.read_text("/proc/driver/nvidia/version")) or DEFAULT_DRIVER
    return DEFAULT_DRIVER


def watched(attachment: object, calls: LastCalls) -> object:
    """A way to a GPU behind NVIDIA's driver, its calls kept; any other as it is."""
    if not isinstance(attachment, NodeAttachment) or attachment.driver != "nvrm":
        return attachment
    calls.driver = driver_of(attachment.node)
    rules = Rules.of(abi.select(calls.driver))
    return replace(attachment, node=RecordingNode(attachment.node, cast("IO[str]", calls), rules))


def install(calls: LastCalls) -> None:
    """Keep the calls of every device that this process opens from now on."""
    places = ["ugpu.virtual.nvidia.gpu:attach", registry.NODE_DRIVERS["nvrm"].attach]
    for place in places:
        module, _, name = place.partition(":")
        if not module.startswith(("ugpu.nv.", "ugpu.virtual.nvidia.")):
            continue
        owner = importlib.import_module(module)
        setattr(owner, name, _wrapped(getattr(owner, name), calls))


def _wrapped(attach: Callable[..., Any], calls: LastCalls) -> Callable[..., Any]:
    if isinstance(attach, functools.partial):  # has no name to take over
        attach = functools.update_wrapper(
            functools.partial(attach.func, *attach.args, **attach.keywords), attach.func
        )

    @functools.wraps(attach)
    def inner(*arguments: Any, **options: Any) -> Any:  # Any: each way in has its own options
        return watched(attach(*arguments, **options), calls)

    return inner


def tell_when_ended(calls: LastCalls, path: Path) -> None:
    """On SIGTERM write the calls, and beside them where every thread stands; then end."""

    def end(number: int, frame: object) -> None:
        calls.save(path)
        with stacks_of(path).open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def stacks_of(path: Path) -> Path:
    """Where threads of a process stood when it was ended, beside its calls."""
    return path.with_suffix(".stacks")


def told(path: Path) -> list[str]:
    """What a file of calls says of a failure: decoded, what went wrong first."""
    try:
        found = recording.read(path)
    except BadArgument:
        return []
    table = abi.select(found.driver)
    decoded = Decoder(table).all(found)
    wrong = [each for each in decoded if each.status or each.call.errno][-TOLD_WRONG:]
    shown: list[str] = []
    start = found.calls[0].time if found.calls else 0.0
    for title, calls in (("refused", wrong), ("last", decoded[-TOLD_LAST:])):
        if calls:
            shown.append(f"{title}:")
        for line in _lines(calls, start, Flags(table.constants)):
            shown.append(line)
    return shown[:MOST_LINES]


def _lines(calls: list[Decoded], start: float, flags: Flags) -> Iterator[str]:
    for each in calls:
        yield from lines(each, start, flags)


# A plugin of pytest, for the contract suite

_running: list[LastCalls] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hw-calls", type=Path, help="where to write the last calls after failures")
    parser.addoption("--hw-tests", type=Path, help="where to write each test's outcome as it comes")


def pytest_configure(config: pytest.Config) -> None:
    tests = config.getoption("--hw-tests")
    if tests is not None:
        config.pluginmanager.register(_Teller(tests), "hw-tests")
    path = config.getoption("--hw-calls")
    if path is not None:
        calls = LastCalls()
        install(calls)
        tell_when_ended(calls, path)
        _running.append(calls)


@pytest.hookimpl(trylast=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """The calls before the first failure are the ones that count."""
    path = item.config.getoption("--hw-calls")
    failed = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    if path is not None and failed and not path.exists():
        for calls in _running:
            calls.save(path)


class _Teller:
    """Writes a line when a test begins and one when it has ended: a run that is ended by force has
    told what it found, and which test it was at."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, **facts: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Only tests of the device: others, as those of transports, run anywhere."""
        ours = [item for item in items if {"device", "opener"} & set(_fixtures(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in ours])
        items[:] = ours

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, outcome="begun")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            words = str(crash.message if crash else report.longrepr or "").strip().splitlines()
            self._write(test=report.nodeid, outcome=report.outcome, words=(words or [""])[0][:200])


def _fixtures(item: pytest.Item) -> list[str]:
    return list(item.fixturenames) if isinstance(item, pytest.Function) else []


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON that a process left, the last one perhaps cut off; none without a file."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
