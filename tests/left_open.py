"""A plugin of pytest: names tests that leave a device open; `make test` fails by them.

A device may outlive the test that opens it, as one of a fixture of the module or the session does:
what counts is what is open after the last test of a process and all its fixtures. Devices that
tensors share by name (compiler.runtime.runtime.device_of) are open until the process ends.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ugpu.hcq.device.device import core_of
from ugpu.hcq.state import life

FAST = "not slow"  # in the marks that `make test` chooses by


class LeftOpen:
    """The devices of one process, and what the processes of a run have left open."""

    def __init__(self) -> None:
        self.openers: dict[int, str] = {}  # the test that opened a device, by the device's id
        self.lines: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:  # what pytest's hook returns
        result = yield
        self.openers = {
            id(device): self.openers.get(id(device), item.nodeid) for device in life.open_devices()
        }
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        runtime = sys.modules.get("ugpu.compiler.runtime.runtime")
        shared = [] if runtime is None else [core_of(each) for each in runtime.shared_devices()]
        self.lines += [
            f"{self.openers.get(id(device), 'collecting the tests')} left {device!r} open"
            for device in life.open_devices()
            if device not in shared and not device.closed
        ]
        worker: dict[str, object] | None = getattr(session.config, "workeroutput", None)
        if worker is not None:
            worker["left_open"] = self.lines
        elif (
            exitstatus == pytest.ExitCode.OK
            and self.lines
            and FAST in session.config.option.markexpr
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # a worker of xdist, which has no types
        self.lines += getattr(node, "workeroutput", {}).get("left_open", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOpen())
