"""ugpud's edges: TLS and tokens, its configuration, the sockets it listens at."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.service.daemon import ROOT, Running, scaled, settings_text, started, until_closed
from ugpu import hcq
from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceBusy, HostError, TransportError
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.tokens import Tokens
from ugpu.tools.service.daemon.config import parse as parse_config
from ugpu.tools.service.daemon.listen import Listeners


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


# ---- TLS and tokens --------------------------------------------------------------------------


def test_tls_and_tokens(folder: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="trustme (extra dev) makes certificates")
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    for made, name in ((authority, "ca.pem"), (other, "other.pem")):
        made.cert_pem.write_to_path(str(folder / name))
    both = f'"{folder}/both.pem"'
    more = f'[tcp]\nlisten = "127.0.0.1:0"\ncertificate = {both}\nkey = {both}'
    running = started(folder, more, count=1)
    where = f"tls://127.0.0.1:{running.listeners.port}"
    tokens = running.daemon.tokens
    use = tokens.create("use", "use", "cpu*", 0)
    old = tokens.create("old", "use", "*", 1.0)
    look = tokens.create("look", "observe", "*", 0)
    elsewhere = tokens.create("elsewhere", "use", "gfx*", 0)

    def lease(token: str | None, authority: str = "ca.pem") -> Any:
        return hcq.lease(daemon=where, token=token, authority=str(folder / authority))

    try:
        with lease(use) as gpu:
            assert scaled(gpu)
            data = np.random.default_rng(1).integers(0, 256, 5 << 20, np.uint8)
            with gpu.alloc(len(data)) as buffer:
                buffer.copy_from(data)
                assert (buffer.numpy() == data).all()
        for token, text in (
            (None, "requires a token"),
            ("ugpu_wrong", "does not know this token"),
            (old, "'old' has expired"),
            (look, "requires the role 'use'"),
            (elsewhere, "do not include cpu"),
        ):
            with pytest.raises(AccessDenied, match=text):
                lease(token)
        tokens.revoke("use")
        with pytest.raises(AccessDenied):
            lease(use)
        with pytest.raises(TransportError, match="no TLS connection"):
            lease(look, "other.pem")
        with socket.create_connection(("127.0.0.1", running.listeners.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            until_closed(plain)
        weak = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        weak.check_hostname, weak.verify_mode = False, ssl.CERT_NONE
        weak.maximum_version = ssl.TLSVersion.TLSv1_2
        old_client = socket.create_connection(("127.0.0.1", running.listeners.port))
        with old_client, pytest.raises(ssl.SSLError):
            weak.wrap_socket(old_client)
    finally:
        running.close()


def test_tokens_are_the_daemons_alone(folder: Path) -> None:

    tokens = Tokens(folder / "state" / "tokens.json")
    token = tokens.create("a", "use", "*", 0)
    assert token not in tokens.path.read_text() and tokens.path.stat().st_mode & 0o777 == 0o600
    for name, role, text in (("a", "use", "new"), ("", "use", "new"), ("b", "boss", "role")):
        with pytest.raises(BadArgument, match=text):
            tokens.create(name, role, "*", 0)
    with pytest.raises(BadArgument, match="token 'b' does not exist; existing tokens: a"):
        tokens.revoke("b")
    tokens.path.write_text("{}[")
    with pytest.raises(HostError, match="not a file of tokens"):
        tokens.rights(token, 0.0)
    tokens.path.chmod(0o644)
    with pytest.raises(HostError, match="readable by others"):
        Tokens(tokens.path).rights(token, 0.0)


def test_tokens_made_at_the_same_time_are_all_there(folder: Path) -> None:
    """Each maker reads the file, adds its token and replaces the file."""

    path = folder / "state" / "tokens.json"

    def make(maker: int) -> list[str]:
        return [Tokens(path).create(f"{maker}-{n}", "use", "*", 0) for n in range(10)]

    with ThreadPoolExecutor(4) as pool:
        made = [token for some in pool.map(make, range(4)) for token in some]
    assert len({Tokens(path).rights(token, 0.0).name for token in made}) == 40


def test_a_killed_maker_of_tokens_leaves_nothing_in_the_way(folder: Path) -> None:

    tokens = Tokens(folder / "state" / "tokens.json")
    tokens.create("a", "use", "*", 0)
    tokens.path.with_suffix(".new").write_text("half of a fi")
    token = tokens.create("b", "use", "*", 0)
    assert tokens.rights(token, 0.0).name == "b" and len(tokens.listed()) == 2
    assert sorted(each.name for each in tokens.path.parent.iterdir()) == [
        "tokens.json",
        "tokens.lock",
    ]


# ---- configuration and sockets ---------------------------------------------------------------

DEVICE = '[[device]]\nname = "cpu"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one"),
        ("[daemon", "is not TOML"),
        ("colour = 1\n" + DEVICE, "unknown key colour; there are: daemon"),
        (DEVICE + "speed = 1", "unknown key speed; there are: name, count"),
        ("[daemon]\nclients = 0\n" + DEVICE, "clients: expected a number from 1"),
        ("[pages]\n" + DEVICE, "unknown key pages; there are: .*page, otlp"),
        ("[daemon]\nclients = true\n" + DEVICE, "clients: expected an int"),
        ('[daemon]\nmode = "rw"\n' + DEVICE, "file mode"),
        ('[daemon]\nmessage = "huge"\n' + DEVICE, 'text such as "8G"'),
        ("[lease]\nusual_s = -1\n" + DEVICE, "positive number of seconds"),
        ("[tcp]\n" + DEVICE, "requires TLS"),
        ('[tcp]\nlisten = "x"\n' + DEVICE, "an address and a port"),
        ("[[device]]\ncount = 2", "name: expected a device"),
        ('[[device]]\nname = "pci:0"\ncount = 2', "not virtual"),
        ("device = 1", "expected a list"),
        ("device = [1]", "must be tables"),
    ],
)
def test_wrong_configurations_are_named(text: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        parse_config(text)


def test_sockets_that_cannot_be(folder: Path) -> None:
    running = started(folder, count=1)
    try:
        again = parse_config(settings_text(folder, ["cpu"]))
        with pytest.raises(DeviceBusy, match="another ugpud is listening"):
            Listeners(again, running.daemon.serve, {})
        with running.lease() as gpu:
            assert scaled(gpu), "the probe does no harm"
    finally:
        running.close()
    assert not Path(running.socket).exists()
    Path(running.socket).write_text("no socket")
    with pytest.raises(HostError, match="is not a socket"):
        Listeners(again, running.daemon.serve, {})
    with pytest.raises(HostError, match="cannot listen"):
        Listeners(parse_config(settings_text(Path("/proc/x"), ["cpu"])), lambda *_: None, {})


def test_a_device_that_does_not_boot_is_quarantined(folder: Path) -> None:
    running = Running(parse_config(settings_text(folder, ["cpu", "virtual:nothing"])))
    try:
        bad = running.daemon.owned[1].card
        assert bad.state is State.QUARANTINED and "no virtual chip" in bad.reason
        with pytest.raises(DeviceBusy, match=r"quarantined .no virtual chip"):
            running.lease("virtual:*")
        with running.lease() as gpu:
            assert scaled(gpu)
    finally:
        running.close()


def test_sockets_from_systemd(folder: Path) -> None:
    """sd_listen_fds(3): LISTEN_PID, LISTEN_FDS, and descriptors from 3 on."""
    program = f"""
