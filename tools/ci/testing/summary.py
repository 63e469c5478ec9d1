"""The verdicts at the end of pytest's output, and the rows of the page, from pytest's reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ugpu.tools.ci.report.page import Row

_PHASES = ("call", "setup", "teardown")


def reports_of(stats: Mapping[str, Iterable[Any]]) -> dict[str, Any]:
    """Return for each test that borrowed the report that shows its result: the first that failed,
    or that of its function."""
    shown: dict[str, Any] = {}
    for reports in stats.values():
        for report in reports:
            words = dict(getattr(report, "user_properties", ()))
            if "gpu_devices" in words or "gpu_verdict" in words:
                earlier = shown.get(report.nodeid)
                if earlier is None or _rank(report) < _rank(earlier):
                    shown[report.nodeid] = report
    return shown


def verdicts(stats: Mapping[str, Iterable[Any]]) -> list[tuple[str, str, str]]:
    """Return test, verdict and reason of each test with another verdict than "passed"."""
    rows = []
    for test, report in sorted(reports_of(stats).items()):
        words = dict(report.user_properties)
        if "gpu_verdict" in words:
            rows.append((test, words["gpu_verdict"], words["gpu_reason"]))
    return rows


def excluded(stats: Mapping[str, Iterable[Any]]) -> list[str]:
    """Return the devices that failed before a test had them, with the reasons."""
    words = [
        value
        for report in reports_of(stats).values()
        for name, value in report.user_properties
        if name == "gpu_excluded"
    ]
    return sorted(set(words))


def rows(stats: Mapping[str, Iterable[Any]]) -> list[Row]:
    """Return the page's rows."""
    rows = []
    for test, report in reports_of(stats).items():
        words = dict(report.user_properties)
        bundles = [value for name, value in report.user_properties if name == "gpu_bundle"]
        output = "\n\n".join(
            text for text in (report.longreprtext, report.capstdout, report.capstderr) if text
        )
        rows.append(
            Row(
                test, words.get("gpu_devices", ""), report.duration,
                words.get("gpu_verdict", _outcome(report)), words.get("gpu_reason", ""),
                "\n".join(bundles), output=output,
            )
        )  # fmt: skip
    return rows


def _rank(report: Any) -> tuple[bool, int]:
    return not report.failed, _PHASES.index(report.when)


def _outcome(report: Any) -> str:
    """Return how a test without another verdict ended."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return str(report.outcome)
