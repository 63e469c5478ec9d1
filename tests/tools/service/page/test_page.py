"""The page of ugpud by its requests: who may do what, what is told, and bad input."""

from __future__ import annotations

import hashlib
import logging
import ssl
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from tests.support import waiting
from tests.support.pci.descriptors import leaked, settled
from tests.support.service.daemon import ROOT, recorded
from tests.support.service.page import Served
from ugpu.hcq.disk.bundle import Evidence, write
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    ChipError,
    DeviceLost,
    HostError,
    MissingDependency,
)
from ugpu.tools.base.events import FAILED, tell
from ugpu.tools.ci.report.history import History
from ugpu.tools.ci.verdict import Attempt, Judgement, Verdict
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import PageSettings, parse
from ugpu.tools.service.daemon.outlets.feed import Feed
from ugpu.tools.service.daemon.outlets.outlets import outlets
from ugpu.tools.service.page.server import HEADERS, SCRIPTS, STATIC, Page
from ugpu.tools.service.page.sessions import IDLE_S, Sessions

DEVICE = '[[device]]\nname = "cpu"\n'
DAEMON = logging.getLogger("ugpu.tools.service.daemon")


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = Served(Path(folder))
        yield found
        found.close()


@pytest.fixture(autouse=True)
def told() -> Iterator[None]:
    """Events of all levels, as ugpud has them."""
    DAEMON.setLevel(logging.INFO)
    yield
    DAEMON.setLevel(logging.NOTSET)


def state_of(served: Served, name: str) -> State:
    return next(each.card.state for each in served.daemon.owned if each.name == name)


def until(served: Served, name: str, wanted: State) -> None:
    with served.daemon._tick:
        while state_of(served, name) is not wanted:
            assert served.daemon._tick.wait(60)


# ---- who asks ----------------------------------------------------------------------------------


def test_logging_in_and_out(served: Served) -> None:
    assert served.ask("GET", "/api/state").status == 401
    wrong = served.ask("POST", "/api/session", {"token": "ugpu_wrong"})
    assert wrong.status == 403 and wrong.body["error"] == "AccessDenied"
    entered = served.ask("POST", "/api/session", {"token": served.token("observe")})
    assert entered.body == {"name": "observe-*", "role": "observe", "device": "*"}
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    session = cookie.partition(";")[0]
    assert served.ask("GET", "/api/state", Cookie=session).body["who"]["role"] == "observe"
    served.ask("DELETE", "/api/session", Cookie=session)
    assert served.ask("GET", "/api/state", Cookie=session).status == 401


def test_a_token_that_was_revoked_ends_its_sessions(served: Served) -> None:
    token = served.token("admin")
    entered = served.ask("POST", "/api/session", {"token": token})
    session = entered.headers["set-cookie"].partition(";")[0]
    with served.stream(token) as messages:
        assert next(messages)[0] in ("event", "state")
        served.daemon.tokens.revoke("admin-*")
        end = next(each for each in messages if each[0] == "end")
        assert end[2]["error"] == "AccessDenied"
    assert served.ask("GET", "/api/state", Cookie=session).status == 401


def test_sessions_end_when_nobody_uses_them() -> None:
    now = [0.0]
    sessions = Sessions(lambda token: Rights(token, "observe"), lambda: now[0])
    session, _ = sessions.open("one")
    now[0] = IDLE_S
    assert sessions.rights(session).name == "one"
    now[0] = 2 * IDLE_S + 1
    with pytest.raises(AccessDenied, match="not logged in"):
        sessions.rights(session)


@pytest.mark.parametrize("role", ["observe", "use"])
def test_who_is_no_admin_changes_nothing(served: Served, role: str) -> None:
    token = served.token(role)
    with served.running.lease("cpu#1") as lease:
        number = served.ask("GET", "/api/state", token=token).body["leases"][0]["lease"]
        for path in (
            "/api/cards/cpu%230/reset",
            "/api/cards/cpu%230/quarantine",
            "/api/cards/cpu%230/recover",
            f"/api/leases/{number}/release",
        ):
            assert served.ask("POST", path, {}, token).status == 403
        assert served.ask("GET", "/api/bundles/x", token=token).status == 403
        lease.synchronize()
    assert state_of(served, "cpu#0") is State.READY


