"""Metrics and events of a ugpud to an OpenTelemetry collector, by OTLP over HTTP.

A thread of ugpud sends the data every `interval_s`. A collector that does not accept it delays
nothing else. Metrics of a failed interval are lost. Events are sent again, as long as they are kept
(tools.service.daemon.outlets.feed). The exporters are those of OpenTelemetry's SDK, whose `_logs`
modules keep their underscore until the signal is stable.

Source: OpenTelemetry protocol 1.x (OTLP/HTTP: paths /v1/metrics, /v1/logs); its data model of logs
for severities and event names.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ugpu.hcq.state import threads
from ugpu.tools.base.events import EXPORT_BACK, EXPORT_LOST, tell
from ugpu.tools.service.daemon.cards.readings import Readings
from ugpu.tools.service.daemon.config import OtlpSettings
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.outlets.feed import DAEMON, Told, attached, detach
from ugpu.tools.service.metrics.conventions import Point, points

# The daemon's log, so that this module's events reach all outlets.
log = logging.getLogger(f"{DAEMON}.otlp")

SEND_S = 5.0  # TIMEOUT: of one request with its retries; our choice
_THREADS = 16
_SCOPE = InstrumentationScope("ugpud")
_SEVERITY = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}


class Export:
    """Send a daemon's metrics and events, from `start` to `close`. lost: intervals whose metrics
    the collector did not accept."""

    def __init__(self, settings: OtlpSettings, daemon: Daemon) -> None:
        base = settings.endpoint.rstrip("/")
        certificate = None if settings.certificate is None else str(settings.certificate)
        self._metrics = OTLPMetricExporter(
            f"{base}/v1/metrics",
            certificate_file=certificate,
            headers=settings.headers,
            timeout=SEND_S,
        )
        self._logs = OTLPLogExporter(
            f"{base}/v1/logs",
            certificate_file=certificate,
            headers=settings.headers,
            timeout=SEND_S,
        )
        # The SDK would write two lines for each request; export.lost reports the first.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._daemon = daemon
        self._interval_s = settings.interval_s
        self._endpoint = settings.endpoint
        self.shown = f"metrics and events go to {settings.endpoint}"
        self._pool = ThreadPoolExecutor(_THREADS, "ugpud telemetry")
        self._readings = Readings(daemon, self._pool)
        self._feed = attached()
        self._resource = Resource.create(
            {"service.name": "ugpud", "host.name": platform.node(), "host.id": _machine()}
        )
        self._began = time.time_ns()
        self._told = 0
        self.lost = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud otlp", daemon=True)

    def start(self) -> None:
        """Start sending."""
        threads.start(self._thread)

    def close(self) -> None:
        """Send the remaining data, for SEND_S at most, and end. Idempotent."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        detach(self._feed)
        self._pool.shutdown()
        self._metrics.shutdown()
        self._logs.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        ended = False
        while not ended:
            self._readings.ask()
            ended = self._stopped.wait(self._interval_s)
            try:
                self._send()
            except Exception:
                log.exception("the export failed")

    def _send(self) -> None:
        daemon = self._daemon
        values = points(daemon.devices(), daemon.listed(), self._readings.last)
        data = self._data(values, time.time_ns())
        taken = self._metrics.export(data) is MetricExportResult.SUCCESS
        events = self._feed.after(self._told)
        if events and taken:
            sent = self._logs.export([self._record(event) for event in events])
            taken = sent is LogRecordExportResult.SUCCESS
            if taken:
                self._told = int(str(events[-1]["number"]))
        if not taken:
            self.lost += 1
            if self.lost == 1:
                text = f"the OpenTelemetry collector at {self._endpoint} takes nothing"
                tell(log, EXPORT_LOST, text, endpoint=self._endpoint)
        elif self.lost:
            lost, self.lost = self.lost, 0
            text = f"the OpenTelemetry collector at {self._endpoint} is back; {lost} sends failed"
            tell(log, EXPORT_BACK, text, endpoint=self._endpoint, count=lost)

    def _data(self, values: Iterable[Point], now: int) -> MetricsData:
        named: dict[str, list[Point]] = {}
        for point in values:
            named.setdefault(point.name, []).append(point)
        metrics = [self._metric(name, same, now) for name, same in named.items()]
        scope = ScopeMetrics(_SCOPE, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, name: str, values: Sequence[Point], now: int) -> Metric:
        rows = [NumberDataPoint(dict(p.attributes), self._began, now, p.value) for p in values]
        if values[0].counts:
            data: Sum | Gauge = Sum(rows, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(rows)
        return Metric(name, "", values[0].unit, data)

    def _record(self, told: Told) -> ReadableLogRecord:
        fields = told["fields"]
        assert isinstance(fields, dict)
        attributes = {f"ugpu.{name}": value for name, value in fields.items()}
        if "device" in fields:
            attributes |= {"hw.id": fields["device"], "hw.type": "gpu"}
        if "class" in fields:
            attributes["error.type"] = fields["class"]
        if told["remedy"]:
            attributes["ugpu.remedy"] = str(told["remedy"])
        when = int(float(str(told["time"])) * 1e9)
        record = LogRecord(
            timestamp=when,
            observed_timestamp=when,
            severity_text=str(told["level"]),
            severity_number=_SEVERITY.get(str(told["level"]), SeverityNumber.UNSPECIFIED),
            body=str(told["text"]),
            attributes=attributes,
            event_name=f"ugpu.{told['kind']}",
        )
        return ReadableLogRecord(record, self._resource, _SCOPE)


def _machine() -> str:
    """Return the machine's id, machine-id(5), which the conventions name for Linux; else its
    name."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            return file.read().strip() or platform.node()
    except OSError:
        return platform.node()
