"""Devices in labgrid: a real coordinator, exporter and client above a real ugpud."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.service.daemon import ROOT, DaemonProcess

pytest.importorskip("labgrid", reason="labgrid is not installed: the extra 'labgrid'")

LIMIT_S = 120.0
SICK = "pci:0000:ff:1f.7"  # there is no such card: ugpud quarantines it


@contextmanager
def process(
    words: list[str], ready: str, environment: dict[str, str], folder: Path
) -> Iterator[None]:
    """A server, until it has printed `ready`; ended afterwards. folder: where it keeps files."""
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    ) as started:
        try:
            assert started.stdout is not None
            lines = []
            for line in started.stdout:
                lines.append(line)
                if ready in line:
                    break
            else:
                raise AssertionError("".join(lines))
            yield
        finally:
            started.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


@pytest.mark.slow
def test_only_healthy_devices_are_handed_out(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "LG_COORDINATOR": where,
        "LG_USERNAME": "anna", "LG_HOSTNAME": "bench",
    }  # fmt: skip
    module = [sys.executable, "-m"]

    def client(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*module, "labgrid.remote.client", *words], capture_output=True, text=True,
            timeout=LIMIT_S, env=environment,
        )  # fmt: skip

    with ExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess(["cpu", SICK]))
        rows = "".join(
            f"{group}:\n  UGpu:\n    daemon: {daemon.socket}\n    device: '{name}'\n"
            for group, name in (("good", "cpu"), ("sick", SICK), ("none", "absent"))
        )
        (tmp_path / "resources.yaml").write_text(rows)
        coordinator = [*module, "labgrid.remote.coordinator", "-l", where]
        stack.enter_context(process(coordinator, "listening on", environment, tmp_path))
        exporter = [*module, "ugpu.tools.ci.fleet.labgrid_exporter", "-c", where, "-n", "bench"]
        exporter.append(str(tmp_path / "resources.yaml"))
        stack.enter_context(process(exporter, "Exporter ready", environment, tmp_path))
        for group in ("good", "sick", "none"):
            assert client("-p", group, "create").returncode == 0
            assert client("-p", group, "add-match", f"bench/{group}/*").returncode == 0
        for _ in range(20):  # the exporter tells its resources after it is ready
            listed = client("-v", "resources").stdout
            if "bench/good" in listed:
                break
        for group, words in (("sick", "quarantined"), ("none", "no device 'absent'")):
            refused = client("-p", group, "acquire")
            assert refused.returncode != 0, (group, words, refused)
            assert "Failed to acquire" in refused.stderr + refused.stdout
        taken = client("-p", "good", "acquire")
        assert taken.returncode == 0, taken
        use = """
import sys
from labgrid import Environment
strategy = Environment(sys.argv[1]).get_target("main").get_driver("UGpuStrategy")
strategy.transition("ready")
print("device", strategy.gpu.device.name)
strategy.transition("off")
print("off", strategy.gpu.device)
"""
        (tmp_path / "env.yaml").write_text(
            "imports: [ugpu.tools.ci.fleet.labgrid_device]\n"
            "targets:\n  main:\n    resources:\n      RemotePlace:\n        name: good\n"
            "    drivers:\n      UGpuDriver: {}\n      UGpuStrategy: {}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", use, str(tmp_path / "env.yaml")], capture_output=True,
            text=True, timeout=LIMIT_S, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "device" in done.stdout and "off None" in done.stdout
        assert client("-p", "good", "release").returncode == 0
