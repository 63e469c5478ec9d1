"""The JUnit report of `ugpu ci run`, with the properties that the pytest plugin writes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from hcq.errors import HostError

from .bench import Result
from .verdict import Verdict

# Characters that XML 1.0 cannot represent: section 2.2 of its specification.
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: Path, name: str, results: Sequence[Result]) -> None:
    """Write the report. HostError if it cannot be written."""
    failures = sum(bool(one.attempts) and not one.passed for one in results)
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": name,
            "tests": str(len(results)),
            "failures": str(failures),
            "errors": str(sum(not one.attempts for one in results)),
            "skipped": str(sum(one.skipped for one in results)),
            "time": f"{sum(one.seconds for one in results):.3f}",
        },
    )
    for one in results:
        _case(suite, name, one)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    try:
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _case(suite: ElementTree.Element, name: str, one: Result) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": name, "name": _clean(one.case.name), "time": f"{one.seconds:.3f}"},
    )
    words: list[tuple[str, str]] = []
    if one.attempts:
        words.append(("gpu_devices", " ".join(one.attempts[-1].devices)))
    if one.judgement is not None and one.judgement.verdict is not Verdict.PASSED:
        words += [
            ("gpu_verdict", one.judgement.verdict.value),
            ("gpu_reason", one.judgement.reason),
        ]
        words += [("gpu_bundle", run.bundle) for run in one.attempts if run.bundle]
    words += [("gpu_hook", text) for text in one.hooks]
    if words:
        properties = ElementTree.SubElement(case, "properties")
        for key, value in words:
            ElementTree.SubElement(properties, "property", {"name": key, "value": _clean(value)})
    if one.skipped:
        ElementTree.SubElement(case, "skipped")
    elif not one.attempts:
        ElementTree.SubElement(case, "error", {"message": _clean(one.error)})
    elif not one.passed:
        ElementTree.SubElement(case, "failure", {"message": _clean(one.attempts[-1].error)})
    if one.output:
        ElementTree.SubElement(case, "system-out").text = _clean(one.output)


def _clean(text: str) -> str:
    return _INVALID.sub("\N{REPLACEMENT CHARACTER}", text)
