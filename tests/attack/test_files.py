"""Other users of the machine: folders, sockets, databases and token files that they made first, can
write, or hold locked; and a clock that jumps."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service.daemon import Running, settings_text, started
from tests.support.service.raw_client import Raw
from tests.support.waiting import until
from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import AccessDenied, DeviceNotFound, HostError
from ugpu.hcq.remote import address
from ugpu.hcq.remote.address import Address, UntrustedSocket
from ugpu.tools.base.ledger import Ledger
from ugpu.tools.service.daemon.clients.handout import Handout, chip_of
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.tokens import Tokens
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.listen import Listeners
from ugpu.tools.service.daemon.outlets.history import TABLES, CardHistory
from ugpu.virtual.serve import server as vfio

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---- folders and files ------------------------------------------------------------------------


def test_all_that_a_daemon_makes_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "by" / "ugpud"
    running = Running(parse(settings_text(folder, ["cpu"])))
    try:
        running.daemon.tokens.create("one", "use", "*", 0.0)
        with running.connect() as connection:
            connection.call("quarantine", "*", "planted")
        found = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
        assert {each.name for each in found} >= {"state", "tokens.json", "history.sqlite"}
        assert not [each for each in found if mode_of(each) & 0o077]
    finally:
        running.close()


def test_private_folders_and_files_follow_no_links(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(OSError, match="symbolic link"):
        ownfolder.open_private(tmp_path / "link")
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        ownfolder.make_private(tmp_path / "folder")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ownfolder.Untrusted, match="written by others"):
        ownfolder.make_private(tmp_path / "open")
    (tmp_path / "wide").touch(0o666)
    (tmp_path / "wide").chmod(0o666)
    os.close(ownfolder.open_private(tmp_path / "wide"))
    assert mode_of(tmp_path / "wide") == 0o600
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ownfolder.Untrusted, match="not a regular file"):
        ownfolder.open_private(tmp_path / "fifo")
    assert (tmp_path / "victim").read_text() == "precious"


@as_root
def test_folders_and_files_of_another_user_are_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "file").touch(0o600)
    for each in ("theirs", "file"):
        os.chown(tmp_path / each, NOBODY, NOBODY)
    with pytest.raises(ownfolder.Untrusted, match="belongs to user 65534, expected 0"):
        ownfolder.make_private(tmp_path / "theirs")
    with pytest.raises(ownfolder.Untrusted, match="belongs to user 65534, expected 0"):
        ownfolder.open_private(tmp_path / "file")
    with pytest.raises(HostError, match=r"the folder .*theirs of the socket belongs to user 65534"):
        Listeners(parse(settings_text(tmp_path / "theirs", ["cpu"])), lambda *_: None, {})


def test_a_socket_in_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(HostError, match=r"can be written by others \(mode 0777\)"):
        Listeners(parse(settings_text(folder, ["cpu"])), lambda *_: None, {})
    folder.chmod(0o1777)  # as /tmp: others cannot replace the socket
    Listeners(parse(settings_text(folder, ["cpu"])), lambda *_: None, {}).close()


# ---- tokens ----------------------------------------------------------------------------------

ROW = {"name": "a", "role": "use", "device": "*", "digest": "0" * 64, "expires": 0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[" + b"9" * 5000 + b"]",
        json.dumps([ROW | {"digest": 5}]).encode(),
        json.dumps([ROW | {"digest": "\u00e9"}]).encode(),
        json.dumps([ROW | {"role": "god"}]).encode(),
        json.dumps([ROW | {"expires": "never"}]).encode(),
        json.dumps([ROW | {"expires": True}]).encode(),
        json.dumps([ROW | {"more": 1}]).encode(),
        b'[{"name": NaN}]',
    ],
)
def test_a_damaged_file_of_tokens_is_named(tmp_path: Path, content: bytes) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.path.write_bytes(content)
    tokens.path.chmod(0o600)
    with pytest.raises(HostError, match=r"tokens\.json is not a file of tokens"):
        tokens.rights("ugpu_x", 0.0)


def test_tokens_behind_a_link_or_of_another_user_are_not_believed(tmp_path: Path) -> None:
    tokens, real = Tokens(tmp_path / "tokens.json"), tmp_path / "real"
    real.write_text("[]")
    real.chmod(0o600)
    tokens.path.symlink_to(real)
    with pytest.raises(HostError, match="symbolic link"):
        tokens.rights("ugpu_x", 0.0)
    if os.geteuid() == 0:
        os.chown(real, NOBODY, NOBODY)
        real.rename(tokens.path)
        with pytest.raises(HostError, match="belongs to user 65534"):
            tokens.rights("ugpu_x", 0.0)


@pytest.mark.parametrize("token", ["\ud800", "a\x00b", "\u202e" * 100, "x" * 100_000, "\n"])
def test_any_text_is_a_wrong_token(tmp_path: Path, token: str) -> None:
    with pytest.raises(AccessDenied):
        Tokens(tmp_path / "tokens.json").rights(token, 0.0)


def test_a_change_of_the_file_is_seen_at_once(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state" / "tokens.json")
    secrets = [tokens.create(f"t{number}", "use", "*", 0.0) for number in range(20)]
    for number, secret in enumerate(secrets):
        assert tokens.rights(secret, 0.0).name == f"t{number}"
        Tokens(tokens.path).revoke(f"t{number}")
        with pytest.raises(AccessDenied, match="does not know this token"):
            tokens.rights(secret, 0.0)


# ---- the socket of another user ---------------------------------------------------------------


def test_a_client_refuses_a_socket_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ugpud.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        address.connect(Address(str(path))).close()
        monkeypatch.setattr(address, "credentials", lambda made: (7, NOBODY))
        with pytest.raises(UntrustedSocket, match=r"served by user 65534 \(pid 7\), expected root"):
            address.connect(Address(str(path)))
        monkeypatch.setattr(address, "credentials", lambda made: (7, 0))
        address.connect(Address(str(path))).close()


@as_root
def test_the_default_socket_of_another_user_does_not_hide_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ugpud.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert address._is_own(path)
        os.chown(path, NOBODY, NOBODY)
        assert not address._is_own(path) and not address._is_own(tmp_path / "nothing")
    with pytest.raises(DeviceNotFound, match="no ugpud is listening"):
        address.connect(Address(str(path)))


# ---- a chip that is handed out ----------------------------------------------------------------


def test_a_handout_uses_no_folder_that_was_there_first(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("lease-1", "lease-1-"):
        (tmp_path / name / "firmware").mkdir(parents=True)
        (tmp_path / name / "firmware" / "psp_13_0_0_sos.bin").symlink_to(victim)
    chip = chip_of("virtual:navi31", {})
    assert chip is not None
    handout = Handout(chip, tmp_path, "lease-1", os.geteuid())
    try:
        folder = handout.socket.parent
        assert folder.parent == tmp_path and mode_of(folder) == 0o700
        assert mode_of(handout.socket) == 0o600 and any(handout.firmware.iterdir())
        assert victim.read_text() == "precious"
    finally:
        handout.close()
        chip.close()
    assert not folder.exists()


def test_a_handed_out_chip_serves_its_holder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = chip_of("virtual:navi31", {})
    assert chip is not None
    monkeypatch.setattr(os, "chown", lambda *_, **__: None)
    handout = Handout(chip, tmp_path, "lease-1", NOBODY)
    try:
        monkeypatch.setattr(vfio, "credentials", lambda made: (7, NOBODY - 1))
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(handout.socket))
            assert other.recv(1) == b""
        assert handout._server.clients == 0
        monkeypatch.setattr(vfio, "credentials", lambda made: (7, NOBODY))
        with socket.socket(socket.AF_UNIX) as holder:
            holder.connect(str(handout.socket))
            until(lambda: handout._server.clients == 1, "the holder")
    finally:
        handout.close()
        chip.close()


# ---- the history -----------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = started(tmp_path)
    yield made
    made.close()


def locked(running: Running, how: str) -> sqlite3.Connection:
    """The history of a daemon, locked by another program."""
    database = sqlite3.connect(
        running.settings.state / "history.sqlite", isolation_level=None, check_same_thread=False
    )
    database.execute(how)
    database.execute("SELECT count(*) FROM incident").fetchall()
    return database


def test_a_reader_of_the_history_delays_no_quarantine(running: Running) -> None:
    with Raw(running.socket) as one:
        one.hello()
        assert one.call("quarantine", "cpu#0", "first")[0] == "reply"
        reader = locked(running, "BEGIN")
        assert one.call("quarantine", "cpu#1", "second")[0] == "reply"
        reader.close()
    found = CardHistory(Ledger(running.settings.state / "history.sqlite", TABLES)).quarantines()
    assert {name: each.reason for name, each in found.items()}.keys() == {"cpu#0", "cpu#1"}


@pytest.mark.slow
def test_a_locked_history_delays_nobody_and_is_written_later(running: Running) -> None:
    with Raw(running.socket) as one, Raw(running.socket) as other:
        one.hello()
        other.hello()
        assert one.call("quarantine", "cpu#0", "first")[0] == "reply"
        writer = locked(running, "BEGIN EXCLUSIVE")
        one.post("quarantine", "cpu#1", "second", call=99)
        until(lambda: running.daemon.owned[1].card.state is State.QUARANTINED, "the quarantine")
        assert other.call("devices")[0] == "reply"
        _, call, (kind, *_) = one.message()
        assert (call, kind) == (99, "HostError"), "it is said that it is not stored"
        writer.close()
    history = CardHistory(Ledger(running.settings.state / "history.sqlite", TABLES))
    running.daemon._note()
    until(lambda: "cpu#1" in history.quarantines(), "the stored quarantine")


def test_jumps_of_the_clock_make_no_times_negative_or_years_long(tmp_path: Path) -> None:
    wall, steady = [1e9], [0.0]
    history = CardHistory(
        Ledger(tmp_path / "h", TABLES), lambda: wall[0], "b", steady=lambda: steady[0]
    )
    wall[0] -= 86_400
    number = history.failed("a", "x")
    wall[0] -= 3600
    steady[0] += 5
    history.ended(number, "recovered", "reset")
    wall[0] += 10 * 365 * 86_400
    steady[0] += 95
    history.serve([("a", 3)])
    record = history.records()["a"]
    assert record.service_s == 95 and record.mttr_s == 5 and record.mtbf_s == 95
    assert history.may_reboot("a", "x", 3600) and not history.may_reboot("a", "x", 3600)
    wall[0] -= 5 * 365 * 86_400
    assert history.may_reboot("a", "x", 3600), "the last reboot is not in the future"
