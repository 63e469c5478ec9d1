"""bolt's D-Bus interface: the real daemon on a bus of its own, above devices made by umockdev."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import came
from ugpu.usbgpu.thunderbolt import bolt

HOST, ENCLOSURE = "c4010000-0000-0000-0000-000000000000", "9c030000-0080-7708-23a0-6b0c8a022125"
ADDRESS = "DBUS_SYSTEM_BUS_ADDRESS"
BUS = """<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow eavesdrop="true"/>
<allow send_destination="*" eavesdrop="true"/></policy></busconfig>"""
# udev's description of a controller, its connection manager, the host's router and an enclosure.
TREE = """P: /devices/pci0000:00/0000:00:0d.2
E: SUBSYSTEM=pci

P: /devices/pci0000:00/0000:00:0d.2/domain0
E: SUBSYSTEM=thunderbolt
E: DEVTYPE=thunderbolt_domain
A: security=user\\n
A: iommu_dma_protection=0\\n

P: /devices/pci0000:00/0000:00:0d.2/domain0/0-0
E: SUBSYSTEM=thunderbolt
E: DEVTYPE=thunderbolt_device
A: authorized=1\\n
A: vendor_name=INTEL\\n
A: device_name=Gen12\\n
A: unique_id={host}\\n

P: /devices/pci0000:00/0000:00:0d.2/domain0/0-0/0-1
E: SUBSYSTEM=thunderbolt
E: DEVTYPE=thunderbolt_device
A: authorized=0\\n
A: vendor_name=Razer\\n
A: device_name=Core X\\n
A: unique_id={enclosure}\\n
"""


def programs() -> tuple[str, str, str] | None:
    """dbus-daemon, umockdev-wrapper and boltd; None where one is not installed."""
    control = shutil.which("boltctl")
    daemon = Path(control).resolve().parent.parent / "libexec/boltd" if control else None
    bus, mock = shutil.which("dbus-daemon"), shutil.which("umockdev-run")
    if bus is None or mock is None or daemon is None or not daemon.exists():
        return None
    return bus, mock, str(daemon)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("jeepney", reason="jeepney is not installed")
    found = programs()
    if found is None:
        pytest.skip("dbus-daemon, umockdev-run or boltd is not installed")
    bus, mock, boltd = found
    socket, config, tree = tmp_path / "bus", tmp_path / "bus.conf", tmp_path / "tree.umockdev"
    config.write_text(BUS.format(path=socket))
    tree.write_text(TREE.format(host=HOST, enclosure=ENCLOSURE))
    monkeypatch.setenv(ADDRESS, f"unix:path={socket}")
    for name in ("STATE", "RUNTIME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name))
    commands = ([bus, "--nofork", f"--config-file={config}"], [mock, "-d", str(tree), "--", boltd])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, ready in zip(
            commands, (socket.exists, lambda: bool(bolt.devices())), strict=True
        ):
            running.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            assert came(ready), command
        yield
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


@pytest.mark.usefixtures("daemon")
def test_what_bolt_knows() -> None:
    known = bolt.devices()
    assert set(known) == {HOST, ENCLOSURE}
    assert known[HOST].status == "authorized" and not known[HOST].stored
    one = known[ENCLOSURE]
    assert one.status == "connected" and not one.stored
    assert one.facts == {"bolt": "connected, not remembered"}
    assert bolt.BoltDevice("x", "authorized", True, "auto").facts == {
        "bolt": "authorized, remembered, policy auto"
    }


def test_no_bus_and_no_bolt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, f"unix:path={tmp_path / 'none'}")
    assert bolt.devices() == {}


def test_a_bus_that_never_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It authenticates the client, then says nothing to its first message."""
    pytest.importorskip("jeepney", reason="jeepney is not installed")
    monkeypatch.setenv(ADDRESS, f"unix:path={tmp_path / 'bus'}")
    monkeypatch.setattr(bolt, "_LIMIT_S", 0.2)
    heard: list[bytes] = []

    def serve() -> None:
        client, _ = server.accept()
        with client:
            while data := client.recv(4096):
                heard.append(data)
                if b"AUTH" in data:
                    client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "bus"))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        assert bolt.devices() == {}
        thread.join()
    assert b"Hello" in b"".join(heard)