def test_rights_for_some_devices_are_for_them_alone(served: Served) -> None:
    token = served.token("admin", "cpu#0")
    assert served.ask("POST", "/api/cards/cpu%231/reset", {}, token).status == 403
    assert served.ask("GET", "/api/cards/cpu%231", token=token).status == 403
    with served.running.lease("cpu#1"):
        number = served.ask("GET", "/api/state", token=token).body["leases"][0]["lease"]
        assert served.ask("POST", f"/api/leases/{number}/release", {}, token).status == 403
    cards = served.ask("GET", "/api/state", token=token).body["cards"]
    assert [card["name"] for card in cards] == ["cpu#0", "cpu#1"]
    assert cards[1]["telemetry"] is None


def test_forms_of_other_sites_are_refused(served: Served) -> None:
    token = served.token("admin")
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    for kind in kinds:
        headers = {"Content-Type": kind}
        answer = served.ask("POST", "/api/cards/cpu%230/reset", b"{}", token, **headers)
        assert answer.status == 400 and "application/json" in answer.body["message"]


# ---- what is told ------------------------------------------------------------------------------


def test_files_and_headers(served: Served) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
    ):
        answer = served.ask("GET", path)
        assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value
    assert served.ask("GET", "/../pyproject.toml").status == 404
    assert served.ask("GET", "/api/nothing").body["error"]
    page = served.ask("GET", "/").body.decode()
    assert "<script src=" in page and "onclick" not in page and "style=" not in page


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_made_from_its_source(name: str) -> None:
    source = ROOT / f"tools/service/page/web/{name}.ts"
    script = ROOT / f"tools/service/page/static/{name}.js"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert digest in script.read_text().partition("\n")[0], "run `make page`"


def test_every_source_is_served() -> None:
    sources = {path.stem for path in (ROOT / "tools/service/page/web").glob("*.ts")}
    assert sources == set(SCRIPTS) == {path.stem for path in STATIC.glob("*.js")}


COMPILER = ROOT / "build/npm/node_modules/.bin/tsc"


@pytest.mark.skipif(not COMPILER.exists(), reason="no TypeScript; `make page` installs it")
def test_the_compiler_makes_the_same_scripts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(COMPILER), "-p", str(ROOT / "tools/service/page/web"), "--outDir", folder]
        subprocess.run(command, check=True)
        for name in SCRIPTS:
            script = (STATIC / f"{name}.js").read_text().partition("\n")[2]
            assert Path(folder, f"{name}.js").read_text() == script


def test_a_card_as_a_whole(served: Served) -> None:
    found = served.ask("GET", "/api/cards/cpu%230", token=served.token("observe")).body
    assert found["telemetry"]["state"] == "ok" and found["facts"] and found["firmware"] is None
    missing = served.ask("GET", "/api/cards/cpu%239", token=served.token("use"))
    assert missing.status == 400 and "cpu#9" in missing.body["message"]


def test_the_history_of_plots_is_there_before_a_page_is_opened(served: Served) -> None:
    token = served.token("observe", "cpu#0")

    def history() -> Any:
        return served.ask("GET", "/api/history", token=token).body

    def now() -> Any:
        return served.ask("GET", "/api/state", token=token).body["cards"][0]

    waiting.until(lambda: history()["cpu#0"]["times"])
    body = history()
    assert list(body) == ["cpu#0"], "a token for one card is told of one card"
    waiting.until(lambda: now()["telemetry"])
    tenth_s = 0.1  # times of the history are rounded to it
    assert -tenth_s <= now()["telemetry"]["time"] - body["cpu#0"]["times"][0] < 600
    values = body["cpu#0"]["values"]
    assert values and all(len(each) == len(body["cpu#0"]["times"]) for each in values.values())
    assert served.ask("GET", "/api/history").status == 401


def test_a_stream_tells_events_and_states(served: Served) -> None:
    token = served.token("admin")
    with served.stream(token) as messages:
        next(each for each in messages if each[0] == "state")
        with served.running.lease("cpu#0"):
            found = next(each for each in messages if each[0] == "state" and each[2]["leases"])
            assert found[2]["leases"][0]["device"] == "cpu#0"
        served.ask("POST", "/api/cards/cpu%231/quarantine", {"reason": "smoke"}, token)
        event = next(each for each in messages if each[0] == "event")
        while event[2]["kind"] != "card.quarantined":
            event = next(each for each in messages if each[0] == "event")
        assert "smoke" in event[2]["text"] and event[2]["fields"]["operator"] == "admin-*"
    with served.stream(token, event[1]) as messages:
        assert next(messages)[0] == "state", "nothing is told twice"
    with served.stream(token, "0123-99") as messages:
        assert next(messages)[0] == "event", "the id is of another run"


