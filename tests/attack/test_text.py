"""Text of clients and files: on terminals, in logs, in requests and configurations."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.service.daemon import started
from tests.support.service.raw_client import Raw
from ugpu import hcq
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.request import LeaseRequest, byte_count
from ugpu.hcq.state.log import Safe
from ugpu.hcq.state.text import is_plain, lines, one_line
from ugpu.tools import cli
from ugpu.tools.ci.report.page import Row, write
from ugpu.tools.service.daemon.clients.tokens import Tokens
from ugpu.tools.service.daemon.config import parse, read
from ugpu.tools.service.daemon.outlets.journal import JournalHandler
from ugpu.tools.service.daemon.outlets.later import Later

EVIL = "\x1b[2J\x1b]0;owned\x07\r\nlease 99: fake\u202e\u2028\ud800\x9b"


@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_is_harmless(text: str) -> None:
    shown = one_line(text)
    assert is_plain(shown) and one_line(shown) == shown
    shown.encode("utf-8")
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert lines(text).count("\n") == text.count("\n")


def test_plain_text_stays() -> None:
    for text in ("", "cpu#0", "Grafikkarte fünf, 日本語 🙂", "a b"):
        assert one_line(text) == lines(text) == text
    assert one_line("a\tb\nc") == "a\\x09b\\x0ac" and lines("a\tb\nc") == "a\tb\nc"
    assert one_line("\U000e0041") == "\\U000e0041"


def test_a_log_shows_no_line_of_others() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Safe("%(message)s"))
    handler.handle(logging.LogRecord("x", 20, "f", 1, "reason: %s", (EVIL,), None))
    shown = stream.getvalue()
    assert "\x1b" not in shown and "\nlease 99" not in shown and "\\x1b[2J" in shown


def test_the_journal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[bytes]()
    handler = JournalHandler()
    monkeypatch.setattr(handler, "_send", sent.append)
    handler.handle(logging.LogRecord("x", 20, "f", 1, "reason: %s", (EVIL,), None))
    handler.close()
    assert len(sent) == 1 and b"\x1b" not in sent[0] and b"\\x1b[2J" in sent[0]


def test_a_log_that_nobody_reads_makes_nobody_wait() -> None:
    entered, blocked, shown = threading.Event(), threading.Event(), list[str]()

    class Stopped(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            blocked.wait(60)
            shown.append(record.getMessage())

    later = Later(Stopped())
    later._records.maxsize = 100
    for number in range(300):
        later.handle(logging.LogRecord("x", 20, "f", 1, "line %d", (number,), None))
        entered.wait(60)
    assert later.lost == 199
    blocked.set()
    later.close()
    assert "line 0" in shown and any("were dropped" in each for each in shown)


def test_texts_of_clients_on_other_peoples_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = started(tmp_path, count=1)
    try:
        with Raw(running.socket) as one:
            one.hello()
            for pattern in ("[c\x1b]*", "*[!\x1b\x07\n]", "a\u202eb", ""):
                assert one.call("lease", {"device": pattern}) == ("error", "BadArgument")
            assert one.call("quarantine", "*", EVIL.replace("\ud800", ""))[0] == "reply"
            running.daemon.owned[0].card.labels = ("label\x1b[2J\nlease 98: fake",)
        assert cli.main(["lease", "ls", "--daemon", running.socket]) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown and "\nlease 9" not in shown and "\\x1b[2J" in shown
    finally:
        running.close()


def test_an_error_of_a_hostile_daemon_cannot_write_to_the_terminal() -> None:
    error = failures.from_wire("DeviceBusy", EVIL, {"holder": EVIL, "message": 1, "args": 2})
    assert "\x1b" not in str(error) and type(error).__name__ == "DeviceBusy"
    assert error.args == (str(error),)


def test_names_of_tokens_are_plain(tmp_path: Path) -> None:
    for name, device in ((EVIL, "*"), ("a", EVIL), ("x" * 200, "*")):
        with pytest.raises(BadArgument, match="without control characters"):
            Tokens(tmp_path / "tokens.json").create(name, "use", device, 0.0)


def test_the_page_of_ci_escapes_all_of_a_row(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    write(tmp_path / "p.html", [Row(evil, evil, 1.0, 'passed" onclick="x', evil, evil)])
    shown = (tmp_path / "p.html").read_text()
    assert "<script" not in shown and 'onclick="' not in shown


# ---- requests and configurations --------------------------------------------------------------


def test_sizes_of_a_request_on_the_wire(tmp_path: Path) -> None:
    assert LeaseRequest.from_map({"memory": "1M"}).memory == 1 << 20
    for size in ("9" * 400 + "G", "9" * 16 + "T", "", "\u0661M", "1e9", "8G\n\n8G", -1, 1 << 60):
        with pytest.raises(BadArgument, match="memory must be"):
            byte_count(size)
    running = started(tmp_path, count=1)
    try:
        with Raw(running.socket) as one:
            one.hello()
            sizes: list[object] = ["8X", "9" * 400 + "G", None, [], 1.5, -1]
            names: list[object] = [5, "", [], {}, "x" * 300]
            given = {"memory": sizes, "device": names, "kind": names}
            for key, values in given.items():
                for value in values:
                    assert one.call("lease", {key: value}) == ("error", "BadArgument")
            assert one.call("lease", {"device": "cpu", "memory": "1M"})[0] == "reply"
    finally:
        running.close()


CPU = '[[device]]\nname = "cpu"\n'


@pytest.mark.parametrize(
    "text",
    [
        "[lease]\nwaiters = " + "9" * 5000,
        "x = " + "[" * 100_000,
        '[otlp]\nendpoint = "http://["',
        '[otlp]\nendpoint = "http://127.0.0.1:port"',
        '[otlp]\nendpoint = "http://127.0.0.1:99999"',
        '[daemon]\nmessage = "' + "9" * 400 + 'G"',
        '[daemon]\nsocket = "a\\u0000b"',
        '[daemon]\nmode = "' + "7" * 5000 + '"',
        '[page]\nlisten = "127.0.0.1:' + "9" * 5000 + '"',
        "[page]\nnames = [1]",
        '"\\u001b[2J" = 1',
        "[lease]\nusual_s = nan",
    ],
)
def test_a_configuration_of_a_vandal_is_one_plain_error(text: str) -> None:
    with pytest.raises(BadArgument) as caught:
        parse(text + "\n" + CPU)
    assert is_plain(str(caught.value)) or "\n" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_configuration_that_is_no_text_or_too_long(tmp_path: Path) -> None:
    path = tmp_path / "ugpud.toml"
    for content, said in ((b"\xff\xfe", "not UTF-8"), (b"#" * (2 << 20), "more than 1048576")):
        path.write_bytes(content)
        with pytest.raises(BadArgument, match=said):
            read(path)


def test_sensors_of_cpu_beside_allocations() -> None:
    with hcq.open("cpu", threads=1) as gpu:
        wrong: list[BaseException] = []
        done = threading.Event()

        def allocate() -> None:
            while not done.is_set():
                with gpu.alloc(64) as buffer:
                    buffer.copy_from(np.zeros(64, np.uint8))

        def read_all() -> None:
            try:
                for _ in range(3000):
                    [sensor.read() for sensor in gpu.sensors()]
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=each) for each in (allocate, allocate, read_all)]
        for each in threads:
            each.start()
        threads[2].join()
        done.set()
        for each in threads:
            each.join()
        assert not wrong
