"""What ugpud sends to an OpenTelemetry collector: judged by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import http.server
import json
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.support.service.daemon import Running, settings_text
from ugpu.hcq.errors import BadArgument, ChipError, MissingDependency
from ugpu.tools.base.events import FAILED, tell
from ugpu.tools.service.daemon.config import OtlpSettings, parse
from ugpu.tools.service.daemon.outlets.outlets import outlets
from ugpu.tools.service.metrics import otlp
from ugpu.tools.service.metrics.conventions import NAMES, Point, points
from ugpu.tools.service.metrics.otlp import Export

DAEMON = logging.getLogger("ugpu.tools.service.daemon")
DEVICE = '[[device]]\nname = "cpu"\n'


class Collector:
    """Takes OTLP over HTTP; `refuses` answers 400, which is not tried again."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.events: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.refuses = False
        self.asked = 0
        self.changed = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                with outer.changed:
                    outer.asked += 1
                    outer.headers.append(dict(self.headers))
                    if not outer.refuses:
                        outer.take(self.path, body)
                    outer.changed.notify_all()
                    status = 400 if outer.refuses else 200
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            assert path == "/v1/logs"
            found = ExportLogsServiceRequest.FromString(body)
            self.events += found.resource_logs[0].scope_logs[0].log_records

    def until(self, condition: Any) -> None:
        with self.changed:
            while not condition():
                assert self.changed.wait(60)

    def points(self, name: str) -> list[tuple[dict[str, str], float, str]]:
        """Attributes, value and unit of a metric in the last request."""
        for metric in self.metrics[-1].resource_metrics[0].scope_metrics[0].metrics:
            if metric.name == name:
                kind = metric.sum if metric.HasField("sum") else metric.gauge
                return [(_plain(p.attributes), p.as_double or p.as_int, metric.unit)
                        for p in kind.data_points]  # fmt: skip
        return []

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _plain(found: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in found}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def running() -> Iterator[Running]:
    DAEMON.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = Running(parse(settings_text(Path(folder), ["cpu"], "", 2)))
        yield found
        found.close()
    DAEMON.setLevel(logging.NOTSET)


@pytest.fixture
def export(running: Running, collector: Collector) -> Iterator[Export]:
    settings = OtlpSettings(collector.endpoint, 0.01, {"authorization": "secret"})
    found = Export(settings, running.daemon)
    found.start()
    yield found
    found.close()


def test_metrics(running: Running, collector: Collector, export: Export) -> None:
    with running.lease("cpu#1"):
        collector.until(lambda: collector.metrics and collector.points("ugpu.leases"))
        collector.until(lambda: collector.points("hw.gpu.memory.usage"))
        who = {"hw.id": "cpu#0", "hw.name": "cpu#0", "hw.type": "gpu"}
        status = collector.points("hw.status")
        assert ({**who, "hw.state": "ok"}, 1.0, "1") in status
        assert ({**who, "hw.state": "failed"}, 0, "1") in status
        assert collector.points("hw.gpu.memory.usage")[0][2] == "By"
    resource = _plain(collector.metrics[-1].resource_metrics[0].resource.attributes)
    assert resource["service.name"] == "ugpud" and resource["host.name"]
    assert collector.headers[-1]["authorization"] == "secret"
    kernels = next(m for m in collector.metrics[-1].resource_metrics[0].scope_metrics[0].metrics
                   if m.name == "ugpu.kernels")  # fmt: skip
    assert kernels.sum.is_monotonic
    assert (
        kernels.sum.data_points[0].start_time_unix_nano < kernels.sum.data_points[0].time_unix_nano
    )


def test_events(collector: Collector, export: Export) -> None:
    error = ChipError("it is stuck", unit="SMU", remedy="reset it")
    tell(DAEMON, FAILED, "cpu#0 failed", device="cpu#0", error=error)
    collector.until(lambda: collector.events)
    found = collector.events[-1]
    assert found.event_name == "ugpu.card.failed" and found.severity_number == 17
    assert found.body.string_value == "cpu#0 failed"
    about = _plain(found.attributes)
    assert about["hw.id"] == "cpu#0" and about["error.type"] == "ChipError"
    assert about["ugpu.remedy"] == "reset it"