def test_a_card_that_does_not_answer_delays_itself_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, go, stuck = served.token("observe"), threading.Event(), threading.Event()
    owned = served.daemon.owned[0]

    def telemetry() -> bytes:
        stuck.set()
        go.wait()
        raise ChipError("it did not answer")

    monkeypatch.setattr(owned, "telemetry", telemetry)
    try:
        with served.stream(token) as messages:
            states = (found for kind, _, found in messages if kind == "state")
            ages = (
                [
                    card["telemetry"]["age_s"] if card["telemetry"] else None
                    for card in found["cards"]
                ]
                for found in states
            )
            stays = ((old, new) for old, new in ages if new is not None)
            old, new = next(pair for pair in stays if pair[0] is None or pair[0] > pair[1] + 1)
        assert stuck.is_set() and new < 60 and (old is None or old > 1)
    finally:
        go.set()


def test_a_reader_that_does_not_read_delays_nobody(served: Served) -> None:
    token = served.token("observe")
    with served.stream(token), served.stream(token) as messages:
        for number in range(3000):  # of 2 KB: more than sockets hold
            tell(DAEMON, FAILED, f"{number} " + "x" * 2000, device="cpu#0")
        wanted = (each for each in messages if each[0] == "event")
        assert next(each for each in wanted if each[2]["text"].startswith("2999 "))


def test_streams_end_with_the_page_and_nothing_is_left() -> None:
    files = settled()
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = Served(Path(folder), count=1)
        with found.stream(found.token("use")) as messages:
            assert next(messages)
            found.close()
            assert list(messages) is not None
        found.page.close()
    names = [thread.name for thread in threading.enumerate() if "page" in thread.name]
    assert not names and not leaked(files)


def test_bundles(served: Served) -> None:
    folder = Path(served.running.settings.socket).parent / "crashes"
    folder.mkdir()
    (folder / "20260101T000000Z-x.crash.zip").write_bytes(b"no bundle")
    path = write(folder, "cpu#0", ChipError("it is stuck", unit="SMU"), Evidence())
    rows = served.ask("GET", "/api/bundles", token=served.token("observe")).body
    good = next(row for row in rows if row["device"] == "cpu#0")
    assert good["error"] == "ChipError" and "it is stuck" in good["message"]
    assert good["card"] == "cpu#0"
    assert next(row for row in rows if row is not good)["card"] == "", "no card of this daemon"
    assert next(row for row in rows if row is not good)["message"]
    admin = served.token("admin")
    answer = served.ask("GET", f"/api/bundles/{good['name']}", token=admin)
    assert path is not None and answer.body == path.read_bytes()
    assert answer.headers["content-disposition"] == f'attachment; filename="{path.name}"'
    for name in ("..%2Fstate%2Ftokens.json", "none.crash.zip", "%00"):
        assert served.ask("GET", f"/api/bundles/{name}", token=admin).status in (400, 404)


def test_verdicts() -> None:
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        path = Path(folder) / "ci.sqlite"
        found = Served(Path(folder), f'verdicts = "{path}"', count=1)
        token = found.token("observe")
        assert found.ask("GET", "/api/verdicts", token=token).body["recent"] == []
        attempts = [Attempt(("gpu-1",), "ChipError: x", True), Attempt(("gpu-2",))]
        judged = Judgement(Verdict.FLAKY, "passed on another device")
        History(path).add("run", "test_it", attempts, judged, 1.7e9)
        body = found.ask("GET", "/api/verdicts", token=token).body
        assert body["recent"][0]["verdict"] == "flaky"
        assert set(body["recent"][0]["devices"].split(",")) == {"gpu-1", "gpu-2"}
        assert body["weak"] == [{"name": "gpu-1", "runs": 1, "bad": 1}]
        found.close()


# ---- what an admin does ------------------------------------------------------------------------


def test_a_reset_quarantine_and_recovery(served: Served) -> None:
    token = served.token("admin")
    assert served.ask("POST", "/api/cards/cpu%230/reset", {}, token).status == 200
    until(served, "cpu#0", State.READY)
    answer = served.ask("POST", "/api/cards/cpu%230/quarantine", {"reason": "fan"}, token)
    assert answer.status == 200 and state_of(served, "cpu#0") is State.QUARANTINED
    refused = served.ask("POST", "/api/cards/cpu%230/reset", {}, token)
    assert refused.status == 409 and "quarantined" in refused.body["message"]
    assert refused.body["remedy"]
    assert served.ask("POST", "/api/cards/cpu%230/recover", {}, token).status == 200
    until(served, "cpu#0", State.READY)
    again = served.ask("POST", "/api/cards/cpu%230/recover", {}, token)
    assert again.status == 400 and "no quarantined device" in again.body["message"]
    assert served.ask("POST", "/api/cards/none/reset", {}, token).status == 400


