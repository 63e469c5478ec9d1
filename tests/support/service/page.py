"""Ugpud's page in this process, and a plain client of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.service.daemon import Running, settings_text
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.page.server import Page


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Served:
    """A daemon with `cpu` devices, and its page at a free port."""

    def __init__(self, folder: Path, more: str = "", count: int = 2) -> None:
        text = settings_text(folder, ["cpu"], f'[page]\nlisten = "127.0.0.1:0"\n{more}', count)
        self.running = Running(parse(text))
        self.daemon = self.running.daemon
        assert self.running.settings.page is not None
        self.page = Page(self.running.settings.page, self.daemon, folder / "crashes")
        self.page.start()

    def token(self, role: str, device: str = "*") -> str:
        return self.daemon.tokens.create(f"{role}-{device}", role, device, 0.0)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.page.port, timeout=60)

    def ask(
        self, method: str, path: str, body: object = None, token: str = "", **headers: str
    ) -> Answer:
        """One request; body: JSON, or bytes as they are."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        content = None
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            raw = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            is_json = found.get("content-type", "").startswith("application/json")
            return Answer(answer.status, json.loads(raw) if is_json else raw, found)
        finally:
            connection.close()

    @contextmanager
    def stream(self, token: str, last: str = "") -> Iterator[Iterator[tuple[str, str, Any]]]:
        """The messages of a stream: kind, id, content."""
        connection = self.connect()
        headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last} if last else {})
        try:
            connection.request("GET", "/api/stream", None, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield _messages(answer)
        finally:
            connection.close()

    def close(self) -> None:
        self.page.close()
        self.running.close()


def _messages(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in answer:
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}
