"""A real Prometheus scrapes `ugpu metrics`: its checks of metrics and rules; alerts that fire.

Prometheus is looked for on PATH and in UGPU_PROMETHEUS, a folder; it listens on the loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.eight_devices import eight
from tests.support.waiting import until
from tests.tools.service.metrics.test_metrics import Fixed, served, text_of
from tests.tools.service.top.test_top import card

PLACES = os.pathsep.join([os.environ.get("UGPU_PROMETHEUS", ""), os.environ["PATH"]])
PROMTOOL, PROMETHEUS = (shutil.which(name, path=PLACES) for name in ("promtool", "prometheus"))
RULES = resources.files("ugpu.tools.service.metrics").joinpath("alerts.yml").read_text("utf-8")

pytestmark = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="prometheus and promtool are not installed"
)

# Input series and the alerts that promtool must find by these rules.
CASES = [
    ("UgpuDeviceMissing", 'ugpu_device_present{device="a"}', "1 0+0x10", "10m"),
    ("UgpuNoAnswer", 'ugpu_state{device="a",state="no answer"}', "0 1+0x10", "10m"),
    ("UgpuFailed", 'ugpu_state{device="a",state="failed"}', "0 1+0x10", "10m"),
    ("UgpuResetStorm", 'ugpu_resets_total{device="a"}', "0 2 4 6 8+0x60", "50m"),
    ("UgpuOverTemperature", 'ugpu_temperature_celsius{device="a",sensor="x"}', "90 110+0x9", "9m"),
    ("UgpuThrottled", 'ugpu_clock_throttled{device="a",sensor="x"}', "0 1+0x10", "10m"),
    ("UgpuLinkDegraded", 'ugpu_link_lanes{device="a",sensor="pcie"}', "16 4+0x10", "10m"),
    ("UgpuEccErrors", 'ugpu_ecc_errors_total{device="a",sensor="dram lost"}', "0 1+0x10", "8m"),
    ("UgpuCardTrouble", 'ugpu_card_trouble{device="a",kind="missing"}', "0 1+0x10", "5m"),
    ("UgpuCardQuarantined", 'ugpu_card_state{device="a",state="quarantined"}', "0 1+0x10", "5m"),
    ("UgpuTelemetryStale", 'ugpu_samples_age_seconds{device="a"}', "1 200+0x10", "10m"),
]


def promtool(*words: str, given: str = "") -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_metrics_and_rules_pass_promtools_checks(tmp_path: Path) -> None:
    one = card("pci:0000:03:00.0", 3, errors={"PageFault": 2}, resets=1)
    assert promtool("check", "metrics", given=text_of(Fixed(one, expected=("a",)))) == ""
    (tmp_path / "alerts.yml").write_text(RULES)
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "alerts.yml"))


def test_each_rule_fires_for_what_it_names_and_not_before(tmp_path: Path) -> None:
    names = set(re.findall(r"alert: (\w+)", RULES))
    assert names - {name for name, *_ in CASES} == {"UgpuEccTrend"}  # it needs two days
    (tmp_path / "alerts.yml").write_text(RULES)
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values}],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": time,
                    "exp_samples": [{"labels": "{}", "value": 1}] if time != "0m" else [],
                }
                for time in ("0m", when)
            ],
        }
        for name, series, values, when in CASES
    ]
    given = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(given))  # JSON is YAML
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, what: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}") as answer:
        return json.load(answer)["data"]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[int]:
    """A running Prometheus that scrapes `target` twice a second; its port."""
    assert PROMETHEUS is not None
    # So that a test need not wait for minutes: conditions need to hold for a second.
    (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", RULES))
    every = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"}
    jobs = [{"job_name": "ugpu", "static_configs": [{"targets": [target]}]}]
    settings = {"global": every, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_a_hot_card_and_a_wedged_one_raise_alerts_and_stall_no_scrape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heat = [60.0]
    sockets = tmp_path / "observe"
    with eight(sockets, heat), served(sockets, capsys, monkeypatch) as url:
        target = url.split("/")[2]
        with prometheus(tmp_path, target) as port:

            def firing() -> set[tuple[str, str]]:
                try:
                    alerts = ask(port, "alerts")["alerts"]
                except OSError:  # it starts
                    return set()
                labels = [one["labels"] for one in alerts if one["state"] == "firing"]
                return {(one["alertname"], one["device"]) for one in labels}

            until(lambda: firing() == {("UgpuNoAnswer", "pci:3")}, "the wedged card's alert")
            heat[0] = 120.0
            hot = {("UgpuOverTemperature", f"pci:{number}") for number in range(8) if number != 3}
            until(lambda: firing() == {*hot, ("UgpuNoAnswer", "pci:3")}, "the hot cards' alerts")
            (found,) = ask(port, "targets")["activeTargets"]
            assert (found["health"], found["lastError"]) == ("up", "")
            heat[0] = 60.0
            until(lambda: firing() == {("UgpuNoAnswer", "pci:3")}, "the alerts' end")
