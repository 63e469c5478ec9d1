"""The JUnit report of `ugpu ci run`, with the properties that the pytest plugin writes.

Elements, attributes and their order are those of the schemas of Jenkins (xunit-plugin,
junit-10.xsd) and Ant, but for the properties of a case: neither schema has them, and pytest,
GitLab and other readers do.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import HostError
from ugpu.tools.ci.bench import Result
from ugpu.tools.ci.report.about import About
from ugpu.tools.ci.verdict import Verdict

# Characters that XML 1.0 cannot represent: section 2.2 of its specification.
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

KIND = outfile.Kind("a JUnit report", rb"<\?xml [^>]*\?>\s*<testsuites?[\s>]")


def write(path: Path, name: str, results: Sequence[Result], about: About | None = None) -> None:
    """Write the report. HostError if it cannot be written."""
    about = about if about is not None else About(Path.cwd())
    counts = {
        "tests": str(len(results)),
        "failures": str(sum(bool(result.attempts) and not result.passed for result in results)),
        "errors": str(sum(not result.attempts for result in results)),
        "time": f"{about.seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": _clean(name), **counts})
    suite = ElementTree.SubElement(
        root, "testsuite",
        {
            "name": _clean(name), **counts,
            "skipped": str(sum(result.skipped for result in results)),
            "timestamp": about.started.strftime("%Y-%m-%dT%H:%M:%S"),  # UTC; Ant: without a zone
            "hostname": _clean(about.host), "id": "0", "package": _clean(name),
        },
    )  # fmt: skip
    words = [("gpu_excluded", text) for result in results for text in result.excluded]
    _properties(suite, [("commit", about.commit), *dict.fromkeys(words)])
    for result in results:
        _case(suite, name, result)
    ElementTree.SubElement(suite, "system-out")
    ElementTree.SubElement(suite, "system-err")
    outfile.check_file(path, KIND)
    try:
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _case(suite: ElementTree.Element, name: str, result: Result) -> None:
    case = ElementTree.SubElement(
        suite, "testcase",
        {
            "classname": _clean(name), "name": _clean(result.case.name),
            "time": f"{result.seconds:.3f}", "status": result.row.verdict,
        },
    )  # fmt: skip
    words: list[tuple[str, str]] = []
    if result.attempts:
        words.append(("gpu_devices", result.devices))
    if result.judgement is not None and result.judgement.verdict is not Verdict.PASSED:
        words += [
            ("gpu_verdict", result.judgement.verdict.value),
            ("gpu_reason", result.judgement.reason),
        ]
        words += [("gpu_bundle", run.bundle) for run in result.attempts if run.bundle]
    words += [("gpu_output", str(result.log))] if result.log is not None else []
    words += [("gpu_hook", text) for text in result.hooks]
    words += [("gpu_excluded", text) for text in result.excluded]
    if words:
        _properties(case, words)
    if result.skipped:
        ElementTree.SubElement(case, "skipped", {"message": result.attempts[-1].void})
    elif not result.attempts:
        _fault(case, "error", "not run", result.error)
    elif not result.passed:
        failed = next(run for run in reversed(result.attempts) if run.error)
        kind = result.judgement.verdict.value if result.judgement is not None else "failed"
        _fault(case, "failure", kind, failed.error)
    if result.output:
        ElementTree.SubElement(case, "system-out").text = _clean(result.output)


def _fault(case: ElementTree.Element, tag: str, kind: str, message: str) -> None:
    attributes = {"type": kind, "message": _clean(message)}
    ElementTree.SubElement(case, tag, attributes).text = _clean(message)


def _properties(parent: ElementTree.Element, words: Sequence[tuple[str, str]]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for key, value in words:
        ElementTree.SubElement(properties, "property", {"name": key, "value": _clean(value)})


def _clean(text: str) -> str:
    return _INVALID.sub("\N{REPLACEMENT CHARACTER}", text)
