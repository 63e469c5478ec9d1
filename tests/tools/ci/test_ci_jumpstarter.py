"""The driver for Jumpstarter, by Jumpstarter's own exporter session and client over gRPC."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jumpstarter")

from jumpstarter.common.utils import serve
from jumpstarter.driver import Driver

from tests.support.service.daemon import Running, scaled, started
from ugpu.hcq.errors import DeviceBusy
from ugpu.tools.ci.fleet.jumpstarter_device import UGpu, UGpuClient
from ugpu.tools.service.daemon.clients.leases import State


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = started(Path(folder))
        yield found
        found.close()


@pytest.fixture
def client(running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(running.socket).parent))
    with serve(UGpu(device="cpu#1", daemon=running.socket)) as found:
        yield found


def test_the_client_is_found_by_its_name() -> None:
    module, _, name = UGpu.client().rpartition(".")
    assert module == UGpuClient.__module__ and name == "UGpuClient"
    assert issubclass(UGpu, Driver)


def test_kernels_run_through_the_connection(running: Running, client: Any) -> None:
    assert isinstance(client, UGpuClient)
    assert client.state()["state"] == "ready"
    with client.lease(memory="1M") as gpu:
        assert scaled(gpu)
        assert client.state()["state"] == "leased"
        assert next(each.card.state for each in running.daemon.owned) is State.READY
        with pytest.raises(DeviceBusy), client.lease(wait_s=0):
            pass
    running.settle()


def test_a_check_and_a_reset(running: Running, client: Any) -> None:
    assert client.check() == ""
    client.reset()
    running.daemon.quarantine("cpu#1", "fan", _admin())
    assert "fan" in client.check()


def _admin() -> Any:
    from ugpu.tools.service.daemon.clients.tokens import Rights

    return Rights("root", "admin")


def test_a_ugpud_that_is_gone(client: Any, running: Running) -> None:
    running.listeners.stop()
    running._thread.join()
    running.listeners.close()
    assert client.check()
    with pytest.raises(Exception, match="ugpud"):
        client.state()


def test_the_commands_of_its_shell(client: Any) -> None:
    from click.testing import CliRunner

    found = CliRunner().invoke(client.cli(), ["state"])
    assert found.exit_code == 0 and "'cpu#1'" in found.output
