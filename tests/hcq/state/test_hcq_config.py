"""Settings from an environment of our making, logging, and the event bus."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from pathlib import Path

import pytest

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state import log as ugpu_log
from ugpu.hcq.state.config import Config, from_environment
from ugpu.hcq.state.trace import Bus, Event, JsonLines


def test_an_empty_environment_gives_the_defaults() -> None:
    found = from_environment({})
    assert found == Config(
        cache_folder=Path("~/.cache/ugpu").expanduser(),
        crash_folder=Path("~/.local/state/ugpu/crashes").expanduser(),
        observe_folder=Path(tempfile.gettempdir()) / f"ugpu-observe-{os.geteuid()}",
    )


def test_every_setting() -> None:
    found = from_environment(
        {
            "UGPU_DEVICE": "cpu",
            "UGPU_FIRMWARE": "/a:/b/c",
            "UGPU_CACHE": "/tmp/x",
            "UGPU_LOG": "Debug",
            "UGPU_TRACE": "/tmp/trace",
            "UGPU_WAIT_LIMIT": "2.5",
            "UGPU_RECORD": "/tmp/record",
            "UGPU_CRASHES": "/tmp/crashes",
            "UGPU_OBSERVE": "/tmp/observe",
            "UGPU_DAEMON": "tls://gpu-1",
            "UGPU_DAEMON_CA": "ca.pem",
            "UGPU_DAEMON_TOKEN": "ugpu_1",
        }
    )
    assert found == Config(
        "cpu",
        (Path("/a"), Path("/b/c")),
        Path("/tmp/x"),
        "debug",
        Path("/tmp/trace"),
        2.5,
        record_file=Path("/tmp/record"),
        crash_folder=Path("/tmp/crashes"),
        observe_folder=Path("/tmp/observe"),
        daemon="tls://gpu-1",
        authority="ca.pem",
        token="ugpu_1",
    )
    assert from_environment({"UGPU_OBSERVE": "0"}).observe_folder is None
    runtime = from_environment({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert runtime.runtime_folder == Path("/run/user/7")
    assert runtime.observe_folder == Path("/run/user/7/ugpu-observe")
    assert from_environment({"UGPU_CRASHES": "0"}).crash_folder is None
    assert from_environment({"XDG_STATE_HOME": "/s"}).crash_folder == Path("/s/ugpu/crashes")
    assert from_environment({"XDG_CACHE_HOME": "/c"}).cache_folder == Path("/c/ugpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [("UGPU_LOG", "loud"), ("UGPU_WAIT_LIMIT", "soon"), ("UGPU_WAIT_LIMIT", "-1"),
     ("UGPU_WAIT_LIMIT", "nan"), ("UGPU_WAIT_LIMIT", "inf")],
)  # fmt: skip
def test_wrong_settings_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(BadArgument, match=name):
        from_environment({name: value})


def test_the_trace_level_and_its_lazy_dumps() -> None:
    written = io.StringIO()
    handler = ugpu_log.configure("trace", written)
    try:
        data = bytes(range(32, 80)) + bytes(300)
        logging.getLogger("ugpu.test").log(ugpu_log.TRACE, "sent %s", ugpu_log.HexDump(data, 48))
    finally:
        ugpu_log.remove(handler)
    text = written.getvalue()
    assert "TRACE   ugpu.test: sent 348 bytes" in text
    assert "000000  20212223 24252627 28292a2b 2c2d2e2f   !\"#$%&'()*+,-./" in text
    assert "... 300 more" in text


def test_a_dump_that_nobody_reads_is_not_made() -> None:
    class Untouchable(bytes):
        def __getitem__(self, key: object) -> object:
            raise AssertionError("the dump was made")

    quiet = logging.getLogger("ugpu.quiet")
    quiet.setLevel(logging.ERROR)
    quiet.debug("sent %s", ugpu_log.HexDump(Untouchable(b"abc")))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(BadArgument):
        ugpu_log.configure("loud")


def test_steps_tell_when_they_begin_and_end() -> None:
    bus = Bus()
    events: list[Event] = []
    with bus.subscribe(events.append):
        with bus.step("boot", chip="navi31") as boot:
            with bus.step("psp"):
                bus.point("mailbox", value=1)
            boot["result"] = "fine"
        with pytest.raises(KeyError), bus.step("fails"):
            raise KeyError("no")
    bus.point("not heard")
    told = [(event.name, event.phase, event.depth) for event in events]
    assert told == [
        ("boot", "begin", 0),
        ("psp", "begin", 1),
        ("mailbox", "point", 2),
        ("psp", "end", 1),
        ("boot", "end", 0),
        ("fails", "begin", 0),
        ("fails", "end", 0),
    ]
    end = events[4]
    assert end.arguments == {"chip": "navi31", "result": "fine"}
    assert end.duration_s is not None and end.duration_s >= 0 and end.error is None
    assert isinstance(events[-1].error, KeyError)


def test_with_nobody_listening_a_step_is_one_shared_object() -> None:
    bus = Bus()
    with bus.step("a") as one:
        one["x"] = 1
    with bus.step("b") as two:
        pass
    assert one is two and dict(two) == {}


def test_a_listener_that_fails_takes_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    heard: list[str] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken listener")

    with bus.subscribe(broken), bus.subscribe(lambda event: heard.append(event.name)):
        bus.point("one")
        bus.point("two")
    assert heard == ["one", "two"]
    assert "broken listener" in caplog.text


def test_events_as_lines_of_json(tmp_path: Path) -> None:
    bus = Bus()
    listener = JsonLines(tmp_path / "trace")
    with bus.subscribe(listener), pytest.raises(ValueError), bus.step("load", image=Path("a")):
        raise ValueError("cut off")
    listener.close()
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["begin", "end"]
    assert lines[0]["arguments"] == {"image": "a"}
    assert lines[1]["error"] == "ValueError: cut off"
