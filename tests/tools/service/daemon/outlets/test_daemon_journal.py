"""ugpud's log in systemd's journal: decoded by a receiver of the test's and by journald."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.service import journald
from tests.support.service.daemon import started
from ugpu.hcq.errors import BadArgument, HostError
from ugpu.hcq.state.log import configure, remove
from ugpu.tools.base import events
from ugpu.tools.base.events import KINDS, QUARANTINED, catalogue, tell
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.outlets.journal import JournalHandler, encoded, wanted

ROOT = Path(__file__).resolve().parents[5]
LARGE = 20 << 20  # bytes: more than a datagram, whatever the send buffer
log = logging.getLogger("ugpu.tools.service.daemon.test")


def decoded(data: bytes) -> dict[str, str]:
    """The fields of an entry, by the text of the Native Journal Protocol."""
    found: dict[str, str] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, data = rest[8 : 8 + size], rest[8 + size :]
            assert data[:1] == b"\n", "a value ends with a newline"
            data = data[1:]
        else:
            data = rest
        assert name.decode() not in found, f"two fields {name!r}"
        found[name.decode()] = value.decode()
    return found


class Receiver:
    """Takes datagrams and memfds as journald does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))

    def entry(self) -> dict[str, str]:
        data, handles, _, _ = socket.recv_fds(self._socket, 1 << 20, 1)
        if handles:
            assert not data
            with open(handles[0], "rb") as file:
                file.seek(0)
                data = file.read()
                with pytest.raises(OSError):
                    os.ftruncate(file.fileno(), 0)  # journald takes sealed ones alone
        return decoded(data)

    def entries(self) -> Iterator[dict[str, str]]:
        while True:
            try:
                yield self.entry()
            except BlockingIOError:
                return

    def close(self) -> None:
        self._socket.close()
        self.path.unlink()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "journal")
    yield made
    made.close()


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[JournalHandler]:
    made = JournalHandler(tmp_path / "journal")
    configure("info", handler=made)
    yield made
    remove(made)
    made.close()


def test_bytes_of_an_entry() -> None:
    entry = encoded({"PRIORITY": "3", "MESSAGE": "a\nb", "LAST": "ü"})
    assert entry == b"PRIORITY=3\nMESSAGE\n\x03\0\0\0\0\0\0\0a\nb\nLAST=\xc3\xbc\n"


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True), st.text(max_size=30)))
def test_what_is_encoded_is_decoded(fields: dict[str, str]) -> None:
    assert decoded(encoded(fields)) == fields


def test_an_event_and_a_line_arrive_with_their_fields(
    receiver: Receiver, handler: JournalHandler
) -> None:
    error = HostError("no room", remedy="delete something")
    tell(log, QUARANTINED, "a is quarantined", device="a", serial="", lease=7, error=error)
    entry = receiver.entry()
    assert entry["MESSAGE"] == "a is quarantined; remedy: delete something"
    assert entry["PRIORITY"] == "3" and entry["MESSAGE_ID"] == QUARANTINED.message_id
    assert {name: value for name, value in entry.items() if name.startswith("UGPU_")} == {
        "UGPU_EVENT": "card.quarantined",
        "UGPU_REMEDY": "delete something",
        "UGPU_DEVICE": "a",
        "UGPU_LEASE": "7",
        "UGPU_CLASS": "HostError",
        "UGPU_REASON": str(error),
    }
    assert entry["CODE_FILE"] == __file__ and entry["SYSLOG_IDENTIFIER"] == "ugpud"
    try:
        raise ValueError("planted")
    except ValueError:
        log.exception("two\nlines")
    entry = receiver.entry()
    assert entry["MESSAGE"].startswith("two\nlines\nTraceback") and "MESSAGE_ID" not in entry
    assert entry["MESSAGE"].endswith("ValueError: planted") and entry["PRIORITY"] == "3"
    log.debug("off")
    assert list(receiver.entries()) == []


def test_a_large_entry_goes_by_a_sealed_file(receiver: Receiver, handler: JournalHandler) -> None:
    tell(log, QUARANTINED, "x" * LARGE, device="a")
    entry = receiver.entry()
    assert entry["MESSAGE"].startswith("x" * LARGE) and entry["UGPU_DEVICE"] == "a"