def test_a_reset_that_fails_is_recovered_from(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned, proofs = served.daemon.owned[0], []

    def prove() -> None:
        proofs.append(1)
        if len(proofs) == 1:
            raise ChipError("the self-test fails")

    monkeypatch.setattr(owned, "prove", prove)
    served.ask("POST", "/api/cards/cpu%230/reset", {}, served.token("admin"))
    until(served, "cpu#0", State.READY)
    assert len(proofs) == 2
    recorded(served.daemon)
    assert served.daemon.history.records()["cpu#0"].failures == 1


def test_another_ones_lease_is_ended(served: Served) -> None:
    token = served.token("admin")
    with served.running.lease("cpu#0") as lease:
        number = served.ask("GET", "/api/state", token=token).body["leases"][0]["lease"]
        assert served.ask("POST", f"/api/leases/{number}/release", {}, token).status == 200
        with pytest.raises(DeviceLost, match="released by admin"):
            while True:
                lease.synchronize()
                lease.alloc(4096).close()
    until(served, "cpu#0", State.READY)
    for bad in (str(number), "x", "9" * 30, "-1"):
        assert served.ask("POST", f"/api/leases/{bad}/release", {}, token).status == 400


# ---- bad input ---------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[Served, str]]:
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = Served(Path(folder), count=1)
        yield found, found.token("admin")
        found.close()


@given(
    st.sampled_from(["reset", "quarantine", "recover", "release", "session"]),
    st.text(min_size=1, max_size=20),
    JSON,
)
@example("quarantine", "*", {"reason": 3})
@example("quarantine", "[c]pu", {"reason": ""})
@example("session", "", {"token": None})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_fails_the_daemon(
    kept: tuple[Served, str], what: str, name: str, body: Any
) -> None:
    served, token = kept
    quoted = urllib.request.quote(name, safe="")
    path = f"/api/{'leases' if what == 'release' else 'cards'}/{quoted}/{what}"
    answer = served.ask("POST", "/api/session" if what == "session" else path, body, token)
    assert answer.status in (400, 403, 404, 409) or name == "cpu"
    assert answer.body["message"] and "<" not in answer.headers["content-type"]


@given(st.binary(max_size=200))
@example(b"{" * 200)
@example(b'{"token": "' + b"x" * 5000 + b'"}')
@settings(max_examples=100, deadline=None)
def test_bodies_that_are_no_json(kept: tuple[Served, str], body: bytes) -> None:
    served, _ = kept
    assert served.ask("POST", "/api/session", body).status in (400, 403, 413)


@given(st.text(max_size=40))
@example("-")
@example("\N{ARABIC-INDIC DIGIT ONE}")
def test_ids_of_events(text: str) -> None:
    feed = Feed()
    assert feed.number_of(f"{feed.run}-{text}") == (
        int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
    )
    assert feed.number_of(text) == 0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('listen = "0.0.0.0:7848"', "a certificate and a key"),
        ('listen = "7848"', "an address and a port"),
        ('listen = "127.0.0.1:99999"', "an address and a port"),
        ('certificate = "a.pem"', "key: expected"),
        ('key = "a.pem"', "certificate: expected"),
        ("lisden = 1", "unknown key lisden"),
    ],
)
def test_a_configuration_that_cannot_be(text: str, match: str) -> None:
    with pytest.raises(BadArgument, match=match):
        parse(f"{DEVICE}[page]\n{text}\n")


def test_a_port_in_use_and_files_that_are_no_certificate(served: Served, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="free address and port"):
        Page(PageSettings("127.0.0.1", served.page.port), served.daemon)
    (tmp_path / "x").write_text("x")
    with pytest.raises(HostError, match="PEM"):
        Page(PageSettings("127.0.0.1", 0, tmp_path / "x", tmp_path / "x"), served.daemon)


def test_without_aiohttp_it_says_what_to_install(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    monkeypatch.delitem(__import__("sys").modules, "ugpu.tools.service.page.server", raising=False)
    with pytest.raises(MissingDependency, match=r"ugpu\[page\]"):
        list(outlets(served.running.settings, served.daemon))


def test_behind_tls(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    more = f'certificate = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"'
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        found = Served(Path(folder), more, count=1)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        body = f'{{"token": "{found.token("use")}"}}'.encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{found.page.address}api/session", body, headers)
        with urllib.request.urlopen(asked, context=context) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]
        found.close()