import os, socket, sys
made = socket.socket(socket.AF_UNIX)
made.bind({str(folder / "s")!r})
made.listen()
os.dup2(made.fileno(), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
sys.argv = ["ugpud", "--config", {str(folder / "c.toml")!r}]
from ugpu.tools.service.daemon.main import main
sys.exit(main())
"""
    (folder / "c.toml").write_text(settings_text(folder, ["cpu"]))
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "listens" in line:
                break
        with hcq.lease(daemon=str(folder / "s")) as gpu:
            assert scaled(gpu)
        assert not (folder / "ugpud.sock").exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 0


UNITS = ROOT / "tools/service/daemon/system"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_are_right_and_hardened(folder: Path) -> None:
    for unit in UNITS.glob("ugpud.s*"):  # users and programs that this machine has
        text = unit.read_text().replace("=ugpu\n", "=root\n")
        (folder / unit.name).write_text(text.replace("/usr/bin/ugpud", "/bin/true"))
    names = [str(folder / unit.name) for unit in UNITS.glob("ugpud.s*")]
    for words in (
        ["verify", "--man=no", *names],
        ["security", "--offline=yes", "--threshold=25", str(UNITS / "ugpud.service")],
    ):
        done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot read the certificate .*none\.pem"):
        hcq.lease(daemon="tls://127.0.0.1:1", token="x", authority=str(tmp_path / "none.pem"))


def test_tokens_are_listed_with_the_date_that_they_end_at(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.create("a", "use", "*", 86400.0)
    tokens.create("b", "use", "*", 0.0)
    first, second = tokens.listed()
    assert str(first["expires"]).startswith(("1970-01-01T", "1970-01-02T"))
    assert second["expires"] == "never"
