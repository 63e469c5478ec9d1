"""The page as strangers and other sites meet it, and what one of its users can take from others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.service.page import Served
from tests.support.waiting import until
from ugpu.hcq.errors import AccessDenied, BadArgument
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import PageSettings
from ugpu.tools.service.page import api, gate, sessions
from ugpu.tools.service.page.origin import Origin
from ugpu.tools.service.page.sessions import Sessions


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, count=2)
    yield made
    made.close()


def raw(served: Served, data: bytes) -> bytes:
    """The answer to bytes, to the end of the connection."""
    with socket.create_connection(("127.0.0.1", served.page.port), 60) as made:
        made.sendall(data)
        found = b""
        while part := made.recv(65536):
            found += part
        return found


# ---- other sites -----------------------------------------------------------------------------


def test_other_names_and_origins_are_refused(served: Served) -> None:
    secret = served.token("admin")
    login = {"token": secret}
    port = served.page.port
    for host in ("evil.example", f"evil.example:{port}", "169.254.1.1", "localhost.evil.example"):
        assert served.ask("POST", "/api/session", login, Host=host).status == 403
        assert served.ask("GET", "/", Host=host).status in (400, 403)
        assert served.ask("GET", "/api/state", token=secret, Host=host).status == 200
    answer = served.ask("POST", "/api/session", login)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    reason = {"reason": "csrf"}
    for origin in (
        "http://evil.example",
        "null",
        f"http://localhost:{port + 1}",
        "http://127.0.0.1",
    ):
        found = served.ask(
            "POST", "/api/cards/cpu%230/quarantine", reason, Cookie=cookie, Origin=origin
        )
        assert found.status == 403, origin
    own = f"http://127.0.0.1:{port}"
    found = served.ask("POST", "/api/cards/cpu%230/quarantine", reason, Cookie=cookie, Origin=own)
    assert found.status == 200


def test_names_of_a_page() -> None:
    behind = Origin(PageSettings("127.0.0.1", 1, names=("gpu.example",)), False)
    assert behind.is_own("GPU.example:443") and behind.is_own("[::1]:7848")
    assert not behind.is_own("") and not behind.is_own("10.0.0.1") and not behind.is_own("[::1")
    public = Origin(PageSettings("0.0.0.0", 1), True)
    assert public.is_own("10.0.0.1:7848") and public.is_own(socket.gethostname())
    assert not public.is_own("evil.example")


@pytest.mark.parametrize(
    ("header", "body", "status"),
    [
        ({"Authorization": "Bearer \u00ff\u00fe"}, None, 401),
        ({"Authorization": "Bearer " + "x" * 4000}, None, 401),
        ({}, b'{"token":"\\ud800"}', 403),
        ({}, b'{"token":"\xff"}', 400),
        ({}, b'{"token":' + b"9" * 4000 + b"}", 400),
        ({}, b"[" * 4000, 400),
        ({"Content-Type": "application/json; charset=nope"}, b"{}", 400),
        ({"Content-Type": "application/json; charset=utf-7"}, b"{}", 400),
        ({"Content-Type": "application/json; charset=hex"}, b"{}", 400),
    ],
)
def test_bytes_that_are_no_text_are_a_clients_error(
    served: Served,
    header: dict[str, str],
    body: bytes | None,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    method, path = ("GET", "/api/state") if body is None else ("POST", "/api/session")
    assert served.ask(method, path, body, **header).status == status
    assert not [each for each in caplog.records if each.exc_info]


def test_no_stranger_fills_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"\0\1 / HTTP/1.1\r\n\r\n",
        b"GET /\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        assert b"400" in raw(served, data)[:20]
    assert not caplog.records


# ---- time and number -------------------------------------------------------------------------


def test_half_a_request_has_a_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HEAD_S", 0.2)
    monkeypatch.setattr(gate, "WHOLE_S", 0.2)
    assert raw_or_reset(served, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n") == b""
    assert raw_or_reset(served, b"") == b""
    body = b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    assert raw_or_reset(served, body + b"Content-Length: 100\r\n\r\n{") == b""


def raw_or_reset(served: Served, data: bytes) -> bytes:
    try:
        return raw(served, data)
    except ConnectionResetError:
        return b""


def test_silent_connections_make_room(served: Served) -> None:
    with ExitStack() as undo:
        for _ in range(300):
            undo.enter_context(socket.create_connection(("127.0.0.1", served.page.port), 60))
        assert served.ask("GET", "/api/state", token=served.token("observe")).status == 200


def test_one_token_takes_only_its_streams_and_log_ins(served: Served) -> None:
    greedy, other = served.token("observe"), served.token("use")
    with ExitStack() as undo:
        for _ in range(api.MOST_STREAMS):
            undo.enter_context(served.stream(greedy))
        assert served.ask("GET", "/api/stream", token=greedy).status == 409
        with served.stream(other) as messages:
            assert next(messages)[0] == "state"
        del messages  # it keeps the connection open
    until(lambda: not served.page._api._watchers, "the end of the streams")
    for _ in range(sessions.EACH + 1):
        assert served.ask("POST", "/api/session", {"token": greedy}).status == 200
    assert served.ask("POST", "/api/session", {"token": other}).status == 200


def test_the_oldest_log_in_of_the_same_token_ends() -> None:
    clock = [0.0]
    known = Sessions(lambda token: Rights(token, "observe"), lambda: clock[0])
    first, _ = known.open("other")
    mine = []
    for _ in range(sessions.EACH + 3):
        clock[0] += 1
        mine.append(known.open("greedy")[0])
    for session in mine[:3]:
        with pytest.raises(AccessDenied, match="not logged in"):
            known.rights(session)
    for session in (first, *mine[3:]):
        known.rights(session)


# ---- rights ----------------------------------------------------------------------------------


def test_a_bundle_of_another_device_is_neither_listed_nor_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ugpu.tools.service.page.fleet._manifest",
        lambda path: {"name": path.name, "device": "cpu#1"},
    )
    fleet = served.page._api.fleet
    monkeypatch.setattr(fleet, "_bundle_paths", lambda: [Path("one.zip")])
    here, there = Rights("a", "admin", "cpu#1"), Rights("b", "admin", "cpu#0")
    assert [each["name"] for each in fleet.bundles(here)] == ["one.zip"]
    assert fleet.bundles(there) == []
    with pytest.raises(AccessDenied, match="do not include cpu#1"):
        fleet.bundle("one.zip", there)
    with pytest.raises(BadArgument, match="cannot be read"):
        fleet.bundle("one.zip", here)


def test_a_revoked_token_ends_its_stream(served: Served) -> None:
    with served.stream(served.token("observe")) as messages:
        assert next(messages)[0] == "state"
        served.daemon.tokens.revoke("observe-*")
        assert [kind for kind, _, _ in messages][-1] == "end"