def test_a_collector_that_takes_nothing_is_told_once_and_events_follow(
    collector: Collector, export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refuses = True
    asked = collector.asked
    collector.until(lambda: collector.asked > asked + 3)
    tell(DAEMON, FAILED, "meanwhile", device="cpu#0")
    asked = collector.asked
    collector.until(lambda: collector.asked > asked + 3)
    assert not collector.events or all(
        each.body.string_value != "meanwhile" for each in collector.events
    )
    collector.refuses = False

    def names() -> list[str]:
        return [each.event_name for each in collector.events]

    collector.until(lambda: "ugpu.export.back" in names())
    assert names().count("ugpu.export.lost") == 1
    assert [each.body.string_value for each in collector.events].count("meanwhile") == 1


def test_nothing_is_there_to_take_it_and_it_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "SEND_S", 0.05)
    made = Export(OtlpSettings("http://127.0.0.1:9", 0.01), running.daemon)
    made.start()
    made.close()
    assert made.lost
    assert not [each for each in threading.enumerate() if "otlp" in each.name]


def test_a_card_that_does_not_answer_delays_nothing(
    running: Running, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    owned = running.daemon.owned[0]
    monkeypatch.setattr(owned, "telemetry", lambda: go.wait() and json.dumps({}).encode())
    made = Export(OtlpSettings(collector.endpoint, 0.01), running.daemon)
    made.start()
    try:
        collector.until(lambda: collector.metrics and collector.points("hw.gpu.memory.usage"))
        assert {about["hw.id"] for about, _, _ in collector.points("hw.gpu.memory.usage")} == {
            "cpu#1"
        }
        assert {about["hw.id"] for about, _, _ in collector.points("hw.status")} == {
            "cpu#0",
            "cpu#1",
        }
    finally:
        go.set()
        made.close()


def test_names_are_those_of_the_conventions() -> None:
    hw = pytest.importorskip("opentelemetry.semconv._incubating.metrics.hw_metrics")
    known = {value for name, value in vars(hw).items() if name.startswith("HW_")}
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.hw_attributes")
    words = {value for name, value in vars(attributes).items() if name.startswith("HW_")}
    assert {name for name, _, _ in NAMES.values()} <= known
    samples = [{"name": name, "unit": "", "label": "gfx", "value": 1.0} for name in NAMES]
    samples += [{"name": "clock_hertz", "unit": "Hz", "label": "gfx", "value": 1e9}]
    telemetry = {"samples": samples, "samples_age_s": None, "queue_depth": 0, "launches": 1,
                 "submissions": 1, "resets": 0, "errors": {"ChipError": 2}}  # fmt: skip
    past = {"leases": 0, "failures": 1, "mtbf_s": 3.0, "mttr_s": None}
    card = {
        "name": "a",
        "state": "quarantined",
        "troubles": {"card.ecc_trend": "x"},
        "history": past,
    }
    found = list(points([card], {"leases": [], "waiting": []}, lambda name: (telemetry, 1.0)))
    assert {each.name for each in found if each.name.startswith("hw.")} <= known
    used = {key for each in found for key in each.attributes}
    assert {key for key in used if key.startswith("hw.")} <= words
    assert Point("ugpu.clock", "Hz", 1e9, {**found[0].attributes, "hw.sensor_location": "gfx"},
                 False).name in {each.name for each in found}  # fmt: skip
    assert sum(each.value for each in found if each.name == "hw.status") == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('endpoint = "localhost:4318"', "a URL"),
        ('endpoint = "ftp://x"', "a URL"),
        ("headers = { a = 1 }", "texts by name"),
        ("interval_s = 0", "positive number"),
        ("port = 1", "unknown key port"),
    ],
)
def test_a_configuration_that_cannot_be(text: str, match: str) -> None:
    with pytest.raises(BadArgument, match=match):
        parse(f"{DEVICE}[otlp]\n{text}\n")


def test_without_the_sdk_it_says_what_to_install(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.delitem(sys.modules, "ugpu.tools.service.metrics.otlp")
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk.")]:
        monkeypatch.delitem(sys.modules, name)
    found = parse(f"{DEVICE}[otlp]\n")
    with pytest.raises(MissingDependency, match=r"ugpu\[otlp\]"):
        list(outlets(found, running.daemon))