def test_entries_that_journald_does_not_take_are_counted(
    tmp_path: Path, handler: JournalHandler
) -> None:
    log.info("nobody listens")
    log.info("still not")
    receiver = Receiver(tmp_path / "journal")
    log.info("first")
    lost, first = receiver.entries()
    assert lost["UGPU_EVENT"] == "journal.lost" and lost["UGPU_COUNT"] == "2"
    assert first["MESSAGE"] == "first"
    sent = 0
    while not handler.lost:  # until the receiver's queue is full: no call blocks
        log.info("entry %d", sent)
        sent += 1
    taken = list(receiver.entries())
    assert len(taken) == sent - 1
    log.info("last")
    assert [each["MESSAGE"] for each in receiver.entries()] == [
        "journald did not take 1 entries in time",
        "last",
    ]
    receiver.close()


def test_when_the_journal_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted("journal", {}) and not wanted("stderr", {"JOURNAL_STREAM": "1:2"})
    with (tmp_path / "stderr").open("w") as file:
        monkeypatch.setattr(sys, "__stderr__", file)
        found = os.fstat(file.fileno())
        assert wanted("auto", {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        assert not wanted("auto", {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not wanted("auto", {})
    with pytest.raises(BadArgument, match="one of auto, journal, stderr, got 'x'"):
        wanted("x", {})


def test_every_kind_is_in_the_catalogue_and_the_manual() -> None:
    assert len({kind.message_id for kind in KINDS}) == len({kind.name for kind in KINDS}) > 12
    assert all(len(bytes.fromhex(kind.message_id)) == 16 for kind in KINDS)
    shipped = ROOT / "tools/service/daemon/system/ugpud.catalog"
    assert shipped.read_text() == catalogue(), "python -m ugpu.tools.base.events writes it"
    manual = (ROOT / "docs/daemon.md").read_text()
    assert [kind.name for kind in KINDS if f"`{kind.name}`" not in manual] == []


def test_a_quarantine_of_a_daemon_arrives(
    tmp_path: Path, receiver: Receiver, handler: JournalHandler
) -> None:
    running = started(tmp_path, count=1)
    try:
        daemon: Daemon = running.daemon
        daemon.quarantine("*", "loose fan", Rights("anna", "admin"))
    finally:
        running.close()
    told = {each.get("UGPU_EVENT", ""): each for each in receiver.entries()}
    assert told["card.ready"]["UGPU_DEVICE"] == "cpu"
    bad = told["card.quarantined"]
    assert bad["UGPU_OPERATOR"] == "anna" and bad["UGPU_REASON"] == "loose fan (by anna)"
    assert "ugpu lease recover" in bad["UGPU_REMEDY"]


@pytest.mark.slow
def test_a_real_journal_reads_entries_back() -> None:
    if why := journald.missing():
        pytest.skip(why)
    program = f"""
        import logging
        from ugpu.hcq.errors import HostError
        from ugpu.hcq.state.log import configure
        from ugpu.tools.base.events import QUARANTINED, tell
        from ugpu.tools.service.daemon.outlets.journal import JournalHandler
        handler = JournalHandler(path)
        configure("info", handler=handler)
        log = logging.getLogger("ugpu.tools.service.daemon.test")
        error = HostError("no room", remedy="delete something")
        tell(log, QUARANTINED, "a is quarantined", device="a", error=error)
        tell(log, QUARANTINED, "b\\nis quarantined", device="b" * {1 << 20})
        assert not handler.lost
    """
    names = ("MESSAGE", "MESSAGE_ID", "UGPU_DEVICE", "UGPU_REMEDY", "UGPU_CLASS", "PRIORITY")
    ours = [
        entry
        for entry in journald.entries(program, ",".join(names))
        if entry.get("MESSAGE_ID") == events.QUARANTINED.message_id
    ]
    small, large = ours
    assert small["MESSAGE"] == "a is quarantined; remedy: delete something"
    assert small["UGPU_DEVICE"] == "a" and small["UGPU_CLASS"] == "HostError"
    assert small["UGPU_REMEDY"] == "delete something" and small["PRIORITY"] == "3"
    assert large["MESSAGE"].startswith("b\nis quarantined; remedy: ")


@pytest.mark.slow
def test_journalctl_takes_the_catalogue(tmp_path: Path) -> None:
    if why := journald.missing():
        pytest.skip(why)
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    (folder / "ugpud.catalog").write_text(catalogue())
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    root = ["journalctl", f"--root={tmp_path}"]
    subprocess.run([*root, "--update-catalog"], check=True, capture_output=True)
    done = subprocess.run([*root, "--list-catalog"], check=True, capture_output=True, text=True)
    for kind in KINDS:
        assert f"{kind.message_id} ugpud: {kind.name}: @UGPU_DEVICE@" in done.stdout
